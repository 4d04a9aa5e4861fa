"""This module passes over the candidates of one prefix, for `smc.vocabulary.compiled`.

The score of token v is p(v) times a factor, that of its class or, for listed tokens, its own; all
of it is given as logarithms. The K best candidates are kept in a buffer, and what is pushed out of
it is added to the sum of the others then, so that nothing is subtracted.

Most terms of a sum are share(v) exp(a - top_a), with share(v) = exp(log p(v) - top) computed
beforehand, eight lanes at a time. Terms that this product cannot hold (`LOWEST_SHARE`,
`LOWEST_FACTOR`) are summed on their own scale. The oracles are the tensor forms in
`smc.vocabulary.tensors`, and plain sums over all tokens in tests/smc/test_selection.py.
"""

from __future__ import annotations

import math

import numpy as np

from gcd.support.compiled import helper, kernel
from smc.vocabulary.kernels.best import add_log, best_first

LANES = 8
LOWEST_SHARE = -80.0
"""Below it, exp in float32 loses digits."""
LOWEST_FACTOR = -500.0
"""exp(LOWEST_FACTOR + LOWEST_SHARE) is still a normal float64."""
MARGIN = 64


@helper
def _push(
    x: float,
    v: int,
    value: np.ndarray,
    token: np.ndarray,
    count: int,
    K: int,
    scale: np.ndarray,
    total: np.ndarray,
) -> int:
    """Put a candidate into the buffer; a full one is cut to the K best, the others summed up."""
    value[count], token[count] = x, v
    count += 1
    if count == value.size:
        best_first(value, token, count, K)
        for i in range(K, count):
            add_log(value[i], scale, total, np.int64(0))
        count = np.int64(K)
    return count


@helper
def _finish(
    value: np.ndarray,
    token: np.ndarray,
    count: int,
    K: int,
    scale: np.ndarray,
    total: np.ndarray,
    tokens: np.ndarray,
    log_score: np.ndarray,
) -> float:
    """Write the K best in falling order; return the log of the sum of all others."""
    if count > K:
        best_first(value, token, count, K)
        for i in range(K, count):
            add_log(value[i], scale, total, np.int64(0))
        count = np.int64(K)
    tokens[:], log_score[:] = 0, -np.inf
    for k, i in enumerate(np.argsort(-value[:count])):
        tokens[k], log_score[k] = token[i], value[i]
    return math.log(total[0]) + scale[0] if total[0] > 0 else -np.inf


@kernel(nogil=True)
def weigh_all(
    p: np.ndarray,
    share: np.ndarray,
    top: float,
    klass: np.ndarray,
    by_class: np.ndarray,
    listed: np.ndarray,
    by_token: np.ndarray,
    marked: np.ndarray,
    tokens: np.ndarray,
    log_score: np.ndarray,
) -> float:
    """Find the K best candidates, and return the log of the sum of the others.

    Args:
        p: log-probabilities.
        share: exp(p - top), right wherever p - top is at least `LOWEST_SHARE`.
        klass: class of each token, unsigned, which costs no check for negative indices.
        by_class: log factor of each class; -inf where its tokens are no candidates.
        listed, by_token: tokens that have a factor of their own, and these; a token may be listed
            twice.
        marked: one False for each token; the same when the function returns.
        tokens, log_score: where the K best go.
    """
    K = np.int64(tokens.size)
    value, token = np.empty(2 * K + MARGIN), np.empty(2 * K + MARGIN, np.int64)
    scale, total = np.full(1, -np.inf), np.zeros(1)
    mass = np.zeros(LANES)
    greatest = by_class.max() if by_class.size else -np.inf
    factor = np.zeros(by_class.size)
    if greatest > -np.inf:
        for c in range(by_class.size):
            if by_class[c] >= greatest + LOWEST_FACTOR:
                factor[c] = math.exp(by_class[c] - greatest)
    least, count = -np.inf, np.int64(0)
    for v in listed:
        marked[v] = True
    for v in range(p.size):
        c = klass[v]
        a = by_class[c]
        if a == -np.inf or marked[v]:
            continue
        x = p[v] + a
        if x > least:
            count = _push(x, v, value, token, count, K, scale, total)
            if count == K:
                least = value[:K].min()
        elif factor[c] > 0 and p[v] >= top + LOWEST_SHARE:
            mass[v % LANES] += share[v] * factor[c]
        else:
            add_log(x, scale, total, np.int64(0))
    for k, v in enumerate(listed):
        if marked[v]:
            marked[v] = False
            if p[v] + by_token[k] > -np.inf:
                count = _push(p[v] + by_token[k], v, value, token, count, K, scale, total)
    if mass.sum() > 0:
        add_log(math.log(mass.sum()) + top + greatest, scale, total, np.int64(0))
    return _finish(value, token, count, K, scale, total, tokens, log_score)


@kernel(nogil=True)
def weigh_few(
    p: np.ndarray,
    klass: np.ndarray,
    by_class: np.ndarray,
    listed: np.ndarray,
    by_token: np.ndarray,
    by_order: np.ndarray,
    start: np.ndarray,
    marked: np.ndarray,
    tokens: np.ndarray,
    log_score: np.ndarray,
) -> float:
    """Do as `weigh_all` where candidates are few: look these up, and read nothing else.

    `by_order` has the tokens class after class; those of class c begin at `start[c]`.
    """
    K = np.int64(tokens.size)
    value, token = np.empty(2 * K + MARGIN), np.empty(2 * K + MARGIN, np.int64)
    scale, total = np.full(1, -np.inf), np.zeros(1)
    count = np.int64(0)
    for v in listed:
        marked[v] = True
    for c in range(by_class.size):
        if by_class[c] > -np.inf:
            for v in by_order[start[c] : start[c + 1]]:
                if not marked[v] and p[v] > -np.inf:
                    x = p[v] + by_class[c]
                    count = _push(x, np.int64(v), value, token, count, K, scale, total)
    for k, v in enumerate(listed):
        if marked[v]:
            marked[v] = False
            if p[v] + by_token[k] > -np.inf:
                count = _push(p[v] + by_token[k], v, value, token, count, K, scale, total)
    return _finish(value, token, count, K, scale, total, tokens, log_score)


@kernel(nogil=True)
def locate(
    p: np.ndarray,
    share: np.ndarray,
    top: float,
    klass: np.ndarray,
    by_class: np.ndarray,
    listed: np.ndarray,
    by_token: np.ndarray,
    hidden: np.ndarray,
    log_c: float,
    targets: np.ndarray,
    found: np.ndarray,
) -> None:
    """Invert the cumulative inclusion probabilities at each target.

    Args:
        p, klass, by_class, listed, by_token: as in `weigh_all`.
        share, top: also; with top = -inf, `share` is not read.
        hidden: tokens that take no part.
        log_c: log of the score for which pi is one.
        targets: in rising order.
        found: where the tokens go; -1 where rounding leaves none.
    """
    factor = np.zeros(by_class.size)
    if top > -np.inf:
        for c in range(by_class.size):
            log_factor = by_class[c] + top - log_c
            if LOWEST_FACTOR < log_factor < -LOWEST_FACTOR:
                factor[c] = math.exp(log_factor)
    # Listed tokens are rare: where one is, its own factor is searched for.
    own = np.full(hidden.size, np.int32(-1)) if listed.size else np.full(0, np.int32(-1))
    for k in range(listed.size):
        own[listed[k]] = k
    running, t = 0.0, 0
    last = np.int64(-1)
    for v in range(p.size):
        c = klass[v]
        a = by_class[c]
        k = own[v] if listed.size else -1
        if k >= 0:
            a = by_token[k]
        if a == -np.inf or hidden[v] or p[v] == -np.inf:
            continue
        if k < 0 and factor[c] > 0 and p[v] >= top + LOWEST_SHARE:
            pi = share[v] * factor[c]
        else:
            pi = math.exp(min(p[v] + a - log_c, 0.0))
        if pi > 0:
            running += pi
            last = v
            if running > targets[t]:
                found[t] = v
                t += 1
                if t == targets.size:
                    return
    for rest in range(t, targets.size):
        found[rest] = -1
    if last >= 0 and (t == 0 or found[t - 1] != last):
        found[t] = last

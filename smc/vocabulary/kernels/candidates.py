"""These loops pass over the tokens of one prefix: the K best, what is left of each class, points.

The score of token v is p(v) times a factor, that of its class or, for listed tokens, its own; all
of it is given as logarithms. Every candidate either is one of the K best, or adds its score to its
class. Candidates for the K are kept in a buffer, and what is pushed out of it is added then, so
that nothing is subtracted.

Scores are summed as shares exp(log p - top), computed beforehand eight lanes at a time, with top
the largest log p. What is too small for that (`lowest`) is summed on its own scale, class by class:
a lookahead may leave nothing else to go on with. The oracles are the tensor forms in
`smc.vocabulary.tensors` and `smc.vocabulary.class_mass`, and plain sums in tests/smc/test_tying.py
and tests/smc/test_selection.py.
"""

from __future__ import annotations

import math

import numpy as np

from gcd.support.compiled import helper, kernel

LANES = 8
"""Partial sums of each class, so that an addition need not wait for the one before."""
LOWEST_SHARE = -80.0
"""Below it, exp in float32 loses digits."""
LOWEST_FACTOR = -500.0
"""Times the least share, it is far from the least number of float64."""
MARGIN = 64


@helper
def add_log(log_x: float, scale: np.ndarray, total: np.ndarray, c: int) -> None:
    """Adds a number, given by its logarithm, to total[c] exp(scale[c])."""
    if log_x > scale[c]:
        total[c] *= math.exp(scale[c] - log_x)
        scale[c] = log_x
    if log_x > -np.inf:
        total[c] += math.exp(log_x - scale[c])


@helper
def best_first(value: np.ndarray, token: np.ndarray, count: int, K: int) -> None:
    """Moves the K greatest of the first `count` values to the front (Hoare's selection)."""
    low, high = 0, count - 1
    while low < high:
        a, b, c = value[low], value[(low + high) // 2], value[high]
        pivot = max(min(a, b), min(max(a, b), c))
        i, j = low, high
        while i <= j:
            while value[i] > pivot:
                i += 1
            while value[j] < pivot:
                j -= 1
            if i <= j:
                value[i], value[j] = value[j], value[i]
                token[i], token[j] = token[j], token[i]
                i += 1
                j -= 1
        if j >= K - 1:
            high = j
        elif i <= K - 1:
            low = i
        else:
            break


@helper
def _push(
    x: float,
    v: int,
    value: np.ndarray,
    token: np.ndarray,
    count: int,
    K: int,
    klass: np.ndarray,
    scale: np.ndarray,
    total: np.ndarray,
) -> int:
    """Puts a candidate into the buffer; a full one is cut to the K best, the others are summed."""
    value[count], token[count] = x, v
    count += 1
    if count == value.size:
        count = _cut(value, token, count, K, klass, scale, total)
    return count


@helper
def _cut(
    value: np.ndarray,
    token: np.ndarray,
    count: int,
    K: int,
    klass: np.ndarray,
    scale: np.ndarray,
    total: np.ndarray,
) -> int:
    """Moves the K best candidates to the front; adds the others to their classes."""
    best_first(value, token, count, K)
    for i in range(K, count):
        add_log(value[i], scale, total, klass[token[i]])
    return np.int64(K)


@helper
def _push_listed(
    p: np.ndarray,
    listed: np.ndarray,
    by_token: np.ndarray,
    marked: np.ndarray,
    value: np.ndarray,
    token: np.ndarray,
    count: int,
    K: int,
    klass: np.ndarray,
    scale: np.ndarray,
    total: np.ndarray,
) -> int:
    """Does so with the listed tokens, each once, and takes their marks away."""
    for k, v in enumerate(listed):
        if marked[v]:
            marked[v] = False
            x = p[v] + by_token[k]
            if x > -np.inf:
                if K > 0:
                    count = _push(x, v, value, token, count, K, klass, scale, total)
                else:
                    add_log(x, scale, total, klass[v])
    return count


@helper
def _write(
    value: np.ndarray,
    token: np.ndarray,
    count: int,
    klass: np.ndarray,
    scale: np.ndarray,
    total: np.ndarray,
    tokens: np.ndarray,
    best: np.ndarray,
    log_mass: np.ndarray,
) -> None:
    """Writes the best in falling order, to end in token 0 at -inf, and the mass of each class."""
    K = np.int64(tokens.size)
    if count > K:
        count = _cut(value, token, count, K, klass, scale, total)
    tokens[:], best[:] = 0, -np.inf
    for k, i in enumerate(np.argsort(-value[:count])):
        tokens[k], best[k] = token[i], value[i]
    for c in range(log_mass.size):
        log_mass[c] = math.log(total[c]) + scale[c] if total[c] > 0 else -np.inf


@kernel(nogil=True)
def weigh_all(
    p: np.ndarray,
    share: np.ndarray,
    top: float,
    lowest: float,
    klass: np.ndarray,
    by_class: np.ndarray,
    listed: np.ndarray,
    by_token: np.ndarray,
    marked: np.ndarray,
    tokens: np.ndarray,
    best: np.ndarray,
    log_mass: np.ndarray,
) -> None:
    """Finds the K best candidates, and the sum of the scores of each class without them.

    Args:
        p: log-probabilities.
        share: exp(p - top), right wherever p - top is at least `lowest`.
        klass: class of each token, unsigned, which costs no check for negative indices.
        by_class: log factor of each class; -inf where its tokens are no candidates.
        listed, by_token: tokens that have a factor of their own, and these; a token may be listed
            twice.
        marked: one False for each token; the same when the function returns.
        tokens, best, log_mass: where the results go; K may be zero.
    """
    K, C = np.int64(tokens.size), by_class.size
    value, token = np.empty(2 * K + MARGIN), np.empty(2 * K + MARGIN, np.int64)
    scale, total = np.full(C, -np.inf), np.zeros(C)
    mass = np.zeros((LANES, C))
    least, count = -np.inf if K > 0 else np.inf, np.int64(0)
    for v in listed:
        marked[v] = True
    for v in range(p.size):
        c = klass[v]
        a = by_class[c]
        if a == -np.inf or marked[v]:
            continue
        x = p[v] + a
        if x > least:
            count = _push(x, v, value, token, count, K, klass, scale, total)
            if count == K:
                least = value[:K].min()
        elif p[v] >= top + lowest:
            mass[v % LANES, c] += share[v]
        else:
            add_log(x, scale, total, c)
    count = _push_listed(p, listed, by_token, marked, value, token, count, K, klass, scale, total)
    for lane in range(1, LANES):
        mass[0] += mass[lane]
    for c in range(C):
        if mass[0, c] > 0:
            add_log(math.log(mass[0, c]) + top + by_class[c], scale, total, c)
    _write(value, token, count, klass, scale, total, tokens, best, log_mass)


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
    best: np.ndarray,
    log_mass: np.ndarray,
) -> None:
    """Does as `weigh_all` where candidates are few: looks these up, and reads nothing else.

    `by_order` has the tokens class after class; those of class c begin at `start[c]`.
    """
    K, C = np.int64(tokens.size), by_class.size
    value, token = np.empty(2 * K + MARGIN), np.empty(2 * K + MARGIN, np.int64)
    scale, total = np.full(C, -np.inf), np.zeros(C)
    count = np.int64(0)
    for v in listed:
        marked[v] = True
    for c in range(C):
        if by_class[c] > -np.inf:
            for v in by_order[start[c] : start[c + 1]]:
                x = p[v] + by_class[c]
                if marked[v] or x == -np.inf:
                    continue
                if K > 0:
                    count = _push(x, np.int64(v), value, token, count, K, klass, scale, total)
                else:
                    add_log(x, scale, total, c)
    count = _push_listed(p, listed, by_token, marked, value, token, count, K, klass, scale, total)
    _write(value, token, count, klass, scale, total, tokens, best, log_mass)


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
    """Finds the tokens in whose stretch of the running sum of pi the targets lie.

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


@kernel(nogil=True)
def tilt(
    first: int,
    last: int,
    log_p: np.ndarray,
    class_of: np.ndarray,
    automaton: np.ndarray,
    by_class: np.ndarray,
    tokens: np.ndarray,
    by_token: np.ndarray,
    out: np.ndarray,
) -> None:
    """Adds log g to log p: that of the token's class, or its own for those that are listed."""
    for row in range(first, last):
        klass, g = class_of[automaton[row]], by_class[row]
        for v in range(log_p.shape[1]):
            out[row, v] = log_p[row, v] + g[klass[v]]
        for k in range(tokens.shape[1]):
            out[row, tokens[row, k]] = log_p[row, tokens[row, k]] + by_token[row, k]

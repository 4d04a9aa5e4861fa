"""This module passes over the log-probabilities of one prefix, for `smc.vocabulary.class_mass`.

Every allowed token either is one of the K most probable, or adds its probability to its class. The
candidates for the K are kept in a buffer; those that are pushed out of it are added to their class
then, so that no class has mass that must be taken off it again.

Probabilities come as exp(log p - top), with top the largest log p, and are summed in float64. What
is too small for that (`lowest`) is summed on its own scale, class by class: a lookahead may leave
nothing else to go on with. The oracle is `plain` in tests/smc/test_tying.py.
"""

from __future__ import annotations

import math

import numpy as np

from gcd.support.compiled import helper, kernel
from smc.vocabulary.kernels.best import add_log, best_first

LANES = 8
"""Partial sums of each class, so that an addition need not wait for the one before."""


@helper
def _put_back(
    value: np.ndarray,
    token: np.ndarray,
    count: int,
    K: int,
    klass: np.ndarray,
    scale: np.ndarray,
    total: np.ndarray,
) -> None:
    """Move the K best candidates to the front; add the others to their classes."""
    best_first(value, token, count, K)
    for i in range(K, count):
        add_log(value[i], scale, total, klass[token[i]])


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
) -> None:
    """Write the best candidates in falling order; the list ends in token 0 at -inf."""
    K = tokens.size
    if count > K:
        _put_back(value, token, count, K, klass, scale, total)
        count = K
    tokens[:], best[:] = 0, -np.inf
    for k, i in enumerate(np.argsort(-value[:count])):
        tokens[k], best[k] = token[i], value[i]


@kernel(nogil=True)
def weigh_all(
    p: np.ndarray,
    share: np.ndarray,
    top: float,
    lowest: float,
    klass: np.ndarray,
    alive: np.ndarray,
    tokens: np.ndarray,
    best: np.ndarray,
    log_mass: np.ndarray,
) -> None:
    """Find the K best tokens of the classes alive, and the mass of each class without them.

    Args:
        p: log-probabilities.
        share: exp(p - top), right wherever p - top is at least `lowest`.
        klass: class of each token, unsigned, which costs no check for negative indices.
        tokens, best, log_mass: where the results go.
    """
    K, C = tokens.size, alive.size
    value, token = np.empty(2 * K + 64), np.empty(2 * K + 64, np.int64)
    scale, total = np.full(C, -np.inf), np.zeros(C)
    mass = np.zeros((LANES, C))
    least, count = -np.inf if K > 0 else np.inf, np.int64(0)
    for v in range(p.size):
        x, c = p[v], klass[v]
        if x > least and alive[c]:
            value[count], token[count] = x, v
            count += 1
            if count == value.size:
                _put_back(value, token, count, K, klass, scale, total)
                count, least = K, value[:K].min()
        elif x >= top + lowest:
            mass[v % LANES, c] += share[v]
        elif alive[c]:
            add_log(x, scale, total, c)
    _write(value, token, count, klass, scale, total, tokens, best)
    for lane in range(1, LANES):
        mass[0] += mass[lane]
    for c in range(C):
        log_mass[c] = -np.inf
        if alive[c]:
            if mass[0, c] > 0:
                add_log(math.log(mass[0, c]) + top, scale, total, c)
            if total[c] > 0:
                log_mass[c] = math.log(total[c]) + scale[c]


@kernel(nogil=True)
def weigh_few(
    p: np.ndarray,
    klass: np.ndarray,
    alive: np.ndarray,
    listed: np.ndarray,
    start: np.ndarray,
    tokens: np.ndarray,
    best: np.ndarray,
    log_mass: np.ndarray,
) -> None:
    """Do as `weigh_all` where few tokens are allowed: look these up, and read nothing else.

    `listed` has the tokens class after class; those of class c begin at `start[c]`.
    """
    K, C = tokens.size, alive.size
    value, token = np.empty(2 * K + 64), np.empty(2 * K + 64, np.int64)
    scale, total = np.full(C, -np.inf), np.zeros(C)
    least, count = -np.inf if K > 0 else np.inf, np.int64(0)
    for c in range(C):
        if not alive[c]:
            continue
        for v in listed[start[c] : start[c + 1]]:
            if p[v] > least:
                value[count], token[count] = p[v], v
                count += 1
                if count == value.size:
                    _put_back(value, token, count, K, klass, scale, total)
                    count, least = K, value[:K].min()
            else:
                add_log(p[v], scale, total, c)
    _write(value, token, count, klass, scale, total, tokens, best)
    for c in range(C):
        log_mass[c] = math.log(total[c]) + scale[c] if total[c] > 0 else -np.inf


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
    """Add log g to log p: that of the token's class, or its own for those that are listed."""
    for row in range(first, last):
        klass, g = class_of[automaton[row]], by_class[row]
        for v in range(log_p.shape[1]):
            out[row, v] = log_p[row, v] + g[klass[v]]
        for k in range(tokens.shape[1]):
            out[row, tokens[row, k]] = log_p[row, tokens[row, k]] + by_token[row, k]

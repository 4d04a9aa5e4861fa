"""This module sums a row of next tokens by blocks, and finds one of them; see
`smc.vocabulary.compiled`.

Token v of class c weighs exp(x[v] + g[c] - scale), or with its own g where it has one. The oracle
is `smc.vocabulary.tensors.draws`.
"""

from __future__ import annotations

import math

import numpy as np

from gcd.support.compiled import helper, kernel

BLOCK = 512
"""Tokens of a block: a row of 128 000 has 250, and the one that is drawn from fits a cache."""


@helper
def _log_g(
    v: int,
    klass: np.ndarray,
    by_class: np.ndarray,
    tokens: np.ndarray,
    by_token: np.ndarray,
    marked: np.ndarray,
) -> float:
    """Return log g of one token."""
    if marked[v]:
        for k in range(tokens.size):
            if tokens[k] == v:
                return by_token[k]
    return by_class[klass[v]]


@kernel(nogil=True)
def block_sums(
    x: np.ndarray,
    share: np.ndarray,
    top: float,
    klass: np.ndarray,
    by_class: np.ndarray,
    tokens: np.ndarray,
    by_token: np.ndarray,
    marked: np.ndarray,
    least: float,
    sums: np.ndarray,
) -> float:
    """Sum up one row.

    Args:
        x: log-probabilities, to an added constant.
        share: exp(x - top), with top the largest x.
        klass: class of each token, unsigned.
        by_class: log g of each class.
        tokens, by_token: tokens with their own log g.
        marked: scratch, False for every token, and so again afterwards.
        least: relative threshold of the sum below which exponentials are recomputed, as shares have
            lost precision.
        sums: where the sums of blocks go.

    Returns:
        The scale of the sums.
    """
    V, most = x.size, -np.inf
    for g in by_class:
        most = max(most, g)
    for k in range(tokens.size):
        marked[tokens[k]] = True
        most = max(most, by_token[k])
    scale = top + most
    weight = np.zeros(by_class.size)
    if most > -np.inf:
        for c in range(weight.size):
            weight[c] = math.exp(by_class[c] - most)
    total = 0.0
    for b in range(sums.size):
        some = 0.0
        for v in range(b * BLOCK, min(V, (b + 1) * BLOCK)):
            if marked[v] and most > -np.inf:
                g = _log_g(v, klass, by_class, tokens, by_token, marked)
                some += share[v] * math.exp(g - most)
            else:
                some += share[v] * weight[klass[v]]
        sums[b] = some
        total += some
    if total < least and most > -np.inf:
        scale = -np.inf
        for v in range(V):
            scale = max(scale, x[v] + _log_g(v, klass, by_class, tokens, by_token, marked))
        for b in range(sums.size):
            sums[b] = 0.0
        if scale > -np.inf:
            for v in range(V):
                y = x[v] + _log_g(v, klass, by_class, tokens, by_token, marked)
                if y > -np.inf:
                    sums[v // BLOCK] += math.exp(y - scale)
    for k in range(tokens.size):
        marked[tokens[k]] = False
    return scale


@kernel(nogil=True)
def draw_token(
    x: np.ndarray,
    klass: np.ndarray,
    by_class: np.ndarray,
    tokens: np.ndarray,
    by_token: np.ndarray,
    marked: np.ndarray,
    scale: float,
    sums: np.ndarray,
    u: float,
) -> int:
    """Find the token at u times the total in the running sum of weights; 0 if none has any.

    Should rounding lead past the last token of a block that has weight, it is that one.
    """
    total, last = 0.0, np.int64(-1)
    for b in range(sums.size):
        total += sums[b]
        if sums[b] > 0:
            last = b
    if last < 0:
        return np.int64(0)
    point, block = u * total, np.int64(0)
    while block < last and (sums[block] <= point):
        point -= sums[block]
        block += 1
    for k in range(tokens.size):
        marked[tokens[k]] = True
    found, running = np.int64(0), 0.0
    for v in range(block * BLOCK, min(x.size, (block + 1) * BLOCK)):
        y = x[v] + _log_g(v, klass, by_class, tokens, by_token, marked)
        if y > -np.inf:
            running += math.exp(y - scale)
            found = v
            if running > point:
                break
    for k in range(tokens.size):
        marked[tokens[k]] = False
    return found

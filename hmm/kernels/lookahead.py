"""This module sums predicted · emission, and predicted · emission · beta, over hidden states."""

from __future__ import annotations

import math

import numpy as np

from gcd.support.compiled import helper, kernel
from gcd.tokens.kernels.token_graph import fits


@helper(fastmath={"contract", "reassoc", "nsz"})
def _dots(p: np.ndarray, e: np.ndarray, b: np.ndarray) -> tuple[float, float]:
    """Return sum p e b and sum p e, in parallel partial sums of the arrays' type."""
    mass = p[0] * e[0]
    joint = mass * b[0]
    for h in range(1, p.size):
        both = p[h] * e[h]
        mass += both
        joint += both * b[h]
    return joint, mass


@kernel(nogil=True)
def expect(
    first: int,
    last: int,
    states: np.ndarray,
    remaining: np.ndarray,
    symbol: np.ndarray,
    item: np.ndarray,
    predicted: np.ndarray,
    emission: np.ndarray,
    num_classes: np.ndarray,
    first_state: np.ndarray,
    row_start: np.ndarray,
    delta: np.ndarray,
    steps_after: np.ndarray,
    number: np.ndarray,
    entry: np.ndarray,
    settled: bool,
    b: np.ndarray,
    log_scale: np.ndarray,
    log_joint: np.ndarray,
    log_mass: np.ndarray,
    missing: np.ndarray,
) -> None:
    """Compute what is expected of some items of each row: its classes, or some of its tokens.

    An item is a class of tokens, which says where it leads to (`symbol`), and a row of `emission`,
    which says how probable it is (`item`). `num_classes` and `first_state` are those of each row's
    automaton, from which `delta` counts; `missing` tells rows with an item alive of which the table
    knows nothing.
    """
    levels = entry.shape[0]
    for row in range(first, last):
        s, r, p = states[row], remaining[row], predicted[row]
        level = min(max(r - 1, 0), levels - 1)
        known = settled or r <= levels
        for k in range(symbol.shape[1]):
            log_joint[row, k], log_mass[row, k] = -np.inf, -np.inf
            if s < 0 or symbol[row, k] >= num_classes[row]:
                continue
            at = row_start[s] + symbol[row, k]
            target = delta[at]
            if target < 0 or not fits(steps_after[at], r):
                continue
            e = entry[level, number[first_state[row] + target]]
            if e < 0 or not known:
                missing[row] = True
                continue
            joint, mass = _dots(p, emission[item[row, k]], b[e])
            if joint > 0:
                log_joint[row, k] = math.log(joint) + log_scale[e]
            if mass > 0:
                log_mass[row, k] = math.log(mass)

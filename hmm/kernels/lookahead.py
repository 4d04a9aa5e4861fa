"""Compiled sums over hidden states: of predicted · emission, and of predicted · emission · beta."""

from __future__ import annotations

import numba
import numpy as np


@numba.njit(cache=True, fastmath={"contract", "reassoc", "nsz"})
def _dots(p: np.ndarray, e: np.ndarray, b: np.ndarray) -> tuple[float, float]:
    """sum p e b and sum p e, in parallel partial sums of the arrays' type."""
    mass = p[0] * e[0]
    joint = mass * b[0]
    for h in range(1, p.size):
        both = p[h] * e[h]
        mass += both
        joint += both * b[h]
    return joint, mass


@numba.njit(cache=True, nogil=True)
def sums(
    first: int,
    last: int,
    predicted: np.ndarray,
    emission: np.ndarray,
    item: np.ndarray,
    b: np.ndarray,
    entry: np.ndarray,
    alive: np.ndarray,
    joint: np.ndarray,
    mass: np.ndarray,
) -> None:
    """Of the items of each row that are alive (rows of `emission`), with beta in row `entry`."""
    for row in range(first, last):
        p = predicted[row]
        for k in range(item.shape[1]):
            joint[row, k], mass[row, k] = 0, 0
            if alive[row, k]:
                joint[row, k], mass[row, k] = _dots(p, emission[item[row, k]], b[entry[row, k]])

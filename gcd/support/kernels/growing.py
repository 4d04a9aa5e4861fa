"""This module grows arrays inside kernels: twice as long when full, so that growing is cheap.

Elements are copied one by one: numba compiles `longer[:count] = array` together with the text of
an error about shapes that do not match, which takes it longer than most kernels.
"""

from __future__ import annotations

import numpy as np

from gcd.support.compiled import helper


@helper
def copied(target: np.ndarray, source: np.ndarray, count: int) -> None:
    """Copy the first elements."""
    for i in range(count):
        target[i] = source[i]


@helper
def longer(array: np.ndarray, size: int) -> np.ndarray:
    """Return an array of at least this size with the same beginning, or the array if it has it."""
    if size <= array.size:
        return array
    grown = np.empty(max(size, 2 * array.size), array.dtype)
    copied(grown, array, array.size)
    return grown


@helper
def more_rows(table: np.ndarray, num_rows: int) -> np.ndarray:
    """Return a table of at least so many rows with the same first ones, or the table itself."""
    if num_rows <= table.shape[0]:
        return table
    grown = np.empty((max(num_rows, 2 * table.shape[0]), table.shape[1]), table.dtype)
    for i in range(table.shape[0]):
        for j in range(table.shape[1]):
            grown[i, j] = table[i, j]
    return grown

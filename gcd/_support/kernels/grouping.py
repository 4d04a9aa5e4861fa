"""Grouping and numbering of values, in time linear in keys and values."""

from __future__ import annotations

import cython
import numpy as np


def by_key(
    key_of: cython.const[cython.int][::1], num_keys: int, value_of: cython.const[cython.int][::1]
) -> tuple[np.ndarray, np.ndarray]:
    """Return where each key's values start, and the values (int32), sorted stably by keys."""
    start_array = np.zeros(num_keys + 1, np.int64)
    start: cython.longlong[::1] = start_array
    k: cython.Py_ssize_t
    for i in range(key_of.shape[0]):
        start[key_of[i] + 1] += 1
    for k in range(num_keys):
        start[k + 1] += start[k]
    fill: cython.longlong[::1] = start_array[:num_keys].copy()
    ordered: cython.int[::1] = np.empty(value_of.shape[0], np.int32)
    for i in range(key_of.shape[0]):
        k = key_of[i]
        ordered[fill[k]] = value_of[i]
        fill[k] += 1
    return start_array, np.asarray(ordered)


def number_by_first(values: np.ndarray, capacity: int) -> tuple[np.ndarray, np.ndarray]:
    """Return the number of each value, by first appearance, and the first indices of numbers."""
    given: cython.const[cython.longlong][::1] = np.ascontiguousarray(values, np.int64)
    number: cython.int[::1] = np.full(capacity, -1, np.int32)
    first: cython.longlong[::1] = np.empty(min(values.size, capacity), np.int64)
    numbers: cython.int[::1] = np.empty(values.size, np.int32)
    count: cython.int = 0
    for i in range(given.shape[0]):
        value = given[i]
        if number[value] < 0:
            number[value] = count
            first[count] = i
            count += 1
        numbers[i] = number[value]
    return np.asarray(numbers), np.array(first[:count])

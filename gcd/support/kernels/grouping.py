"""This module groups and numbers values inside kernels, in time linear in keys and values."""

from __future__ import annotations

import numpy as np

from gcd.support.compiled import helper, kernel


@helper
def by_key(keys: np.ndarray, num_keys: int, values: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Order values by their keys, stably; also where each key's begin, and the end."""
    start = np.zeros(num_keys + 1, np.int64)
    for key in keys:
        start[key + 1] += 1
    for key in range(num_keys):
        start[key + 1] += start[key]
    fill = start[:-1].copy()
    ordered = np.empty(values.size, np.int32)
    for i in range(keys.size):
        ordered[fill[keys[i]]] = values[i]
        fill[keys[i]] += 1
    return start, ordered


@helper
def numbered(values: np.ndarray, capacity: int) -> tuple[np.ndarray, np.ndarray]:
    """Number values below `capacity` by first appearance: (their numbers, where each was first)."""
    number = np.full(capacity, -1, np.int32)
    first = np.empty(min(values.size, capacity), np.int64)
    numbers = np.empty(values.size, np.int32)
    count = 0
    for i in range(values.size):
        value = values[i]
        if number[value] < 0:
            number[value] = count
            first[count] = i
            count += 1
        numbers[i] = number[value]
    return numbers, first[:count].copy()


@kernel
def number_by_first(values: np.ndarray, capacity: int) -> tuple[np.ndarray, np.ndarray]:
    """Call `numbered` from Python, with values in int64."""
    return numbered(values, capacity)

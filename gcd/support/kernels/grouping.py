"""This module groups values by keys inside kernels, by a counting sort: O(keys + values)."""

from __future__ import annotations

import numpy as np

from gcd.support.compiled import helper


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

"""These helpers find the best of many candidates, and sum up others in log space."""

from __future__ import annotations

import math

import numpy as np

from gcd.support.compiled import helper


@helper
def add_log(log_x: float, scale: np.ndarray, total: np.ndarray, c: int) -> None:
    """Add a number, given by its logarithm, to total[c] exp(scale[c])."""
    if log_x > scale[c]:
        total[c] *= math.exp(scale[c] - log_x)
        scale[c] = log_x
    if log_x > -np.inf:
        total[c] += math.exp(log_x - scale[c])


@helper
def best_first(value: np.ndarray, token: np.ndarray, count: int, K: int) -> None:
    """Move the K greatest of the first `count` values to the front (Hoare's selection)."""
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

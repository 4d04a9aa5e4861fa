"""Distances along the edges of a token automaton."""

from __future__ import annotations

import numpy as np

from gcd._automata.kernels.graph import levels
from gcd._support.kernels.grouping import by_key


def distances(
    pairs: np.ndarray, num_states: int, start: int, unreachable: int, backward: bool
) -> np.ndarray:
    """Return the fewest edges from `start` to each state, by breadth-first search.

    With `backward`, return the fewest edges from each state to `start` instead.
    """
    near, far = (1, 0) if backward else (0, 1)
    keys = np.ascontiguousarray(pairs[:, near], np.int32)
    values = np.ascontiguousarray(pairs[:, far], np.int32)
    is_start = np.zeros(num_states, np.bool_)
    is_start[start] = True
    distance = levels(*by_key(keys, num_states, values), is_start)
    distance[distance < 0] = unreachable
    return distance

"""Compiled walks over graphs for `hmm.eventual`."""

from __future__ import annotations

import numba
import numpy as np


@numba.njit(cache=True)
def depths(count: int, source: np.ndarray, target: np.ndarray) -> np.ndarray:
    """Longest path from each node of an acyclic graph (nodes are settled from the sinks)."""
    into = np.zeros(count + 1, np.int64)
    open_edges = np.zeros(count, np.int64)
    for edge in range(source.size):
        into[target[edge] + 1] += 1
        open_edges[source[edge]] += 1
    into = np.cumsum(into)
    next_place = into[:-1].copy()
    by_target = np.empty(source.size, np.int64)
    for edge in range(source.size):
        by_target[next_place[target[edge]]] = source[edge]
        next_place[target[edge]] += 1
    depth = np.zeros(count, np.int64)
    queue = np.empty(count, np.int64)
    last = 0
    for node in range(count):
        if open_edges[node] == 0:
            queue[last] = node
            last += 1
    first = 0
    while first < last:
        node = queue[first]
        first += 1
        for place in range(into[node], into[node + 1]):
            other = by_target[place]
            depth[other] = max(depth[other], depth[node] + 1)
            open_edges[other] -= 1
            if open_edges[other] == 0:
                queue[last] = other
                last += 1
    return depth


@numba.njit(cache=True)
def affected(
    states: np.ndarray, start: np.ndarray, target: np.ndarray, has_moved: np.ndarray
) -> np.ndarray:
    """Which of these states lead to one that has moved."""
    found = np.zeros(states.size, np.bool_)
    for i in range(states.size):
        for edge in range(start[states[i]], start[states[i] + 1]):
            if has_moved[target[edge]]:
                found[i] = True
                break
    return found

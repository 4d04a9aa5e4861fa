"""Compiled passes over the graph of a token automaton: distances to its final state.

`delta[s, c]` is the state after token class `c`, -1 for none. Tables are wide (hundreds of
classes) and have few distinct targets in a row, so edges are deduplicated first.
"""

from __future__ import annotations

import numba
import numpy as np


@numba.njit(cache=True)
def distances(delta: np.ndarray, goal: int, unreachable: int) -> np.ndarray:
    """Fewest symbols from each state to `goal`: breadth-first over reversed, deduplicated edges."""
    num_states, num_classes = delta.shape
    seen = np.full(num_states, -1, np.int32)  # the last source for which a target was counted
    offsets = np.zeros(num_states + 1, np.int64)
    for s in range(num_states):
        for c in range(num_classes):
            t = delta[s, c]
            if t >= 0 and seen[t] != s:
                seen[t] = s
                offsets[t + 1] += 1
    for t in range(num_states):
        offsets[t + 1] += offsets[t]
    sources = np.empty(offsets[num_states], np.int32)
    fill = offsets[:-1].copy()
    seen[:] = -1
    for s in range(num_states):
        for c in range(num_classes):
            t = delta[s, c]
            if t >= 0 and seen[t] != s:
                seen[t] = s
                sources[fill[t]] = s
                fill[t] += 1

    distance = np.full(num_states, unreachable, np.int32)
    queue = np.empty(num_states, np.int32)
    queue[0] = goal
    distance[goal] = 0
    head, tail = 0, 1
    while head < tail:
        t = queue[head]
        head += 1
        for i in range(offsets[t], offsets[t + 1]):
            s = sources[i]
            if distance[s] == unreachable:
                distance[s] = distance[t] + 1
                queue[tail] = s
                tail += 1
    return distance


@numba.njit(cache=True)
def reachable(delta: np.ndarray, start: int) -> np.ndarray:
    """States that some sequence of symbols reaches from `start`."""
    num_states, num_classes = delta.shape
    reached = np.zeros(num_states, np.bool_)
    queue = np.empty(num_states, np.int32)
    queue[0] = start
    reached[start] = True
    head, tail = 0, 1
    while head < tail:
        s = queue[head]
        head += 1
        for c in range(num_classes):
            t = delta[s, c]
            if t >= 0 and not reached[t]:
                reached[t] = True
                queue[tail] = t
                tail += 1
    return reached

"""This module has the compiled walks over graphs of `hmm.eventual`."""

from __future__ import annotations

import numpy as np

from gcd.support.compiled import kernel
from gcd.support.kernels.grouping import by_key


@kernel
def depths(count: int, source: np.ndarray, target: np.ndarray) -> np.ndarray:
    """Find the longest path from each node of an acyclic graph (settled from the sinks)."""
    open_edges = np.zeros(count, np.int64)
    for node in source:
        open_edges[node] += 1
    into, by_target = by_key(target, count, source)
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


@kernel
def cuts(
    roots: np.ndarray, start: np.ndarray, target: np.ndarray, component: np.ndarray
) -> np.ndarray:
    """Mark states without which no cycle is left: those that a path of a depth-first search comes
    back to. The search begins at each of the roots that it has not seen, and stays in its
    component.
    """
    found = np.zeros(component.size, np.bool_)
    seen = np.zeros(component.size, np.bool_)
    on_path = np.zeros(component.size, np.bool_)
    path = np.empty(component.size, np.int64)
    next_edge = start[:-1].copy()
    for root in roots:
        if seen[root]:
            continue
        seen[root] = on_path[root] = True
        path[0] = root
        length = 1
        while length > 0:
            state = path[length - 1]
            if next_edge[state] == start[state + 1]:
                on_path[state] = False
                length -= 1
                continue
            other = target[next_edge[state]]
            next_edge[state] += 1
            if on_path[other]:
                found[other] = True
            elif component[other] == component[state] and not seen[other]:
                seen[other] = on_path[other] = True
                path[length] = other
                length += 1
    return found

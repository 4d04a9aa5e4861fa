"""Compiled graph algorithms for `hmm._eventual`."""

from __future__ import annotations

import cython
import numpy as np

from gcd._support.kernels.grouping import by_key


def depths(
    count: cython.Py_ssize_t,
    source: cython.const[cython.longlong][::1],
    target: cython.const[cython.longlong][::1],
) -> np.ndarray:
    """Return, for each node of an acyclic graph, the number of edges of its longest path."""
    open_edges: cython.longlong[::1] = np.zeros(count, np.int64)
    into_array, sources_array = by_key(
        np.asarray(target).astype(np.int32), count, np.asarray(source).astype(np.int32)
    )
    into: cython.longlong[::1] = into_array
    by_target: cython.int[::1] = sources_array
    depth_array = np.zeros(count, np.int64)
    depth: cython.longlong[::1] = depth_array
    queue: cython.longlong[::1] = np.empty(count, np.int64)
    first: cython.Py_ssize_t = 0
    last: cython.Py_ssize_t = 0
    edge: cython.Py_ssize_t
    node: cython.Py_ssize_t
    other: cython.Py_ssize_t
    index: cython.Py_ssize_t
    with cython.nogil:
        for edge in range(source.shape[0]):
            open_edges[source[edge]] += 1
        for node in range(count):
            if open_edges[node] == 0:
                queue[last] = node
                last += 1
        while first < last:
            node = queue[first]
            first += 1
            for index in range(into[node], into[node + 1]):
                other = by_target[index]
                depth[other] = max(depth[other], depth[node] + 1)
                open_edges[other] -= 1
                if open_edges[other] == 0:
                    queue[last] = other
                    last += 1
    return depth_array


def cuts(
    roots: cython.const[cython.longlong][::1],
    start: cython.const[cython.longlong][::1],
    target: cython.const[cython.longlong][::1],
    component: cython.const[cython.longlong][::1],
) -> np.ndarray:
    """Find cuts by depth-first search: states whose removal leaves no cycles.

    A state is a cut if an edge leads back to it while it is on the path of the search. The search
    begins at each root that hasn't been visited, and stays in the root's strongly connected
    component.
    """
    size: cython.Py_ssize_t = component.shape[0]
    found_array = np.zeros(size, np.bool_)
    found: cython.uchar[::1] = found_array.view(np.uint8)
    seen: cython.uchar[::1] = np.zeros(size, np.uint8)
    on_path: cython.uchar[::1] = np.zeros(size, np.uint8)
    path: cython.longlong[::1] = np.empty(size, np.int64)
    next_edge: cython.longlong[::1] = np.array(start[:size])
    length: cython.Py_ssize_t
    i: cython.Py_ssize_t
    root: cython.Py_ssize_t
    state: cython.Py_ssize_t
    other: cython.Py_ssize_t
    with cython.nogil:
        for i in range(roots.shape[0]):
            root = roots[i]
            if seen[root]:
                continue
            seen[root] = 1
            on_path[root] = 1
            path[0] = root
            length = 1
            while length > 0:
                state = path[length - 1]
                if next_edge[state] == start[state + 1]:
                    on_path[state] = 0
                    length -= 1
                    continue
                other = target[next_edge[state]]
                next_edge[state] += 1
                if on_path[other]:
                    found[other] = 1
                elif component[other] == component[state] and not seen[other]:
                    seen[other] = 1
                    on_path[other] = 1
                    path[length] = other
                    length += 1
    return found_array

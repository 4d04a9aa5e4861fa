"""Construction of prefix trees of a vocabulary's strings, or of some of them.

The arrays are the attributes of `gcd._tokens.trie.Trie`, in preorder.
"""

from __future__ import annotations

import cython
import numpy as np


def build_trie(
    letters: cython.const[cython.uchar][::1], begin: cython.const[cython.longlong][::1]
) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Build the preorder arrays (byte, depth, skip, entry) of sorted distinct strings."""
    num_strings: cython.Py_ssize_t = begin.shape[0] - 1
    shared: cython.longlong[::1] = np.zeros(num_strings, np.int64)
    num_nodes: cython.Py_ssize_t = 0
    max_length: cython.longlong = 0
    cython.declare(common=cython.longlong, d=cython.Py_ssize_t)
    for i in range(num_strings):
        length = begin[i + 1] - begin[i]
        max_length = max(max_length, length)
        if i > 0:
            before = begin[i - 1]
            limit = min(length, begin[i] - before)
            common = 0
            while common < limit and letters[before + common] == letters[begin[i] + common]:
                common += 1
            shared[i] = common
        num_nodes += length - shared[i]

    byte: cython.uchar[::1] = np.empty(num_nodes, np.uint8)
    depth: cython.int[::1] = np.empty(num_nodes, np.int32)
    skip: cython.int[::1] = np.empty(num_nodes, np.int32)
    entry: cython.int[::1] = np.full(num_nodes, -1, np.int32)
    path: cython.longlong[::1] = np.empty(max_length + 1, np.int64)  # the open node at each depth
    node: cython.Py_ssize_t = 0
    open_depth: cython.Py_ssize_t = 0
    for i in range(num_strings):
        for d in range(shared[i], open_depth):
            skip[path[d]] = node
        open_depth = begin[i + 1] - begin[i]
        for d in range(shared[i], open_depth):
            byte[node] = letters[begin[i] + d]
            depth[node] = d
            path[d] = node
            node += 1
        entry[node - 1] = i
    for d in range(open_depth):
        skip[path[d]] = node
    return np.asarray(byte), np.asarray(depth), np.asarray(skip), np.asarray(entry)


def ancestry(
    depth_of: cython.const[cython.int][::1],
    entry_of: cython.const[cython.int][::1],
    num_entries: int,
    max_depth: int,
) -> tuple[np.ndarray, np.ndarray]:
    """Return each node's parent (-1 for the root), and the node where each string ends."""
    parent: cython.int[::1] = np.empty(depth_of.shape[0], np.int32)
    end: cython.int[::1] = np.empty(num_entries, np.int32)
    path: cython.int[::1] = np.empty(max_depth, np.int32)
    d: cython.Py_ssize_t
    for node in range(depth_of.shape[0]):
        d = depth_of[node]
        path[d] = node
        parent[node] = path[d - 1] if d > 0 else -1
        if entry_of[node] >= 0:
            end[entry_of[node]] = node
    return np.asarray(parent), np.asarray(end)


def sub_trie(
    depth_of: cython.const[cython.int][::1],
    parent_of: cython.const[cython.int][::1],
    end_of: cython.const[cython.int][::1],
    chosen: np.ndarray,
    order: np.ndarray,
) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Reduce a prefix tree to chosen strings (entries): return (nodes, depth, skip, entry).

    Entry `chosen[i]` gets the number i in the new tree; entries aren't chosen twice. `order` lists
    the indices i in the order of their entries. `nodes` are the old nodes that remain. Cost: the
    total length of the chosen strings.
    """
    entry_of: cython.const[cython.int][::1] = np.ascontiguousarray(chosen, np.int32)
    turns: cython.const[cython.longlong][::1] = np.ascontiguousarray(order, np.int64)
    total: cython.Py_ssize_t = 0
    longest: cython.Py_ssize_t = 0
    cython.declare(length=cython.Py_ssize_t, i=cython.Py_ssize_t, shared=cython.Py_ssize_t)
    for turn in range(turns.shape[0]):
        length = depth_of[end_of[entry_of[turns[turn]]]] + 1
        total += length
        longest = max(longest, length)
    nodes: cython.int[::1] = np.empty(total, np.int32)
    new_depth: cython.int[::1] = np.empty(total, np.int32)
    new_skip: cython.int[::1] = np.empty(total, np.int32)
    new_entry: cython.int[::1] = np.full(total, -1, np.int32)
    path: cython.int[::1] = np.empty(longest, np.int32)  # old nodes
    number: cython.int[::1] = np.empty(longest, np.int32)  # their new numbers
    count: cython.Py_ssize_t = 0
    deep: cython.Py_ssize_t = 0  # length of the current path, `path[:deep]`
    for turn in range(turns.shape[0]):
        i = turns[turn]
        node = end_of[entry_of[i]]
        length = depth_of[node] + 1
        # Keep the part of the current path that consists of this node's ancestors.
        climb = node
        shared = length
        while shared > 0 and not (shared <= deep and path[shared - 1] == climb):
            climb = parent_of[climb]
            shared -= 1
        for d in range(shared, deep):
            new_skip[number[d]] = count
        for d in range(length - 1, shared - 1, -1):
            path[d] = node
            number[d] = count + d - shared
            nodes[number[d]] = node
            new_depth[number[d]] = d
            node = parent_of[node]
        count += length - shared
        deep = length
        new_entry[count - 1] = i
    for d in range(deep):
        new_skip[number[d]] = count
    return (
        np.asarray(nodes)[:count],
        np.asarray(new_depth)[:count],
        np.asarray(new_skip)[:count],
        np.asarray(new_entry)[:count],
    )

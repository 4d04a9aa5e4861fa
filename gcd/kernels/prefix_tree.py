"""Compiled loops that build prefix trees: the whole vocabulary's, and that of some of its strings.

The arrays are those of `gcd.trie.Trie`, in preorder.
"""

from __future__ import annotations

import numba
import numpy as np


@numba.njit(cache=True)
def build_trie(
    text: np.ndarray, offsets: np.ndarray
) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Preorder arrays (byte, depth, skip, entry) of sorted distinct strings laid end to end."""
    num_strings = offsets.size - 1
    shared = np.zeros(num_strings, np.int64)
    num_nodes = 0
    max_length = 0
    for i in range(num_strings):
        start, length = offsets[i], offsets[i + 1] - offsets[i]
        max_length = max(max_length, length)
        if i > 0:
            before, limit = offsets[i - 1], min(length, offsets[i] - offsets[i - 1])
            common = 0
            while common < limit and text[before + common] == text[start + common]:
                common += 1
            shared[i] = common
        num_nodes += length - shared[i]

    byte = np.empty(num_nodes, np.uint8)
    depth = np.empty(num_nodes, np.int32)
    skip = np.empty(num_nodes, np.int32)
    entry = np.full(num_nodes, -1, np.int32)
    path = np.empty(max_length + 1, np.int64)  # the open node at each depth
    node = 0
    open_depth = 0
    for i in range(num_strings):
        for d in range(shared[i], open_depth):
            skip[path[d]] = node
        open_depth = offsets[i + 1] - offsets[i]
        for d in range(shared[i], open_depth):
            byte[node] = text[offsets[i] + d]
            depth[node] = d
            path[d] = node
            node += 1
        entry[node - 1] = i
    for d in range(open_depth):
        skip[path[d]] = node
    return byte, depth, skip, entry


@numba.njit(cache=True)
def sub_trie(
    depth: np.ndarray, skip: np.ndarray, entry: np.ndarray, number: np.ndarray
) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """The part of a prefix tree that leads to chosen entries: (nodes, depth, skip, entry).

    `number[e]` is entry e's number in the new tree, -1 if it is not chosen; `nodes` are the old
    nodes that remain.
    """
    num_nodes = depth.size
    needed = np.zeros(num_nodes, np.bool_)
    # Children follow their parents, so a backward pass sees a subtree before its root.
    pending = np.zeros(max(depth.max() + 2, 1) if num_nodes else 1, np.bool_)
    total = 0
    for node in range(num_nodes - 1, -1, -1):
        d = depth[node]
        own = entry[node] >= 0 and number[entry[node]] >= 0
        needed[node] = own or pending[d + 1]
        pending[d + 1] = False
        if needed[node]:
            pending[d] = True
            total += 1
    rank = np.empty(num_nodes + 1, np.int32)  # new number of the first kept node at or after
    count = 0
    for node in range(num_nodes):
        rank[node] = count
        if needed[node]:
            count += 1
    rank[num_nodes] = count
    nodes = np.empty(total, np.int32)
    new_depth = np.empty(total, np.int32)
    new_skip = np.empty(total, np.int32)
    new_entry = np.full(total, -1, np.int32)
    for node in range(num_nodes):
        if needed[node]:
            i = rank[node]
            nodes[i] = node
            new_depth[i] = depth[node]
            new_skip[i] = rank[skip[node]]
            if entry[node] >= 0:
                new_entry[i] = number[entry[node]]
    return nodes, new_depth, new_skip, new_entry

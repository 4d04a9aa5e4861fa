"""Construction of prefix trees of a vocabulary's strings, or of some of them.

The arrays are the attributes of `gcd._tokens.trie.Trie`, in preorder.
"""

from __future__ import annotations

import cython
import numpy as np


def build_trie(
    text: np.ndarray, offsets: np.ndarray
) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Build the preorder arrays (byte, depth, skip, entry) of sorted distinct strings."""
    letters: cython.const[cython.uchar][::1] = text
    begin: cython.const[cython.longlong][::1] = offsets
    num_strings: cython.Py_ssize_t = begin.shape[0] - 1
    shared: cython.longlong[::1] = np.zeros(num_strings, np.int64)
    num_nodes: cython.Py_ssize_t = 0
    max_length: cython.longlong = 0
    length: cython.longlong
    before: cython.longlong
    limit: cython.longlong
    common: cython.longlong
    i: cython.Py_ssize_t
    d: cython.Py_ssize_t
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

    byte_array = np.empty(num_nodes, np.uint8)
    depth_array = np.empty(num_nodes, np.int32)
    skip_array = np.empty(num_nodes, np.int32)
    entry_array = np.full(num_nodes, -1, np.int32)
    byte: cython.uchar[::1] = byte_array
    depth: cython.int[::1] = depth_array
    skip: cython.int[::1] = skip_array
    entry: cython.int[::1] = entry_array
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
    return byte_array, depth_array, skip_array, entry_array


def ancestry(
    depth: np.ndarray, entry: np.ndarray, num_entries: int, max_depth: int
) -> tuple[np.ndarray, np.ndarray]:
    """Return each node's parent (-1 for the root), and the node where each string ends."""
    depth_of: cython.const[cython.int][::1] = depth
    entry_of: cython.const[cython.int][::1] = entry
    parent_array = np.empty(depth.size, np.int32)
    end_array = np.empty(num_entries, np.int32)
    parent: cython.int[::1] = parent_array
    end: cython.int[::1] = end_array
    path: cython.int[::1] = np.empty(max_depth, np.int32)
    node: cython.Py_ssize_t
    d: cython.Py_ssize_t
    for node in range(depth_of.shape[0]):
        d = depth_of[node]
        path[d] = node
        parent[node] = path[d - 1] if d > 0 else -1
        if entry_of[node] >= 0:
            end[entry_of[node]] = node
    return parent_array, end_array


def spells(
    tree: tuple[np.ndarray, ...],
    entry_of_token: np.ndarray,
    num_entries: int,
    text: np.ndarray,
    offsets: np.ndarray,
) -> bool:
    """Return whether untrusted arrays are the prefix tree of the concatenated tokens."""
    byte_array, depth_array, skip_array, entry_array = tree
    byte: cython.const[cython.uchar][::1] = byte_array
    depth: cython.const[cython.int][::1] = depth_array
    skip: cython.const[cython.int][::1] = skip_array
    entry: cython.const[cython.int][::1] = entry_array
    entry_of: cython.const[cython.int][::1] = entry_of_token
    letters: cython.const[cython.uchar][::1] = text
    begin: cython.const[cython.longlong][::1] = offsets
    num_nodes: cython.Py_ssize_t = byte.shape[0]
    num_tokens: cython.Py_ssize_t = begin.shape[0] - 1
    entry_count: cython.Py_ssize_t = num_entries
    i: cython.Py_ssize_t
    d: cython.Py_ssize_t
    node: cython.Py_ssize_t
    closed: cython.Py_ssize_t
    # Check that depths grow by one at a time, siblings ascend, leaves are entries, and entries come
    # in order.
    longest: cython.longlong = 0
    for i in range(num_tokens):
        longest = max(longest, begin[i + 1] - begin[i])
    path: cython.int[::1] = np.empty(longest + 1, np.int32)
    open_depth: cython.Py_ssize_t = 0
    count: cython.Py_ssize_t = 0
    for node in range(num_nodes):
        d = depth[node]
        if d < 0 or d > open_depth or d >= longest:
            return False
        if d < open_depth:
            if entry[node - 1] < 0 or byte[node] <= byte[path[d]]:
                return False
            for closed in range(d, open_depth):
                if skip[path[closed]] != node:
                    return False
        path[d] = node
        open_depth = d + 1
        if entry[node] >= 0:
            if entry[node] != count:
                return False
            count += 1
        elif entry[node] != -1:
            return False
    for closed in range(open_depth):
        if skip[path[closed]] != num_nodes:
            return False
    if count != entry_count or (num_nodes > 0 and entry[num_nodes - 1] < 0):
        return False
    # Check that every token spells its entry, and that every entry has a token.
    parent_array, end_array = ancestry(depth_array, entry_array, num_entries, longest)
    parent: cython.const[cython.int][::1] = parent_array
    end: cython.const[cython.int][::1] = end_array
    used_array = np.zeros(num_entries, np.uint8)
    used: cython.uchar[::1] = used_array
    token: cython.Py_ssize_t
    own: cython.Py_ssize_t
    at: cython.longlong
    length: cython.longlong
    for token in range(num_tokens):
        length = begin[token + 1] - begin[token]
        own = entry_of[token]
        if own < -1 or own >= entry_count or (own < 0) != (length == 0):
            return False
        if own < 0:
            continue
        used[own] = 1
        node = end[own]
        if depth[node] + 1 != length:
            return False
        for at in range(begin[token + 1] - 1, begin[token] - 1, -1):
            if byte[node] != letters[at]:
                return False
            node = parent[node]
    return bool(used_array.all())


def sub_trie(
    depth: np.ndarray, parent: np.ndarray, end: np.ndarray, chosen: np.ndarray, order: np.ndarray
) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Reduce a prefix tree to chosen strings (entries): return (nodes, depth, skip, entry).

    Entry `chosen[i]` gets the number i in the new tree; entries aren't chosen twice. `order` lists
    the indices i in the order of their entries. `nodes` are the old nodes that remain. Cost: the
    total length of the chosen strings.
    """
    depth_of: cython.const[cython.int][::1] = depth
    parent_of: cython.const[cython.int][::1] = parent
    end_of: cython.const[cython.int][::1] = end
    entry_of: cython.const[cython.int][::1] = np.ascontiguousarray(chosen, np.int32)
    turns: cython.const[cython.longlong][::1] = np.ascontiguousarray(order, np.int64)
    total: cython.Py_ssize_t = 0
    longest: cython.Py_ssize_t = 0
    length: cython.Py_ssize_t
    turn: cython.Py_ssize_t
    i: cython.Py_ssize_t
    d: cython.Py_ssize_t
    for turn in range(turns.shape[0]):
        length = depth_of[end_of[entry_of[turns[turn]]]] + 1
        total += length
        longest = max(longest, length)
    node_array = np.empty(total, np.int32)
    depth_array = np.empty(total, np.int32)
    skip_array = np.empty(total, np.int32)
    entry_array = np.full(total, -1, np.int32)
    nodes: cython.int[::1] = node_array
    new_depth: cython.int[::1] = depth_array
    new_skip: cython.int[::1] = skip_array
    new_entry: cython.int[::1] = entry_array
    path: cython.int[::1] = np.empty(longest, np.int32)  # old nodes
    number: cython.int[::1] = np.empty(longest, np.int32)  # their new numbers
    count: cython.Py_ssize_t = 0
    deep: cython.Py_ssize_t = 0  # length of the current path, `path[:deep]`
    node: cython.int
    climb: cython.int
    shared: cython.Py_ssize_t
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
    return node_array[:count], depth_array[:count], skip_array[:count], entry_array[:count]

"""This module builds prefix trees, of all strings of a vocabulary or of some, in compiled loops.

The arrays are those of `gcd.tokens.trie.Trie`, in preorder.
"""

from __future__ import annotations

import numpy as np

from gcd.support.compiled import kernel


@kernel
def build_trie(
    text: np.ndarray, offsets: np.ndarray
) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Build the preorder arrays (byte, depth, skip, entry) of sorted distinct strings."""
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


@kernel
def ancestry(
    depth: np.ndarray, entry: np.ndarray, num_entries: int, max_depth: int
) -> tuple[np.ndarray, np.ndarray]:
    """Return the parent of every node (-1: the root), and the node where every entry ends."""
    parent = np.empty(depth.size, np.int32)
    end = np.empty(num_entries, np.int32)
    path = np.empty(max_depth, np.int32)
    for node in range(depth.size):
        d = depth[node]
        path[d] = node
        parent[node] = path[d - 1] if d > 0 else -1
        if entry[node] >= 0:
            end[entry[node]] = node
    return parent, end


@kernel
def spells(
    tree: tuple[np.ndarray, ...],
    entry_of_token: np.ndarray,
    num_entries: int,
    text: np.ndarray,
    offsets: np.ndarray,
) -> bool:
    """Return whether arrays of unknown origin are the prefix tree of the tokens laid end to end."""
    byte, depth, skip, entry = tree
    num_nodes = byte.size
    # Depths grow by one at a time, siblings ascend, leaves are entries, entries come in order.
    longest = np.int64(0)
    for i in range(offsets.size - 1):
        longest = max(longest, offsets[i + 1] - offsets[i])
    path = np.empty(longest + 1, np.int32)
    open_depth = count = 0
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
    if count != num_entries or (num_nodes > 0 and entry[num_nodes - 1] < 0):
        return False
    # Every token spells its entry, and every entry has a token.
    parent, end = ancestry(depth, entry, num_entries, longest)
    used = np.zeros(num_entries, np.bool_)
    for token in range(offsets.size - 1):
        length = offsets[token + 1] - offsets[token]
        own = entry_of_token[token]
        if own < -1 or own >= num_entries or (own < 0) != (length == 0):
            return False
        if own < 0:
            continue
        used[own] = True
        node = end[own]
        if depth[node] + 1 != length:
            return False
        for at in range(offsets[token + 1] - 1, offsets[token] - 1, -1):
            if byte[node] != text[at]:
                return False
            node = parent[node]
    return bool(used.all())


@kernel
def sub_trie(
    depth: np.ndarray, parent: np.ndarray, end: np.ndarray, chosen: np.ndarray, order: np.ndarray
) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Cut a prefix tree down to what leads to chosen entries: (nodes, depth, skip, entry).

    Entry `chosen[i]` has number i in the new tree, and none is chosen twice; `order` lists those i
    in the order of their entries. `nodes` are the old nodes that remain. Cost: the length of the
    chosen strings.
    """
    total = longest = 0
    for i in order:
        length = depth[end[chosen[i]]] + 1
        total, longest = total + length, max(longest, length)
    nodes = np.empty(total, np.int32)
    new_depth = np.empty(total, np.int32)
    new_skip = np.empty(total, np.int32)
    new_entry = np.full(total, -1, np.int32)
    path = np.empty(longest, np.int32)  # old nodes
    place = np.empty(longest, np.int32)  # and their new numbers
    count = deep = 0  # `path[:deep]` is open
    for i in order:
        node = end[chosen[i]]
        length = depth[node] + 1
        # In preorder an open node is an ancestor of this one exactly if the old path has it.
        climb, shared = node, length
        while shared > 0 and not (shared <= deep and path[shared - 1] == climb):
            climb = parent[climb]
            shared -= 1
        for d in range(shared, deep):
            new_skip[place[d]] = count
        for d in range(length - 1, shared - 1, -1):
            path[d], place[d] = node, count + d - shared
            nodes[place[d]], new_depth[place[d]] = node, d
            node = parent[node]
        count += length - shared
        deep = length
        new_entry[count - 1] = i
    for d in range(deep):
        new_skip[place[d]] = count
    return nodes[:count], new_depth[:count], new_skip[:count], new_entry[:count]

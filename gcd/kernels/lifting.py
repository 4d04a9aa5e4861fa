"""Compiled loops for lifting: prefix trees, walks of an automaton over them, token classes.

Conventions: `delta[s, k]` is the state after byte class `k`, -1 for none. A prefix tree is the
arrays of `gcd.trie.Trie`, in preorder; `label[node]` is the byte class on the way into a node.
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
def walk(
    state: int,
    delta: np.ndarray,
    label: np.ndarray,
    depth: np.ndarray,
    skip: np.ndarray,
    entry: np.ndarray,
    states: np.ndarray,
    found: np.ndarray,
    target: np.ndarray,
) -> int:
    """Run every string of the tree from `state`; entries that survive and the states they reach.

    `states` is work space of one more than the greatest depth. Returns how many of `found`
    (entries, ascending) and `target` are filled.
    """
    num_nodes = label.size
    count = 0
    node = 0
    states[0] = state
    while node < num_nodes:
        d = depth[node]
        after = delta[states[d], label[node]]
        if after < 0:
            node = skip[node]
            continue
        states[d + 1] = after
        if entry[node] >= 0:
            found[count] = entry[node]
            target[count] = after
            count += 1
        node += 1
    return count


@numba.njit(cache=True)
def refine(
    found: np.ndarray,
    target: np.ndarray,
    count: int,
    class_of: np.ndarray,
    size: np.ndarray,
    free: np.ndarray,
    num_free: int,
    first_target: np.ndarray,
    first_new: np.ndarray,
    next_new: np.ndarray,
    touched: np.ndarray,
) -> int:
    """Split classes so that entries of one class go to one target (those not found to none).

    A touched class `k` grows a chain of new classes, one for each target, linked by `next_new`
    from `first_new[k]`, with their targets in `first_target`. Classes that lose all their members
    go back to the `free` stack, whose new height is returned. -1 marks the ends of chains.
    """
    num_touched = 0
    i = 0
    while i < count:
        old, goal = class_of[found[i]], target[i]
        # A run of neighbours in one class with one target is dealt with at once.
        end = i + 1
        while end < count and target[end] == goal and class_of[found[end]] == old:
            end += 1
        new = first_new[old]
        if new < 0:
            touched[num_touched] = old
            num_touched += 1
        while new >= 0 and first_target[new] != goal:
            new = next_new[new]
        if new < 0:
            num_free -= 1
            new = free[num_free]
            first_target[new] = goal
            next_new[new] = first_new[old]
            first_new[old] = new
        for j in range(i, end):
            class_of[found[j]] = new
        size[new] += end - i
        size[old] -= end - i
        i = end
    for i in range(num_touched):
        old = touched[i]
        first_new[old] = -1
        if size[old] == 0:
            free[num_free] = old
            num_free += 1
    return num_free


@numba.njit(cache=True)
def reachable_classes(
    delta: np.ndarray,
    label: np.ndarray,
    depth: np.ndarray,
    skip: np.ndarray,
    entry: np.ndarray,
    num_entries: int,
    max_depth: int,
) -> tuple[np.ndarray, np.ndarray]:
    """States reachable from state 0 by whole strings, and a class for every entry.

    Two entries share a class exactly if they reach the same state from each of those states.
    Class numbers are arbitrary in 0..2 num_entries.
    """
    num_states = delta.shape[0]
    reached = np.zeros(num_states, np.bool_)
    queue = np.empty(num_states, np.int32)
    queue[0] = 0
    reached[0] = True
    head, tail = 0, 1

    capacity = 2 * num_entries + 1
    class_of = np.zeros(num_entries, np.int32)
    size = np.zeros(capacity, np.int64)
    size[0] = num_entries
    num_free = capacity - 1
    free = np.arange(capacity)[::-1].copy()
    first_target = np.empty(capacity, np.int32)
    first_new = np.full(capacity, -1, np.int64)
    next_new = np.empty(capacity, np.int64)
    touched = np.empty(capacity, np.int64)

    states = np.empty(max_depth + 1, np.int32)
    found = np.empty(num_entries, np.int32)
    target = np.empty(num_entries, np.int32)
    while head < tail:
        state = queue[head]
        head += 1
        count = walk(state, delta, label, depth, skip, entry, states, found, target)
        for i in range(count):
            after = target[i]
            if not reached[after]:
                reached[after] = True
                queue[tail] = after
                tail += 1
        num_free = refine(
            found,
            target,
            count,
            class_of,
            size,
            free,
            num_free,
            first_target,
            first_new,
            next_new,
            touched,
        )
    return reached, class_of


@numba.njit(cache=True)
def sub_trie(
    keep: np.ndarray, depth: np.ndarray, skip: np.ndarray, entry: np.ndarray, number: np.ndarray
) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """The part of a prefix tree that leads to kept entries: (nodes, depth, skip, entry).

    `number[e]` is the entry's number in the new tree; `nodes` are the old nodes that remain.
    """
    num_nodes = depth.size
    needed = np.zeros(num_nodes, np.bool_)
    # Children follow their parents, so a backward pass sees a subtree before its root.
    pending = np.zeros(max(depth.max() + 2, 1) if num_nodes else 1, np.bool_)
    total = 0
    for node in range(num_nodes - 1, -1, -1):
        d = depth[node]
        own = entry[node] >= 0 and keep[entry[node]]
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
            if entry[node] >= 0 and keep[entry[node]]:
                new_entry[i] = number[entry[node]]
    return nodes, new_depth, new_skip, new_entry


@numba.njit(cache=True)
def targets(
    sources: np.ndarray,
    delta: np.ndarray,
    label: np.ndarray,
    depth: np.ndarray,
    skip: np.ndarray,
    entry: np.ndarray,
    num_entries: int,
    max_depth: int,
) -> np.ndarray:
    """State after each entry, from each of the sources; -1 where the string has no way."""
    table = np.full((sources.size, num_entries), -1, np.int32)
    states = np.empty(max_depth + 1, np.int32)
    found = np.empty(num_entries, np.int32)
    target = np.empty(num_entries, np.int32)
    for row in range(sources.size):
        count = walk(sources[row], delta, label, depth, skip, entry, states, found, target)
        for i in range(count):
            table[row, found[i]] = target[i]
    return table


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

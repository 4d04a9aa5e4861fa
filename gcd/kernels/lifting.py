"""Compiled walks of a byte automaton over a prefix tree, and what they say about tokens.

Conventions: `delta[s, k]` is the state after byte class `k`, -1 for none. A `tree` is the tuple of
arrays (label, depth, skip, entry) of `gcd.trie.Trie` in preorder, `label[node]` being the byte
class on the way into a node.

**Sharing.** A state inside a string literal lets nearly every token through, and a schema has one
such state for each string in it, or one for each character of a string of bounded length; walking
the whole tree from each of them is most of the work. Yet they behave alike until the string ends.
So a *wide* state, one that many bytes lead on from, is walked in two parts. Its *surroundings*
are the states that few bytes reach through wide states alone, numbered as a breadth-first search
meets them; their transitions in these numbers are its *shape*. The part of the tree that stays
inside is walked once for each shape, and leaves a list of *exits*: nodes whose byte leads out.
For every state of that shape only the subtrees at the exits remain to be walked.

Any choice of surroundings is sound. The classes may come out finer than need be, where a token
leaves and comes back; equal columns are merged afterwards in any case.
"""

from __future__ import annotations

import numba
import numpy as np

from gcd.kernels.classes import one_class, refine

_WIDE = 16  # bytes that lead on from a wide state, at least: the fewest inside a character
_REACH = 16  # bytes from a state to the rim of its surroundings
_MEMBERS = 256  # states in the surroundings, at most
_SHAPES = 512  # shapes kept during one lift
_EXITS = 4_000_000  # exits kept during one lift


@numba.njit(cache=True)
def walk(
    state: int,
    first: int,
    last: int,
    delta: np.ndarray,
    tree: tuple[np.ndarray, ...],
    states: np.ndarray,
    found: np.ndarray,
    target: np.ndarray,
    count: int,
) -> int:
    """Run the strings of sibling subtrees, nodes first..last-1, from `state` at their parent.

    Appends entries that survive to `found` and the states they reach to `target` from `count` on,
    and returns the new count. `states` is work space, one longer than the tree is deep.
    """
    label, depth, skip, entry = tree
    node = first
    if node < last:
        states[depth[node]] = state
    while node < last:
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
def _walk_inside(
    shape: np.ndarray,
    tree: tuple[np.ndarray, ...],
    states: np.ndarray,
    found: np.ndarray,
    target: np.ndarray,
    exits: np.ndarray,
) -> tuple[int, int]:
    """`walk` in the numbers of a shape, noting where it leaves; (entries found, exits).

    An exit is the node whose byte leads out and the number of the state it leads out of.
    """
    label, depth, skip, entry = tree
    count, num_exits, node = 0, 0, 0
    states[0] = 0
    while node < label.size:
        d = depth[node]
        after = shape[states[d], label[node]]
        if after < 0:
            exits[num_exits, 0] = node
            exits[num_exits, 1] = states[d]
            num_exits += 1
            node = skip[node]
            continue
        states[d + 1] = after
        if entry[node] >= 0:
            found[count] = entry[node]
            target[count] = after
            count += 1
        node += 1
    return count, num_exits


@numba.njit(cache=True)
def wide_states(delta: np.ndarray, width: np.ndarray) -> np.ndarray:
    """States that at least `_WIDE` bytes lead on from; class k has `width[k]` bytes."""
    num_states, num_classes = delta.shape
    wide = np.zeros(num_states, np.bool_)
    for s in range(num_states):
        live = 0
        for k in range(num_classes):
            if delta[s, k] >= 0:
                live += width[k]
        wide[s] = live >= _WIDE
    return wide


@numba.njit(cache=True)
def surroundings(
    state: int, delta: np.ndarray, wide: np.ndarray, local: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """States that at most `_REACH` bytes reach through wide states, and the shape they have.

    `local` is work space: one entry for each state, all -1, and left so. Returns the members in
    breadth-first order, `state` first, and their transitions in the numbers of that order, -1
    for those that lead elsewhere.
    """
    num_classes = delta.shape[1]
    members = np.empty(_MEMBERS, np.int32)
    away = np.empty(_MEMBERS, np.int32)  # bytes from the state
    members[0], away[0] = state, 0
    local[state] = 0
    count, head = 1, 0
    while head < count and away[head] < _REACH:
        for k in range(num_classes):
            t = delta[members[head], k]
            if t >= 0 and wide[t] and local[t] < 0 and count < _MEMBERS:
                local[t] = count
                members[count], away[count] = t, away[head] + 1
                count += 1
        head += 1
    shape = np.full((count, num_classes), -1, np.int32)
    for i in range(count):
        for k in range(num_classes):
            t = delta[members[i], k]
            if t >= 0:
                shape[i, k] = local[t]
    for i in range(count):
        local[members[i]] = -1
    return members[:count].copy(), shape


@numba.njit(cache=True)
def _same(rows: np.ndarray, first: int, last: int, shape: np.ndarray) -> bool:
    """Whether rows first..last-1, without their last column, are the shape."""
    if last - first != shape.shape[0]:
        return False
    for i in range(shape.shape[0]):
        for k in range(shape.shape[1]):
            if rows[first + i, k] != shape[i, k]:
                return False
    return True


@numba.njit(cache=True)
def _longer(array: np.ndarray, length: int) -> np.ndarray:
    """An array of at least this length with the same beginning; twice as long if it must grow."""
    if length <= array.shape[0]:
        return array
    longer = np.empty((max(length, 2 * array.shape[0]), array.shape[1]), np.int32)
    for i in range(array.shape[0]):
        for j in range(array.shape[1]):
            longer[i, j] = array[i, j]
    return longer


@numba.njit(cache=True)
def reachable_classes(
    delta: np.ndarray,
    width: np.ndarray,
    tree: tuple[np.ndarray, ...],
    num_entries: int,
    max_depth: int,
) -> tuple[np.ndarray, np.ndarray]:
    """States that whole strings reach from state 0, and a class in 0..2 num_entries for each entry.

    Entries of one class reach the same state from each of those states.
    """
    label, _, skip, _ = tree
    num_states, num_classes = delta.shape
    reached = np.zeros(num_states, np.bool_)
    reached[0] = True
    queue = np.zeros(num_states, np.int32)
    head, tail = 0, 1

    # Shape i has rows[row_start[i]:row_start[i+1]] and exits[exit_start[i]:exit_start[i+1]]; a row
    # is that of a member, with a last column that says whether whole strings reach it.
    wide = wide_states(delta, width)
    local = np.full(num_states, -1, np.int32)
    rows = np.empty((_MEMBERS, num_classes + 1), np.int32)
    exits = np.empty((1024, 2), np.int32)
    row_start = np.zeros(_SHAPES + 1, np.int64)
    exit_start = np.zeros(_SHAPES + 1, np.int64)
    num_shapes = 0

    partition = one_class(num_entries)
    states = np.empty(max_depth + 1, np.int32)
    found = np.empty(num_entries, np.int32)
    target = np.empty(num_entries, np.int32)
    new_exits = np.empty((label.size, 2), np.int32)
    while head < tail:
        state = queue[head]
        head += 1
        count = 0
        known = -1
        if wide[state]:
            members, shape = surroundings(state, delta, wide, local)
            known = 0
            while known < num_shapes and not _same(
                rows, row_start[known], row_start[known + 1], shape
            ):
                known += 1
            if known == num_shapes and known < _SHAPES and exit_start[known] < _EXITS:
                inner, num_exits = _walk_inside(shape, tree, states, found, target, new_exits)
                refine(partition, found, target, inner)
                row, first_exit = row_start[known], exit_start[known]
                num_shapes += 1
                row_start[num_shapes] = row + members.size
                exit_start[num_shapes] = first_exit + num_exits
                rows = _longer(rows, row_start[num_shapes])
                exits = _longer(exits, exit_start[num_shapes])
                for i in range(members.size):
                    for k in range(num_classes):
                        rows[row + i, k] = shape[i, k]
                    rows[row + i, num_classes] = 0
                for i in range(inner):
                    rows[row + target[i], num_classes] = 1
                for i in range(num_exits):
                    exits[first_exit + i, 0] = new_exits[i, 0]
                    exits[first_exit + i, 1] = new_exits[i, 1]
        if 0 <= known < num_shapes:
            for i in range(members.size):
                inside = members[i]
                if rows[row_start[known] + i, num_classes] == 1 and not reached[inside]:
                    reached[inside] = True
                    queue[tail] = inside
                    tail += 1
            for i in range(exit_start[known], exit_start[known + 1]):
                node, source = exits[i, 0], members[exits[i, 1]]
                if delta[source, label[node]] >= 0:
                    count = walk(
                        source, node, skip[node], delta, tree, states, found, target, count
                    )
        else:
            count = walk(
                state, np.int32(0), np.int32(label.size), delta, tree, states, found, target, count
            )
        for i in range(count):
            after = target[i]
            if not reached[after]:
                reached[after] = True
                queue[tail] = after
                tail += 1
        refine(partition, found, target, count)
    return reached, partition[0]


@numba.njit(cache=True)
def targets(
    sources: np.ndarray,
    delta: np.ndarray,
    tree: tuple[np.ndarray, ...],
    num_entries: int,
    max_depth: int,
) -> np.ndarray:
    """State after each entry, from each of the sources; -1 where the string has no way."""
    table = np.full((sources.size, num_entries), -1, np.int32)
    states = np.empty(max_depth + 1, np.int32)
    found = np.empty(num_entries, np.int32)
    target = np.empty(num_entries, np.int32)
    last = np.int32(tree[0].size)
    for row in range(sources.size):
        count = walk(sources[row], np.int32(0), last, delta, tree, states, found, target, 0)
        for i in range(count):
            table[row, found[i]] = target[i]
    return table

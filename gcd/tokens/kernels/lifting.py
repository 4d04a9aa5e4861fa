"""This module runs a byte automaton over a prefix tree, and sees what that says about the tokens.

Conventions: `delta[s, k]` is the state after byte class k, -1 for none. A `tree` is the tuple of
arrays (label, depth, skip, entry) of `gcd.tokens.trie.Trie` in preorder, `label[node]` being the
byte class on the way into a node (for units: the byte, or the class, that their columns stand for).

Three walks. `walk` runs all strings from one state. `walk_unit` runs them from a place of a unit
(`gcd.tokens.kernels.counted_runs`): where a string ends inside counted runs depends on its place
and on how many boundaries it passed, whatever run it is; where it leaves, an *exit*, the rest must
be walked in the automaton. `walk_apart` runs two states side by side and looks only where they
differ: a state that excludes a few words from a run is like the run's boundary nearly everywhere.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from gcd.support.compiled import helper, kernel
from gcd.support.kernels.grouping import numbered
from gcd.support.kernels.growing import more_rows
from gcd.tokens.kernels.classes import one_class, refine
from gcd.tokens.kernels.counted_runs import PLACES, Cells, next_boundary


class Ways(NamedTuple):
    """The ways out of the runs: boundaries that lead to the same states share one.

    Attributes:
        at: the way out of each cell's boundary, -1 for cells that do not count.
        after: the way out of the boundary after each cell.
        state: a boundary for each way.
        unit: the unit of the runs that each way leads out of.
    """

    at: np.ndarray
    after: np.ndarray
    state: np.ndarray
    unit: np.ndarray


@helper
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


@helper
def walk_apart(
    state: int,
    other: int,
    delta: np.ndarray,
    tree: tuple[np.ndarray, ...],
    states: np.ndarray,
    others: np.ndarray,
    found: np.ndarray,
    target: np.ndarray,
) -> int:
    """Find the entries that lead elsewhere from `state` than from `other`: where (-1: nowhere)."""
    label, depth, skip, entry = tree
    states[0], others[0] = state, other
    count = node = 0
    while node < label.size:
        d = depth[node]
        after = delta[states[d], label[node]] if states[d] >= 0 else -1
        beside = delta[others[d], label[node]] if others[d] >= 0 else -1
        if after == beside:
            node = skip[node]
            continue
        states[d + 1], others[d + 1] = after, beside
        if entry[node] >= 0:
            found[count] = entry[node]
            target[count] = after
            count += 1
        node += 1
    return count


@helper
def walk_unit(
    unit: np.ndarray,
    place: int,
    tree: tuple[np.ndarray, ...],
    places: np.ndarray,
    passed: np.ndarray,
    found: np.ndarray,
    goal: np.ndarray,
    exits: np.ndarray,
) -> tuple[int, int]:
    """Run strings from a place in a counted run, noting where they leave: (entries found, exits).

    Entry `found[i]` ends at `goal[i] = passed * PLACES + place`. An exit is a node whose byte
    leads out of a boundary, and the number of boundaries passed until there.
    """
    label, depth, skip, entry = tree
    count, num_exits, node = 0, 0, 0
    places[0], passed[0] = place, 0
    while node < label.size:
        d = depth[node]
        after = unit[places[d], label[node]]
        if after < 0:
            if places[d] == 0:
                exits[num_exits, 0] = node
                exits[num_exits, 1] = passed[d]
                num_exits += 1
            node = skip[node]
            continue
        places[d + 1] = after
        passed[d + 1] = passed[d] + (after == 0)
        if entry[node] >= 0:
            found[count] = entry[node]
            goal[count] = passed[d + 1] * PLACES + after
            count += 1
        node += 1
    return count, num_exits


@kernel
def profile(
    unit: np.ndarray, tree: tuple[np.ndarray, ...], num_entries: int, max_depth: int
) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Compute what a unit says about all strings: see `gcd.tokens.profiles.UnitProfile`."""
    counted, uncounted = one_class(num_entries), one_class(num_entries)
    places = np.empty(max_depth + 1, np.int32)
    passed = np.empty(max_depth + 1, np.int32)
    found = np.empty(num_entries, np.int32)
    goal = np.empty(num_entries, np.int32)
    exits = np.empty((tree[0].size, 2), np.int32)
    kept = np.empty((64, 2), np.int32)
    exit_start = np.zeros(unit.shape[0] + 1, np.int64)
    for place in range(unit.shape[0]):
        count, num_exits = walk_unit(unit, place, tree, places, passed, found, goal, exits)
        refine(counted, found, goal, count)
        for i in range(count):
            goal[i] %= PLACES
        refine(uncounted, found, goal, count)
        exit_start[place + 1] = exit_start[place] + num_exits
        kept = more_rows(kept, exit_start[place + 1])
        for i in range(num_exits):
            kept[exit_start[place] + i, 0] = exits[i, 0]
            kept[exit_start[place] + i, 1] = exits[i, 1]
    capacity = 2 * num_entries + 1
    return (
        numbered(counted[0], capacity)[0],
        numbered(uncounted[0], capacity)[0],
        exit_start,
        kept[: exit_start[-1]].copy(),
    )


@kernel
def ways_out(
    delta: np.ndarray, cells: Cells
) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Compute the fields of `Ways`."""
    units, unit_start, unit_of, after, start, states, _, _, cell_at = cells
    num_cells = unit_of.size
    way_at = np.full(num_cells, -1, np.int32)
    way_after = np.full(num_cells, -1, np.int32)
    way_state = np.empty(2 * num_cells, np.int32)
    way_unit = np.empty(2 * num_cells, np.int32)
    count = 0
    for i in range(num_cells):
        boundary = states[start[i]]
        if cell_at[boundary] != i:
            continue
        row = units[unit_start[unit_of[i]]]
        for turn in range(2):
            boundary = after[i] if turn else boundary
            # Neighbours nearly always agree, so the latest few are enough to compare with.
            way = count - 1
            while way >= max(count - 4, 0):
                same = way_unit[way] == unit_of[i]
                k = 0
                while same and k < row.size:
                    same = row[k] >= 0 or delta[boundary, k] == delta[way_state[way], k]
                    k += 1
                if same:
                    break
                way -= 1
            if way < max(count - 4, 0):
                way = count
                way_state[way], way_unit[way] = boundary, unit_of[i]
                count += 1
            if turn:
                way_after[i] = way
            else:
                way_at[i] = way
    return way_at, way_after, way_state[:count].copy(), way_unit[:count].copy()


@kernel
def split_by_exits(
    partition: tuple[np.ndarray, ...],
    delta: np.ndarray,
    tree: tuple[np.ndarray, ...],
    max_depth: int,
    ways: np.ndarray,
    exit_start: np.ndarray,
    exits: np.ndarray,
    counted: bool,
) -> None:
    """Separate entries that leave a unit's runs for different targets, or after different counts.

    `ways` are boundaries, one for each way out; exits are those of the unit's profile, `counted`
    says whether counts matter.
    """
    label, _, skip, _ = tree
    num_states, num_classes = delta.shape
    live = np.zeros(num_classes, np.bool_)
    for way in ways:
        for k in range(num_classes):
            live[k] |= delta[way, k] >= 0
    states = np.empty(max_depth + 1, np.int32)
    found = np.empty(partition[0].size, np.int32)
    target = np.empty(partition[0].size, np.int32)
    nodes = np.empty((exits.shape[0], 2), np.int32)
    for place in range(exit_start.size - 1):
        size = 0
        for i in range(exit_start[place], exit_start[place + 1]):
            if live[label[exits[i, 0]]]:
                nodes[size, 0], nodes[size, 1] = exits[i, 0], exits[i, 1]
                size += 1
        for way in ways:
            count = np.int64(0)
            for i in range(size):
                node = np.int64(nodes[i, 0])
                if delta[way, label[node]] < 0:
                    continue
                begin = count
                past = np.int64(skip[node])
                count = walk(np.int64(way), node, past, delta, tree, states, found, target, count)
                if counted:
                    for j in range(begin, count):
                        target[j] += num_states * nodes[i, 1]
            refine(partition, found, target, count)


@kernel
def references(
    delta: np.ndarray, width: np.ndarray, cells: Cells, tree: tuple[np.ndarray, ...]
) -> np.ndarray:
    """Find for each state outside the runs a state of a run to compare it with; or -1.

    Of the places before the boundary where most of its bytes lead, it is the one where the fewest
    nodes of the tree lie below bytes that part the two, and only if these are fewer than half of
    those below bytes that the state reads.
    """
    _, unit_start, unit_of, after, start, states, cell, _, cell_at = cells
    label, _, skip, _ = tree
    num_states, num_classes = delta.shape
    below = np.zeros(num_classes, np.int64)
    node = np.int64(0)
    while node < label.size:
        below[label[node]] += skip[node] - node
        node = np.int64(skip[node])
    before = np.full(num_states, -1, np.int32)
    for i in range(after.size):
        boundary = states[start[i]]
        if cell_at[boundary] == i and cell[boundary] == i:
            before[after[i]] = i
    reference = np.full(num_states, -1, np.int32)
    weight = np.zeros(num_states, np.int64)
    for s in range(num_states):
        if cell[s] >= 0:
            continue
        t, _ = next_boundary(s, delta, width, weight)
        if t < 0 or before[t] < 0:
            continue
        alone = np.int64(0)
        for k in range(num_classes):
            if delta[s, k] >= 0:
                alone += below[k]
        least = alone // 2
        first, unit = start[before[t]], unit_of[before[t]]
        for place in range(unit_start[unit + 1] - unit_start[unit]):
            other, apart = states[first + place], np.int64(0)
            if cell[other] < 0:
                continue
            for k in range(num_classes):
                if delta[s, k] != delta[other, k]:
                    apart += below[k]
                    if apart >= least:
                        break
            if apart < least:
                least, reference[s] = apart, other
    return reference


@kernel
def split_by_states(
    partition: tuple[np.ndarray, ...],
    delta: np.ndarray,
    tree: tuple[np.ndarray, ...],
    max_depth: int,
    cell: np.ndarray,
    reference: np.ndarray,
) -> None:
    """Separate entries that lead to different targets from some state outside the runs."""
    num_entries = partition[0].size
    states = np.empty(max_depth + 1, np.int32)
    others = np.empty(max_depth + 1, np.int32)
    found = np.empty(num_entries, np.int32)
    target = np.empty(num_entries, np.int32)
    nothing, last = np.int64(0), np.int64(tree[0].size)
    for s in range(delta.shape[0]):
        if cell[s] >= 0:
            continue
        if reference[s] >= 0:
            # The reference has parted those that go elsewhere with it; what differs parts more.
            count = walk_apart(s, reference[s], delta, tree, states, others, found, target)
        else:
            count = walk(s, nothing, last, delta, tree, states, found, target, nothing)
        refine(partition, found, target, count)

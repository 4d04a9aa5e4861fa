"""Loops that follow the prefix tree of a vocabulary through a byte automaton.

`delta[s, k]` is the state after byte class k, -1 for none. A `tree` is a tuple of arrays: `byte`,
`depth`, `skip` and `entry` of a `gcd._tokens.trie.Trie`, whose entries are the distinct strings of
tokens, and `column`, the class of each byte. Long loops release the interpreter's lock, so that
other threads go on.

`walk` follows all strings of the tree from one state. `walk_unit` follows them from a state (phase)
of a unit, which a counted run repeats many times (`gcd._tokens.kernels.counted_runs`). If a string
stays in the run, only its last phase and the number of copies that it completes matter. If it
leaves the run, at an *exit*, its rest must be followed in the automaton. `walk_apart` only visits
nodes where two states differ. It is for states that differ from a state of a run in a few words.
"""

from __future__ import annotations

from typing import NamedTuple

import cython
import numpy as np

from gcd._support.kernels.grouping import number_by_first
from gcd._tokens.kernels.classes import one_class
from gcd._tokens.kernels.counted_runs import PHASES, Cells

if cython.compiled:
    from cython.cimports.gcd._tokens.kernels.classes import Views, refine_views
    from cython.cimports.gcd._tokens.kernels.counted_runs import next_boundary
else:
    from gcd._tokens.kernels.classes import Views, refine_views
    from gcd._tokens.kernels.counted_runs import next_boundary

_PHASES = cython.declare(cython.int, PHASES)


class Ways(NamedTuple):
    """Groups of states (boundaries) from which the same transitions leave a counted run."""

    at: np.ndarray  # the group of each cell's boundary, -1 for a cell in a rejected chain
    after: np.ndarray  # the group of the boundary after each cell
    state: np.ndarray  # for each group, one of its boundaries
    unit: np.ndarray  # for each group, the unit of its runs


@cython.cclass
class Tree:
    """Views of a prefix tree's arrays, for compiled loops."""

    def __init__(self, tree: tuple[np.ndarray, ...]) -> None:
        self.byte, self.depth, self.skip, self.entry, self.column = tree


def more_rows(table: np.ndarray, num_rows: int) -> np.ndarray:
    """Return a copy of a table with at least `num_rows` and at least twice as many rows."""
    grown = np.empty((max(num_rows, 2 * table.shape[0]), table.shape[1]), table.dtype)
    grown[: table.shape[0]] = table
    return grown


def walk(state, first, last, delta, tree, states, found, target, count):
    """Find the allowed token strings (entries) that end at nodes first..last-1 of the tree.

    The nodes are subtrees with one parent; `state` is the state there. From index `count` on, write
    the entries to `found`, and the states after them to `target`. Return the new count. `states` is
    scratch space, one longer than the tree's depth.
    """
    node: cython.Py_ssize_t = first
    cython.declare(d=cython.Py_ssize_t, after=cython.int)
    if node < last:
        states[tree.depth[node]] = state
    while node < last:
        d = tree.depth[node]
        after = delta[states[d], tree.column[tree.byte[node]]]
        if after < 0:
            node = tree.skip[node]
            continue
        states[d + 1] = after
        if tree.entry[node] >= 0:
            found[count] = tree.entry[node]
            target[count] = after
            count += 1
        node += 1
    return count


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def walk_apart(
    state: cython.int,
    other: cython.int,
    delta: cython.const[cython.int][:, ::1],
    tree: Tree,
    states: cython.int[::1],
    others: cython.int[::1],
    found: cython.int[::1],
    target: cython.int[::1],
) -> cython.Py_ssize_t:
    """Find the token strings (entries) that lead to different states from `state` and `other`.

    `found` receives the entries, and `target` the states that they lead to from `state`.
    """
    num_nodes: cython.Py_ssize_t = tree.byte.shape[0]
    count: cython.Py_ssize_t = 0
    node: cython.Py_ssize_t = 0
    cython.declare(d=cython.Py_ssize_t, after=cython.int, beside=cython.int)
    states[0] = state
    others[0] = other
    while node < num_nodes:
        d = tree.depth[node]
        after = delta[states[d], tree.column[tree.byte[node]]] if states[d] >= 0 else -1
        beside = delta[others[d], tree.column[tree.byte[node]]] if others[d] >= 0 else -1
        if after == beside:
            node = tree.skip[node]
            continue
        states[d + 1] = after
        others[d + 1] = beside
        if tree.entry[node] >= 0:
            found[count] = tree.entry[node]
            target[count] = after
            count += 1
        node += 1
    return count


def walk_unit(unit, phase, tree, phases, passed, found, goal, exits):
    """Follow all token strings from a state (phase) of a unit, which a counted run repeats.

    Token string `found[i]` stays in the run; `goal[i]` is the number of copies that it completes
    times `PHASES`, plus its last phase. A row of `exits` is a tree node whose byte leaves the run,
    and the number of copies completed before. Return the numbers of strings and of exits.
    """
    num_nodes: cython.Py_ssize_t = tree.byte.shape[0]
    count: cython.Py_ssize_t = 0
    num_exits: cython.Py_ssize_t = 0
    node: cython.Py_ssize_t = 0
    cython.declare(d=cython.Py_ssize_t, after=cython.int)
    phases[0] = phase
    passed[0] = 0
    while node < num_nodes:
        d = tree.depth[node]
        after = unit[phases[d], tree.column[tree.byte[node]]]
        if after < 0:
            if phases[d] == 0:
                exits[num_exits, 0] = node
                exits[num_exits, 1] = passed[d]
                num_exits += 1
            node = tree.skip[node]
            continue
        phases[d + 1] = after
        passed[d + 1] = passed[d] + (after == 0)
        if tree.entry[node] >= 0:
            found[count] = tree.entry[node]
            goal[count] = passed[d + 1] * _PHASES + after
            count += 1
        node += 1
    return count, num_exits


def profile(
    unit: np.ndarray, tree: tuple[np.ndarray, ...], num_entries: int, max_depth: int
) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Follow all token strings through a unit; return its `gcd._tokens.trie.UnitProfile`."""
    counted, uncounted = one_class(num_entries), one_class(num_entries)
    counted_views: Views = Views(counted)
    uncounted_views: Views = Views(uncounted)
    nodes: Tree = Tree(tree)
    step: cython.const[cython.short][:, ::1] = np.ascontiguousarray(unit, np.int16)
    phases: cython.int[::1] = np.empty(max_depth + 1, np.int32)
    passed: cython.int[::1] = np.empty(max_depth + 1, np.int32)
    found: cython.int[::1] = np.empty(num_entries, np.int32)
    goal: cython.int[::1] = np.empty(num_entries, np.int32)
    exits_array = np.empty((tree[0].size, 2), np.int32)
    exits: cython.int[:, ::1] = exits_array
    kept = np.empty((64, 2), np.int32)
    exit_start = np.zeros(unit.shape[0] + 1, np.int64)
    size: cython.Py_ssize_t = 0
    phase: cython.int
    for phase in range(step.shape[0]):
        with cython.nogil:
            count, num_exits = walk_unit(step, phase, nodes, phases, passed, found, goal, exits)
            refine_views(counted_views, found, goal, count)
            for i in range(count):
                goal[i] %= _PHASES
            refine_views(uncounted_views, found, goal, count)
        if size + num_exits > kept.shape[0]:
            kept = more_rows(kept, size + num_exits)
        kept[size : size + num_exits] = exits_array[:num_exits]
        size += num_exits
        exit_start[phase + 1] = size
    capacity = 2 * num_entries + 1
    return (
        number_by_first(counted[0], capacity)[0],
        number_by_first(uncounted[0], capacity)[0],
        exit_start,
        kept[:size].copy(),
    )


def ways_out(
    step: cython.const[cython.int][:, ::1], cells: Cells
) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Group states from which the same transitions leave a counted run, as fields of `Ways`."""
    units: cython.const[cython.short][:, ::1] = cells.units
    unit_start: cython.const[cython.int][::1] = cells.unit_start
    unit_of: cython.const[cython.int][::1] = cells.unit_of
    after: cython.const[cython.int][::1] = cells.after
    start: cython.const[cython.int][::1] = cells.start
    states: cython.const[cython.int][::1] = cells.states
    cell_at: cython.const[cython.int][::1] = cells.cell_at
    num_cells: cython.Py_ssize_t = unit_of.shape[0]
    num_classes: cython.Py_ssize_t = step.shape[1]
    way_at: cython.int[::1] = np.full(num_cells, -1, np.int32)
    way_after: cython.int[::1] = np.full(num_cells, -1, np.int32)
    way_state: cython.int[::1] = np.empty(2 * num_cells, np.int32)
    way_unit: cython.int[::1] = np.empty(2 * num_cells, np.int32)
    count: cython.Py_ssize_t = 0
    cython.declare(turn=cython.int, same=cython.bint, k=cython.Py_ssize_t)
    for i in range(num_cells):
        boundary = states[start[i]]
        if cell_at[boundary] != i:
            continue
        row = unit_start[unit_of[i]]
        for turn in range(2):
            if turn:
                boundary = after[i]
            # The latest groups are enough, because successive boundaries are nearly always equal.
            way = count - 1
            oldest = max(count - 4, 0)
            while way >= oldest:
                same = way_unit[way] == unit_of[i]
                k = 0
                while same and k < num_classes:
                    same = units[row, k] >= 0 or step[boundary, k] == step[way_state[way], k]
                    k += 1
                if same:
                    break
                way -= 1
            if way < oldest:
                way = count
                way_state[way] = boundary
                way_unit[way] = unit_of[i]
                count += 1
            if turn:
                way_after[i] = way
            else:
                way_at[i] = way
    return (
        np.asarray(way_at),
        np.asarray(way_after),
        np.array(way_state[:count]),
        np.array(way_unit[:count]),
    )


def split_by_exits(
    partition: tuple[np.ndarray, ...],
    step: cython.const[cython.int][:, ::1],
    tree: tuple[np.ndarray, ...],
    max_depth: int,
    way_state: cython.const[cython.int][::1],
    begin: cython.const[cython.longlong][::1],
    exit_of: cython.const[cython.int][:, ::1],
    counted: cython.bint,
) -> None:
    """Split token classes whose tokens lead to different states after leaving a repetition."""
    views: Views = Views(partition)
    walked: Tree = Tree(tree)
    num_states: cython.int = step.shape[0]
    num_classes: cython.Py_ssize_t = step.shape[1]
    live: cython.uchar[::1] = np.zeros(num_classes, np.uint8)
    states: cython.int[::1] = np.empty(max_depth + 1, np.int32)
    found: cython.int[::1] = np.empty(partition[0].size, np.int32)
    target: cython.int[::1] = np.empty(partition[0].size, np.int32)
    nodes: cython.int[:, ::1] = np.empty((exit_of.shape[0], 2), np.int32)
    cython.declare(size=cython.Py_ssize_t, node=cython.Py_ssize_t, i=cython.Py_ssize_t)
    for way in range(way_state.shape[0]):
        for k in range(num_classes):
            if step[way_state[way], k] >= 0:
                live[k] = 1
    with cython.nogil:
        for phase in range(begin.shape[0] - 1):
            size = 0
            for i in range(begin[phase], begin[phase + 1]):
                if live[walked.column[walked.byte[exit_of[i, 0]]]]:
                    nodes[size, 0] = exit_of[i, 0]
                    nodes[size, 1] = exit_of[i, 1]
                    size += 1
            for way in range(way_state.shape[0]):
                count = 0
                for i in range(size):
                    node = nodes[i, 0]
                    if step[way_state[way], walked.column[walked.byte[node]]] < 0:
                        continue
                    first = count
                    count = walk(
                        way_state[way], node, walked.skip[node],
                        step, walked, states, found, target, count,
                    )  # fmt: skip
                    if counted:
                        for j in range(first, count):
                            target[j] += num_states * nodes[i, 1]
                refine_views(views, found, target, count)


def references(
    step: cython.const[cython.int][:, ::1],
    widths: cython.const[cython.longlong][::1],
    cells: Cells,
    tree: tuple[np.ndarray, ...],
) -> np.ndarray:
    """For each state outside of counted runs, find a similar state in a run (its reference).

    Candidates are the states of the copy that ends where most of the state's bytes lead. The
    reference has the fewest tree nodes below the bytes that lead elsewhere than from the state.
    They must be fewer than half of the nodes below all bytes that the state allows; otherwise, -1.
    """
    unit_start: cython.const[cython.int][::1] = cells.unit_start
    unit_of: cython.const[cython.int][::1] = cells.unit_of
    after: cython.const[cython.int][::1] = cells.after
    start: cython.const[cython.int][::1] = cells.start
    states: cython.const[cython.int][::1] = cells.states
    cell: cython.const[cython.int][::1] = cells.cell
    cell_at: cython.const[cython.int][::1] = cells.cell_at
    walked: Tree = Tree(tree)
    num_states: cython.Py_ssize_t = step.shape[0]
    num_classes: cython.Py_ssize_t = step.shape[1]
    below: cython.longlong[::1] = np.zeros(num_classes, np.int64)
    node: cython.Py_ssize_t = 0
    while node < walked.byte.shape[0]:
        below[walked.column[walked.byte[node]]] += walked.skip[node] - node
        node = walked.skip[node]
    before: cython.int[::1] = np.full(num_states, -1, np.int32)
    reference: cython.int[::1] = np.full(num_states, -1, np.int32)
    weight: cython.longlong[::1] = np.zeros(num_states, np.int64)
    leads: cython.bint
    for i in range(after.shape[0]):
        boundary = states[start[i]]
        if cell_at[boundary] == i and cell[boundary] == i:
            before[after[i]] = i
    for s in range(num_states):
        if cell[s] >= 0:
            continue
        alone = 0
        leads = False  # whether a byte leads to a phase after a cell
        for k in range(num_classes):
            t = step[s, k]
            if t >= 0:
                alone += below[k]
                leads = leads or before[t] >= 0
        if not leads:
            continue
        t, _ = next_boundary(s, step, widths, weight)
        if t < 0 or before[t] < 0:
            continue
        least = alone // 2
        first = start[before[t]]
        unit = unit_of[before[t]]
        for phase in range(unit_start[unit + 1] - unit_start[unit]):
            other = states[first + phase]
            if cell[other] < 0:
                continue
            apart = 0
            for k in range(num_classes):
                if step[s, k] != step[other, k]:
                    apart += below[k]
                    if apart >= least:
                        break
            if apart < least:
                least = apart
                reference[s] = other
    return np.asarray(reference)


def split_by_states(
    partition: tuple[np.ndarray, ...],
    step: cython.const[cython.int][:, ::1],
    tree: tuple[np.ndarray, ...],
    max_depth: int,
    cell_of: cython.const[cython.int][::1],
    other: cython.const[cython.int][::1],
) -> None:
    """Split token classes whose tokens lead to different states from a state not in a run."""
    views: Views = Views(partition)
    walked: Tree = Tree(tree)
    num_nodes: cython.Py_ssize_t = walked.byte.shape[0]
    states: cython.int[::1] = np.empty(max_depth + 1, np.int32)
    others: cython.int[::1] = np.empty(max_depth + 1, np.int32)
    found: cython.int[::1] = np.empty(partition[0].size, np.int32)
    target: cython.int[::1] = np.empty(partition[0].size, np.int32)
    s: cython.int
    with cython.nogil:
        for s in range(step.shape[0]):
            if cell_of[s] >= 0:
                continue
            if other[s] >= 0:
                # Only entries that the reference treats differently can split classes further.
                count = walk_apart(s, other[s], step, walked, states, others, found, target)
            else:
                count = walk(s, 0, num_nodes, step, walked, states, found, target, 0)
            refine_views(views, found, target, count)

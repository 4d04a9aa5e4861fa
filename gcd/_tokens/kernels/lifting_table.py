"""Rows of a lifted automaton: the state after each class of tokens.

The prefix tree contains one token string (entry) for each class, so here an entry is a class. For
states in a counted run (copies of an automaton, the unit), the tree is followed once from each
state (phase) of the unit (`gcd._tokens.kernels.lifting`). A class that stays in the run advances by
a fixed number of copies. A class that leaves the run is followed once for all copies that the same
transitions leave. For every other state, the tree is followed from the state.
"""

from __future__ import annotations

import cython
import numpy as np

from gcd._tokens.kernels.counted_runs import PHASES, Cells
from gcd._tokens.kernels.lifting import Ways, more_rows
from gcd._tokens.kernels.row_store import RowStore

if cython.compiled:
    from cython.cimports.gcd._tokens.kernels.lifting import Tree, walk, walk_unit
    from cython.cimports.gcd._tokens.kernels.row_store import RowStore
else:
    from gcd._tokens.kernels.lifting import Tree, walk, walk_unit

_PHASES = cython.declare(cython.int, PHASES)


@cython.cclass
class _Chains:
    """Views of the arrays that describe counted runs (`Cells`, `Ways`), for compiled loops."""

    unit_of: cython.const[cython.int][::1]
    after: cython.const[cython.int][::1]
    start: cython.const[cython.int][::1]
    states: cython.const[cython.int][::1]
    cell_at: cython.const[cython.int][::1]
    way_at: cython.const[cython.int][::1]
    way_after: cython.const[cython.int][::1]

    def __init__(self, cells: Cells, ways: Ways) -> None:
        self.unit_of = cells.unit_of
        self.after = cells.after
        self.start = cells.start
        self.states = cells.states
        self.cell_at = cells.cell_at
        self.way_at = ways.at
        self.way_after = ways.after


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def _look_ahead(
    first: cython.int, furthest: cython.Py_ssize_t, chains: _Chains, ahead: cython.int[:, ::1]
) -> tuple[cython.Py_ssize_t, cython.bint]:
    """List the states at which the next copies in a counted run begin (boundaries).

    Begin with the copy (cell) `first`, and list up to `furthest` boundaries after it. Each boundary
    is a row of `ahead`: the state, its cell (-1 at the end of the run), and its group in `Ways`.
    Return the number of rows, and whether the last boundary leads back to itself.
    """
    here: cython.int = first
    count: cython.Py_ssize_t = 0
    while True:
        ahead[count, 0] = chains.states[chains.start[here]]
        ahead[count, 1] = here
        ahead[count, 2] = chains.way_at[here]
        count += 1
        beyond = chains.after[here]
        following = chains.cell_at[beyond]
        if following == here:
            return count, True
        if count > furthest:
            return count, False
        if following < 0 or chains.unit_of[following] != chains.unit_of[here]:
            ahead[count, 0] = beyond
            ahead[count, 1] = -1
            ahead[count, 2] = chains.way_after[here]
            return count + 1, False
        here = following


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def _row_in_run(
    stay: cython.Py_ssize_t,
    inner: cython.const[cython.int][::1],
    passed: cython.const[cython.int][::1],
    phases: cython.const[cython.int][::1],
    left: cython.const[cython.int][:, ::1],
    left_start: cython.const[cython.longlong][::1],
    ahead: cython.const[cython.int][:, ::1],
    length: cython.Py_ssize_t,
    loops: cython.bint,
    furthest: cython.Py_ssize_t,
    chains: _Chains,
    found: cython.int[::1],
    target: cython.int[::1],
) -> cython.Py_ssize_t:
    """Write the transitions of a state in a counted run: token classes and next states.

    They are written to `found` and `target`. The first `stay` elements of `inner` are the classes
    that stay in the run: class `inner[i]` completes `passed[i]` copies of the unit, and ends at
    state `phases[i]` of the unit. The classes in `left` leave the run. `ahead` has `length`
    boundaries. Return the number of transitions.
    """
    count: cython.Py_ssize_t = 0
    begin: cython.Py_ssize_t = 0
    i: cython.Py_ssize_t
    for i in range(stay):
        far = passed[i]
        phase = phases[i]
        if far >= length:
            if not loops:
                continue
            far = length - 1
        if phase == 0:
            target[count] = ahead[far, 0]
        elif ahead[far, 1] >= 0:
            target[count] = chains.states[chains.start[ahead[far, 1]] + phase]
        else:
            continue
        found[count] = inner[i]
        count += 1
    # Successive boundaries mostly share one way out, so its list is processed once for all of them.
    while begin < length:
        way = ahead[begin, 2]
        end = begin + 1
        while end < length and ahead[end, 2] == way:
            end += 1
        last = furthest if loops and end == length else end - 1
        for i in range(left_start[way], left_start[way + 1]):
            if begin <= left[i, 1] <= last:
                found[count] = left[i, 0]
                target[count] = left[i, 2]
                count += 1
        begin = end
    return count


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def _store(
    state: cython.Py_ssize_t,
    ends: cython.bint,
    found: cython.int[::1],
    target: cython.int[::1],
    count: cython.Py_ssize_t,
    store: RowStore,
) -> cython.void:
    """Store a state's row, and if a text may end there, a transition to the end."""
    if ends:
        found[count] = store.num_classes - 1
        target[count] = store.pattern_of.shape[0] - 1
        count += 1
    store.add(state, found, target, count)


def follow_classes(
    step: cython.const[cython.int][:, ::1],
    tree: tuple[np.ndarray, ...],
    max_depth: int,
    cells: Cells,
    ways: Ways,
    ends: np.ndarray,
    num_entries: cython.Py_ssize_t,
) -> tuple[np.ndarray, ...]:
    """Return the fields of `gcd._tokens.rows.Rows`, with a class for each of the entries."""
    walked: Tree = Tree(tree)
    chains: _Chains = _Chains(cells, ways)
    units: cython.const[cython.short][:, ::1] = cells.units
    unit_start: cython.const[cython.int][::1] = cells.unit_start
    cell: cython.const[cython.int][::1] = cells.cell
    way_state: cython.const[cython.int][::1] = ways.state
    way_unit: cython.const[cython.int][::1] = ways.unit
    is_end: cython.const[cython.uchar][::1] = ends.view(np.uint8)
    num_states: cython.Py_ssize_t = step.shape[0]
    num_cells: cython.Py_ssize_t = chains.unit_of.shape[0]
    num_ways: cython.Py_ssize_t = way_state.shape[0]
    num_nodes: cython.Py_ssize_t = walked.byte.shape[0]
    store: RowStore = RowStore(num_states + 1, num_entries + 1)
    path: cython.int[::1] = np.empty(max_depth + 1, np.int32)
    passed: cython.int[::1] = np.empty(max_depth + 1, np.int32)
    inner: cython.int[::1] = np.empty(num_entries, np.int32)
    goal: cython.int[::1] = np.empty(num_entries, np.int32)
    goal_passed: cython.int[::1] = np.empty(num_entries, np.int32)
    goal_phase: cython.int[::1] = np.empty(num_entries, np.int32)
    found: cython.int[::1] = np.empty(num_entries + 1, np.int32)
    target: cython.int[::1] = np.empty(num_entries + 1, np.int32)
    exits: cython.int[:, ::1] = np.empty((num_nodes, 2), np.int32)
    # Entries that leave the run, after how many boundaries, and to which state, by way out.
    left_array = np.empty((1024, 3), np.int32)
    left: cython.int[:, ::1] = left_array
    left_start: cython.longlong[::1] = np.zeros(num_ways + 1, np.int64)
    ahead: cython.int[:, ::1] = np.empty((max_depth + 2, 3), np.int32)
    unit: cython.const[cython.short][:, ::1]
    cython.declare(phase=cython.int, far=cython.int, state=cython.int, stay=cython.Py_ssize_t)
    cython.declare(num_exits=cython.Py_ssize_t, furthest=cython.Py_ssize_t, size=cython.Py_ssize_t)
    cython.declare(more=cython.Py_ssize_t, node=cython.Py_ssize_t, length=cython.Py_ssize_t)
    cython.declare(count=cython.Py_ssize_t, u=cython.Py_ssize_t, way=cython.Py_ssize_t)
    cython.declare(i=cython.Py_ssize_t, j=cython.Py_ssize_t, loops=cython.bint)
    with cython.nogil:
        for u in range(unit_start.shape[0] - 1):
            unit = units[unit_start[u] : unit_start[u + 1]]
            for phase in range(unit.shape[0]):
                stay, num_exits = walk_unit(unit, phase, walked, path, passed, inner, goal, exits)
                furthest = 0
                for i in range(stay):
                    goal_passed[i] = goal[i] // _PHASES
                    goal_phase[i] = goal[i] % _PHASES
                    furthest = max(furthest, goal_passed[i])
                size = 0
                for way in range(num_ways):
                    left_start[way] = size
                    if way_unit[way] != u:
                        continue
                    state = way_state[way]
                    for i in range(num_exits):
                        node = exits[i, 0]
                        far = exits[i, 1]
                        if step[state, walked.column[walked.byte[node]]] < 0:
                            continue
                        more = walk(
                            state, node, walked.skip[node], step, walked, path, found, target, 0
                        )
                        if size + more > left.shape[0]:
                            with cython.gil:
                                left_array = more_rows(left_array, size + more)
                                left = left_array
                        for j in range(more):
                            left[size + j, 0] = found[j]
                            left[size + j, 1] = far
                            left[size + j, 2] = target[j]
                        size += more
                        furthest = max(furthest, far)
                left_start[num_ways] = size
                for i in range(num_cells):
                    if chains.unit_of[i] != u:
                        continue
                    state = chains.states[chains.start[i] + phase]
                    if cell[state] != i:
                        continue
                    length, loops = _look_ahead(i, furthest, chains, ahead)
                    count = _row_in_run(
                        stay, inner, goal_passed, goal_phase, left, left_start,
                        ahead, length, loops, furthest, chains, found, target,
                    )  # fmt: skip
                    if not store.has_room():
                        with cython.gil:
                            store.grow()
                    _store(state, is_end[state], found, target, count, store)
        for state in range(num_states):
            if cell[state] >= 0:
                continue
            count = walk(state, 0, num_nodes, step, walked, path, found, target, 0)
            if not store.has_room():
                with cython.gil:
                    store.grow()
            _store(state, is_end[state], found, target, count, store)
        if not store.has_room():
            with cython.gil:
                store.grow()
        _store(num_states, True, found, target, 0, store)
    return store.arrays()

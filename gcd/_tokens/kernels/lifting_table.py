"""Table of a lifted automaton: the state after each class of tokens.

The prefix tree contains one token string (entry) for each class, so here an entry is a class. For
states in a counted run (copies of an automaton, the unit), the tree is followed once from each
state (phase) of the unit (`gcd._tokens.kernels.lifting`). A class that stays in the run advances by
a fixed number of copies. A class that leaves the run is followed once for all copies that the same
transitions leave. For every other state, the tree is followed from the state.

**Two passes.** Most rows are nearly empty, and the table is by far the largest array, so it is
written once and never read. The first pass only computes a sum for each column. Every state has a
random weight, and equal columns have equal sums of weight times target. The second pass merges
columns with equal sums, writes the table, verifies that merged columns are equal, and lists the
edges of the automaton.
"""

from __future__ import annotations

import cython
import numpy as np

from gcd._tokens.kernels.counted_runs import PHASES, Cells
from gcd._tokens.kernels.lifting import Ways, more_rows

if cython.compiled:
    from cython.cimports.gcd._support.kernels.mixing import mix
    from cython.cimports.gcd._tokens.kernels.lifting import Tree, walk, walk_unit
else:
    from gcd._support.kernels.mixing import mix
    from gcd._tokens.kernels.lifting import Tree, walk, walk_unit

_PHASES = cython.declare(cython.int, PHASES)
_64_BITS = cython.declare(cython.ulonglong, 0xFFFFFFFFFFFFFFFF)  # for Python integers


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
    first: cython.int,
    furthest: cython.Py_ssize_t,
    chains: _Chains,
    ahead: cython.int[:, ::1],
) -> tuple[cython.Py_ssize_t, cython.bint]:
    """List the states at which the next copies in a counted run begin (boundaries).

    Begin with the copy (cell) `first`, and list up to `furthest` boundaries after it. Each boundary
    is a row of `ahead`: the state, its cell (-1 at the end of the run), and its group in `Ways`.
    Return the number of rows, and whether the last boundary leads back to itself.
    """
    here: cython.int = first
    beyond: cython.int
    following: cython.int
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
    far: cython.Py_ssize_t
    phase: cython.int
    way: cython.int
    begin: cython.Py_ssize_t = 0
    end: cython.Py_ssize_t
    last: cython.Py_ssize_t
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
def _weigh(
    state: cython.int,
    found: cython.const[cython.int][::1],
    target: cython.const[cython.int][::1],
    count: cython.Py_ssize_t,
    total: cython.ulonglong[::1],
    live: cython.longlong[::1],
) -> cython.void:
    """Add a state's next states, times a random weight, to the sums of their table columns."""
    weight: cython.ulonglong = mix(state + 1)
    bits: cython.ulonglong = _64_BITS
    i: cython.Py_ssize_t
    for i in range(count):
        goal: cython.ulonglong = int(target[i])
        before: cython.ulonglong = int(total[found[i]])
        total[found[i]] = (before + weight * (goal + 1)) & bits
        live[found[i]] += 1


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def _write(
    state: cython.int,
    found: cython.const[cython.int][::1],
    target: cython.const[cython.int][::1],
    count: cython.Py_ssize_t,
    first: cython.const[cython.longlong][::1],
    column: cython.const[cython.longlong][::1],
    row: cython.int[::1],
    seen: cython.int[::1],
    edges: cython.int[:, ::1],
    num_edges: cython.Py_ssize_t,
) -> cython.Py_ssize_t:
    """Write a state's next states to its row of the table, and the edges to them to `edges`.

    Return the new number of edges; -1 if columns that were merged differ in this row.
    """
    merged: cython.bint = False
    entry: cython.int
    t: cython.int
    i: cython.Py_ssize_t
    for i in range(count):
        entry = found[i]
        t = target[i]
        if first[entry] != entry:
            merged = True
            continue
        row[column[entry]] = t
        if seen[t] != state:
            seen[t] = state
            edges[num_edges, 0] = state
            edges[num_edges, 1] = t
            num_edges += 1
    if merged:
        for i in range(count):
            if row[column[first[found[i]]]] != target[i]:
                return -1
    return num_edges


def pass_over_rows(
    delta: np.ndarray,
    tree: tuple[np.ndarray, ...],
    max_depth: int,
    cells: Cells,
    ways: Ways,
    total: np.ndarray,
    live: np.ndarray,
    first: np.ndarray,
    column: np.ndarray,
    table: np.ndarray,
) -> tuple[np.ndarray, bool]:
    """Compute the sums of the table's columns; if `table` has rows, write the table instead.

    These are the first and the second pass of the module docstring.

    Returns:
        edges: the pairs (state, next state), without repetition; from the second pass only.
        agree: whether merged columns are equal; from the second pass only.
    """
    step: cython.const[cython.int][:, ::1] = np.ascontiguousarray(delta, np.int32)
    walked: Tree = Tree(tree)
    chains: _Chains = _Chains(cells, ways)
    units: cython.const[cython.short][:, ::1] = cells.units
    unit_start: cython.const[cython.int][::1] = cells.unit_start
    cell: cython.const[cython.int][::1] = cells.cell
    way_state: cython.const[cython.int][::1] = ways.state
    way_unit: cython.const[cython.int][::1] = ways.unit
    sums: cython.ulonglong[::1] = total
    counts: cython.longlong[::1] = live
    first_of: cython.const[cython.longlong][::1] = np.ascontiguousarray(first, np.int64)
    column_of: cython.const[cython.longlong][::1] = np.ascontiguousarray(column, np.int64)
    rows: cython.int[:, ::1] = table
    num_states: cython.Py_ssize_t = step.shape[0]
    num_entries: cython.Py_ssize_t = sums.shape[0]
    num_cells: cython.Py_ssize_t = chains.unit_of.shape[0]
    num_ways: cython.Py_ssize_t = way_state.shape[0]
    num_nodes: cython.Py_ssize_t = walked.label.shape[0]
    writing: cython.bint = rows.shape[0] > 0
    path: cython.int[::1] = np.empty(max_depth + 1, np.int32)
    passed: cython.int[::1] = np.empty(max_depth + 1, np.int32)
    inner: cython.int[::1] = np.empty(num_entries, np.int32)
    goal: cython.int[::1] = np.empty(num_entries, np.int32)
    goal_passed: cython.int[::1] = np.empty(num_entries, np.int32)
    goal_phase: cython.int[::1] = np.empty(num_entries, np.int32)
    found: cython.int[::1] = np.empty(num_entries, np.int32)
    target: cython.int[::1] = np.empty(num_entries, np.int32)
    exits: cython.int[:, ::1] = np.empty((num_nodes, 2), np.int32)
    # Entries that leave the run, after how many boundaries, and to which state, by way out.
    left_array = np.empty((1024, 3), np.int32)
    left: cython.int[:, ::1] = left_array
    left_start: cython.longlong[::1] = np.zeros(num_ways + 1, np.int64)
    ahead: cython.int[:, ::1] = np.empty((max_depth + 2, 3), np.int32)
    seen: cython.int[::1] = np.full(num_states, -1, np.int32)
    edge_array = np.empty((4096, 2), np.int32)
    edges: cython.int[:, ::1] = edge_array
    num_edges: cython.Py_ssize_t = 0
    unit: cython.const[cython.short][:, ::1]
    phase: cython.int
    stay: cython.Py_ssize_t
    num_exits: cython.Py_ssize_t
    furthest: cython.Py_ssize_t
    far: cython.int
    size: cython.Py_ssize_t
    more: cython.Py_ssize_t
    node: cython.Py_ssize_t
    state: cython.int
    length: cython.Py_ssize_t
    loops: cython.bint
    count: cython.Py_ssize_t
    u: cython.Py_ssize_t
    way: cython.Py_ssize_t
    i: cython.Py_ssize_t
    j: cython.Py_ssize_t
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
                        if step[state, walked.label[node]] < 0:
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
                    if not writing:
                        _weigh(state, found, target, count, sums, counts)
                        continue
                    if num_edges + count > edges.shape[0]:
                        with cython.gil:
                            edge_array = more_rows(edge_array, num_edges + count)
                            edges = edge_array
                    num_edges = _write(
                        state, found, target, count, first_of, column_of,
                        rows[state], seen, edges, num_edges,
                    )  # fmt: skip
                    if num_edges < 0:
                        break
                if num_edges < 0:
                    break
            if num_edges < 0:
                break
        for state in range(num_states):
            if num_edges < 0:
                break
            if cell[state] >= 0:
                continue
            count = walk(state, 0, num_nodes, step, walked, path, found, target, 0)
            if not writing:
                _weigh(state, found, target, count, sums, counts)
                continue
            if num_edges + count > edges.shape[0]:
                with cython.gil:
                    edge_array = more_rows(edge_array, num_edges + count)
                    edges = edge_array
            num_edges = _write(
                state, found, target, count, first_of, column_of,
                rows[state], seen, edges, num_edges,
            )  # fmt: skip
    if num_edges < 0:  # merged columns differ
        return edge_array[:0].copy(), False
    return edge_array[:num_edges].copy(), True

"""This module fills in the table of a lifted automaton: the state after each class of tokens.

The tree holds one string for each class, so that entries are classes. States in counted runs take
their rows from one walk for each place of a unit (`gcd.tokens.kernels.lifting`): a class that stays
inside goes so many boundaries further along the run, a class that leaves goes where the way out
leads it. The others are walked.

**Two passes.** Most rows are nearly empty, and the table is the largest thing there is; it is not
read again here. The first pass only weighs the columns: every state has a random weight, and equal
columns have equal sums of weight times target. Columns of equal sum become one in the second pass,
which writes the table, confirms that they are equal, and lists the edges of the automaton.
"""

from __future__ import annotations

import numpy as np

from gcd.automata.kernels.subsets import mix
from gcd.support.compiled import helper, kernel
from gcd.support.kernels.growing import more_rows
from gcd.tokens.kernels.counted_runs import PLACES, Cells
from gcd.tokens.kernels.lifting import Ways, walk, walk_unit


@helper
def _look_ahead(
    first: int,
    furthest: int,
    cells: Cells,
    ways: Ways,
    ahead: np.ndarray,
) -> tuple[int, bool]:
    """The boundaries from a cell on, `furthest` passed at most: (how many, whether they loop).

    Rows of `ahead` are boundaries: the state, its cell (-1 at the end), its way out.
    """
    _, _, unit_of, after, start, states, _, _, cell_at = cells
    way_at, way_after, _, _ = ways
    here = first
    count = 0
    while True:
        ahead[count, 0], ahead[count, 1] = states[start[here]], here
        ahead[count, 2] = way_at[here]
        count += 1
        beyond = after[here]
        following = cell_at[beyond]
        if following == here:
            return count, True
        if count > furthest:
            return count, False
        if following < 0 or unit_of[following] != unit_of[here]:
            ahead[count, 0], ahead[count, 1], ahead[count, 2] = beyond, -1, way_after[here]
            return count + 1, False
        here = following


@helper
def _row_in_run(
    inside: tuple[np.ndarray, np.ndarray],
    left: np.ndarray,
    left_start: np.ndarray,
    ahead: np.ndarray,
    loops: bool,
    furthest: int,
    cells: Cells,
    found: np.ndarray,
    target: np.ndarray,
) -> int:
    """What lives in the row of a state in a run, into `found` and `target`; how many.

    `inside` are the classes that stay in the run and where they end; those in `left` leave it.
    """
    _, _, _, _, start, states, _, _, _ = cells
    length = ahead.shape[0]
    entries, goals = inside
    count = 0
    for i in range(entries.size):
        far, place = goals[i] // PLACES, goals[i] % PLACES
        if far >= length:
            if not loops:
                continue
            far = length - 1
        if place > 0 and ahead[far, 1] < 0:
            continue
        found[count] = entries[i]
        target[count] = ahead[far, 0] if place == 0 else states[start[ahead[far, 1]] + place]
        count += 1
    # Neighbouring boundaries mostly have one way out: look through its list once for all.
    begin = 0
    while begin < length:
        way = ahead[begin, 2]
        end = begin + 1
        while end < length and ahead[end, 2] == way:
            end += 1
        last = furthest if loops and end == length else end - 1
        for i in range(left_start[way], left_start[way + 1]):
            if begin <= left[i, 1] <= last:
                found[count], target[count] = left[i, 0], left[i, 2]
                count += 1
        begin = end
    return count


@helper
def _weigh(
    state: int,
    found: np.ndarray,
    target: np.ndarray,
    count: int,
    total: np.ndarray,
    live: np.ndarray,
) -> None:
    """First pass: add a row to the columns' sums."""
    weight = np.uint64(mix(state + 1))
    for i in range(count):
        total[found[i]] += weight * np.uint64(target[i] + 1)
        live[found[i]] += 1


@helper
def _write(
    state: int,
    found: np.ndarray,
    target: np.ndarray,
    count: int,
    first: np.ndarray,
    column: np.ndarray,
    table: np.ndarray,
    seen: np.ndarray,
    edges: np.ndarray,
    num_edges: int,
) -> int:
    """Second pass: write a row, append its edges; the new number of edges, -1 if columns differ."""
    row = table[state]
    merged = False
    for i in range(count):
        entry, t = found[i], target[i]
        if first[entry] != entry:
            merged = True
            continue
        row[column[entry]] = t
        if seen[t] != state:
            seen[t] = state
            edges[num_edges, 0], edges[num_edges, 1] = state, t
            num_edges += 1
    if merged:
        for i in range(count):
            if row[column[first[found[i]]]] != target[i]:
                return -1
    return num_edges


@kernel
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
    """Run one of the two passes: the first one if the table has no rows.

    Returns:
        edges: (state, next state), each once; second pass only.
        agree: whether columns that are made one are equal; second pass only.
    """
    label, _, skip, _ = tree
    units, unit_start, unit_of, _, start, states, cell, _, _ = cells
    num_states, num_entries = delta.shape[0], total.size
    writing = table.shape[0] > 0
    path = np.empty(max_depth + 1, np.int32)
    passed = np.empty(max_depth + 1, np.int32)
    inner = np.empty(num_entries, np.int32)
    goal = np.empty(num_entries, np.int32)
    found = np.empty(num_entries, np.int32)
    target = np.empty(num_entries, np.int32)
    exits = np.empty((label.size, 2), np.int32)
    # Entries that leave, after how many boundaries, and for which state; way by way.
    left = np.empty((1024, 3), np.int32)
    left_start = np.zeros(ways.state.size + 1, np.int64)
    ahead = np.empty((max_depth + 2, 3), np.int32)
    seen = np.full(num_states, -1, np.int32)
    edges = np.empty((4096, 2), np.int32)
    nothing = num_edges = np.int64(0)
    for u in range(unit_start.size - 1):
        unit = units[unit_start[u] : unit_start[u + 1]]
        for place in range(unit.shape[0]):
            stay, num_exits = walk_unit(unit, place, tree, path, passed, inner, goal, exits)
            furthest = np.int64(0)
            for i in range(stay):
                furthest = max(furthest, goal[i] // PLACES)
            size = 0
            for way in range(ways.state.size):
                left_start[way] = size
                if ways.unit[way] != u:
                    continue
                boundary = np.int64(ways.state[way])
                for i in range(num_exits):
                    node, far = np.int64(exits[i, 0]), exits[i, 1]
                    if delta[boundary, label[node]] < 0:
                        continue
                    past = np.int64(skip[node])
                    more = walk(boundary, node, past, delta, tree, path, found, target, nothing)
                    left = more_rows(left, size + more)
                    for j in range(more):
                        left[size + j, 0], left[size + j, 1] = found[j], far
                        left[size + j, 2] = target[j]
                    size += more
                    furthest = max(furthest, far)
            left_start[ways.state.size] = size
            for i in range(unit_of.size):
                state = np.int64(states[start[i] + place]) if unit_of[i] == u else np.int64(-1)
                if state < 0 or cell[state] != i:
                    continue
                length, loops = _look_ahead(i, furthest, cells, ways, ahead)
                count = _row_in_run(
                    (inner[:stay], goal[:stay]),
                    left,
                    left_start,
                    ahead[:length],
                    loops,
                    furthest,
                    cells,
                    found,
                    target,
                )
                if writing:
                    edges = more_rows(edges, num_edges + count)
                    num_edges = _write(
                        state, found, target, count, first, column, table, seen, edges, num_edges
                    )
                    if num_edges < 0:
                        return edges[:0].copy(), False
                else:
                    _weigh(state, found, target, count, total, live)
    last = np.int64(label.size)
    for state in range(num_states):
        if cell[state] >= 0:
            continue
        count = walk(state, nothing, last, delta, tree, path, found, target, nothing)
        if writing:
            edges = more_rows(edges, num_edges + count)
            num_edges = _write(
                state, found, target, count, first, column, table, seen, edges, num_edges
            )
            if num_edges < 0:
                return edges[:0].copy(), False
        else:
            _weigh(state, found, target, count, total, live)
    return edges[:num_edges].copy(), True

"""The table of a lifted automaton: the state after each class of tokens, from every state.

The tree holds one string for each class, so that entries are classes. States in counted runs take
their rows from one walk for each place of a unit (`gcd.kernels.lifting`): a class that stays
inside goes so many boundaries further along the run, a class that leaves goes where the way out
leads it. The others are walked, or differ from a boundary's row in a few entries.
"""

from __future__ import annotations

import numba
import numpy as np

from gcd.kernels.cells import PLACES, Cells
from gcd.kernels.lifting import Ways, walk, walk_apart, walk_unit


@numba.njit(cache=True)
def _longer(array: np.ndarray, length: int) -> np.ndarray:
    """An array of at least this length with the same beginning; twice as long if it must grow."""
    if length <= array.shape[0]:
        return array
    longer = np.empty((max(length, 2 * array.shape[0]), array.shape[1]), np.int32)
    longer[: array.shape[0]] = array
    return longer


@numba.njit(cache=True)
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


@numba.njit(cache=True)
def _fill_row(
    row: np.ndarray,
    found: np.ndarray,
    goal: np.ndarray,
    left: np.ndarray,
    left_start: np.ndarray,
    ahead: np.ndarray,
    loops: bool,
    furthest: int,
    start: np.ndarray,
    states: np.ndarray,
) -> None:
    """The row of a state in a run: `found` goes on to `goal` inside, `left` leaves."""
    length = ahead.shape[0]
    for i in range(found.size):
        far, place = goal[i] // PLACES, goal[i] % PLACES
        if far >= length:
            if not loops:
                continue
            far = length - 1
        if place == 0:
            row[found[i]] = ahead[far, 0]
        elif ahead[far, 1] >= 0:
            row[found[i]] = states[start[ahead[far, 1]] + place]
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
                row[left[i, 0]] = left[i, 2]
        begin = end


@numba.njit(cache=True)
def fill_runs(
    table: np.ndarray,
    delta: np.ndarray,
    tree: tuple[np.ndarray, ...],
    num_entries: int,
    max_depth: int,
    cells: Cells,
    ways: Ways,
) -> None:
    """Rows of the states in counted runs; the table holds -1 before."""
    label, _, skip, _ = tree
    units, unit_start, unit_of, _, start, states, cell, _, _ = cells
    _, _, way_state, way_unit = ways
    path = np.empty(max_depth + 1, np.int32)
    passed = np.empty(max_depth + 1, np.int32)
    found = np.empty(num_entries, np.int32)
    goal = np.empty(num_entries, np.int32)
    gone = np.empty(num_entries, np.int32)
    target = np.empty(num_entries, np.int32)
    exits = np.empty((label.size, 2), np.int32)
    # Entries that leave, after how many boundaries, and for which state; way by way.
    left = np.empty((1024, 3), np.int32)
    left_start = np.zeros(way_state.size + 1, np.int64)
    ahead = np.empty((max_depth + 2, 3), np.int32)
    for u in range(unit_start.size - 1):
        unit = units[unit_start[u] : unit_start[u + 1]]
        for place in range(unit.shape[0]):
            count, num_exits = walk_unit(unit, place, tree, path, passed, found, goal, exits)
            furthest = 0
            for i in range(count):
                furthest = max(furthest, goal[i] // PLACES)
            size = 0
            for way in range(way_state.size):
                left_start[way] = size
                if way_unit[way] != u:
                    continue
                boundary = way_state[way]
                for i in range(num_exits):
                    node, far = exits[i, 0], exits[i, 1]
                    if delta[boundary, label[node]] < 0:
                        continue
                    more = walk(boundary, node, skip[node], delta, tree, path, gone, target, 0)
                    left = _longer(left, size + more)
                    for j in range(more):
                        left[size + j, 0], left[size + j, 1] = gone[j], far
                        left[size + j, 2] = target[j]
                    size += more
                    furthest = max(furthest, far)
            left_start[way_state.size] = size
            for i in range(unit_of.size):
                state = states[start[i] + place] if unit_of[i] == u else -1
                if state < 0 or cell[state] != i:
                    continue
                length, loops = _look_ahead(i, furthest, cells, ways, ahead)
                _fill_row(
                    table[state],
                    found[:count],
                    goal[:count],
                    left,
                    left_start,
                    ahead[:length],
                    loops,
                    furthest,
                    start,
                    states,
                )


@numba.njit(cache=True)
def fill_states(
    table: np.ndarray,
    delta: np.ndarray,
    tree: tuple[np.ndarray, ...],
    num_entries: int,
    max_depth: int,
    cell: np.ndarray,
    reference: np.ndarray,
) -> None:
    """Rows of the states outside the runs, given the rows inside; -1 before."""
    states = np.empty(max_depth + 1, np.int32)
    others = np.empty(max_depth + 1, np.int32)
    found = np.empty(num_entries, np.int32)
    target = np.empty(num_entries, np.int32)
    last = np.int32(tree[0].size)
    for s in range(delta.shape[0]):
        if cell[s] >= 0:
            continue
        if reference[s] >= 0:
            table[s, :num_entries] = table[reference[s], :num_entries]
            count = walk_apart(s, reference[s], delta, tree, states, others, found, target)
        else:
            count = walk(s, np.int32(0), last, delta, tree, states, found, target, 0)
        for i in range(count):
            table[s, found[i]] = target[i]

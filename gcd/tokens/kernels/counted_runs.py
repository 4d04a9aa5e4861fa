"""This module finds counted runs in a byte automaton: one unit, say a character, again and again.

A text of at most 200 characters is a chain of 201 *boundaries*, states between two characters,
and between neighbours lie the states inside a character: the bytes of UTF-8, the escapes. All
these pieces, the *cells*, look alike; the states of one are its *places*, place 0 the boundary.
What they share is the *unit*: `unit[p, k]` is the place after byte class k, 0 at the end of the
unit, that is at the next boundary, and -1 where the class is no part of it. A boundary may have
other ways out (a closing quote), which differ from cell to cell; an inner place may not. A
boundary without bound on the number of characters is its own next boundary.

So the state after a string depends on few things: the place where it ends, how many boundaries it
passes, and, if it leaves, what follows the way out. `gcd.tokens.kernels.lifting` builds on that.

**The search.** A state's next boundary is where most of its bytes lead. What leads there and
nowhere else, by few states, is the unit. It is taken for one if the next boundaries show the same
unit, up to a loop or a few times; then the chain is followed, a comparison for every state and
byte class. Whatever is found is checked place by place, so that any choice is sound. Cost: O(S K)
and, for each state with many bytes on that is in no chain, O(K) times the size of a unit.

`delta[s, k]` is the state after byte class k, which has `width[k]` bytes.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from gcd.support.compiled import helper, kernel
from gcd.support.kernels.growing import copied

_WIDE = 16  # bytes that lead to the next boundary, at least
PLACES = 64  # in a unit, at most
_REPEATED = 5  # cells that must look alike before a chain without a loop counts as one
_UNITS = 16  # kept for one automaton


class Cells(NamedTuple):
    """The counted runs of an automaton with S states.

    Attributes:
        units: the units' rows one after the other.
        unit_start: where each unit begins in them, and the end.
        unit_of: each cell's unit.
        after: each cell's next boundary.
        start: where each cell begins in `states`.
        states: the states of the cells, place by place.
        cell: the cell of each of the S states, -1 for none.
        place: the place of each of the S states in its cell.
        cell_at: the cell that begins at each of the S states, -1 for none. A cell with a chain
            that comes to nothing begins nowhere and has no states.
    """

    units: np.ndarray
    unit_start: np.ndarray
    unit_of: np.ndarray
    after: np.ndarray
    start: np.ndarray
    states: np.ndarray
    cell: np.ndarray
    place: np.ndarray
    cell_at: np.ndarray


@helper
def next_boundary(
    state: int, delta: np.ndarray, width: np.ndarray, weight: np.ndarray
) -> tuple[int, int]:
    """Return where most bytes lead, and how many; `weight` is scratch, zero for all states."""
    best, most = -1, 0
    for k in range(delta.shape[1]):
        t = delta[state, k]
        if t >= 0:
            weight[t] += width[k]
            if weight[t] > most:
                best, most = t, weight[t]
    for k in range(delta.shape[1]):
        if delta[state, k] >= 0:
            weight[delta[state, k]] = 0
    return best, most


@helper
def _unit_at(state: int, after: int, delta: np.ndarray, place: np.ndarray) -> np.ndarray:
    """The largest unit between two boundaries; `place` is -1 for all states, and left so."""
    num_classes = delta.shape[1]
    members = np.empty(PLACES, np.int32)
    members[0] = state
    count = 1
    for k in range(num_classes):
        t = delta[state, k]
        if t < 0 or t in (after, state) or place[t] > 0 or count == PLACES:
            continue
        # Everything beyond t must come to the next boundary, and to no other end.
        begin = head = count
        place[t], members[count] = count, t
        count += 1
        good = True
        while good and head < count:
            live = False
            for j in range(num_classes):
                u = delta[members[head], j]
                if u < 0:
                    continue
                live = True
                if u == after or place[u] > 0:
                    continue
                if u == state or count == PLACES:
                    good = False
                    break
                place[u], members[count] = count, u
                count += 1
            good = good and live
            head += 1
        if not good:
            for i in range(begin, count):
                place[members[i]] = -1
            count = begin
    unit = np.full((count, num_classes), -1, np.int16)
    for p in range(count):
        for k in range(num_classes):
            t = delta[members[p], k]
            if t == after and t >= 0:
                unit[p, k] = 0
            elif t >= 0 and place[t] > 0:
                unit[p, k] = place[t]
    for p in range(count):
        place[members[p]] = -1
    return unit


@helper
def _fits(state: int, unit: np.ndarray, delta: np.ndarray, members: np.ndarray) -> int:
    """The next boundary if the unit begins at this state, else -1; its states in `members`."""
    size, num_classes = unit.shape
    after = -1
    members[:size] = -1
    members[0] = state
    for p in range(size):
        for k in range(num_classes):
            goal, t = unit[p, k], delta[members[p], k]
            if goal < 0:
                if p > 0 and t >= 0:
                    return -1
            elif t < 0:
                return -1
            elif goal == 0:
                if after < 0:
                    after = t
                elif after != t:
                    return -1
            elif members[goal] < 0:
                members[goal] = t
            elif members[goal] != t:
                return -1
    for p in range(1, size):
        if members[p] == state or members[p] == after:
            return -1
    return after


@helper
def _is_repeated(
    state: int,
    after: int,
    unit: np.ndarray,
    delta: np.ndarray,
    width: np.ndarray,
    weight: np.ndarray,
    place: np.ndarray,
) -> bool:
    """Whether the boundaries that follow show the same unit, up to a loop or several times."""
    count = 1
    while after != state:
        if count == _REPEATED:
            return True
        state = after
        after, most = next_boundary(state, delta, width, weight)
        if most < _WIDE:
            return False
        other = _unit_at(state, after, delta, place)
        if other.shape[0] != unit.shape[0]:
            return False
        for p in range(unit.shape[0]):
            for k in range(unit.shape[1]):
                if other[p, k] != unit[p, k]:
                    return False
        count += 1
    return True


@kernel
def find_cells(delta: np.ndarray, width: np.ndarray) -> tuple[np.ndarray, ...]:
    """Find all counted runs, as the fields of `Cells`."""
    num_states, num_classes = delta.shape
    units = np.empty((_UNITS * PLACES, num_classes), np.int16)
    unit_start = np.zeros(_UNITS + 1, np.int32)
    unit_width = np.zeros(_UNITS, np.int64)
    num_units = 0
    unit_of = np.empty(num_states, np.int32)
    next_of = np.empty(num_states, np.int32)
    start = np.empty(num_states, np.int32)
    states = np.empty(2 * num_states + 2 * PLACES, np.int32)
    used = num_cells = 0
    cell = np.full(num_states, -1, np.int32)
    place_of = np.zeros(num_states, np.int32)
    cell_at = np.full(num_states, -1, np.int32)

    weight = np.zeros(num_states, np.int64)
    place = np.full(num_states, -1, np.int32)
    members = np.empty(PLACES, np.int32)
    for first in range(num_states):
        if cell[first] >= 0:
            continue
        after, most = next_boundary(first, delta, width, weight)
        if most < _WIDE:
            continue
        known = -1
        for u in range(num_units):
            if unit_width[u] == most:
                unit = units[unit_start[u] : unit_start[u + 1]]
                if _fits(first, unit, delta, members) == after:
                    known = u
                    break
        if known < 0:
            if num_units == _UNITS:
                continue
            unit = _unit_at(first, after, delta, place)
            if not _is_repeated(first, after, unit, delta, width, weight, place):
                continue
            known = num_units
            num_units += 1
            unit_width[known] = most
            end = unit_start[known] + unit.shape[0]
            unit_start[num_units] = end
            for p in range(unit.shape[0]):
                copied(units[unit_start[known] + p], unit[p], num_classes)
        # Follow the chain.
        unit = units[unit_start[known] : unit_start[known + 1]]
        size = unit.shape[0]
        state = first
        while cell_at[state] < 0 and used + size <= states.size:
            after = _fits(state, unit, delta, members)
            if after < 0 or next_boundary(state, delta, width, weight)[1] != unit_width[known]:
                break
            unit_of[num_cells], next_of[num_cells], start[num_cells] = known, after, used
            for p in range(size):
                states[used + p] = members[p]
                if cell[members[p]] < 0:
                    cell[members[p]], place_of[members[p]] = num_cells, p
            cell_at[state] = num_cells
            used += size
            num_cells += 1
            state = after

    # A chain ends at another of its unit's cells, or where none of the unit's bytes lead on.
    whole = np.ones(num_cells, np.bool_)
    changed = True
    while changed:
        changed = False
        for i in range(num_cells - 1, -1, -1):
            if not whole[i]:
                continue
            following = cell_at[next_of[i]]
            if following >= 0 and unit_of[following] == unit_of[i]:
                good = whole[following]
            else:
                good = True
                for k in range(num_classes):
                    if units[unit_start[unit_of[i]], k] >= 0 and delta[next_of[i], k] >= 0:
                        good = False
            if not good:
                whole[i] = False
                changed = True
    for s in range(num_states):
        if cell[s] >= 0 and not whole[cell[s]]:
            cell[s] = -1
        if cell_at[s] >= 0 and not whole[cell_at[s]]:
            cell_at[s] = -1
    return (
        units[: unit_start[num_units]].copy(),
        unit_start[: num_units + 1].copy(),
        unit_of[:num_cells].copy(),
        next_of[:num_cells].copy(),
        start[:num_cells].copy(),
        states[:used].copy(),
        cell,
        place_of,
        cell_at,
    )

"""Counted runs of a byte automaton: repetitions of one unit, such as a character.

The automaton of a text of at most 200 characters has a chain of 201 *boundaries*, states between
two characters. Between consecutive boundaries are the states inside a character (its bytes in
UTF-8, escapes). A boundary and the states inside the following character form a *cell*. The states
of a cell are its *phases*, and phase 0 is the boundary. All cells have the same structure, the
*unit*. `unit[p, k]` is the phase after byte class k at phase p. It is 0 for the next boundary, and
-1 if the class is not part of the unit. A boundary may have other transitions, which leave the run
and differ between cells (such as a closing quote); the other phases may not. If the number of
characters is unbounded, the boundary is its own next boundary.

So the state after a token that stays in the run only depends on the phase where the token ends and
on the number of boundaries that it passes. `gcd._tokens.kernels.lifting` uses this.

**Search.** A state's next boundary is taken to be the target of most of its bytes. The few states
that lead only there form the candidate unit. It is accepted if the following boundaries have the
same unit, either several times or until a loop. Then the chain is followed, and every state and
byte class is compared with the unit, so a wrong guess only costs time. Cost: O(S K), and O(K) times
the size of a unit for each state that has many transitions but isn't in a chain.

`delta[s, k]` is the state after byte class k, which has `width[k]` bytes.
"""

from __future__ import annotations

from typing import NamedTuple

import cython
import numpy as np

PHASES = 64  # at most, in a unit
_MOST_PHASES = cython.declare(cython.int, PHASES)
_WIDE = cython.declare(cython.int, 16)  # at least, that lead to the next boundary
# Equal cells required before a chain without a loop is accepted.
_REPEATED = cython.declare(cython.int, 5)
# Bytes that may lead to the next boundary beside those of the unit. In a bounded text without a
# word, the word's first letter does so where the rest of the word no longer fits.
_MORE = cython.declare(cython.int, 4)
_UNITS = cython.declare(cython.int, 16)  # stored for one automaton


class Cells(NamedTuple):
    """Counted runs in an automaton with S states.

    The arrays by state don't refer to cells of chains that were rejected.
    """

    units: np.ndarray  # the rows of the units' tables, one unit after the other
    unit_start: np.ndarray  # first row of each unit, followed by the number of rows
    unit_of: np.ndarray  # unit of each cell
    after: np.ndarray  # next boundary of each cell
    start: np.ndarray  # index in `states` of each cell's first state
    states: np.ndarray  # the states of the cells, phase by phase
    cell: np.ndarray  # the cell of each of the S states, -1 for none
    cell_at: np.ndarray  # the cell that has each of the S states as its boundary, -1 for none


def next_boundary(state, delta, width, weight):
    """Return the state to which most bytes lead from a state, and the number of these bytes."""
    best: cython.int = -1
    most: cython.longlong = 0
    for k in range(delta.shape[1]):
        t = delta[state, k]
        if t >= 0:
            weight[t] += width[k]
            if weight[t] > most:
                best = t
                most = weight[t]
    for k in range(delta.shape[1]):
        if delta[state, k] >= 0:
            weight[delta[state, k]] = 0
    return best, most


@cython.cfunc
@cython.inline
@cython.exceptval(check=False)
def _is_narrow(
    state: cython.Py_ssize_t,
    delta: cython.const[cython.int][:, ::1],
    width: cython.const[cython.longlong][::1],
) -> cython.bint:
    """Return whether a state allows too few bytes for copies in a counted run to begin."""
    total: cython.longlong = 0
    for k in range(delta.shape[1]):
        if delta[state, k] >= 0:
            total += width[k]
    return total < _WIDE


@cython.cfunc
@cython.exceptval(check=False)
def _unit_at(
    state: cython.int,
    after: cython.int,
    delta: cython.const[cython.int][:, ::1],
    phase: cython.int[::1],
    members: cython.int[::1],
    unit: cython.short[:, ::1],
) -> cython.Py_ssize_t:
    """Find the largest automaton from `state` to `after` that could be repeated (a unit).

    Write its transitions to `unit`, and return its number of states. `phase` and `members` are
    scratch space; all elements of `phase` are -1 before and after the call.
    """
    num_classes: cython.Py_ssize_t = delta.shape[1]
    count: cython.Py_ssize_t = 1
    members[0] = state
    for k in range(num_classes):
        t = delta[state, k]
        if t < 0 or t in (after, state) or phase[t] > 0 or count == _MOST_PHASES:
            continue
        # All paths from t must lead to the next boundary.
        begin = count
        head = count
        phase[t] = count
        members[count] = t
        count += 1
        good = True
        while good and head < count:
            live = False
            for j in range(num_classes):
                u = delta[members[head], j]
                if u < 0:
                    continue
                live = True
                if u == after or phase[u] > 0:
                    continue
                if u == state or count == _MOST_PHASES:
                    good = False
                    break
                phase[u] = count
                members[count] = u
                count += 1
            good = good and live
            head += 1
        if not good:
            for i in range(begin, count):
                phase[members[i]] = -1
            count = begin
    for p in range(count):
        for k in range(num_classes):
            t = delta[members[p], k]
            unit[p, k] = -1
            if t == after and t >= 0:
                unit[p, k] = 0
            elif t >= 0 and phase[t] > 0:
                unit[p, k] = phase[t]
    for p in range(count):
        phase[members[p]] = -1
    return count


@cython.cfunc
@cython.exceptval(check=False)
def _fits(
    state: cython.int,
    unit: cython.const[cython.short][:, ::1],
    delta: cython.const[cython.int][:, ::1],
    members: cython.int[::1],
) -> cython.int:
    """Find a copy of an automaton that is repeated (`unit`), with `state` as its first state."""
    size: cython.Py_ssize_t = unit.shape[0]
    after: cython.int = -1
    goal: cython.int
    members[0] = state
    for p in range(1, size):
        members[p] = -1
    for p in range(size):
        for k in range(unit.shape[1]):
            goal = unit[p, k]
            t = delta[members[p], k]
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


@cython.cfunc
@cython.exceptval(check=False)
def _is_repeated(
    state: cython.int,
    after: cython.int,
    unit: cython.const[cython.short][:, ::1],
    delta: cython.const[cython.int][:, ::1],
    width: cython.const[cython.longlong][::1],
    weight: cython.longlong[::1],
    phase: cython.int[::1],
    members: cython.int[::1],
    other: cython.short[:, ::1],
) -> cython.bint:
    """Return whether the automaton from `state` to `after` (`unit`) is repeated after it."""
    count: cython.int = 1
    while after != state:
        if count == _REPEATED:
            return True
        state = after
        after, most = next_boundary(state, delta, width, weight)
        if most < _WIDE:
            return False
        if _unit_at(state, after, delta, phase, members, other) != unit.shape[0]:
            return False
        for p in range(unit.shape[0]):
            for k in range(unit.shape[1]):
                if other[p, k] != unit[p, k]:
                    return False
        count += 1
    return True


def find_cells(
    step: cython.const[cython.int][:, ::1], widths: cython.const[cython.longlong][::1]
) -> tuple[np.ndarray, ...]:
    """Find all counted runs (repetitions) in an automaton; return the fields of `Cells`."""
    num_states: cython.Py_ssize_t = step.shape[0]
    num_classes: cython.Py_ssize_t = step.shape[1]
    units: cython.short[:, ::1] = np.empty((_UNITS * _MOST_PHASES, num_classes), np.int16)
    unit_start: cython.int[::1] = np.empty(_UNITS + 1, np.int32)
    unit_of: cython.int[::1] = np.empty(num_states, np.int32)
    next_of: cython.int[::1] = np.empty(num_states, np.int32)
    start: cython.int[::1] = np.empty(num_states, np.int32)
    states: cython.int[::1] = np.empty(2 * num_states + 2 * _MOST_PHASES, np.int32)
    cell: cython.int[::1] = np.empty(num_states, np.int32)
    cell_at: cython.int[::1] = np.empty(num_states, np.int32)
    num_units: cython.int = 0
    used: cython.Py_ssize_t = 0
    num_cells: cython.Py_ssize_t = 0

    longs: cython.longlong[::1] = np.zeros(num_states + _UNITS, np.int64)
    weight: cython.longlong[::1] = longs[:num_states]
    unit_width: cython.longlong[::1] = longs[num_states:]
    ints: cython.int[::1] = np.empty(num_states + _MOST_PHASES, np.int32)
    phase: cython.int[::1] = ints[:num_states]
    members: cython.int[::1] = ints[num_states:]
    rows: cython.short[:, ::1] = np.empty((2 * _MOST_PHASES, num_classes), np.int16)
    fresh: cython.short[:, ::1] = rows[:_MOST_PHASES]
    other: cython.short[:, ::1] = rows[_MOST_PHASES:]
    unit: cython.short[:, ::1]
    cython.declare(state=cython.int, known=cython.int, good=cython.bint)
    unit_start[0] = 0
    for s in range(num_states):
        cell[s] = -1
        cell_at[s] = -1
        phase[s] = -1
    for first in range(num_states):
        if cell[first] >= 0 or _is_narrow(first, step, widths):
            continue
        after, most = next_boundary(first, step, widths, weight)
        if most < _WIDE:
            continue
        known = -1
        for u in range(num_units):
            if unit_width[u] == most:
                unit = units[unit_start[u] : unit_start[u + 1]]
                if _fits(first, unit, step, members) == after:
                    known = u
                    break
        if known < 0:
            if num_units == _UNITS:
                continue
            size = _unit_at(first, after, step, phase, members, fresh)
            unit = fresh[:size]
            if not _is_repeated(first, after, unit, step, widths, weight, phase, members, other):
                continue
            known = num_units
            num_units += 1
            unit_width[known] = most
            unit_start[num_units] = unit_start[known] + size
            for p in range(size):
                for k in range(num_classes):
                    units[unit_start[known] + p, k] = unit[p, k]
        # Follow the chain.
        unit = units[unit_start[known] : unit_start[known + 1]]
        size = unit.shape[0]
        state = first
        while cell_at[state] < 0 and used + size <= states.shape[0]:
            after = _fits(state, unit, step, members)
            if after < 0:
                break
            following, most = next_boundary(state, step, widths, weight)
            if following != after or most > unit_width[known] + _MORE:
                break
            unit_of[num_cells] = known
            next_of[num_cells] = after
            start[num_cells] = used
            for p in range(size):
                states[used + p] = members[p]
                if cell[members[p]] < 0:
                    cell[members[p]] = num_cells
            cell_at[state] = num_cells
            used += size
            num_cells += 1
            state = after

    # A chain may only end at another cell of its unit, or at a state without transitions for the
    # unit's bytes.
    whole: cython.uchar[::1] = np.ones(num_cells, np.uint8)
    changed: cython.bint = True
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
                    if units[unit_start[unit_of[i]], k] >= 0 and step[next_of[i], k] >= 0:
                        good = False
            if not good:
                whole[i] = 0
                changed = True
    for s in range(num_states):
        if cell[s] >= 0 and not whole[cell[s]]:
            cell[s] = -1
        if cell_at[s] >= 0 and not whole[cell_at[s]]:
            cell_at[s] = -1
    return (
        np.array(units[: unit_start[num_units]]),
        np.array(unit_start[: num_units + 1]),
        np.array(unit_of[:num_cells]),
        np.array(next_of[:num_cells]),
        np.array(start[:num_cells]),
        np.array(states[:used]),
        np.asarray(cell),
        np.asarray(cell_at),
    )

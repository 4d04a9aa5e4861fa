"""Compiled loops of the recursion for beta; the equations are in `hmm._product`.

`b` has rows over the hidden states, and `log_scale` the logs of their scales. `before` has the
number of each state's row at the previous level. Row `NOTHING` is zero and row `CERTAIN` is one.
Computed rows begin at number `COMPUTED`.

Rows over the hidden states are float32 or float64, all of the same type. Logarithms are float64.
Numbers of states, edges and rows are int64.
"""

from __future__ import annotations

import cython
import numpy as np

if cython.compiled:
    from cython.cimports.gcd._support.kernels.wide import wide
    from cython.cimports.libc.math import exp, log
else:
    from math import exp, log

NOTHING, CERTAIN, COMPUTED = range(3)
LEFT_OUT = -1
_NOTHING = cython.declare(cython.longlong, NOTHING)
_COMPUTED = cython.declare(cython.longlong, COMPUTED)
_LOG_ZERO = cython.declare(cython.double, -np.inf)

Real = cython.fused_type(cython.float, cython.double)


@cython.cclass
class Arrays:
    """The arrays that the functions below have in common.

    They are passed as one object, because passing each array takes a tenth of a microsecond per
    call.

    Args:
        start, target, set_of: the edges (`hmm._edges.Edges`).
        mass, log_mass: scaled emission mass of each set of classes, and the log of the scale.
        b, log_scale: all rows of beta.
        log_u: log of the scale of each row before the transition.
        rows, log_rows: rows after the transition, and the logs of their scales.
    """

    is_single: cython.bint
    start: cython.const[cython.longlong][::1]
    target: cython.const[cython.longlong][::1]
    set_of: cython.const[cython.longlong][::1]
    mass_single: cython.const[cython.float][:, ::1]
    mass_double: cython.const[cython.double][:, ::1]
    log_mass: cython.const[cython.double][::1]
    b_single: cython.float[:, ::1]
    b_double: cython.double[:, ::1]
    log_scale: cython.double[::1]
    log_u: cython.double[::1]
    rows_single: cython.float[:, ::1]
    rows_double: cython.double[:, ::1]
    log_rows: cython.double[::1]

    def __init__(
        self,
        start: np.ndarray,
        target: np.ndarray,
        set_of: np.ndarray,
        mass: np.ndarray,
        log_mass: np.ndarray,
        b: np.ndarray,
        log_scale: np.ndarray,
        log_u: np.ndarray,
        rows: np.ndarray,
        log_rows: np.ndarray,
    ) -> None:
        self.is_single = b.itemsize == 4
        self.start = start
        self.target = target
        self.set_of = set_of
        self.log_mass = log_mass
        self.log_scale = log_scale
        self.log_u = log_u
        self.log_rows = log_rows
        if self.is_single:
            self.mass_single = mass
            self.b_single = b
            self.rows_single = rows
        else:
            self.mass_double = mass
            self.b_double = b
            self.rows_double = rows


def mark_needed(
    source: cython.const[cython.longlong][::1],
    target: cython.const[cython.longlong][::1],
    steps: cython.const[cython.longlong][::1],
    begin_left: cython.const[cython.longlong][::1],
    begin_state: cython.const[cython.longlong][::1],
    needed: cython.uchar[:, ::1],
) -> None:
    """Mark needed[r, s] if a text that can be completed reaches state s with r tokens left.

    Args:
        source, target: the edges.
        steps: fewest tokens from each state to the end.
        begin_left, begin_state: for each text, the number of tokens left at its beginning, and the
            state in which it begins. Texts are sorted by decreasing number of tokens left.
        needed: output.
    """
    here: cython.uchar[::1] = np.zeros(steps.shape[0], np.uint8)
    next_start: cython.Py_ssize_t = 0
    left: cython.Py_ssize_t
    edge: cython.Py_ssize_t
    state: cython.Py_ssize_t
    with cython.nogil:
        for left in range(needed.shape[0], 0, -1):
            while next_start < begin_left.shape[0] and begin_left[next_start] == left:
                here[begin_state[next_start]] = 1
                next_start += 1
            for state in range(needed.shape[1]):
                needed[left - 1, state] = 0
            for edge in range(source.shape[0]):  # the condition is `gcd._tokens.distances.fits`
                if here[source[edge]] and steps[target[edge]] < left:
                    needed[left - 1, target[edge]] = 1
            for state in range(needed.shape[1]):
                here[state] = needed[left - 1, state]


def pending(
    states: cython.const[cython.longlong][::1],
    start: cython.const[cython.longlong][::1],
    target: cython.const[cython.longlong][::1],
    now: cython.const[cython.longlong][::1],
    before: cython.const[cython.longlong][::1],
    entry: cython.longlong[::1],
    out: cython.longlong[::1],
) -> cython.Py_ssize_t:
    """List the states whose row of beta must be computed; the others keep their row.

    A state keeps its row if all its successors kept their rows at the last level, because the sum
    would be bitwise the same.

    Args:
        states: the states that need a row at this level.
        start, target: the edges.
        now: row of each state at the last level.
        before: row of each state at the level before the last.
        entry: output, the rows of the states that keep their row.
        out: output, the states to compute.

    Returns:
        The number of states in `out`.
    """
    count: cython.Py_ssize_t = 0
    i: cython.Py_ssize_t
    state: cython.longlong
    edge: cython.longlong
    same: cython.bint
    with cython.nogil:
        for i in range(states.shape[0]):
            state = states[i]
            same = now[state] >= _COMPUTED
            if same:
                for edge in range(start[state], start[state + 1]):
                    if now[target[edge]] != before[target[edge]]:
                        same = False
                        break
            if same:
                entry[state] = now[state]
            else:
                out[count] = state
                count += 1
    return count


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def _sum_edges(
    first: cython.Py_ssize_t,
    last: cython.Py_ssize_t,
    states: cython.const[cython.longlong][::1],
    start: cython.const[cython.longlong][::1],
    target: cython.const[cython.longlong][::1],
    set_of: cython.const[cython.longlong][::1],
    mass: cython.const[Real][:, ::1],
    log_mass: cython.const[cython.double][::1],
    before: cython.const[cython.longlong][::1],
    b: cython.const[Real][:, ::1],
    log_scale: cython.const[cython.double][::1],
    u: Real[:, ::1],
    log_u: cython.double[::1],
) -> wide:
    """Compute `sum_edges` for one floating-point type, without the GIL."""
    share: Real[4]
    row_of: cython.longlong[4]
    mass_of: cython.longlong[4]
    if not cython.compiled:
        share, row_of, mass_of = np.zeros(4, b.dtype), [0] * 4, [0] * 4
    i: cython.Py_ssize_t
    row: cython.Py_ssize_t
    k: cython.Py_ssize_t
    h: cython.Py_ssize_t
    edge: cython.longlong
    begin: cython.longlong
    end: cython.longlong
    at: cython.longlong
    count: cython.Py_ssize_t
    top: cython.double
    w0: Real
    w1: Real
    w2: Real
    w3: Real
    for i in range(first, last):
        begin = start[states[i]]
        end = start[states[i] + 1]
        top = _LOG_ZERO
        for edge in range(begin, end):
            top = max(top, log_scale[before[target[edge]]] + log_mass[set_of[edge]])
        log_u[i] = top
        row = i - first
        for h in range(u.shape[1]):
            u[row, h] = 0
        if top == _LOG_ZERO:
            continue
        count = 0
        for edge in range(begin, end):
            at = before[target[edge]]
            share[count] = exp(log_scale[at] + log_mass[set_of[edge]] - top)
            if share[count] > 0:
                row_of[count] = at
                mass_of[count] = set_of[edge]
                count += 1
            if count == 0 or (count < 4 and edge < end - 1):
                continue
            for k in range(count, 4):
                row_of[k] = _NOTHING
                mass_of[k] = mass_of[0]
                share[k] = 0
            count = 0
            w0 = share[0]
            w1 = share[1]
            w2 = share[2]
            w3 = share[3]
            for h in range(u.shape[1]):
                u[row, h] += (
                    w0 * mass[mass_of[0], h] * b[row_of[0], h]
                    + w1 * mass[mass_of[1], h] * b[row_of[1], h]
                ) + (
                    w2 * mass[mass_of[2], h] * b[row_of[2], h]
                    + w3 * mass[mass_of[3], h] * b[row_of[3], h]
                )


def sum_edges(
    level: Arrays,
    first: cython.Py_ssize_t,
    last: cython.Py_ssize_t,
    states: cython.const[cython.longlong][::1],
    before: cython.const[cython.longlong][::1],
    u: np.ndarray,
) -> None:
    """Compute u of each state in `states[first:last]`, divided by its scale.

    u is the sum of mass · beta over the edges of a state. Sums are written to the first rows of
    `u`, and the logs of their scales to `level.log_u`, from index `first` on. Four edges are added
    at a time, so that each sum is read and written a quarter as often.
    """
    if level.is_single:
        u_single: cython.float[:, ::1] = u
        with cython.nogil:
            _sum_edges(
                first, last, states, level.start, level.target, level.set_of, level.mass_single,
                level.log_mass, before, level.b_single, level.log_scale, u_single, level.log_u,
            )  # fmt: skip
    else:
        u_double: cython.double[:, ::1] = u
        with cython.nogil:
            _sum_edges(
                first, last, states, level.start, level.target, level.set_of, level.mass_double,
                level.log_mass, before, level.b_double, level.log_scale, u_double, level.log_u,
            )  # fmt: skip


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def _store(
    first: cython.Py_ssize_t,
    last: cython.Py_ssize_t,
    kept: cython.const[cython.longlong][::1],
    used: cython.Py_ssize_t,
    rows: cython.const[Real][:, ::1],
    log_rows: cython.const[cython.double][::1],
    b: Real[:, ::1],
    log_scale: cython.double[::1],
) -> cython.void:
    """Run `store` for one floating-point type, without the GIL."""
    k: cython.Py_ssize_t
    h: cython.Py_ssize_t
    for k in range(first, last):
        for h in range(b.shape[1]):
            b[used + k, h] = rows[kept[k], h]
        log_scale[used + k] = log_rows[kept[k]]


def store(
    first: cython.Py_ssize_t,
    last: cython.Py_ssize_t,
    level: Arrays,
    kept: cython.const[cython.longlong][::1],
    used: cython.Py_ssize_t,
) -> None:
    """Append new rows of beta to the table, whose first `used` rows are taken.

    Row `kept[k]` of the new rows becomes row `used` + k of the table, for k from `first` to
    `last` - 1.
    """
    with cython.nogil:
        if level.is_single:
            _store(
                first, last, kept, used, level.rows_single, level.log_rows, level.b_single,
                level.log_scale,
            )  # fmt: skip
        else:
            _store(
                first, last, kept, used, level.rows_double, level.log_rows, level.b_double,
                level.log_scale,
            )  # fmt: skip


@cython.cfunc
@cython.inline
@cython.nogil
@cython.exceptval(check=False)
def _greatest(rows: cython.const[Real][:, ::1], row: cython.Py_ssize_t) -> Real:
    """Return the maximum of a row, computed as the maximum of 16 partial maxima."""
    top: Real[16]
    if not cython.compiled:
        top = np.zeros(16, rows.dtype)
    size: cython.Py_ssize_t = rows.shape[1]
    whole: cython.Py_ssize_t = size - size % 16
    h: cython.Py_ssize_t
    j: cython.Py_ssize_t
    for j in range(16):
        top[j] = rows[row, 0]
    for h in range(0, whole, 16):
        for j in range(16):
            top[j] = rows[row, h + j] if rows[row, h + j] > top[j] else top[j]
    for h in range(whole, size):
        top[0] = max(top[0], rows[row, h])
    for j in range(1, 16):
        top[0] = max(top[0], top[j])
    return top[0]


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def _rescale(
    first: cython.Py_ssize_t,
    last: cython.Py_ssize_t,
    states: cython.const[cython.longlong][::1],
    before: cython.const[cython.longlong][::1],
    b: cython.const[Real][:, ::1],
    log_scale: cython.const[cython.double][::1],
    log_u: cython.const[cython.double][::1],
    tolerance: cython.double,
    rows: Real[:, ::1],
    log_rows: cython.double[::1],
    moved: cython.uchar[::1],
) -> wide:
    """Run `rescale` for one floating-point type, without the GIL."""
    size: cython.Py_ssize_t = rows.shape[1]
    i: cython.Py_ssize_t
    h: cython.Py_ssize_t
    block: cython.Py_ssize_t
    at: cython.longlong
    far: cython.int
    top: Real
    rise: cython.double
    factor: cython.double
    value: cython.double
    for i in range(first, last):
        top = _greatest(rows, i)
        log_rows[i] = _LOG_ZERO
        if top > 0:
            log_rows[i] = log_u[i] + log(top)
            for h in range(size):
                rows[i, h] /= top
        at = before[states[i]]
        moved[i] = 1
        if at < _COMPUTED:
            continue
        if log_rows[i] == _LOG_ZERO or log_scale[at] == _LOG_ZERO:
            moved[i] = log_rows[i] != log_scale[at]
            continue
        rise = log_rows[i] - log_scale[at]
        if abs(rise) > 1 or (tolerance == 0 and rise != 0):
            continue
        factor = exp(rise)
        far = 0
        for block in range(0, size, 64):
            for h in range(block, min(size, block + 64)):
                value = cython.cast(cython.double, rows[i, h]) * factor
                far |= abs(value - b[at, h]) > tolerance * value
            if far:
                break
        moved[i] = far


def rescale(
    level: Arrays,
    first: cython.Py_ssize_t,
    last: cython.Py_ssize_t,
    states: cython.const[cython.longlong][::1],
    before: cython.const[cython.longlong][::1],
    tolerance: cython.double,
    moved: cython.uchar[::1],
) -> None:
    """Scale new rows of beta to a maximum of one, and mark the states whose row changed.

    A row changed if at least one of its entries differs from that of the previous level by more
    than a fraction `tolerance`.
    """
    with cython.nogil:
        if level.is_single:
            _rescale(
                first, last, states, before, level.b_single, level.log_scale, level.log_u,
                tolerance, level.rows_single, level.log_rows, moved,
            )  # fmt: skip
        else:
            _rescale(
                first, last, states, before, level.b_double, level.log_scale, level.log_u,
                tolerance, level.rows_double, level.log_rows, moved,
            )  # fmt: skip

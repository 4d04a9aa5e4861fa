"""Compiled sums over hidden states for `hmm._lookahead`."""

from __future__ import annotations

import cython
import numpy as np

if cython.compiled:
    from cython.cimports.gcd._support.kernels.wide import wide
    from cython.cimports.libc.math import log
else:
    from math import log

Real = cython.fused_type(cython.float, cython.double)
_LOG_ZERO = cython.declare(cython.double, -np.inf)


@cython.cclass
class Tables:
    """Tables of automata and of beta, in the form that the loop reads.

    It is a separate type, because passing each array costs a tenth of a microsecond per call.

    Args:
        automaton_of, first_state, row_start: for each state its automaton, that automaton's first
            state, and the start of its row in `delta`.
        num_classes: number of classes of each automaton.
        delta, steps_after: next states, counted from the first one of their automaton, -1 for none;
            the fewest tokens from them to the end; int32.
        number: number in the table of each state.
        entry: row of `b` of each remaining budget and state of the table; int32.
        b, log_scale: beta, in float32 or float64, and logs of scales.
        settled: whether all further levels equal the last one.
    """

    automaton_of: cython.const[cython.longlong][::1]
    first_state: cython.const[cython.longlong][::1]
    row_start: cython.const[cython.longlong][::1]
    num_classes: cython.const[cython.longlong][::1]
    delta: cython.const[cython.int][::1]
    steps_after: cython.const[cython.int][::1]
    number: cython.const[cython.longlong][::1]
    entry: cython.const[cython.int][:, ::1]
    b_single: cython.const[cython.float][:, ::1]
    b_double: cython.const[cython.double][:, ::1]
    log_scale: cython.const[cython.double][::1]
    is_single: cython.bint
    settled: cython.bint

    def __init__(
        self,
        automaton_of: np.ndarray,
        first_state: np.ndarray,
        row_start: np.ndarray,
        num_classes: np.ndarray,
        delta: np.ndarray,
        steps_after: np.ndarray,
        number: np.ndarray,
        entry: np.ndarray,
        b: np.ndarray,
        log_scale: np.ndarray,
        settled: cython.bint,
    ) -> None:
        self.automaton_of = automaton_of
        self.first_state = first_state
        self.row_start = row_start
        self.num_classes = num_classes
        self.delta = delta
        self.steps_after = steps_after
        self.number = number
        self.entry = entry
        self.log_scale = log_scale
        self.settled = settled
        self.is_single = b.itemsize == 4
        if self.is_single:
            self.b_single = b
        else:
            self.b_double = b


@cython.cfunc
@cython.inline
@cython.nogil
@cython.exceptval(check=False)
def _dots(
    p: cython.const[Real][:, ::1],
    row: cython.Py_ssize_t,
    e: cython.const[Real][:, ::1],
    item: cython.Py_ssize_t,
    b: cython.const[Real][:, ::1],
    entry: cython.Py_ssize_t,
) -> tuple[cython.double, cython.double]:
    """Return sum p e b and sum p e, in 16 partial sums of the arrays' type."""
    joint: Real[16]
    mass: Real[16]
    if not cython.compiled:
        joint, mass = np.zeros(16, p.dtype), np.zeros(16, p.dtype)
    both: Real
    h: cython.Py_ssize_t
    j: cython.Py_ssize_t
    size: cython.Py_ssize_t = p.shape[1]
    whole: cython.Py_ssize_t = size - size % 16
    for j in range(16):
        joint[j] = 0
        mass[j] = 0
    for h in range(0, whole, 16):
        for j in range(16):
            both = p[row, h + j] * e[item, h + j]
            mass[j] += both
            joint[j] += both * b[entry, h + j]
    for h in range(whole, size):
        both = p[row, h] * e[item, h]
        mass[h - whole] += both
        joint[h - whole] += both * b[entry, h]
    for j in range(8):
        joint[j] += joint[j + 8]
        mass[j] += mass[j + 8]
    for j in range(4):
        joint[j] += joint[j + 4]
        mass[j] += mass[j + 4]
    return (
        (joint[0] + joint[2]) + (joint[1] + joint[3]),
        (mass[0] + mass[2]) + (mass[1] + mass[3]),
    )


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def _expect(
    first: cython.Py_ssize_t,
    last: cython.Py_ssize_t,
    states: cython.const[cython.longlong][:],
    remaining: cython.const[cython.longlong][:],
    symbol: cython.const[cython.longlong][:, ::1],
    item: cython.const[cython.longlong][:, ::1],
    predicted: cython.const[Real][:, ::1],
    emission: cython.const[Real][:, ::1],
    table: Tables,
    row_start: cython.const[cython.longlong][::1],
    delta: cython.const[cython.int][::1],
    steps_after: cython.const[cython.int][::1],
    entry: cython.const[cython.int][:, ::1],
    b: cython.const[Real][:, ::1],
    log_scale: cython.const[cython.double][::1],
    log_joint: cython.double[:, ::1],
    log_mass: cython.double[:, ::1],
    missing: cython.uchar[::1],
) -> wide:
    """Compute `expect` for numbers of one type."""
    levels: cython.longlong = entry.shape[0]
    num_classes: cython.longlong
    first_state: cython.longlong
    row: cython.Py_ssize_t
    k: cython.Py_ssize_t
    at: cython.Py_ssize_t
    s: cython.longlong
    r: cython.longlong
    level: cython.longlong
    known: cython.bint
    target: cython.longlong
    e: cython.longlong
    joint: cython.double
    mass: cython.double
    for row in range(first, last):
        s = states[row]
        r = remaining[row]
        level = min(max(r - 1, 0), levels - 1)
        known = table.settled or r <= levels
        num_classes = table.num_classes[table.automaton_of[max(s, 0)]]
        first_state = table.first_state[max(s, 0)]
        for k in range(symbol.shape[1]):
            log_joint[row, k] = _LOG_ZERO
            log_mass[row, k] = _LOG_ZERO
            if s < 0 or symbol[row, k] >= num_classes:
                continue
            at = row_start[s] + symbol[row, k]
            target = delta[at]
            if target < 0 or steps_after[at] >= r:  # the negation of `gcd._tokens.distances.fits`
                continue
            e = entry[level, table.number[first_state + target]]
            if e < 0 or not known:
                missing[row] = 1
                continue
            joint, mass = _dots(predicted, row, emission, item[row, k], b, e)
            if joint > 0:
                log_joint[row, k] = log(joint) + log_scale[e]
            if mass > 0:
                log_mass[row, k] = log(mass)


@cython.cfunc
def _expect_of_type(
    kind: Real,
    first: cython.Py_ssize_t,
    last: cython.Py_ssize_t,
    table: Tables,
    b: cython.const[Real][:, ::1],
    states: cython.const[cython.longlong][:],
    remaining: cython.const[cython.longlong][:],
    symbol: cython.const[cython.longlong][:, ::1],
    item: cython.const[cython.longlong][:, ::1],
    predicted_array: np.ndarray,
    emission_array: np.ndarray,
    log_joint: cython.double[:, ::1],
    log_mass: cython.double[:, ::1],
    missing: cython.uchar[::1],
) -> None:
    """Compute `expect` for numbers of one type."""
    predicted: cython.const[Real][:, ::1] = predicted_array
    emission: cython.const[Real][:, ::1] = emission_array
    with cython.nogil:
        _expect(
            first, last, states, remaining, symbol, item, predicted, emission, table,
            table.row_start, table.delta, table.steps_after, table.entry, b, table.log_scale,
            log_joint, log_mass, missing,
        )  # fmt: skip


def expect(
    first: cython.Py_ssize_t,
    last: cython.Py_ssize_t,
    table: Tables,
    states: cython.const[cython.longlong][:],
    remaining: cython.const[cython.longlong][:],
    symbol: cython.const[cython.longlong][:, ::1],
    item: cython.const[cython.longlong][:, ::1],
    predicted: np.ndarray,
    emission: np.ndarray,
    log_joint: cython.double[:, ::1],
    log_mass: cython.double[:, ::1],
    missing: cython.uchar[::1],
) -> None:
    """Compute the log-probabilities of some items of each row: its classes, or some tokens.

    An item has a class of tokens (`symbol`), which determines the next state, and a row of
    `emission` (`item`), which determines its probability. `missing` marks rows with an alive item
    that the table doesn't contain. Probabilities have the type of the table's `b`.
    """
    if table.is_single:
        _expect_of_type(
            cython.cast(cython.float, 0), first, last, table, table.b_single, states, remaining,
            symbol, item, predicted, emission, log_joint, log_mass, missing,
        )  # fmt: skip
    else:
        _expect_of_type(
            cython.cast(cython.double, 0), first, last, table, table.b_double, states, remaining,
            symbol, item, predicted, emission, log_joint, log_mass, missing,
        )  # fmt: skip

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
    """The arrays of the automata and of beta that the loop uses.

    They are passed as one object, because passing each array takes a tenth of a microsecond per
    call.

    Args:
        automaton_of: automaton of each state.
        first_state: first state of the automaton of each state.
        row_start: start of each state's row in `delta`.
        num_classes: number of classes of each automaton.
        delta: next state of each state and class, counted from the automaton's first state; -1 for
            none; int32.
        steps_after: fewest tokens from each next state to the end; int32.
        number: each state's number in the lookahead table.
        entry: row of `b` for each remaining budget and state of the table; int32.
        b, log_scale: scaled rows of beta, in float32 or float64, and the logs of their scales.
        settled: whether the rows of the table's largest remaining budget are also correct for all
            larger budgets.
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
    """Return the sums of p e b and of p e over hidden states, each computed as 16 partial sums.

    p is the predicted distribution of the hidden state, e the emission of an item (class or token),
    and b the row of beta after the item.
    """
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
    """Compute `expect` for one floating-point type, without the GIL."""
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
            # Equivalent to `not gcd._tokens.distances.fits(...)`.
            if target < 0 or steps_after[at] >= r:
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
    """Compute `expect` for one floating-point type; `kind` is any number of this type."""
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
    """Compute the log-probabilities of some items (classes or tokens) for a range of prefixes.

    Args:
        first, last: the range, without `last`. In all arrays, a row is a prefix.
        table: the automata and beta.
        states: automaton state of each prefix; -1 for none.
        remaining: number of tokens left for each prefix, including the item.
        symbol: class of each item, which determines the next automaton state.
        item: row of each item in `emission`.
        predicted: distribution of the hidden state that emits the item, in the type of beta.
        emission: P(item | h), in the type of beta.
        log_joint, log_mass: output, as in `hmm._lookahead.Expected`.
        missing: output, 1 for prefixes with an item after which the text can be completed within
            the budget, but whose next state has no row in the table.
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

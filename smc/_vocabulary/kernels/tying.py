"""Passes over the log-probabilities of each prefix, for `smc._vocabulary.class_sums`.

Every allowed token is either one of the K most probable tokens, or its probability is added to the
sum of its class. Tokens that may be among the K are kept in a buffer. A token that leaves the
buffer is added to its class at that time, so that nothing has to be subtracted from a class.

Probabilities are computed as exp(log p - top), where top is the largest log p, and summed in
float64. Smaller values than `LOWEST` are summed in log space, because a lookahead may allow no
other tokens. The reference implementation is `plain` in tests/smc/test_tying.py.

Log-probabilities of tokens are float32 or float64, and other logarithms are float64. Class numbers
are uint32, the tokens of classes int32, and other integers int64.
"""

from __future__ import annotations

import cython
import numpy as np

from smc._vocabulary.kernels.best import exponentials

if cython.compiled:
    from cython.cimports.libc.math import log
    from cython.cimports.smc._vocabulary.kernels.best import Candidates, LogSums
else:
    from math import log

    from smc._vocabulary.kernels.best import Candidates, LogSums

Real = cython.fused_type(cython.float, cython.double)
LOWEST = {4: -87.0, 8: -700.0}
"""Smallest logarithms whose exponentials have full precision, by the type's size in bytes."""
_LOG_ZERO = cython.declare(cython.double, -np.inf)


@cython.cfunc
@cython.inline
@cython.nogil
@cython.exceptval(check=False)
def _put_back(
    found: Candidates,
    count: cython.Py_ssize_t,
    row: cython.Py_ssize_t,
    klass: cython.const[cython.uint][:, ::1],
    rest: LogSums,
) -> cython.void:
    """Move the best tokens to the buffer's front; add the others to the sums of their classes."""
    i: cython.Py_ssize_t
    found.cut(count)
    for i in range(found.kept, count):
        rest.add(klass[row, found.token[i]], found.value[i])


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def _weigh_all(
    p: cython.const[Real][::1],
    share: cython.const[Real][::1],
    top: cython.double,
    lowest: cython.double,
    number: cython.Py_ssize_t,
    klass: cython.const[cython.uint][:, ::1],
    row: cython.Py_ssize_t,
    alive: cython.const[cython.uchar][:, ::1],
    found: Candidates,
    mass: cython.double[::1],
    rest: LogSums,
) -> cython.Py_ssize_t:
    """Add the probability of each token to the sum of its class; return the size of the buffer.

    Tokens that may be among the K most probable are added to the buffer `found` instead. `mass` has
    eight partial sums per class, for vectorization. Very small probabilities are summed in `rest`.
    """
    count: cython.Py_ssize_t = 0
    least: cython.double = _LOG_ZERO if found.kept > 0 else -_LOG_ZERO
    floor: cython.double = top + lowest
    x: cython.double
    c: cython.uint
    v: cython.Py_ssize_t
    i: cython.Py_ssize_t
    for v in range(p.shape[0]):
        x = cython.cast(cython.double, p[v])
        c = klass[number, v]
        if x > least and alive[row, c]:
            found.value[count] = x
            found.token[count] = v
            count += 1
            if count == found.value.shape[0]:
                _put_back(found, count, number, klass, rest)
                count = found.kept
                least = found.value[0]
                for i in range(1, count):
                    least = min(least, found.value[i])
        elif x >= floor:
            mass[8 * cython.cast(cython.Py_ssize_t, c) + (v & 7)] += share[v]
        elif alive[row, c]:
            rest.add(c, x)
    return count


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def _weigh_few(
    p: cython.const[Real][::1],
    number: cython.Py_ssize_t,
    klass: cython.const[cython.uint][:, ::1],
    row: cython.Py_ssize_t,
    alive: cython.const[cython.uchar][:, ::1],
    listed: cython.const[cython.int][:, ::1],
    start: cython.const[cython.longlong][:, ::1],
    found: Candidates,
    rest: LogSums,
) -> cython.Py_ssize_t:
    """Compute the same as `_weigh_all`, reading only the allowed tokens' log-probabilities."""
    count: cython.Py_ssize_t = 0
    least: cython.double = _LOG_ZERO if found.kept > 0 else -_LOG_ZERO
    x: cython.double
    c: cython.Py_ssize_t
    i: cython.Py_ssize_t
    k: cython.Py_ssize_t
    for c in range(alive.shape[1]):
        if not alive[row, c]:
            continue
        for k in range(start[number, c], start[number, c + 1]):
            x = cython.cast(cython.double, p[listed[number, k]])
            if x > least:
                found.value[count] = x
                found.token[count] = listed[number, k]
                count += 1
                if count == found.value.shape[0]:
                    _put_back(found, count, number, klass, rest)
                    count = found.kept
                    least = found.value[0]
                    for i in range(1, count):
                        least = min(least, found.value[i])
            else:
                rest.add(c, x)
    return count


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def _write(
    row: cython.Py_ssize_t,
    alive: cython.const[cython.uchar][:, ::1],
    top: cython.double,
    mass: cython.double[::1],
    rest: LogSums,
    log_mass: cython.double[:, ::1],
) -> cython.void:
    """Write the log sum of each allowed class, and reset the sums to zero."""
    c: cython.Py_ssize_t
    lane: cython.Py_ssize_t
    total: cython.double
    if top > _LOG_ZERO:
        for c in range(alive.shape[1]):
            total = 0
            for lane in range(8):
                total += mass[8 * c + lane]
                mass[8 * c + lane] = 0
            if alive[row, c] and total > 0:
                rest.add(c, log(total) + top)
    for c in range(alive.shape[1]):
        log_mass[row, c] = rest.log_of(c) if alive[row, c] else _LOG_ZERO
    rest.clear()


@cython.cfunc
def _weigh_rows(
    kind: Real,
    first: cython.Py_ssize_t,
    last: cython.Py_ssize_t,
    log_p: np.ndarray,
    klass: cython.const[cython.uint][:, ::1],
    listed: cython.const[cython.int][:, ::1],
    start: cython.const[cython.longlong][:, ::1],
    automaton: cython.const[cython.longlong][::1],
    alive: cython.const[cython.uchar][:, ::1],
    few: cython.Py_ssize_t,
    tokens: cython.longlong[:, ::1],
    best: cython.double[:, ::1],
    log_mass: cython.double[:, ::1],
) -> None:
    """Implement `weigh` for log-probabilities of one type, float32 or float64."""
    num_classes: cython.Py_ssize_t = alive.shape[1]
    found: Candidates = Candidates(tokens.shape[1])
    rest: LogSums = LogSums(num_classes)
    # Partial sums of each class, so that an addition doesn't depend on the previous one.
    mass: cython.double[::1] = np.zeros(8 * num_classes)
    lowest: cython.double = LOWEST[log_p.itemsize]
    share_array = np.empty(log_p.shape[1], log_p.dtype)
    share: cython.const[Real][::1] = share_array
    p: cython.const[Real][::1]
    top: cython.double
    row: cython.Py_ssize_t
    number: cython.Py_ssize_t
    count: cython.Py_ssize_t
    c: cython.Py_ssize_t
    for row in range(first, last):
        p_array = np.ascontiguousarray(log_p[row])
        p = p_array
        number = automaton[row]
        count = 0
        for c in range(num_classes):
            if alive[row, c]:
                count += start[number, c + 1] - start[number, c]
        top = _LOG_ZERO
        if count >= few:
            greatest = p_array.max()
            top = float(greatest)
            if top > _LOG_ZERO:
                exponentials(p_array, greatest, share_array)
            else:
                share_array.fill(0)
        with cython.nogil:
            if count < few:
                count = _weigh_few(p, number, klass, row, alive, listed, start, found, rest)
            else:
                count = _weigh_all(
                    p, share, top, lowest, number, klass, row, alive, found, mass, rest
                )
            if count > found.kept:
                _put_back(found, count, number, klass, rest)
                count = found.kept
            found.write(row, count, tokens, best)
            _write(row, alive, top, mass, rest, log_mass)


def weigh(
    first: cython.Py_ssize_t,
    last: cython.Py_ssize_t,
    log_p: np.ndarray,
    class_of: np.ndarray,
    listed: np.ndarray,
    start: np.ndarray,
    automaton: np.ndarray,
    alive: np.ndarray,
    few: cython.Py_ssize_t,
    tokens: cython.longlong[:, ::1],
    best: cython.double[:, ::1],
    log_mass: cython.double[:, ::1],
) -> None:
    """Find the K most probable tokens of the allowed classes, and sum each class without them.

    Args:
        first, last: range of rows, without `last`.
        log_p: log-probabilities of each row.
        class_of: class of each token in each automaton.
        listed, start: the tokens of each automaton ordered by class, and the start of each class.
        automaton: automaton of each row.
        alive: the allowed classes of each row.
        few: in rows with fewer allowed tokens than this number, only these tokens are read.
        tokens, best: outputs, the K most probable tokens of each row and their log-probabilities in
            descending order, followed by token 0 with -inf.
        log_mass: output, the log sum of each class.
    """
    klass: cython.const[cython.uint][:, ::1] = np.ascontiguousarray(class_of)
    by_order: cython.const[cython.int][:, ::1] = np.ascontiguousarray(listed)
    begin: cython.const[cython.longlong][:, ::1] = np.ascontiguousarray(start)
    number: cython.const[cython.longlong][::1] = np.ascontiguousarray(automaton)
    may: cython.const[cython.uchar][:, ::1] = np.ascontiguousarray(alive)
    if log_p.itemsize == 4:
        _weigh_rows(
            cython.cast(cython.float, 0), first, last, log_p, klass, by_order, begin, number,
            may, few, tokens, best, log_mass,
        )  # fmt: skip
    else:
        _weigh_rows(
            cython.cast(cython.double, 0), first, last, log_p, klass, by_order, begin, number,
            may, few, tokens, best, log_mass,
        )  # fmt: skip


@cython.cfunc
def _tilt_rows(
    kind: Real,
    first: cython.Py_ssize_t,
    last: cython.Py_ssize_t,
    log_p: np.ndarray,
    klass: cython.const[cython.uint][:, ::1],
    automaton: cython.const[cython.longlong][::1],
    by_class: cython.const[cython.double][:, ::1],
    tokens: cython.const[cython.longlong][:, ::1],
    by_token: cython.const[cython.double][:, ::1],
    out: cython.double[:, ::1],
) -> None:
    """Implement `tilt` for log-probabilities of one type, float32 or float64."""
    p: cython.const[Real][::1]
    row: cython.Py_ssize_t
    number: cython.Py_ssize_t
    k: cython.Py_ssize_t
    v: cython.Py_ssize_t
    for row in range(first, last):
        p = np.ascontiguousarray(log_p[row])
        number = automaton[row]
        with cython.nogil:
            for v in range(p.shape[0]):
                out[row, v] = p[v] + by_class[row, klass[number, v]]
            for k in range(tokens.shape[1]):
                v = tokens[row, k]
                out[row, v] = p[v] + by_token[row, k]


def tilt(
    first: cython.Py_ssize_t,
    last: cython.Py_ssize_t,
    log_p: np.ndarray,
    class_of: np.ndarray,
    automaton: np.ndarray,
    by_class: np.ndarray,
    tokens: np.ndarray,
    by_token: np.ndarray,
    out: cython.double[:, ::1],
) -> None:
    """Write log p + log g of every token.

    A listed token has a separate g. All other tokens have the g of their class.

    Args:
        first, last: range of rows, without `last`.
        log_p: log-probabilities of each row.
        class_of: class of each token in each automaton.
        automaton: automaton of each row.
        by_class: log g of each class.
        tokens, by_token: the listed tokens, and their log g.
        out: output.
    """
    klass: cython.const[cython.uint][:, ::1] = np.ascontiguousarray(class_of)
    number: cython.const[cython.longlong][::1] = np.ascontiguousarray(automaton)
    g: cython.const[cython.double][:, ::1] = np.ascontiguousarray(by_class, np.float64)
    own: cython.const[cython.longlong][:, ::1] = np.ascontiguousarray(tokens, np.int64)
    own_g: cython.const[cython.double][:, ::1] = np.ascontiguousarray(by_token, np.float64)
    if log_p.itemsize == 4:
        _tilt_rows(
            cython.cast(cython.float, 0), first, last, log_p, klass, number, g, own, own_g, out,
        )  # fmt: skip
    else:
        _tilt_rows(
            cython.cast(cython.double, 0), first, last, log_p, klass, number, g, own, own_g, out,
        )  # fmt: skip

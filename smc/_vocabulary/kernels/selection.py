"""Passes over the candidates of each prefix, for `smc._vocabulary.compiled`.

The score of token v is p(v) times a factor. *Listed* tokens have a separate factor, and all others
have the factor of their class. All values are logarithms. The K best candidates are kept in a
buffer. A candidate that leaves the buffer is added to the sum of the others at that time, so that
nothing has to be subtracted.

Let a be the log factor of a token's class, and top_a the largest a. Most terms of a sum are
share(v) exp(a - top_a). The numbers share(v) = exp(log p(v) - top) are computed beforehand, eight
tokens at a time. Terms outside of the range of this product (`_LOWEST_SHARE`, `_LOWEST_FACTOR`) are
summed in log space. The reference implementations are the tensor operations in
`smc._vocabulary.tensors`, and plain sums over all tokens in tests/smc/test_selection.py.
"""

from __future__ import annotations

import cython
import numpy as np

from smc._vocabulary.kernels.best import exponentials

if cython.compiled:
    from cython.cimports.libc.math import exp, log
    from cython.cimports.smc._vocabulary.kernels.best import Candidates, LogSums
    from cython.cimports.smc._vocabulary.kernels.lines import Lines
else:
    from math import exp, log

    from smc._vocabulary.kernels.best import Candidates, LogSums
    from smc._vocabulary.kernels.lines import Lines

Real = cython.fused_type(cython.float, cython.double)
# Smaller logarithms have exponentials that lose digits in float32.
_LOWEST_SHARE = cython.declare(cython.double, -80.0)
# exp(_LOWEST_FACTOR + _LOWEST_SHARE) is still a normal float64.
_LOWEST_FACTOR = cython.declare(cython.double, -500.0)
_LOG_ZERO = cython.declare(cython.double, -np.inf)


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def _put_back(found: Candidates, count: cython.Py_ssize_t, rest: LogSums) -> cython.Py_ssize_t:
    """Keep the buffer's best candidates, and sum the others; return the number of those kept."""
    i: cython.Py_ssize_t
    if count <= found.kept:
        return count
    found.cut(count)
    for i in range(found.kept, count):
        rest.add(0, found.value[i])
    return found.kept


@cython.cfunc
@cython.inline
@cython.nogil
@cython.exceptval(check=False)
def _push(
    x: cython.double,
    v: cython.Py_ssize_t,
    found: Candidates,
    count: cython.Py_ssize_t,
    rest: LogSums,
) -> cython.Py_ssize_t:
    """Add a candidate to the buffer; reduce a full buffer to the K best, and sum the others."""
    found.value[count] = x
    found.token[count] = v
    count += 1
    if count == found.value.shape[0]:
        count = _put_back(found, count, rest)
    return count


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def _push_listed(
    p: cython.const[Real][::1],
    lines: Lines,
    row: cython.Py_ssize_t,
    marked: cython.uchar[::1],
    found: Candidates,
    count: cython.Py_ssize_t,
    rest: LogSums,
) -> cython.Py_ssize_t:
    """Add each marked token to the buffer with its separate factor, and remove its mark."""
    k: cython.Py_ssize_t
    v: cython.Py_ssize_t
    x: cython.double
    for k in range(lines.tokens.shape[1]):
        v = lines.tokens[row, k]
        if marked[v]:
            marked[v] = 0
            x = p[v] + lines.by_token[row, k]
            if x > _LOG_ZERO:
                count = _push(x, v, found, count, rest)
    return count


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def _weigh_all(
    p: cython.const[Real][::1],
    share: cython.const[Real][::1],
    top: cython.double,
    lines: Lines,
    klass: cython.const[cython.uint][:, ::1],
    by_class: cython.const[cython.double][:, ::1],
    row: cython.Py_ssize_t,
    factor: cython.double[::1],
    marked: cython.uchar[::1],
    found: Candidates,
    rest: LogSums,
) -> cython.Py_ssize_t:
    """Add the best candidates to the buffer, and sum the others; return the buffer's count.

    Args:
        p: log-probabilities.
        share: exp(p - top), which is accurate if p - top is at least `_LOWEST_SHARE`.
        top: the largest p.
        lines, row: the factors, and the index of the row; a token may be listed twice.
        klass, by_class: arrays of `lines`, passed separately for speed.
        factor: work space, one number per class.
        marked: work space, zero for each token before and after the call.
        found: the buffer.
        rest: the sum of the other candidates.
    """
    number: cython.Py_ssize_t = lines.automaton[row]
    greatest: cython.double = _LOG_ZERO
    least: cython.double = _LOG_ZERO
    count: cython.Py_ssize_t = 0
    total: cython.double = 0
    x: cython.double
    a: cython.double
    c: cython.Py_ssize_t
    v: cython.Py_ssize_t
    k: cython.Py_ssize_t
    # Partial sums, so that an addition doesn't depend on the previous one.
    mass: cython.double[8]
    if not cython.compiled:
        mass = [0.0] * 8
    for k in range(8):
        mass[k] = 0
    for c in range(factor.shape[0]):
        greatest = max(greatest, by_class[row, c])
    for c in range(factor.shape[0]):
        a = by_class[row, c]
        factor[c] = 0
        if greatest > _LOG_ZERO and a >= greatest + _LOWEST_FACTOR:
            factor[c] = exp(a - greatest)
    for k in range(lines.tokens.shape[1]):
        marked[lines.tokens[row, k]] = 1
    for v in range(p.shape[0]):
        c = klass[number, v]
        a = by_class[row, c]
        if a == _LOG_ZERO or marked[v]:
            continue
        x = p[v] + a
        if x > least:
            count = _push(x, v, found, count, rest)
            if count == found.kept:
                least = found.value[0]
                for k in range(1, count):
                    least = min(least, found.value[k])
        elif factor[c] > 0 and p[v] >= top + _LOWEST_SHARE:
            mass[v & 7] += share[v] * factor[c]
        else:
            rest.add(0, x)
    count = _push_listed(p, lines, row, marked, found, count, rest)
    for k in range(8):
        total += mass[k]
    if total > 0:
        rest.add(0, log(total) + top + greatest)
    return count


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def _weigh_few(
    p: cython.const[Real][::1],
    lines: Lines,
    row: cython.Py_ssize_t,
    marked: cython.uchar[::1],
    found: Candidates,
    rest: LogSums,
) -> cython.Py_ssize_t:
    """Compute the same as `_weigh_all`, reading only the candidates' log-probabilities."""
    number: cython.Py_ssize_t = lines.automaton[row]
    count: cython.Py_ssize_t = 0
    x: cython.double
    a: cython.double
    c: cython.Py_ssize_t
    v: cython.Py_ssize_t
    k: cython.Py_ssize_t
    for k in range(lines.tokens.shape[1]):
        marked[lines.tokens[row, k]] = 1
    for c in range(lines.by_class.shape[1]):
        a = lines.by_class[row, c]
        if a > _LOG_ZERO:
            for k in range(lines.start[number, c], lines.start[number, c + 1]):
                v = lines.by_order[number, k]
                x = cython.cast(cython.double, p[v])
                if not marked[v] and x > _LOG_ZERO:
                    count = _push(x + a, v, found, count, rest)
    return _push_listed(p, lines, row, marked, found, count, rest)


@cython.cfunc
def _weigh_rows(
    kind: Real,
    first: cython.Py_ssize_t,
    last: cython.Py_ssize_t,
    log_p: np.ndarray,
    lines: Lines,
    few: cython.Py_ssize_t,
    tokens: cython.longlong[:, ::1],
    log_score: cython.double[:, ::1],
    log_rest: cython.double[::1],
) -> None:
    """Implement `weigh` for log-probabilities of one type, float32 or float64."""
    size: cython.Py_ssize_t = log_p.shape[1]
    found: Candidates = Candidates(tokens.shape[1])
    rest: LogSums = LogSums(1)
    factor: cython.double[::1] = np.empty(lines.by_class.shape[1])
    marked: cython.uchar[::1] = np.zeros(size, np.uint8)
    share_array = np.empty(size, log_p.dtype)
    share: cython.const[Real][::1] = share_array
    p: cython.const[Real][::1]
    top: cython.double
    row: cython.Py_ssize_t
    count: cython.Py_ssize_t
    is_few: cython.bint
    for row in range(first, last):
        p_array = np.ascontiguousarray(log_p[row])
        p = p_array
        top = _LOG_ZERO
        is_few = lines.num_candidates(row) < few
        if not is_few:
            greatest = p_array.max()
            top = float(greatest)
            if top > _LOG_ZERO:
                exponentials(p_array, greatest, share_array)
        with cython.nogil:
            count = 0
            if is_few:
                count = _weigh_few(p, lines, row, marked, found, rest)
            elif top > _LOG_ZERO:  # otherwise no token is possible
                count = _weigh_all(
                    p, share, top, lines, lines.klass, lines.by_class, row, factor, marked, found,
                    rest,
                )  # fmt: skip
            count = _put_back(found, count, rest)
            found.write(row, count, tokens, log_score)
            log_rest[row] = rest.log_of(0)
            rest.clear()


def weigh(
    first: cython.Py_ssize_t,
    last: cython.Py_ssize_t,
    log_p: np.ndarray,
    lines: Lines,
    few: cython.Py_ssize_t,
    tokens: cython.longlong[:, ::1],
    log_score: cython.double[:, ::1],
    log_rest: cython.double[::1],
) -> None:
    """Find the K best candidates of some rows, and the log of the sum of the others.

    Args:
        first, last: range of rows, without `last`.
        log_p: log-probabilities of each row, in float32 or float64.
        lines: the factors.
        few: in rows with fewer candidates than this number, only the candidates are read.
        tokens, log_score: outputs, the K best candidates of each row in descending order, followed
            by token 0 with -inf.
        log_rest: output, the log of the sum of the others.
    """
    if log_p.itemsize == 4:
        _weigh_rows(
            cython.cast(cython.float, 0), first, last, log_p, lines, few, tokens, log_score,
            log_rest,
        )  # fmt: skip
    else:
        _weigh_rows(
            cython.cast(cython.double, 0), first, last, log_p, lines, few, tokens, log_score,
            log_rest,
        )  # fmt: skip


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def _locate(
    p: cython.const[Real][::1],
    share: cython.const[Real][::1],
    top: cython.double,
    lines: Lines,
    row: cython.Py_ssize_t,
    hidden: cython.uchar[::1],
    log_c: cython.double,
    targets: cython.const[cython.double][::1],
    begin: cython.Py_ssize_t,
    end: cython.Py_ssize_t,
    found: cython.longlong[::1],
    factor: cython.double[::1],
    own: cython.int[::1],
) -> cython.void:
    """Find the candidates at the targets begin .. end - 1 of one row; see `locate`.

    Args:
        p: log-probabilities.
        share, top: as in `_weigh_all`; with top = -inf, `share` is not read.
        lines, row: the factors, and the index of the row.
        hidden: nonzero for tokens to exclude.
        log_c: log of the threshold c, with pi = s / c.
        targets: points of the cumulative sum of pi, in ascending order.
        begin, end: range of targets of this row.
        found: output, the tokens; -1 if rounding leaves no candidate.
        factor: work space, one number per class.
        own: index of each listed token in the list; -1 for others.
    """
    number: cython.Py_ssize_t = lines.automaton[row]
    any_listed: cython.bint = lines.tokens.shape[1] > 0
    running: cython.double = 0
    t: cython.Py_ssize_t = begin
    latest: cython.Py_ssize_t = -1
    a: cython.double
    pi: cython.double
    c: cython.Py_ssize_t
    v: cython.Py_ssize_t
    k: cython.int
    for c in range(factor.shape[0]):
        factor[c] = 0
        if top > _LOG_ZERO:
            a = lines.by_class[row, c] + top - log_c
            if _LOWEST_FACTOR < a < -_LOWEST_FACTOR:
                factor[c] = exp(a)
    for v in range(p.shape[0]):
        c = lines.klass[number, v]
        a = lines.by_class[row, c]
        k = -1
        if any_listed:
            k = own[v]
            if k >= 0:
                a = lines.by_token[row, k]
        if a == _LOG_ZERO or hidden[v] or p[v] == _LOG_ZERO:
            continue
        if k < 0 and factor[c] > 0 and p[v] >= top + _LOWEST_SHARE:
            pi = share[v] * factor[c]
        else:
            pi = exp(min(p[v] + a - log_c, 0.0))
        if pi > 0:
            running += pi
            latest = v
            if running > targets[t]:
                found[t] = v
                t += 1
                if t == end:
                    return
    for c in range(t, end):
        found[c] = -1
    if latest >= 0 and (t == begin or found[t - 1] != latest):
        found[t] = latest


@cython.cfunc
def _locate_rows(
    kind: Real,
    first: cython.Py_ssize_t,
    last: cython.Py_ssize_t,
    log_p: np.ndarray,
    lines: Lines,
    few: cython.Py_ssize_t,
    known: cython.const[cython.longlong][:, ::1],
    kept: cython.const[cython.longlong][::1],
    log_c: cython.const[cython.double][::1],
    rows: cython.const[cython.longlong][::1],
    ends: cython.const[cython.longlong][::1],
    targets: cython.const[cython.double][::1],
    found: cython.longlong[::1],
) -> None:
    """Implement `locate` for log-probabilities of one type, float32 or float64."""
    size: cython.Py_ssize_t = log_p.shape[1]
    factor: cython.double[::1] = np.empty(lines.by_class.shape[1])
    hidden: cython.uchar[::1] = np.zeros(size, np.uint8)
    # This table has the index of each listed token's factor, and -1 for all other tokens.
    own: cython.int[::1] = np.full(size if lines.tokens.shape[1] else 0, -1, np.int32)
    share_array = np.empty(size, log_p.dtype)
    share: cython.const[Real][::1] = share_array
    p: cython.const[Real][::1]
    top: cython.double
    i: cython.Py_ssize_t
    k: cython.Py_ssize_t
    row: cython.Py_ssize_t
    for i in range(first, last):
        row = rows[i]
        p_array = np.ascontiguousarray(log_p[row])
        p = p_array
        top = _LOG_ZERO
        if lines.num_candidates(row) >= few:
            greatest = p_array.max()
            top = float(greatest)
            if top > _LOG_ZERO:
                exponentials(p_array, greatest, share_array)
        with cython.nogil:
            for k in range(kept[row]):
                hidden[known[row, k]] = 1
            for k in range(lines.tokens.shape[1]):
                own[lines.tokens[row, k]] = k
            _locate(
                p, share, top, lines, row, hidden, log_c[row], targets, ends[i], ends[i + 1],
                found, factor, own,
            )  # fmt: skip
            for k in range(lines.tokens.shape[1]):
                own[lines.tokens[row, k]] = -1
            for k in range(kept[row]):
                hidden[known[row, k]] = 0


def locate(
    first: cython.Py_ssize_t,
    last: cython.Py_ssize_t,
    log_p: np.ndarray,
    lines: Lines,
    few: cython.Py_ssize_t,
    known: np.ndarray,
    kept: np.ndarray,
    log_c: np.ndarray,
    rows: cython.const[cython.longlong][::1],
    ends: cython.const[cython.longlong][::1],
    targets: np.ndarray,
    found: cython.longlong[::1],
) -> None:
    """Find the candidates at given targets in the cumulative sums of pi.

    `smc._vocabulary.tensors.locate` explains the result.

    Args:
        first, last: range in `rows`, without `last`.
        log_p: log-probabilities of each row, in float32 or float64.
        lines: the factors.
        few: rows with fewer candidates than this number are summed in float64.
        known, kept: tokens of each row, whose first `kept[row]` tokens are excluded.
        log_c: log of the threshold c of each row, with pi = s / c.
        rows, ends: the rows with targets, and the end of each row's targets. Row `rows[i]` has the
            targets `targets[ends[i] : ends[i + 1]]`.
        targets: targets of each row in ascending order.
        found: output, the tokens; -1 if rounding leaves no candidate.
    """
    sure: cython.const[cython.longlong][:, ::1] = np.ascontiguousarray(known)
    num_sure: cython.const[cython.longlong][::1] = np.ascontiguousarray(kept)
    log_scale: cython.const[cython.double][::1] = np.ascontiguousarray(log_c)
    points: cython.const[cython.double][::1] = np.ascontiguousarray(targets)
    if log_p.itemsize == 4:
        _locate_rows(
            cython.cast(cython.float, 0), first, last, log_p, lines, few, sure, num_sure,
            log_scale, rows, ends, points, found,
        )  # fmt: skip
    else:
        _locate_rows(
            cython.cast(cython.double, 0), first, last, log_p, lines, few, sure, num_sure,
            log_scale, rows, ends, points, found,
        )  # fmt: skip

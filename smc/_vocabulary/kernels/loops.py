"""Compiled loops over the vocabulary, which read each row of log-probabilities once.

    weigh       the K best tokens of a row by log p + log g, and the sums of p g over the others
    sum_rows    the sums of p g over blocks of tokens
    find        the tokens at given points of the cumulative sum of p g, by reading a block for each
    tilt        log p + log g of every token

log g of a token is that of its class (`Lines`). *Listed* tokens have a separate log g.

Most terms of a sum are products of share(v) = exp(log p(v) - top), where top is the largest log p
of a row. They are computed in the precision of log p, eight tokens at a time, and summed in
float64. Shares without full precision are replaced by sums in log space, because a proposal may
allow no other tokens. Nothing is subtracted: `weigh` keeps tokens that may be among the K best in
a buffer. A token that leaves the buffer is added to the sum of its class at that time.

Log-probabilities of tokens are float32 or float64, and other logarithms are float64. Class numbers
are uint32, the tokens of classes int32, and other integers int64. The reference implementations are
the tensor operations in `smc._vocabulary.passes` and `smc._vocabulary.factors`, and plain sums
in tests/smc/test_tying.py and tests/smc/test_selection.py.
"""

from __future__ import annotations

import cython
import numpy as np

if cython.compiled:
    from cython.cimports.libc.math import exp, log
else:
    from math import exp, log

Real = cython.fused_type(cython.float, cython.double)
BLOCK = 512
"""Number of tokens in a block.

A row of 128,000 tokens has 250 blocks, and one block fits into the CPU's cache.
"""
LOWEST = {4: -87.0, 8: -700.0}
"""Smallest logarithms whose exponentials have full precision, by the type's size in bytes."""
_BLOCK = cython.declare(cython.Py_ssize_t, BLOCK)
_MARGIN = cython.declare(cython.Py_ssize_t, 64)
_MANY = cython.declare(cython.Py_ssize_t, 4096)  # classes, for which partial sums cost too much
_ROUNDING = cython.declare(cython.double, 1e-12)  # more than the relative rounding of two sums
# Smaller sums of shares have lost precision, and are computed again in float64.
_LEAST = cython.declare(cython.double, 1e-20)
_LOG_ZERO = cython.declare(cython.double, -np.inf)


@cython.cclass
class Lines:
    """Log g of R rows, for C classes and K listed tokens (`smc._vocabulary.factors.Factors`).

    Args:
        class_of: class of each token in each automaton, uint32.
        by_order: the tokens of each automaton, ordered by class, int32.
        start: index in `by_order` at which each class starts.
        automaton: automaton of each row.
        by_class: log g of each class, (R, C).
        tokens, by_token: the listed tokens, and their log g, (R, K). A token may be listed twice.
    """

    klass: cython.const[cython.uint][:, ::1]
    by_order: cython.const[cython.int][:, ::1]
    start: cython.const[cython.longlong][:, ::1]
    automaton: cython.const[cython.longlong][::1]
    by_class: cython.const[cython.double][:, ::1]
    tokens: cython.const[cython.longlong][:, ::1]
    by_token: cython.const[cython.double][:, ::1]

    def __init__(
        self,
        class_of: np.ndarray,
        by_order: np.ndarray,
        start: np.ndarray,
        automaton: np.ndarray,
        by_class: np.ndarray,
        tokens: np.ndarray,
        by_token: np.ndarray,
    ) -> None:
        self.klass = np.ascontiguousarray(class_of, np.uint32)
        self.by_order = np.ascontiguousarray(by_order, np.int32)
        self.start = np.ascontiguousarray(start, np.int64)
        self.automaton = np.ascontiguousarray(automaton, np.int64)
        self.by_class = np.ascontiguousarray(by_class, np.float64)
        self.tokens = np.ascontiguousarray(tokens, np.int64)
        self.by_token = np.ascontiguousarray(by_token, np.float64)

    @cython.cfunc
    @cython.nogil
    @cython.exceptval(check=False)
    def num_candidates(self, row: cython.Py_ssize_t) -> cython.Py_ssize_t:
        """Return the number of tokens whose class has a nonzero factor, in one row."""
        number: cython.Py_ssize_t = self.automaton[row]
        count: cython.Py_ssize_t = 0
        c: cython.Py_ssize_t
        for c in range(self.by_class.shape[1]):
            if self.by_class[row, c] != _LOG_ZERO:
                count += self.start[number, c + 1] - self.start[number, c]
        return count


@cython.cclass
class LogSums:
    """Sums of numbers that are given by their logarithms; sum c is total[c] exp(scale[c])."""

    scale: cython.double[::1]
    total: cython.double[::1]

    def __init__(self, size: cython.Py_ssize_t) -> None:
        self.scale = np.full(size, -np.inf)
        self.total = np.zeros(size)

    @cython.cfunc
    @cython.nogil
    @cython.exceptval(check=False)
    def add(self, c: cython.Py_ssize_t, log_x: cython.double) -> cython.void:
        """Add the number exp(log_x) to sum c."""
        if log_x > self.scale[c]:
            self.total[c] *= exp(self.scale[c] - log_x)
            self.scale[c] = log_x
        if log_x > _LOG_ZERO:
            self.total[c] += exp(log_x - self.scale[c])

    @cython.cfunc
    @cython.nogil
    @cython.exceptval(check=False)
    def pop(self, c: cython.Py_ssize_t) -> cython.double:
        """Return the logarithm of sum c, and set the sum to zero."""
        result: cython.double = _LOG_ZERO
        if self.total[c] > 0:
            result = log(self.total[c]) + self.scale[c]
        self.scale[c] = _LOG_ZERO
        self.total[c] = 0
        return result


@cython.cclass
class Candidates:
    """A buffer that keeps the best of many candidates.

    The caller counts the candidates. When the buffer is full, the caller reduces it to the best
    candidates.

    Args:
        kept: number of candidates to keep.

    Attributes:
        value, token: value and token of each candidate; these arrays have the size of the buffer.
    """

    value: cython.double[::1]
    token: cython.longlong[::1]
    kept: cython.Py_ssize_t

    def __init__(self, kept: cython.Py_ssize_t) -> None:
        self.kept = kept
        self.value = np.empty(2 * kept + _MARGIN)
        self.token = np.empty(2 * kept + _MARGIN, np.int64)

    @cython.cfunc
    @cython.nogil
    @cython.exceptval(check=False)
    def cut(self, count: cython.Py_ssize_t) -> cython.void:
        """Move the best of the first `count` candidates to the front (Hoare's selection)."""
        low: cython.Py_ssize_t = 0
        high: cython.Py_ssize_t = count - 1
        i: cython.Py_ssize_t
        j: cython.Py_ssize_t
        a: cython.double
        b: cython.double
        c: cython.double
        pivot: cython.double
        value: cython.double
        token: cython.longlong
        while low < high:
            a = self.value[low]
            b = self.value[(low + high) // 2]
            c = self.value[high]
            pivot = max(min(a, b), min(max(a, b), c))
            i = low
            j = high
            while i <= j:
                while self.value[i] > pivot:
                    i += 1
                while self.value[j] < pivot:
                    j -= 1
                if i <= j:
                    value = self.value[i]
                    self.value[i] = self.value[j]
                    self.value[j] = value
                    token = self.token[i]
                    self.token[i] = self.token[j]
                    self.token[j] = token
                    i += 1
                    j -= 1
            if j >= self.kept - 1:
                high = j
            elif i <= self.kept - 1:
                low = i
            else:
                break

    @cython.cfunc
    @cython.nogil
    @cython.exceptval(check=False)
    def write(
        self,
        row: cython.Py_ssize_t,
        count: cython.Py_ssize_t,
        tokens: cython.longlong[:, ::1],
        log_score: cython.double[:, ::1],
    ) -> cython.void:
        """Write the first `count` candidates in descending order, followed by token 0 with -inf.

        Candidates with equal values keep their order (binary insertion).
        """
        k: cython.Py_ssize_t
        i: cython.Py_ssize_t
        low: cython.Py_ssize_t
        high: cython.Py_ssize_t
        middle: cython.Py_ssize_t
        for k in range(count):
            low = 0
            high = k
            if k > 0 and log_score[row, k - 1] >= self.value[k]:
                low = k
            while low < high:
                middle = (low + high) // 2
                if log_score[row, middle] >= self.value[k]:
                    low = middle + 1
                else:
                    high = middle
            for i in range(k, low, -1):
                tokens[row, i] = tokens[row, i - 1]
                log_score[row, i] = log_score[row, i - 1]
            tokens[row, low] = self.token[k]
            log_score[row, low] = self.value[k]
        for k in range(count, tokens.shape[1]):
            tokens[row, k] = 0
            log_score[row, k] = _LOG_ZERO


def _exponentials(x: np.ndarray, top: np.floating, out: np.ndarray) -> None:
    """Write exp(x - top), vectorized if numpy supports it (float32 on most CPUs).

    A compiled loop with a separate implementation of exp was not faster (benchmarks/claims.md).
    """
    np.subtract(x, top, out=out)
    np.exp(out, out=out)


# -- the best tokens, and the sums of the others ---------------------------------------------


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def _put_back(
    found: Candidates,
    count: cython.Py_ssize_t,
    lines: Lines,
    row: cython.Py_ssize_t,
    marked: cython.uchar[::1],
    rest: LogSums,
) -> cython.Py_ssize_t:
    """Keep the buffer's best tokens, and sum the others; return the number of tokens kept."""
    number: cython.Py_ssize_t = lines.automaton[row]
    listed: cython.Py_ssize_t = lines.by_class.shape[1]
    i: cython.Py_ssize_t
    v: cython.Py_ssize_t
    if count <= found.kept:
        return count
    found.cut(count)
    for i in range(found.kept, count):
        v = found.token[i]
        rest.add(listed if marked[v] else lines.klass[number, v], found.value[i])
    return found.kept


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def _find_least(found: Candidates) -> cython.double:
    """Return the smallest of the values that are kept; infinity if none is kept."""
    least: cython.double = -_LOG_ZERO
    i: cython.Py_ssize_t
    for i in range(found.kept):
        least = min(least, found.value[i])
    return least


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def _weigh_all(
    p: cython.const[Real][::1],
    share: Real[::1],
    top: cython.double,
    lowest: cython.double,
    lines: Lines,
    klass: cython.const[cython.uint][:, ::1],
    by_class: cython.const[cython.double][:, ::1],
    row: cython.Py_ssize_t,
    marked: cython.uchar[::1],
    found: Candidates,
    mass: cython.double[::1],
    rest: LogSums,
) -> cython.Py_ssize_t:
    """Add each token that isn't listed to the buffer or to a sum; return the buffer's count.

    Args:
        p: log-probabilities.
        share: exp(p - top), which is accurate if p - top is at least `lowest`.
        top: the largest p.
        lowest: see `LOWEST`.
        lines, row: log g, and the index of the row.
        klass, by_class: arrays of `lines`, passed separately for speed.
        marked: nonzero for listed tokens.
        found: the buffer.
        mass: output, partial sums of the shares of each class, one or eight per class, so that an
            addition doesn't depend on the previous one.
        rest: sums of the other tokens' p g by class.
    """
    number: cython.Py_ssize_t = lines.automaton[row]
    lanes: cython.Py_ssize_t = mass.shape[0] // by_class.shape[1]
    count: cython.Py_ssize_t = 0
    least: cython.double = _LOG_ZERO if found.kept > 0 else -_LOG_ZERO
    quick: cython.double = least  # only tokens with a larger p can exceed `least`
    floor: cython.double = top + lowest
    greatest: cython.double = _LOG_ZERO
    x: cython.double
    c: cython.Py_ssize_t
    k: cython.Py_ssize_t
    v: cython.Py_ssize_t
    for c in range(by_class.shape[1]):
        greatest = max(greatest, by_class[row, c])
    for k in range(lines.tokens.shape[1]):
        share[lines.tokens[row, k]] = 0
    for v in range(p.shape[0]):
        c = klass[number, v]
        if p[v] > quick:
            x = p[v] + by_class[row, c]
            if x > least and not marked[v]:
                found.value[count] = x
                found.token[count] = v
                count += 1
                if count == found.value.shape[0]:
                    count = _put_back(found, count, lines, row, marked, rest)
                    least = _find_least(found)
                    quick = least - greatest - _ROUNDING * (abs(least) + abs(greatest))
                continue
        if p[v] >= floor:
            mass[lanes * c + (v & (lanes - 1))] += share[v]
        elif not marked[v]:
            rest.add(c, p[v] + by_class[row, c])
    return count


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def _weigh_few(
    p: cython.const[Real][::1],
    lines: Lines,
    by_order: cython.const[cython.int][:, ::1],
    start: cython.const[cython.longlong][:, ::1],
    row: cython.Py_ssize_t,
    marked: cython.uchar[::1],
    found: Candidates,
    rest: LogSums,
) -> cython.Py_ssize_t:
    """Compute the same as `_weigh_all`, reading only the log-probabilities of tokens with g > 0."""
    number: cython.Py_ssize_t = lines.automaton[row]
    count: cython.Py_ssize_t = 0
    least: cython.double = _LOG_ZERO if found.kept > 0 else -_LOG_ZERO
    a: cython.double
    x: cython.double
    c: cython.Py_ssize_t
    v: cython.Py_ssize_t
    k: cython.Py_ssize_t
    for c in range(lines.by_class.shape[1]):
        a = lines.by_class[row, c]
        if a == _LOG_ZERO:
            continue
        for k in range(start[number, c], start[number, c + 1]):
            v = by_order[number, k]
            x = p[v] + a
            if x > least and not marked[v]:
                found.value[count] = x
                found.token[count] = v
                count += 1
                if count == found.value.shape[0]:
                    count = _put_back(found, count, lines, row, marked, rest)
                    least = _find_least(found)
            elif not marked[v]:
                rest.add(c, x)
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
    """Add each listed token to the buffer once, with its separate log g; reduce the buffer."""
    k: cython.Py_ssize_t
    v: cython.Py_ssize_t
    x: cython.double
    for k in range(lines.tokens.shape[1]):
        v = lines.tokens[row, k]
        x = p[v] + lines.by_token[row, k]
        if marked[v] == 1 and x > _LOG_ZERO:
            marked[v] = 2
            found.value[count] = x
            found.token[count] = v
            count += 1
            if count == found.value.shape[0]:
                count = _put_back(found, count, lines, row, marked, rest)
    count = _put_back(found, count, lines, row, marked, rest)
    for k in range(lines.tokens.shape[1]):
        marked[lines.tokens[row, k]] = 0
    return count


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def _write_sums(
    row: cython.Py_ssize_t,
    by_class: cython.const[cython.double][:, ::1],
    top: cython.double,
    mass: cython.double[::1],
    rest: LogSums,
    log_mass: cython.double[:, ::1],
    log_listed: cython.double[::1],
) -> cython.void:
    """Write the log sum of each class and of the listed tokens, and reset the sums to zero."""
    lanes: cython.Py_ssize_t = mass.shape[0] // by_class.shape[1]
    a: cython.double
    c: cython.Py_ssize_t
    lane: cython.Py_ssize_t
    total: cython.double
    for c in range(by_class.shape[1]):
        a = by_class[row, c]
        if top > _LOG_ZERO:
            total = 0
            for lane in range(lanes):
                total += mass[lanes * c + lane]
                mass[lanes * c + lane] = 0
            if a > _LOG_ZERO and total > 0:
                rest.add(c, log(total) + top + a)
        log_mass[row, c] = rest.pop(c)
    log_listed[row] = rest.pop(by_class.shape[1])


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
    log_mass: cython.double[:, ::1],
    log_listed: cython.double[::1],
) -> None:
    """Implement `weigh` for log-probabilities of one type, float32 or float64."""
    num_classes: cython.Py_ssize_t = lines.by_class.shape[1]
    found: Candidates = Candidates(tokens.shape[1])
    rest: LogSums = LogSums(num_classes + 1)
    mass: cython.double[::1] = np.zeros(num_classes * (8 if num_classes < _MANY else 1))
    lowest: cython.double = LOWEST[log_p.itemsize]
    marked: cython.uchar[::1] = np.zeros(log_p.shape[1], np.uint8)
    share_array = np.empty(log_p.shape[1], log_p.dtype)
    share: Real[::1] = share_array
    p: cython.const[Real][::1]
    top: cython.double
    row: cython.Py_ssize_t
    count: cython.Py_ssize_t
    k: cython.Py_ssize_t
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
                _exponentials(p_array, greatest, share_array)
        with cython.nogil:
            for k in range(lines.tokens.shape[1]):
                marked[lines.tokens[row, k]] = 1
            count = 0
            if is_few:
                count = _weigh_few(p, lines, lines.by_order, lines.start, row, marked, found, rest)
            elif top > _LOG_ZERO:  # otherwise no token is possible
                count = _weigh_all(
                    p, share, top, lowest, lines, lines.klass, lines.by_class, row, marked, found,
                    mass, rest,
                )  # fmt: skip
            count = _push_listed(p, lines, row, marked, found, count, rest)
            found.write(row, count, tokens, log_score)
            _write_sums(row, lines.by_class, top, mass, rest, log_mass, log_listed)


def weigh(
    first: cython.Py_ssize_t,
    last: cython.Py_ssize_t,
    log_p: np.ndarray,
    lines: Lines,
    few: cython.Py_ssize_t,
    tokens: cython.longlong[:, ::1],
    log_score: cython.double[:, ::1],
    log_mass: cython.double[:, ::1],
    log_listed: cython.double[::1],
) -> None:
    """Find the K best tokens of some rows by log p + log g, and sum p g over the others by class.

    Args:
        first, last: range of rows, without `last`.
        log_p: log-probabilities of each row, in float32 or float64.
        lines: log g.
        few: in rows with fewer tokens of positive g than this number, only these tokens are read.
        tokens, log_score: outputs, the K best tokens of each row and log p + log g in descending
            order, followed by token 0 with -inf.
        log_mass: output, the log of the sum of each class, without its listed tokens.
        log_listed: output, the log of the sum of the listed tokens.
    """
    if log_p.itemsize == 4:
        _weigh_rows(
            cython.cast(cython.float, 0), first, last, log_p, lines, few, tokens, log_score,
            log_mass, log_listed,
        )  # fmt: skip
    else:
        _weigh_rows(
            cython.cast(cython.double, 0), first, last, log_p, lines, few, tokens, log_score,
            log_mass, log_listed,
        )  # fmt: skip


@cython.cfunc
def _tilt_rows(
    kind: Real,
    first: cython.Py_ssize_t,
    last: cython.Py_ssize_t,
    log_p: np.ndarray,
    lines: Lines,
    klass: cython.const[cython.uint][:, ::1],
    by_class: cython.const[cython.double][:, ::1],
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
        number = lines.automaton[row]
        with cython.nogil:
            for v in range(p.shape[0]):
                out[row, v] = p[v] + by_class[row, klass[number, v]]
            for k in range(lines.tokens.shape[1]):
                v = lines.tokens[row, k]
                out[row, v] = p[v] + lines.by_token[row, k]


def tilt(
    first: cython.Py_ssize_t,
    last: cython.Py_ssize_t,
    log_p: np.ndarray,
    lines: Lines,
    out: cython.double[:, ::1],
) -> None:
    """Write log p + log g of every token of rows `first` to `last` - 1."""
    if log_p.itemsize == 4:
        _tilt_rows(
            cython.cast(cython.float, 0),
            first,
            last,
            log_p,
            lines,
            lines.klass,
            lines.by_class,
            out,
        )
    else:
        _tilt_rows(
            cython.cast(cython.double, 0),
            first,
            last,
            log_p,
            lines,
            lines.klass,
            lines.by_class,
            out,
        )


# -- tokens at points of the cumulative sum --------------------------------------------------


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def _sum_blocks(
    share: Real[::1],
    lines: Lines,
    klass: cython.const[cython.uint][:, ::1],
    row: cython.Py_ssize_t,
    weight: cython.double[::1],
    marked: cython.uchar[::1],
    sums: cython.double[:, ::1],
) -> cython.double:
    """Sum the products of shares and g of one row by blocks; return the largest log g.

    Args:
        share: exp(log p - top); it is overwritten for listed tokens.
        lines, row: log g, and the index of the row.
        klass: an array of `lines`, passed separately for speed.
        weight: work space, one number per class.
        marked: work space, zero for every token before and after the call.
        sums: output, the sum of each block, divided by the largest g.
    """
    number: cython.Py_ssize_t = lines.automaton[row]
    most: cython.double = _LOG_ZERO
    some: cython.double
    b: cython.Py_ssize_t
    c: cython.Py_ssize_t
    k: cython.Py_ssize_t
    v: cython.Py_ssize_t
    for c in range(weight.shape[0]):
        most = max(most, lines.by_class[row, c])
    for k in range(lines.tokens.shape[1]):
        most = max(most, lines.by_token[row, k])
    if most == _LOG_ZERO:
        return most
    for c in range(weight.shape[0]):
        weight[c] = exp(lines.by_class[row, c] - most)
    for k in range(lines.tokens.shape[1]):
        v = lines.tokens[row, k]
        if not marked[v]:
            marked[v] = 1
            sums[row, v // _BLOCK] += share[v] * exp(lines.by_token[row, k] - most)
            share[v] = 0
    for k in range(lines.tokens.shape[1]):
        marked[lines.tokens[row, k]] = 0
    for b in range(sums.shape[1]):
        some = 0
        for v in range(b * _BLOCK, min(share.shape[0], (b + 1) * _BLOCK)):
            some += share[v] * weight[klass[number, v]]
        sums[row, b] += some
    return most


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def _sum_candidates(
    x: cython.const[Real][::1],
    lines: Lines,
    by_order: cython.const[cython.int][:, ::1],
    row: cython.Py_ssize_t,
    marked: cython.uchar[::1],
    sums: cython.double[:, ::1],
) -> cython.double:
    """Sum the weights of tokens with g > 0 by blocks, in float64; return the scale of the sums."""
    number: cython.Py_ssize_t = lines.automaton[row]
    scale: cython.double = _LOG_ZERO
    a: cython.double
    again: cython.int
    c: cython.Py_ssize_t
    k: cython.Py_ssize_t
    v: cython.Py_ssize_t
    for again in range(2):  # find the scale, then sum
        for k in range(lines.tokens.shape[1]):
            marked[lines.tokens[row, k]] = 1
        for c in range(lines.by_class.shape[1]):
            a = lines.by_class[row, c]
            if a == _LOG_ZERO:
                continue
            for k in range(lines.start[number, c], lines.start[number, c + 1]):
                v = by_order[number, k]
                if marked[v]:
                    continue
                if again:
                    sums[row, v // _BLOCK] += exp(x[v] + a - scale)
                else:
                    scale = max(scale, x[v] + a)
        for k in range(lines.tokens.shape[1]):
            v = lines.tokens[row, k]
            a = lines.by_token[row, k]
            if marked[v]:
                marked[v] = 0
                if again:
                    sums[row, v // _BLOCK] += exp(x[v] + a - scale)
                else:
                    scale = max(scale, x[v] + a)
        if scale == _LOG_ZERO:
            break
    return scale


@cython.cfunc
def _sum_rows(
    kind: Real,
    first: cython.Py_ssize_t,
    last: cython.Py_ssize_t,
    log_p: np.ndarray,
    lines: Lines,
    needed: cython.const[cython.uchar][::1],
    few: cython.Py_ssize_t,
    sums: cython.double[:, ::1],
    scale: cython.double[::1],
) -> None:
    """Implement `sum_rows` for log-probabilities of one type, float32 or float64."""
    weight: cython.double[::1] = np.empty(lines.by_class.shape[1])
    marked: cython.uchar[::1] = np.zeros(log_p.shape[1], np.uint8)
    share_array = np.empty(log_p.shape[1], log_p.dtype)
    share: Real[::1] = share_array
    x: cython.const[Real][::1]
    top: cython.double
    total: cython.double
    row: cython.Py_ssize_t
    b: cython.Py_ssize_t
    for row in range(first, last):
        scale[row] = _LOG_ZERO
        total = 0
        for b in range(sums.shape[1]):
            sums[row, b] = 0
        if not needed[row]:
            continue
        x_array = np.ascontiguousarray(log_p[row])
        x = x_array
        if lines.num_candidates(row) >= few:
            greatest = x_array.max()
            top = float(greatest)
            if top == _LOG_ZERO:  # no token is possible
                continue
            _exponentials(x_array, greatest, share_array)
            with cython.nogil:
                scale[row] = top + _sum_blocks(share, lines, lines.klass, row, weight, marked, sums)
                for b in range(sums.shape[1]):
                    total += sums[row, b]
        if total < _LEAST:
            with cython.nogil:
                for b in range(sums.shape[1]):
                    sums[row, b] = 0
                scale[row] = _sum_candidates(x, lines, lines.by_order, row, marked, sums)


def sum_rows(
    first: cython.Py_ssize_t,
    last: cython.Py_ssize_t,
    log_p: np.ndarray,
    lines: Lines,
    needed: np.ndarray,
    few: cython.Py_ssize_t,
    sums: cython.double[:, ::1],
    scale: cython.double[::1],
) -> None:
    """Sum the weights p g of rows `first` to `last` - 1 by blocks.

    Args:
        first, last: range of rows.
        log_p: log-probabilities of each row up to an additive constant, in float32 or float64.
        lines: log g.
        needed: whether each row is needed; the sums of other rows are zero.
        few: in rows with fewer tokens of positive g than this number, only these tokens are read.
        sums, scale: outputs, the sum of each block divided by exp(scale), and the scale of each
            row.
    """
    some: cython.const[cython.uchar][::1] = np.ascontiguousarray(needed).view(np.uint8)
    if log_p.itemsize == 4:
        _sum_rows(cython.cast(cython.float, 0), first, last, log_p, lines, some, few, sums, scale)
    else:
        _sum_rows(cython.cast(cython.double, 0), first, last, log_p, lines, some, few, sums, scale)


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def _find_token(
    log_p: cython.const[Real][:, :],
    lines: Lines,
    row: cython.Py_ssize_t,
    listed: cython.int[::1],
    scale: cython.double,
    sums: cython.const[cython.double][:, ::1],
    u: cython.double,
) -> cython.Py_ssize_t:
    """Return the first token whose cumulative weight exceeds u times the total.

    If rounding moves this point beyond the last token of positive weight in a block, the result is
    this last token. If all weights are zero, the result is 0. `listed` is work space, zero for
    every token before and after the call.
    """
    number: cython.Py_ssize_t = lines.automaton[row]
    total: cython.double = 0
    running: cython.double = 0
    point: cython.double
    y: cython.double
    latest: cython.Py_ssize_t = -1
    block: cython.Py_ssize_t = 0
    found: cython.Py_ssize_t = 0
    b: cython.Py_ssize_t
    k: cython.Py_ssize_t
    v: cython.Py_ssize_t
    for b in range(sums.shape[1]):
        total += sums[row, b]
        if sums[row, b] > 0:
            latest = b
    if latest < 0:
        return 0
    point = u * total
    while block < latest and sums[row, block] <= point:
        point -= sums[row, block]
        block += 1
    for k in range(lines.tokens.shape[1]):
        listed[lines.tokens[row, k]] = k + 1
    for v in range(block * _BLOCK, min(log_p.shape[1], (block + 1) * _BLOCK)):
        if listed[v]:
            y = log_p[row, v] + lines.by_token[row, listed[v] - 1]
        else:
            y = log_p[row, v] + lines.by_class[row, lines.klass[number, v]]
        if y > _LOG_ZERO:
            running += exp(y - scale)
            found = v
            if running > point:
                break
    for k in range(lines.tokens.shape[1]):
        listed[lines.tokens[row, k]] = 0
    return found


@cython.cfunc
def _find_rows(
    kind: Real,
    first: cython.Py_ssize_t,
    last: cython.Py_ssize_t,
    log_p: np.ndarray,
    lines: Lines,
    sums: cython.const[cython.double][:, ::1],
    scale: cython.const[cython.double][::1],
    rows: cython.const[cython.longlong][::1],
    u: cython.const[cython.double][::1],
    out: cython.longlong[::1],
) -> None:
    """Implement `find` for log-probabilities of one type, float32 or float64."""
    x: cython.const[Real][:, :] = log_p
    listed: cython.int[::1] = np.zeros(log_p.shape[1], np.int32)
    i: cython.Py_ssize_t
    with cython.nogil:
        for i in range(first, last):
            out[i] = _find_token(x, lines, rows[i], listed, scale[rows[i]], sums, u[i])


def find(
    first: cython.Py_ssize_t,
    last: cython.Py_ssize_t,
    log_p: np.ndarray,
    lines: Lines,
    sums: cython.const[cython.double][:, ::1],
    scale: cython.const[cython.double][::1],
    rows: np.ndarray,
    u: np.ndarray,
    out: cython.longlong[::1],
) -> None:
    """Find tokens at points of rows' cumulative weights; 0 for a row without positive weights.

    Args:
        first, last: range of points.
        log_p, lines: as for `sum_rows`.
        sums, scale: the outputs of `sum_rows`.
        rows, u: the row of each point, and the point as a share of the row's sum.
        out: output, the tokens.
    """
    row_of: cython.const[cython.longlong][::1] = np.ascontiguousarray(rows)
    part: cython.const[cython.double][::1] = np.ascontiguousarray(u)
    if log_p.itemsize == 4:
        _find_rows(
            cython.cast(cython.float, 0), first, last, log_p, lines, sums, scale, row_of, part, out
        )
    else:
        _find_rows(
            cython.cast(cython.double, 0), first, last, log_p, lines, sums, scale, row_of, part, out
        )

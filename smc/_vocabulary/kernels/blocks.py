"""Compiled loops that sum weights over blocks of next tokens, and draw a token.

Token v of class c has the weight exp(x[v] + log g[c] - scale), where x is log p up to a constant. A
token with a separate log g uses it in place of log g[c]. `smc._vocabulary.compiled` calls these
loops. The reference implementation is `smc._vocabulary.tensors.prepare_draws`.
"""

from __future__ import annotations

import cython
import numpy as np

from smc._vocabulary.kernels.best import exponentials

if cython.compiled:
    from cython.cimports.libc.math import exp
    from cython.cimports.smc._vocabulary.kernels.lines import Lines
else:
    from math import exp

    from smc._vocabulary.kernels.lines import Lines

BLOCK = 512
"""Number of tokens in a block.

A row of 128,000 tokens has 250 blocks, and one block fits into the CPU's cache.
"""
_BLOCK = cython.declare(cython.Py_ssize_t, BLOCK)
_LOG_ZERO = cython.declare(cython.double, -np.inf)

Real = cython.fused_type(cython.float, cython.double)


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def _log_g(
    v: cython.Py_ssize_t, lines: Lines, row: cython.Py_ssize_t, marked: cython.uchar[::1]
) -> cython.double:
    """Return log g of token v."""
    k: cython.Py_ssize_t
    if marked[v]:
        for k in range(lines.tokens.shape[1]):
            if lines.tokens[row, k] == v:
                return lines.by_token[row, k]
    return lines.by_class[row, lines.klass[lines.automaton[row], v]]


@cython.cfunc
@cython.inline
@cython.nogil
@cython.exceptval(check=False)
def _mark(
    lines: Lines, row: cython.Py_ssize_t, marked: cython.uchar[::1], value: cython.uchar
) -> cython.void:
    """Mark (value 1) or unmark (value 0) the tokens with a separate g."""
    k: cython.Py_ssize_t
    for k in range(lines.tokens.shape[1]):
        marked[lines.tokens[row, k]] = value


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def _block_sums(
    x: cython.const[Real][::1],
    share: cython.const[Real][::1],
    top: cython.double,
    lines: Lines,
    row: cython.Py_ssize_t,
    weight: cython.double[::1],
    marked: cython.uchar[::1],
    least: cython.double,
    sums: cython.double[:, ::1],
) -> cython.double:
    """Sum the weights of one row by blocks.

    Args:
        x: log-probabilities, up to an additive constant.
        share: exp(x - top), where top is the largest x.
        lines, row: log g of the classes and of tokens with a separate g, and the index of the row.
        weight: work space, one number per class.
        marked: work space, zero for every token before and after the call.
        least: if the row's sum divided by exp(scale) is less than this number, `share` has lost
            precision, and exponentials are computed again.
        sums: output, the sum of each block.

    Returns:
        The scale of the sums.
    """
    size: cython.Py_ssize_t = x.shape[0]
    number: cython.Py_ssize_t = lines.automaton[row]
    most: cython.double = _LOG_ZERO
    total: cython.double = 0
    scale: cython.double
    some: cython.double
    y: cython.double
    b: cython.Py_ssize_t
    c: cython.Py_ssize_t
    k: cython.Py_ssize_t
    v: cython.Py_ssize_t
    for c in range(weight.shape[0]):
        most = max(most, lines.by_class[row, c])
    for k in range(lines.tokens.shape[1]):
        most = max(most, lines.by_token[row, k])
    scale = top + most
    for c in range(weight.shape[0]):
        weight[c] = exp(lines.by_class[row, c] - most) if most > _LOG_ZERO else 0.0
    _mark(lines, row, marked, 1)
    for b in range(sums.shape[1]):
        some = 0
        for v in range(b * _BLOCK, min(size, (b + 1) * _BLOCK)):
            if marked[v] and most > _LOG_ZERO:
                some += cython.cast(cython.double, share[v]) * exp(
                    _log_g(v, lines, row, marked) - most
                )
            else:
                some += share[v] * weight[lines.klass[number, v]]
        sums[row, b] = some
        total += some
    if total < least and most > _LOG_ZERO:
        scale = _LOG_ZERO
        for v in range(size):
            scale = max(scale, x[v] + _log_g(v, lines, row, marked))
        for b in range(sums.shape[1]):
            sums[row, b] = 0
        if scale > _LOG_ZERO:
            for v in range(size):
                y = x[v] + _log_g(v, lines, row, marked)
                if y > _LOG_ZERO:
                    sums[row, v // _BLOCK] += exp(y - scale)
    _mark(lines, row, marked, 0)
    return scale


@cython.cfunc
def _sum_rows(
    kind: Real,
    first: cython.Py_ssize_t,
    last: cython.Py_ssize_t,
    log_p: np.ndarray,
    lines: Lines,
    least: cython.double,
    sums: cython.double[:, ::1],
    scale: cython.double[::1],
) -> None:
    """Implement `sum_rows` for log-probabilities of one type, float32 or float64."""
    weight: cython.double[::1] = np.empty(lines.by_class.shape[1])
    marked: cython.uchar[::1] = np.zeros(log_p.shape[1], np.uint8)
    share_array = np.empty(log_p.shape[1], log_p.dtype)
    share: cython.const[Real][::1] = share_array
    x: cython.const[Real][::1]
    top: cython.double
    row: cython.Py_ssize_t
    b: cython.Py_ssize_t
    for row in range(first, last):
        x_array = np.ascontiguousarray(log_p[row])
        x = x_array
        greatest = x_array.max()
        top = float(greatest)
        if top == _LOG_ZERO:  # no token is possible
            scale[row] = _LOG_ZERO
            for b in range(sums.shape[1]):
                sums[row, b] = 0
            continue
        exponentials(x_array, greatest, share_array)
        with cython.nogil:
            scale[row] = _block_sums(x, share, top, lines, row, weight, marked, least, sums)


def sum_rows(
    first: cython.Py_ssize_t,
    last: cython.Py_ssize_t,
    log_p: np.ndarray,
    lines: Lines,
    least: cython.double,
    sums: cython.double[:, ::1],
    scale: cython.double[::1],
) -> None:
    """Sum the weights of rows `first` to `last` - 1 by blocks.

    Args:
        first, last: range of rows.
        log_p: log-probabilities of each row up to an additive constant, in float32 or float64.
        lines: log g.
        least: if a row's sum divided by exp(scale) is less than this number, exponentials have lost
            precision, and are computed again in float64.
        sums, scale: outputs, the sum of each block, and the scale of each row.
    """
    if log_p.itemsize == 4:
        _sum_rows(cython.cast(cython.float, 0), first, last, log_p, lines, least, sums, scale)
    else:
        _sum_rows(cython.cast(cython.double, 0), first, last, log_p, lines, least, sums, scale)


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def _draw_token(
    log_p: cython.const[Real][:, :],
    lines: Lines,
    row: cython.Py_ssize_t,
    marked: cython.uchar[::1],
    scale: cython.double,
    sums: cython.const[cython.double][:, ::1],
    u: cython.double,
) -> cython.Py_ssize_t:
    """Return the first token whose cumulative weight exceeds u times the total.

    If rounding moves this point beyond the last token of positive weight in a block, the result is
    this last token. If all weights are zero, the result is 0.
    """
    total: cython.double = 0
    running: cython.double = 0
    point: cython.double
    y: cython.double
    latest: cython.Py_ssize_t = -1
    block: cython.Py_ssize_t = 0
    found: cython.Py_ssize_t = 0
    b: cython.Py_ssize_t
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
    _mark(lines, row, marked, 1)
    for v in range(block * _BLOCK, min(log_p.shape[1], (block + 1) * _BLOCK)):
        y = log_p[row, v] + _log_g(v, lines, row, marked)
        if y > _LOG_ZERO:
            running += exp(y - scale)
            found = v
            if running > point:
                break
    _mark(lines, row, marked, 0)
    return found


@cython.cfunc
def _draw_rows(
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
    """Implement `draw_rows` for log-probabilities of one type, float32 or float64."""
    x: cython.const[Real][:, :] = log_p
    marked: cython.uchar[::1] = np.zeros(log_p.shape[1], np.uint8)
    i: cython.Py_ssize_t
    with cython.nogil:
        for i in range(first, last):
            out[i] = _draw_token(x, lines, rows[i], marked, scale[rows[i]], sums, u[i])


def draw_rows(
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
    """Draw tokens by the weights of rows; the result is 0 for a row without positive weights.

    Args:
        first, last: range of draws.
        log_p, lines: as for `sum_rows`.
        sums, scale: the outputs of `sum_rows`.
        rows, u: the row of each draw, and its uniform number.
        out: output, the tokens.
    """
    row_of: cython.const[cython.longlong][::1] = np.ascontiguousarray(rows)
    part: cython.const[cython.double][::1] = np.ascontiguousarray(u)
    if log_p.itemsize == 4:
        _draw_rows(
            cython.cast(cython.float, 0), first, last, log_p, lines, sums, scale, row_of, part, out
        )
    else:
        _draw_rows(
            cython.cast(cython.double, 0), first, last, log_p, lines, sums, scale, row_of, part, out
        )

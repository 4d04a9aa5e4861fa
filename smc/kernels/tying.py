"""Compiled passes over log-probabilities, one row at a time: read once, nothing as wide is written.

Tokens come in chunks that stay in the nearest cache. Of each chunk exp is taken, as many at a time
as the processor has lanes, and added to the classes. Tokens above the K-th best so far are set
aside instead; who is pushed out of the K best later is added then, so that no class has mass that
must be taken off it again.

Arithmetic is that of the log-probabilities, float32 or float64; sums are in float64, relative to
the likeliest token. What cannot be held beside that, under e^-87 or e^-300 of it, is summed by its
own scale, class by class: a lookahead may leave nothing else to go on with.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
from llvmlite import ir
from numba import types
from numba.extending import intrinsic, overload

from gcd.support.compiled import helper, kernel
from gcd.support.kernels.growing import copied

_CHUNK = 2048
_COLUMNS = 128  # a chunk is looked over in so many columns, to skip those without favourites
_LANES = 8  # partial sums of each class, so that an addition need not wait for the one before
_FEW = 32  # where less than this part of the tokens is allowed, they are looked up one by one
_FAR = 300.0  # how far the likeliest may rise before what was summed so far is set aside

_LOG2_E, _LN2 = 1 / math.log(2), math.log(2)
_LOWEST = -300.0
_ROUND = 1.5 * 2.0**52 + 1023  # added to a number n, leaves round(n) + 1023 in its last bits

_LOG2_E_32, _LN2_32 = np.float32(_LOG2_E), np.float32(_LN2)
_LN2_REST_32 = np.float32(_LN2 - float(_LN2_32))
_LOWEST_32 = np.float32(-87)
_ROUND_32 = np.float32(1.5 * 2.0**23 + 127)
_ONE_32 = np.float32(1)
_A5, _A4 = np.float32(0.001384364441037178), np.float32(0.008374162949621677)
_A3, _A2 = np.float32(0.04166800156235695), np.float32(0.16666431725025177)
_A1 = np.float32(0.4999999403953552)


def _same_bits(source: types.Type, target: types.Type, kind: ir.Type) -> Callable[[float], float]:
    """The number of another type that has the same bits."""

    @intrinsic
    def cast(typing_context, number):
        def generate(context, builder, signature, arguments):
            return builder.bitcast(arguments[0], kind)

        return target(source), generate

    return cast


_bits_32 = _same_bits(types.float32, types.int32, ir.IntType(32))
_bits_64 = _same_bits(types.float64, types.int64, ir.IntType(64))
_number_32 = _same_bits(types.int32, types.float32, ir.FloatType())
_number_64 = _same_bits(types.int64, types.float64, ir.DoubleType())


def _exp(x: np.ndarray, top: float, out: np.ndarray) -> None:
    """exp(x - top), to some 1e-15 or 1e-7; wrong where that is under exp(`_LOWEST`).

    With n the integer nearest to x / ln 2, exp(x) is 2^n times exp of what is left, a polynomial
    of least greatest error (2.2e-16 or 2e-9) where that is under ln 2 / 2. Written so that the
    compiler makes vectors of it, which it does not of `math.exp`.
    """
    raise NotImplementedError


@helper(fastmath={"contract", "nsz", "nnan"})
def _exp_64(x: np.ndarray, top: float, out: np.ndarray) -> None:
    for i in range(_CHUNK):
        y = max(x[i] - top, _LOWEST)
        rounded = y * _LOG2_E + _ROUND
        r = y - (rounded - _ROUND) * _LN2
        s = r * 2.7626371065696354e-07 + 2.764019739169484e-06
        s = s * r + 2.480150431378554e-05
        s = s * r + 0.00019841170230570286
        s = s * r + 0.001388888893251478
        s = s * r + 0.008333333385699212
        s = s * r + 0.041666666666573066
        s = s * r + 0.16666666666554314
        s = s * r + 0.5000000000000006
        s = s * r + 1.0000000000000067
        out[i] = (s * r + 1.0) * _number_64(_bits_64(rounded) << 52)


@helper(fastmath={"contract", "nsz", "nnan"})
def _exp_32(x: np.ndarray, top: np.float32, out: np.ndarray) -> None:
    for i in range(_CHUNK):
        y = max(x[i] - top, _LOWEST_32)
        rounded = y * _LOG2_E_32 + _ROUND_32
        n = rounded - _ROUND_32
        r = (y - n * _LN2_32) - n * _LN2_REST_32
        s = r * _A5 + _A4
        s = s * r + _A3
        s = s * r + _A2
        s = s * r + _A1
        s = s * r + _ONE_32
        out[i] = (s * r + _ONE_32) * _number_32(_bits_32(rounded) << 23)


@overload(_exp)
def _exp_for(x, top, out):
    if x.dtype == types.float32:
        return lambda x, top, out: _exp_32(x, np.float32(top), out)
    return lambda x, top, out: _exp_64(x, top, out)


@helper(fastmath={"nnan", "nsz"})
def _fold(x: np.ndarray, y: np.ndarray, high: np.ndarray, low: np.ndarray) -> None:
    """Of each place, the higher of two numbers and the lower of two others."""
    for i in range(high.size):
        high[i] = max(x[i], x[i + high.size])
    for i in range(low.size):
        low[i] = min(y[i], y[i + low.size])


@helper
def _extremes(x: np.ndarray, high: np.ndarray, low: np.ndarray) -> None:
    """The highest and lowest of each column of a chunk come first in `high` and `low`.

    By halves, as the compiler makes vectors of that and not of a running maximum.
    """
    half = _CHUNK // 2
    _fold(x, x, high[0, :half], low[0, :half])
    side = 0
    while half > _COLUMNS:
        half //= 2
        _fold(high[side], low[side], high[1 - side, :half], low[1 - side, :half])
        side = 1 - side
    if side:
        copied(high[0], high[1], half)
        copied(low[0], low[1], half)


@helper
def _add_log(log_x: float, scale: np.ndarray, total: np.ndarray, c: int) -> None:
    """Add a number, given by its logarithm, to total[c] exp(scale[c])."""
    if log_x > scale[c]:
        total[c] *= math.exp(scale[c] - log_x)
        scale[c] = log_x
    if log_x > -np.inf:
        total[c] += math.exp(log_x - scale[c])


@helper
def _add_tiny(
    x: np.ndarray,
    size: int,
    least: float,
    klass: np.ndarray,
    out: np.ndarray,
    scale: np.ndarray,
    total: np.ndarray,
) -> None:
    """What is under `least`, where `_exp` is wrong, goes to its class from here."""
    for i in range(size):
        if x[i] < least:
            out[i] = 0
            _add_log(x[i], scale, total, klass[i])


@helper
def _add_to_classes(x: np.ndarray, klass: np.ndarray, mass: np.ndarray) -> None:
    """Add each number to its class, in one of eight sums, in turns."""
    size = klass.size
    m0, m1, m2, m3 = mass[0], mass[1], mass[2], mass[3]
    m4, m5, m6, m7 = mass[4], mass[5], mass[6], mass[7]
    even = size - size % 8
    for i in range(0, even, 8):
        m0[klass[i]] += x[i]
        m1[klass[i + 1]] += x[i + 1]
        m2[klass[i + 2]] += x[i + 2]
        m3[klass[i + 3]] += x[i + 3]
        m4[klass[i + 4]] += x[i + 4]
        m5[klass[i + 5]] += x[i + 5]
        m6[klass[i + 6]] += x[i + 6]
        m7[klass[i + 7]] += x[i + 7]
    for i in range(even, size):
        m0[klass[i]] += x[i]


@helper
def _put_back(
    value: np.ndarray,
    token: np.ndarray,
    count: int,
    K: int,
    klass: np.ndarray,
    scale: np.ndarray,
    total: np.ndarray,
) -> None:
    """Of the candidates the K best come first (Hoare's selection); the others go to their class."""
    low, high = 0, count - 1
    while low < high:
        a, b, c = value[low], value[(low + high) // 2], value[high]
        pivot = max(min(a, b), min(max(a, b), c))
        i, j = low, high
        while i <= j:
            while value[i] > pivot:
                i += 1
            while value[j] < pivot:
                j -= 1
            if i <= j:
                value[i], value[j] = value[j], value[i]
                token[i], token[j] = token[j], token[i]
                i += 1
                j -= 1
        if j >= K - 1:
            high = j
        elif i <= K - 1:
            low = i
        else:
            break
    for i in range(K, count):
        _add_log(value[i], scale, total, klass[token[i]])


@helper
def _weigh_row(
    p: np.ndarray,
    klass: np.ndarray,
    alive: np.ndarray,
    K: int,
    value: np.ndarray,
    token: np.ndarray,
    mass: np.ndarray,
    scale: np.ndarray,
    total: np.ndarray,
) -> tuple[float, int]:
    """The best tokens, in no order, and all others, by class, as mass exp(top) + total exp(scale).

    Gives top and the number of candidates, at most K.
    """
    room = value.size
    x, exp_x = np.empty(_CHUNK, p.dtype), np.empty(_CHUNK, p.dtype)
    highs, lows = np.empty((2, _CHUNK // 2), p.dtype), np.empty((2, _CHUNK // 2), p.dtype)
    high, low = highs[0, :_COLUMNS], lows[0, :_COLUMNS]
    span = _LOWEST if p.itemsize == 8 else _LOWEST_32
    top, first_top, least, count = -np.inf, -np.inf, -np.inf, 0
    for start in range(0, p.size, _CHUNK):
        size = min(_CHUNK, p.size - start)
        here = klass[start : start + size]
        for i in range(size):
            x[i] = p[start + i]
        x[size:] = x[0]
        _extremes(x, highs, lows)
        highest = np.float64(high.max())
        if highest == -np.inf:
            continue
        if highest > top:
            if highest - first_top < _FAR:
                mass *= math.exp(top - highest)
            else:
                _set_aside(mass, top, scale, total)
                first_top = highest
            top = highest
        _exp(x, top, exp_x)
        if K > 0 and highest > least:
            for column in range(_COLUMNS):
                if high[column] <= least:
                    continue
                for i in range(column, size, _COLUMNS):
                    if x[i] > least and alive[here[i]]:
                        value[count], token[count] = x[i], start + i
                        x[i], exp_x[i] = -np.inf, 0
                        count += 1
                        if count == room:
                            _put_back(value, token, count, K, klass, scale, total)
                            count, least = K, value[:K].min()
        if low.min() < top + span:
            _add_tiny(x, size, top + span, here, exp_x, scale, total)
        _add_to_classes(exp_x, here, mass)
    if count > K:
        _put_back(value, token, count, K, klass, scale, total)
        count = K
    return top, count


@helper
def _weigh_few(
    p: np.ndarray,
    klass: np.ndarray,
    alive: np.ndarray,
    listed: np.ndarray,
    start: np.ndarray,
    K: int,
    value: np.ndarray,
    token: np.ndarray,
    scale: np.ndarray,
    total: np.ndarray,
) -> int:
    """`_weigh_row` where few tokens are allowed: these only, one by one."""
    least, count = -np.inf, 0
    for c in range(alive.size):
        if not alive[c]:
            continue
        for v in listed[start[c] : start[c + 1]]:
            if K > 0 and p[v] > least:
                value[count], token[count] = p[v], v
                count += 1
                if count == value.size:
                    _put_back(value, token, count, K, klass, scale, total)
                    count, least = K, value[:K].min()
            else:
                _add_log(p[v], scale, total, c)
    if count > K:
        _put_back(value, token, count, K, klass, scale, total)
        count = K
    return count


@helper
def _set_aside(mass: np.ndarray, top: float, scale: np.ndarray, total: np.ndarray) -> None:
    """What was summed so far is too little beside what comes."""
    for lane in range(1, _LANES):
        mass[0] += mass[lane]
    for c in range(scale.size):
        if mass[0, c] > 0:
            _add_log(math.log(mass[0, c]) + top, scale, total, c)
    mass[:] = 0


@kernel(nogil=True)
def weigh_rest(
    first: int,
    last: int,
    log_p: np.ndarray,
    class_of: np.ndarray,
    by_class: np.ndarray,
    class_start: np.ndarray,
    automaton: np.ndarray,
    alive: np.ndarray,
    tokens: np.ndarray,
    best: np.ndarray,
    log_mass: np.ndarray,
) -> None:
    """Of each row the K best tokens among the classes alive, and the mass of each class without.

    Where there are fewer than K of any probability, the list ends in token 0 at -inf. Classes are
    unsigned numbers, which as places in an array cost no check for negative ones.
    """
    V, C, K = log_p.shape[1], alive.shape[1], tokens.shape[1]
    value, token = np.empty(2 * K + 64), np.empty(2 * K + 64, np.int64)
    mass, scale, total = np.empty((_LANES, C)), np.empty(C), np.empty(C)
    for row in range(first, last):
        p, klass, may = log_p[row], class_of[automaton[row]], alive[row]
        start = class_start[automaton[row]]
        allowed = 0
        for c in range(C):
            if may[c]:
                allowed += start[c + 1] - start[c]
        mass[:], scale[:], total[:] = 0, -np.inf, 0
        if allowed < V // _FEW:
            listed = by_class[automaton[row]]
            top, count = (
                0.0,
                _weigh_few(p, klass, may, listed, start, K, value, token, scale, total),
            )
        else:
            top, count = _weigh_row(p, klass, may, K, value, token, mass, scale, total)
        tokens[row], best[row] = 0, -np.inf
        for k, i in enumerate(np.argsort(-value[:count])):
            tokens[row, k], best[row, k] = token[i], value[i]
        for lane in range(1, _LANES):
            mass[0] += mass[lane]
        for c in range(C):
            log_mass[row, c] = -np.inf
            if may[c] and mass[0, c] > 0:
                log_mass[row, c] = math.log(mass[0, c]) + top
            if may[c] and total[c] > 0:
                _add_log(log_mass[row, c], scale, total, c)
                log_mass[row, c] = math.log(total[c]) + scale[c]


@kernel(nogil=True)
def tilt(
    first: int,
    last: int,
    log_p: np.ndarray,
    class_of: np.ndarray,
    automaton: np.ndarray,
    by_class: np.ndarray,
    tokens: np.ndarray,
    by_token: np.ndarray,
    out: np.ndarray,
) -> None:
    """log p + log g of every token: that of its class, or its own for those that are listed."""
    for row in range(first, last):
        klass, g = class_of[automaton[row]], by_class[row]
        for v in range(log_p.shape[1]):
            out[row, v] = log_p[row, v] + g[klass[v]]
        for k in range(tokens.shape[1]):
            out[row, tokens[row, k]] = log_p[row, tokens[row, k]] + by_token[row, k]

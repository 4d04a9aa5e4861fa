"""Compiled passes over log-probabilities, one row at a time: read once, nothing as wide is written.

Tokens come in chunks that stay in the nearest cache. Of each chunk, those above the K-th best so
far are set aside; of the others exp is taken, four at a time, and added to their class. Who is
pushed out of the K best later is added then, so that no class has mass that must be taken off it
again.
"""

from __future__ import annotations

import math

import numba
import numpy as np
from llvmlite import ir
from numba import types
from numba.extending import intrinsic

_CHUNK = 2048
_BLOCK = 64
_LANES = 4  # partial sums of each class, so that an addition need not wait for the one before
_LOG2_E, _LN2 = 1 / math.log(2), math.log(2)
_LOWEST = -708.0  # further below the top of its row, a probability counts as zero
_SMALLEST = 1e-300
_ROUND = 1.5 * 2.0**52 + 1023  # added to a number n, leaves round(n) + 1023 in its last bits


@intrinsic
def _bits(typing_context, number):
    """A float64 as the integer that its bits are."""

    def generate(context, builder, signature, arguments):
        return builder.bitcast(arguments[0], ir.IntType(64))

    return types.int64(types.float64), generate


@intrinsic
def _number(typing_context, bits):
    """The float64 with these bits."""

    def generate(context, builder, signature, arguments):
        return builder.bitcast(arguments[0], ir.DoubleType())

    return types.float64(types.int64), generate


@numba.njit(cache=True, fastmath={"contract", "nsz", "nnan"})
def _exp(x: np.ndarray, size: int, top: float) -> None:
    """exp(x - top) in place, to some 1e-15.

    With n the integer nearest to x / ln 2, exp(x) is 2^n times exp of what is left, a polynomial
    of least greatest error (2.2e-16) where that is under ln 2 / 2. Written so that the compiler
    makes vectors of it, which it does not of `math.exp`.
    """
    for i in range(size):
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
        x[i] = (s * r + 1.0) * _number(_bits(rounded) << 52)


@numba.njit(cache=True, fastmath={"nnan", "nsz"})
def _masked(p: np.ndarray, klass: np.ndarray, penalty: np.ndarray, x: np.ndarray) -> float:
    """Log-probabilities, -inf where the class is not allowed, and the highest of them."""
    high = -np.inf
    for i in range(p.size):
        x[i] = p[i] + penalty[klass[i]]
        high = max(high, x[i])
    return high


@numba.njit(cache=True, fastmath={"nnan", "nsz"})
def _highest(x: np.ndarray) -> float:
    high = x[0]
    for i in range(x.size):
        high = max(high, x[i])
    return high


@numba.njit(cache=True)
def _add_to_classes(x: np.ndarray, klass: np.ndarray, mass: np.ndarray) -> None:
    """Add each number to its class, in one of four sums, in turns."""
    size = klass.size
    m0, m1, m2, m3 = mass[0], mass[1], mass[2], mass[3]
    even = size - size % 4
    for i in range(0, even, 4):
        m0[klass[i]] += x[i]
        m1[klass[i + 1]] += x[i + 1]
        m2[klass[i + 2]] += x[i + 2]
        m3[klass[i + 3]] += x[i + 3]
    for i in range(even, size):
        m0[klass[i]] += x[i]


@numba.njit(cache=True)
def _lowest(value: np.ndarray, size: int) -> float:
    low = value[0]
    for i in range(size):
        low = min(low, value[i])
    return low


@numba.njit(cache=True)
def _put_back(
    value: np.ndarray,
    token: np.ndarray,
    count: int,
    K: int,
    start: int,
    x: np.ndarray,
    top: float,
    klass: np.ndarray,
    mass: np.ndarray,
) -> None:
    """Of the candidates the K best come first (Hoare's selection); the others are no longer any.

    They go back to the chunk in work, which begins with token `start`, or else to their class.
    """
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
        if token[i] >= start:
            x[token[i] - start] = value[i]
        else:
            mass[0, klass[token[i]]] += math.exp(value[i] - top)


@numba.njit(cache=True, nogil=True)
def weigh_rest(
    first: int,
    last: int,
    log_p: np.ndarray,
    class_of: np.ndarray,
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
    x = np.empty(_CHUNK)
    room = 4 * K + 64
    value, token = np.empty(room), np.empty(room, np.int64)
    penalty = np.empty(C)
    mass = np.empty((_LANES, C))
    for row in range(first, last):
        p, klass = log_p[row], class_of[automaton[row]]
        for c in range(C):
            penalty[c] = 0.0 if alive[row, c] else -np.inf
        mass[:] = 0
        top, least, count = -np.inf, -np.inf, 0
        for start in range(0, V, _CHUNK):
            size = min(_CHUNK, V - start)
            here = klass[start : start + size]
            high = _masked(p[start : start + size], here, penalty, x)
            if high == -np.inf:
                continue
            if high > top:
                mass *= math.exp(top - high)
                top = high
            if K > 0 and high > least:
                for block in range(0, size, _BLOCK):
                    end = min(size, block + _BLOCK)
                    if _highest(x[block:end]) <= least:
                        continue
                    for i in range(block, end):
                        if x[i] > least:
                            value[count], token[count] = x[i], start + i
                            x[i] = -np.inf
                            count += 1
                            if count == room:
                                _put_back(value, token, count, K, start, x, top, klass, mass)
                                count, least = K, _lowest(value, K)
            _exp(x, size, top)
            _add_to_classes(x, here, mass)
        if count > K:
            _put_back(value, token, count, K, V, x, top, klass, mass)
            count = K
        tokens[row], best[row] = 0, -np.inf
        for k, i in enumerate(np.argsort(-value[:count])):
            tokens[row, k], best[row, k] = token[i], value[i]
        for c in range(C):
            total = 0.0
            for lane in range(_LANES):
                total += mass[lane, c]
            log_mass[row, c] = math.log(total) + top if total > _SMALLEST else -np.inf


@numba.njit(cache=True, nogil=True)
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

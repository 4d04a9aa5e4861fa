"""A buffer for the best of many candidates, and sums of numbers in log space."""

from __future__ import annotations

import cython
import numpy as np

if cython.compiled:
    from cython.cimports.libc.math import exp, log
else:
    from math import exp, log

_MARGIN = cython.declare(cython.Py_ssize_t, 64)
_LOG_ZERO = cython.declare(cython.double, -np.inf)


@cython.cclass
class LogSums:
    """Sums of numbers that are given by their logarithms; sum c is total[c] exp(scale[c])."""

    def __init__(self, size: cython.Py_ssize_t) -> None:
        self.scale = np.full(size, -np.inf)
        self.total = np.zeros(size)

    @cython.cfunc
    @cython.nogil
    @cython.exceptval(check=False)
    def clear(self) -> cython.void:
        """Set all sums to zero."""
        c: cython.Py_ssize_t
        for c in range(self.total.shape[0]):
            self.scale[c] = _LOG_ZERO
            self.total[c] = 0

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
    def log_of(self, c: cython.Py_ssize_t) -> cython.double:
        """Return the logarithm of sum c."""
        if self.total[c] > 0:
            return log(self.total[c]) + self.scale[c]
        return _LOG_ZERO


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


def exponentials(x: np.ndarray, top: np.floating, out: np.ndarray) -> None:
    """Write exp(x - top), vectorized if numpy supports it (float32 on most CPUs).

    A compiled loop with a separate implementation of exp was not faster (benchmarks/claims.md).
    """
    np.subtract(x, top, out=out)
    np.exp(out, out=out)

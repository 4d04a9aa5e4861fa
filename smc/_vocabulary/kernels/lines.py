"""The factors of all rows in the form that compiled loops use."""

from __future__ import annotations

import cython
import numpy as np

_LOG_ZERO = cython.declare(cython.double, -np.inf)


@cython.cclass
class Lines:
    """The factors of R rows, for C classes and K tokens (`smc._vocabulary.factors.Factors`).

    Args:
        class_of: class of each token in each automaton, uint32.
        by_order: the tokens of each automaton, ordered by class, int32.
        start: index in `by_order` at which each class starts.
        automaton: automaton of each row.
        by_class: log factor of each class, (R, C).
        tokens, by_token: tokens with a separate factor, and their log factors, (R, K).
    """

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

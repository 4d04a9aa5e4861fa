"""Where sequences are under their constraints, as compiled steps read and write it."""

from __future__ import annotations

import numpy as np

from gcd.serving.kernels import masks as kernels


class Places:
    """Rows of one cell a sequence, and of the states before each of its tokens so far.

    Attributes:
        cells: the fields of each sequence; `gcd.serving.kernels.masks` names them.
        history: the state before each token.
        is_current: False once one of its matchers has moved elsewhere.
    """

    def __init__(self, rows: int, capacity: int = 64) -> None:
        self.cells = np.zeros((rows, kernels.CELL_SIZE), np.int64)
        self.history = np.zeros((rows, capacity), np.int32)
        self.is_current = True

    def alone(self, row: int) -> Places:
        """Return a copy of one of the places."""
        other = Places(1, self.history.shape[1])
        other.cells[0], other.history[0] = self.cells[row], self.history[row]
        return other

    def grow(self) -> None:
        """Make room for twice as many tokens of history."""
        longer = np.zeros((self.history.shape[0], 2 * self.history.shape[1]), np.int32)
        longer[:, : self.history.shape[1]] = self.history
        self.history = longer

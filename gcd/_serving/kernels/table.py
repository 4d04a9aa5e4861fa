"""Table of a served constraint: its arrays, and the transitions in them.

A `Table` is made once for each constraint (`gcd._serving.table`) and shared by all of its
sequences. It stores its arrays as views for compiled code. So a step doesn't have to convert
arguments, and one call can serve sequences under different constraints.
"""

from __future__ import annotations

from typing import NamedTuple

import cython
import numpy as np

if cython.compiled:
    from cython.cimports.gcd._serving.kernels.steps import Steps
else:
    from gcd._serving.kernels.steps import Steps


class TableArrays(NamedTuple):
    """Arrays of a constraint with S states, C classes, V tokens, W words per mask, P patterns.

    K masks can be cached. The set of classes in a mask is stored as B = ceil(C / 64) words of bits.

    Attributes:
        class_of: class of every token; V, int32.
        steps: fewest tokens from each state to the end; S, int32.
        reach: largest of `steps` after any next token; a budget with more tokens left doesn't
            exclude tokens; S, int32.
        pattern_of: the pattern of each state: the classes that it allows, and which of them lead
            to the same next state (`gcd._serving.kernels.served`); S, int32.
        target_start: start of each state's targets in `targets`; S + 1, int32.
        targets: the distinct next states of each state; int32.
        pattern_start: start of each pattern in the next two arrays; P + 1, int32.
        pattern_class: the allowed classes of each pattern, ascending; int32.
        pattern_target: for each of these classes, the index of its target among the state's own
            targets; int32.
        class_size: number of tokens of each class; C, int64.
        class_token: one token of each class; C, int64.
        pair_start: start of each class's pairs in the next two arrays; C + 1, int32.
        pair_word: indices of words in a mask; int32.
        pair_bits: the class's bits in these words; int32.
        dense_of: row of `dense` with the class's tokens, -1 if they are stored as pairs; C, int32.
        dense: classes stored as whole masks; rows x W, int32.
        cost: relative time to write each class into a mask; C, int32.
        row: cached masks; the first one has the most tokens and is never evicted; K x W, int32.
        chosen: scratch space for the classes of a mask, as a list; C, int32.
        known_slot: for each pattern, the index in `row` of its mask without a budget, if known; P,
            int32.
        key: the set of classes in each cached mask; K x B, uint64.
        bits: scratch space for the classes of a mask, as a set; B, uint64.
        tag: a hash of each key; K, uint64.
        serial: serial number of each cached mask, -1 for none; K, int64.
        used: whether a cached mask was used recently; K, int64.
        known_serial: serial number of the mask that was at the index `known_slot`; P, int64.
        clock: the next serial number, and the hand of the eviction clock; 2, int64.
    """

    class_of: np.ndarray
    steps: np.ndarray
    reach: np.ndarray
    pattern_of: np.ndarray
    target_start: np.ndarray
    targets: np.ndarray
    pattern_start: np.ndarray
    pattern_class: np.ndarray
    pattern_target: np.ndarray
    class_size: np.ndarray
    class_token: np.ndarray
    pair_start: np.ndarray
    pair_word: np.ndarray
    pair_bits: np.ndarray
    dense_of: np.ndarray
    dense: np.ndarray
    cost: np.ndarray
    row: np.ndarray
    chosen: np.ndarray
    known_slot: np.ndarray
    key: np.ndarray
    bits: np.ndarray
    tag: np.ndarray
    serial: np.ndarray
    used: np.ndarray
    known_serial: np.ndarray
    clock: np.ndarray


@cython.cclass
class Table(Steps):
    """Views of a served constraint's arrays for compiled code; they share the arrays' memory.

    Indices in the arrays aren't checked here, but in `gcd._serving.table`.

    Args:
        arrays: the arrays; the table owns them from now on.

    Attributes:
        arrays: the arrays, for Python code.

    Raises:
        ValueError: an array has another type or another number of dimensions, or isn't contiguous.
    """

    def __init__(self, arrays: TableArrays) -> None:
        super().__init__(arrays.steps.size - 1, arrays.class_of.size, arrays.dense.shape[1])
        self.arrays = arrays
        self.class_of = arrays.class_of
        self.steps = arrays.steps
        self.reach = arrays.reach
        self.pattern_of = arrays.pattern_of
        self.target_start = arrays.target_start
        self.targets = arrays.targets
        self.pattern_start = arrays.pattern_start
        self.pattern_class = arrays.pattern_class
        self.pattern_target = arrays.pattern_target
        self.class_size = arrays.class_size
        self.class_token = arrays.class_token
        self.pair_start = arrays.pair_start
        self.pair_word = arrays.pair_word
        self.pair_bits = arrays.pair_bits
        self.dense_of = arrays.dense_of
        self.dense = arrays.dense
        self.cost = arrays.cost
        self.row = arrays.row
        self.chosen = arrays.chosen
        self.known_slot = arrays.known_slot
        self.key = arrays.key
        self.bits = arrays.bits
        self.tag = arrays.tag
        self.serial = arrays.serial
        self.used = arrays.used
        self.known_serial = arrays.known_serial
        self.clock = arrays.clock

    @cython.cfunc
    @cython.exceptval(check=False)
    def next_state(
        self, state: cython.int, remaining: cython.longlong, token: cython.longlong
    ) -> cython.int:
        """Return the state after a token; -1 if the language or the budget refuses the token.

        The token's class is searched among the classes that the state allows, which are sorted.
        """
        pattern: cython.Py_ssize_t
        low: cython.Py_ssize_t
        high: cython.Py_ssize_t
        end: cython.Py_ssize_t
        middle: cython.Py_ssize_t
        after: cython.int
        token_class: cython.int
        if state < 0:
            return -1
        token_class = self.class_of[token]
        pattern = self.pattern_of[state]
        low = self.pattern_start[pattern]
        high = end = self.pattern_start[pattern + 1]
        while low < high:
            middle = (low + high) // 2
            if self.pattern_class[middle] < token_class:
                low = middle + 1
            else:
                high = middle
        if low == end or self.pattern_class[low] != token_class:
            return -1
        after = cython.cast(
            cython.int, self.targets[self.target_start[state] + self.pattern_target[low]]
        )
        # The rule of `gcd._tokens.distances.fits`.
        return after if self.steps[after] < remaining else -1

    @cython.cfunc
    @cython.exceptval(-1, check=True)
    def num_allowed(self, state: cython.int, remaining: cython.longlong) -> cython.longlong:
        """Count the tokens of a state's mask."""
        pattern: cython.Py_ssize_t = self.pattern_of[state]
        own: cython.Py_ssize_t = self.target_start[state]
        count: cython.longlong = 0
        i: cython.Py_ssize_t
        for i in range(self.pattern_start[pattern], self.pattern_start[pattern + 1]):
            if self.steps[self.targets[own + self.pattern_target[i]]] < remaining:
                count += self.class_size[self.pattern_class[i]]
        return count

    @cython.cfunc
    @cython.exceptval(-1, check=True)
    def only_token(self, state: cython.int, remaining: cython.longlong) -> cython.longlong:
        """Return the only token of a state's mask; -1 if it has none or several."""
        pattern: cython.Py_ssize_t = self.pattern_of[state]
        own: cython.Py_ssize_t = self.target_start[state]
        allowed: cython.longlong = 0
        token: cython.longlong = -1
        i: cython.Py_ssize_t
        for i in range(self.pattern_start[pattern], self.pattern_start[pattern + 1]):
            if self.steps[self.targets[own + self.pattern_target[i]]] < remaining:
                allowed += self.class_size[self.pattern_class[i]]
                token = self.class_token[self.pattern_class[i]]
                if allowed > 1:
                    return -1
        return token

"""This module owns the memory of a served constraint; only here are addresses of arrays taken.

Compiled steps (`gcd.serving.kernels.masks`) get a constraint as the address of a header, which
lists address, rows and columns of each of its `TableArrays`. Why they stay inside of these arrays:

* **The arrays live as long as they can be reached.** A `ServedTable` holds them and its header; a
  `ServedAutomaton` holds the table; a `Matcher` holds the automaton, and a `MatcherBatch` its
  matchers. The address is handed to nobody else. None of them can be pickled, and a copy of a
  matcher holds the same automaton.
* **They never move.** Nothing resizes or replaces an array of a table; numpy moves none by itself.
* **Their kind and size are what compiled code believes**: the header is filled by one loop, which
  looks at type and layout, and is read by one function, `gcd.serving.kernels.table.table_at`.
* **Indices lie inside.** Those kept in a table (states, classes, patterns, words) are checked here,
  once, when it is made. States of matchers come from it; token ids and states from outside are
  checked before they are used. Cached rows are found by slots that compiled code makes itself.
* **One writer at a time.** Compiled steps hold the interpreter's lock.
"""

from __future__ import annotations

from typing import NoReturn

import numpy as np

from gcd.serving.kernels.table import FIRST_INT64, MATRICES, PER_FIELD, TableArrays


class ServedTable:
    """The arrays of a served constraint, kept in one place of memory.

    Args:
        arrays: the arrays; they belong to the table from now on.
        num_words: words in a row of the mask.

    Attributes:
        arrays: the same, for reading.
        address: where compiled code finds them, as long as this object lives.
    """

    def __init__(self, arrays: TableArrays, num_words: int) -> None:
        self.arrays = arrays
        self._header = np.empty((len(arrays), PER_FIELD), np.int64)
        for i, (name, array) in enumerate(arrays._asdict().items()):
            assert array.dtype == (np.int32 if i < FIRST_INT64 else np.int64), name
            assert array.ndim == (2 if name in MATRICES else 1), name
            assert array.flags.c_contiguous, name
            self._header[i] = array.ctypes.data, array.shape[0], array.shape[-1]
        _check(arrays, num_words)
        self.address: int = self._header.ctypes.data

    @property
    def nbytes(self) -> int:
        """Bytes of all arrays."""
        return self._header.nbytes + sum(array.nbytes for array in self.arrays)

    def __reduce__(self) -> NoReturn:
        raise TypeError(
            "a served constraint lies at fixed places of memory and cannot be pickled or copied; "
            "send the TokenAutomaton and serve that"
        )


def _check(table: TableArrays, num_words: int) -> None:
    """Sizes agree, and what is an index somewhere lies inside there."""
    num_states, num_classes = table.steps.size, table.dense_of.size
    num_patterns, num_slots = table.pattern_start.size - 1, table.row.shape[0]
    assert table.reach.size == table.pattern_of.size == num_states
    assert table.known_slot.size == table.known_serial.size == num_patterns
    assert table.cost.size == table.chosen.size == num_classes
    assert table.row.shape[1] == table.dense.shape[1] == num_words
    assert table.bits.size == table.key.shape[1] == (num_classes + 63) // 64
    assert table.key.shape[0] == table.tag.size == table.serial.size == table.used.size == num_slots
    assert table.clock.size == 2
    _check_indices(table.class_of, num_classes)
    _check_indices(table.pattern_of, num_patterns)
    _check_indices(table.targets, num_states)
    _check_indices(table.pattern_class, num_classes)
    _check_indices(table.pair_word, num_words)
    _check_indices(table.dense_of, table.dense.shape[0], least=-1)
    _check_lists(table.target_start, num_states, table.targets)
    _check_lists(table.pattern_start, num_patterns, table.pattern_class, table.pattern_target)
    _check_lists(table.pair_start, num_classes, table.pair_word, table.pair_bits)
    # A pattern's numbers count the targets of each state that has it.
    most = np.zeros(num_patterns, np.int64)
    nonempty = np.flatnonzero(np.diff(table.pattern_start))
    if nonempty.size:
        starts = table.pattern_start[nonempty]
        most[nonempty] = np.maximum.reduceat(table.pattern_target, starts) + 1
    _check_indices(table.pattern_target, num_states)
    assert (np.diff(table.target_start) >= most[table.pattern_of]).all()


def _check_indices(indices: np.ndarray, size: int, least: int = 0) -> None:
    assert least <= indices.min(initial=least)
    assert indices.max(initial=least) < max(size, least + 1)


def _check_lists(start: np.ndarray, count: int, *contents: np.ndarray) -> None:
    """Lists that lie one after the other: where each begins, and the end of all."""
    assert start.size == count + 1
    assert start[0] == 0
    assert (np.diff(start) >= 0).all()
    assert all(content.size == start[-1] for content in contents)

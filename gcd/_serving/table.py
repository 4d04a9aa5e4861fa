"""Tables of served constraints, validated so that compiled code only accesses valid memory.

* **Lifetime.** A `Table` references its arrays, and each sequence references its table.
* **Types and layouts.** `Table` refuses arrays of other types or layouts than compiled code
  expects.
* **Indices.** The indices in a table (states, classes, patterns, words) are checked here once, when
  the table is made. The states of sequences come from the table. Token ids and states from outside
  are checked before they are used. Compiled code itself chooses the indices of cached masks.
* **One writer at a time.** Compiled steps hold the interpreter's lock.
"""

from __future__ import annotations

import numpy as np

from gcd._serving.kernels.masks import ServedTable
from gcd._serving.kernels.table import Table, TableArrays


def make_table(arrays: TableArrays, num_words: int) -> Table:
    """Make the table of a served constraint.

    Args:
        arrays: the arrays; the table owns them from now on.
        num_words: words in a mask.
    """
    _check(arrays, num_words)
    return ServedTable(arrays)


def _check(table: TableArrays, num_words: int) -> None:
    """Check that the arrays' sizes match, and that all indices are in range."""
    num_states, num_classes = table.steps.size, table.dense_of.size
    num_patterns, num_slots = table.pattern_start.size - 1, table.row.shape[0]
    assert table.reach.size == table.pattern_of.size == num_states
    assert table.known_slot.size == table.known_serial.size == num_patterns
    assert table.cost.size == table.chosen.size == num_classes
    assert table.class_size.size == table.class_token.size == num_classes
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
    # The numbers in a pattern are indices into the targets of each state with this pattern.
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
    """Check the start of each of several concatenated lists, and the end of the last one."""
    assert start.size == count + 1
    assert start[0] == 0
    assert (np.diff(start) >= 0).all()
    assert all(content.size == start[-1] for content in contents)

"""This module gives a deterministic automaton its normal form: trimmed, minimal, numbered in order.

Everything that makes automata ends here, mostly with tables that are minimal already or nearly so;
each step looks first whether there is anything to do. Conventions as in
`gcd.automata.kernels.graph`.
"""

from __future__ import annotations

import numpy as np

from gcd.automata.kernels.graph import (
    breadth_first,
    distinct_edges,
    levels,
    renumber,
    reversed_edges,
)
from gcd.automata.kernels.residuals import by_fingerprints, refined
from gcd.support.compiled import helper, kernel

_NUM_BYTES = 256


@kernel
def joint_classes(maps: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the coarsest common refinement of partitions of the bytes (rows of class numbers).

    Returns the class of each byte, classes numbered by their first byte, and that byte of each.
    """
    class_of_byte = np.zeros(_NUM_BYTES, np.uint8)
    table = np.empty((_NUM_BYTES, _NUM_BYTES), np.int16)
    count = 1
    for m in range(maps.shape[0]):
        # Refined one by one: a class is a pair of an old class and a class of this partition.
        table[:count] = -1
        pairs = 0
        for byte in range(_NUM_BYTES):
            old, label = class_of_byte[byte], maps[m, byte]
            if table[old, label] < 0:
                table[old, label] = pairs
                pairs += 1
            class_of_byte[byte] = table[old, label]
        count = pairs
    first = np.zeros(count, np.int32)
    for byte in range(_NUM_BYTES - 1, -1, -1):
        first[class_of_byte[byte]] = byte
    return class_of_byte, first


@kernel
def equal_columns(table: np.ndarray, class_of_byte: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Give bytes with equal columns one class: (class of each byte, a column for each class).

    Classes are numbered by their first byte; columns that no byte has are left out. Equal columns
    have equal sums under random weights; those of equal sum are then compared.
    """
    num_rows, num_columns = table.shape
    total = np.zeros(num_columns, np.uint64)
    weight = np.uint64(0x9E3779B97F4A7C15)
    for s in range(num_rows):
        weight *= np.uint64(0xD1342543DE82EF95)  # odd, hence one for each row
        row = table[s]
        for k in range(num_columns):
            total[k] += weight * np.uint64(row[k] + 1)
    merged = np.empty(_NUM_BYTES, np.uint8)
    kept = np.empty(_NUM_BYTES, np.int32)
    number = np.full(num_columns, -1, np.int32)
    count = 0
    for byte in range(_NUM_BYTES):
        k = class_of_byte[byte]
        if number[k] < 0:
            for i in range(count):
                if total[kept[i]] == total[k]:
                    same = True
                    for s in range(num_rows):
                        if table[s, kept[i]] != table[s, k]:
                            same = False
                            break
                    if same:
                        number[k] = i
                        break
            if number[k] < 0:
                number[k] = count
                kept[count] = k
                count += 1
        merged[byte] = number[k]
    return merged, kept[:count].copy()


@helper
def _with_columns(table: np.ndarray, columns: np.ndarray) -> np.ndarray:
    """These columns, or the table itself if they are all of its, in order."""
    moved = columns.size != table.shape[1]
    for i in range(columns.size):
        moved = moved or columns[i] != i
    if not moved:
        return table
    chosen = np.empty((table.shape[0], columns.size), np.int32)
    for s in range(table.shape[0]):
        for i in range(columns.size):
            chosen[s, i] = table[s, columns[i]]
    return chosen


@helper
def _merged(
    table: np.ndarray,
    accepting: np.ndarray,
    class_of_byte: np.ndarray,
    block: np.ndarray,
    num_blocks: int,
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The automaton of a trimmed one's blocks, with the fewest classes, states in order."""
    is_smaller = num_blocks < accepting.size
    if is_smaller:
        table, accepting = renumber(table, accepting, block, num_blocks)
    class_of_byte, columns = equal_columns(table, class_of_byte)
    if is_smaller or columns.size < table.shape[1]:
        table = _with_columns(table, columns)
        # Fewer classes: first bytes stay in order, so classes do, and with them the discovery.
        number, _, in_order = breadth_first(distinct_edges(table), np.ones(num_blocks, np.bool_))
        if not in_order:
            table, accepting = renumber(table, accepting, number, num_blocks)
    return table, accepting, class_of_byte


@kernel
def _canonical(
    delta: np.ndarray, accepting: np.ndarray, class_of_byte: np.ndarray
) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray, int, bool]:
    """What `canonical` returns, and blocks, how many, True; or the trimmed automaton and False."""
    class_of_byte, columns = equal_columns(delta, class_of_byte)
    table = _with_columns(delta, columns)
    forward = distinct_edges(table)
    backward = reversed_edges(*forward)
    level = levels(*backward, accepting)
    number, count, in_order = breadth_first(forward, level >= 0)
    if count == 0:
        return table[:0], accepting[:0], class_of_byte, number, count, True
    if not in_order:
        table, accepting = renumber(table, accepting, number, count)
        forward = distinct_edges(table)
        backward = reversed_edges(*forward)
        level = levels(*backward, accepting)
    block, num_blocks, is_final = by_fingerprints(table, accepting, forward, backward, level)
    if is_final:
        table, accepting, class_of_byte = _merged(
            table, accepting, class_of_byte, block, num_blocks
        )
    return table, accepting, class_of_byte, block, num_blocks, is_final


@kernel
def _merge(
    table: np.ndarray,
    accepting: np.ndarray,
    class_of_byte: np.ndarray,
    block: np.ndarray,
    num_blocks: int,
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """`_merged`, called from Python."""
    return _merged(table, accepting, class_of_byte, block, num_blocks)


def canonical(
    delta: np.ndarray, accepting: np.ndarray, class_of_byte: np.ndarray
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return the minimal automaton of a language in its normal form; no states if it is empty."""
    table, accepting, class_of_byte, block, num_blocks, is_final = _canonical(
        delta, accepting, class_of_byte
    )
    if is_final:
        return table, accepting, class_of_byte
    block, num_blocks = refined(table, block, num_blocks)
    return _merge(table, accepting, class_of_byte, block, num_blocks)

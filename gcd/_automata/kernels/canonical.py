"""Normal form of deterministic automata: trimmed, minimal, numbered in breadth-first order.

All constructions of automata end with this step. Most tables are already minimal or nearly so; each
step therefore first checks whether it has to change anything. Most automata are also small; scratch
space is therefore allocated once and split into slices. `gcd._automata.kernels.graph` defines the
arrays.
"""

from __future__ import annotations

import cython
import numpy as np

if cython.compiled:
    from cython.cimports.gcd._automata.kernels.graph import (
        find_levels,
        list_edges,
        number_breadth_first,
        reverse_edges,
    )
    from cython.cimports.gcd._automata.kernels.residuals import find_blocks
else:
    from gcd._automata.kernels.graph import (
        find_levels,
        list_edges,
        number_breadth_first,
        reverse_edges,
    )
    from gcd._automata.kernels.residuals import find_blocks

_NUM_BYTES = cython.declare(cython.int, 256)
_FIRST_WEIGHT = cython.declare(cython.ulonglong, 0x9E3779B97F4A7C15)
# Each row's weight is this number times the weight before. It is odd, so that all weights differ.
_NEXT_WEIGHT = cython.declare(cython.ulonglong, 0xD1342543DE82EF95)
_64_BITS = cython.declare(cython.ulonglong, 0xFFFFFFFFFFFFFFFF)  # limits Python integers
_63_BITS = cython.declare(cython.ulonglong, 0x7FFFFFFFFFFFFFFF)


def refine_bytes(maps, class_of_byte, first):
    """Write the coarsest common refinement of several partitions; return its number of classes."""
    table: cython.short[::1] = np.empty(_NUM_BYTES * _NUM_BYTES, np.int16)
    count: cython.int = 1
    cython.declare(num_labels=cython.int, label=cython.int, pairs=cython.int, i=cython.int)
    cython.declare(byte=cython.int)
    for byte in range(_NUM_BYTES):
        class_of_byte[byte] = 0
    for m in range(maps.shape[0]):
        # Refine by one partition at a time: a new class is a pair of an old class and a class of
        # this partition.
        num_labels = 0
        for byte in range(_NUM_BYTES):
            label = int(maps[m, byte])
            num_labels = max(num_labels, label + 1)
        for i in range(count * num_labels):
            table[i] = -1
        pairs = 0
        for byte in range(_NUM_BYTES):
            i = int(class_of_byte[byte])
            label = int(maps[m, byte])
            i = i * num_labels + label
            if table[i] < 0:
                table[i] = pairs
                pairs += 1
            class_of_byte[byte] = table[i]
        count = pairs
    for byte in range(_NUM_BYTES - 1, -1, -1):
        first[class_of_byte[byte]] = byte
    return count


def joint_classes(maps: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the coarsest common refinement of partitions (rows) of the bytes."""
    class_of_byte = np.empty(_NUM_BYTES, np.uint8)
    first = np.empty(_NUM_BYTES, np.int32)
    count = refine_bytes(maps, class_of_byte, first)
    return class_of_byte, first[:count].copy()


@cython.cfunc
@cython.exceptval(check=False)
def _merge_columns(
    after: cython.const[cython.int][:, ::1],
    given: cython.const[cython.uchar][::1],
    merged: cython.uchar[::1],
    kept: cython.int[::1],
    number: cython.int[::1],
    total: cython.longlong[::1],
) -> cython.int:
    """Merge byte classes with equal columns, and return the number of remaining columns."""
    num_rows: cython.Py_ssize_t = after.shape[0]
    num_columns: cython.Py_ssize_t = after.shape[1]
    weight: cython.ulonglong = _FIRST_WEIGHT
    cython.declare(target=cython.ulonglong, before=cython.ulonglong, i=cython.Py_ssize_t)
    for k in range(num_columns):
        total[k] = 0
        number[k] = -1
    for s in range(num_rows):
        weight = (weight * _NEXT_WEIGHT) & _64_BITS
        for k in range(num_columns):
            target = int(after[s, k])
            before = int(total[k])
            total[k] = (before + weight * (target + 1)) & _63_BITS
    count: cython.int = 0
    for byte in range(_NUM_BYTES):
        k = given[byte]
        if number[k] < 0:
            for i in range(count):
                if total[kept[i]] == total[k]:
                    same = True
                    for s in range(num_rows):
                        if after[s, kept[i]] != after[s, k]:
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
    return count


def equal_columns(table: np.ndarray, class_of_byte: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Merge byte classes with equal columns."""
    num_columns: cython.Py_ssize_t = table.shape[1]
    merged = np.empty(_NUM_BYTES, np.uint8)
    kept = np.empty(_NUM_BYTES, np.int32)
    number = np.empty(num_columns, np.int32)
    total = np.empty(num_columns, np.int64)
    count = _merge_columns(table, class_of_byte, merged, kept, number, total)
    return merged, kept[:count].copy()


@cython.cfunc
@cython.exceptval(check=False)
def _is_all(
    after: cython.const[cython.int][:, ::1], column: cython.const[cython.int][::1]
) -> cython.bint:
    """Return whether `column` lists all columns of a table in order."""
    i: cython.Py_ssize_t = 0
    while i < column.shape[0] and column[i] == i:
        i += 1
    return i == after.shape[1]


@cython.cfunc
def _with_columns(
    after: cython.const[cython.int][:, ::1], column: cython.const[cython.int][::1]
) -> np.ndarray:
    """Return a copy of a table with only the given columns."""
    num_columns: cython.Py_ssize_t = column.shape[0]
    chosen_array = np.empty((after.shape[0], num_columns), np.int32)
    chosen: cython.int[:, ::1] = chosen_array
    for s in range(after.shape[0]):
        for i in range(num_columns):
            chosen[s, i] = after[s, column[i]]
    return chosen_array


@cython.cfunc
def _renumber(
    after: cython.const[cython.int][:, ::1],
    accepts: cython.const[cython.uchar][::1],
    number: cython.const[cython.int][::1],
    num_kept: cython.Py_ssize_t,
) -> tuple:
    """Return table and accepting states after renumbering; states numbered -1 are removed."""
    num_classes: cython.Py_ssize_t = after.shape[1]
    delta_array = np.empty((num_kept, num_classes), np.int32)
    delta: cython.int[:, ::1] = delta_array
    accepting_array = np.empty(num_kept, np.bool_)
    accepting: cython.uchar[::1] = accepting_array.view(np.uint8)
    own: cython.Py_ssize_t
    for s in range(after.shape[0]):
        own = number[s]
        if own >= 0:
            accepting[own] = accepts[s]
            for k in range(num_classes):
                t = after[s, k]
                delta[own, k] = number[t] if t >= 0 else -1
    return delta_array, accepting_array


@cython.cfunc
@cython.exceptval(check=False)
def _is_in_order(number: cython.const[cython.int][::1], count: cython.Py_ssize_t) -> cython.bint:
    """Return whether all states are kept and already have the numbers 0 to `count` - 1 in order."""
    s: cython.Py_ssize_t = 0
    while s < count and number[s] == s:
        s += 1
    return s == number.shape[0]


def canonical(
    delta: np.ndarray, accepting: np.ndarray, class_of_byte: np.ndarray
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return the table, accepting states and byte classes of the minimal automaton in normal form.

    If the language is empty, the result has no states.
    """
    after: cython.const[cython.int][:, ::1] = delta
    accepts: cython.const[cython.uchar][::1] = accepting.view(np.uint8)
    size: cython.Py_ssize_t = after.shape[0]
    num_classes: cython.Py_ssize_t = after.shape[1]
    ints: cython.int[::1] = np.empty(4 * size + num_classes + _NUM_BYTES, np.int32)
    level: cython.int[::1] = ints[:size]
    queue: cython.int[::1] = ints[size : 2 * size]
    number: cython.int[::1] = ints[2 * size : 3 * size]
    block: cython.int[::1] = ints[3 * size : 4 * size]
    kept: cython.int[::1] = ints[4 * size : 4 * size + _NUM_BYTES]
    number_of_column: cython.int[::1] = ints[4 * size + _NUM_BYTES :]
    longs: cython.longlong[::1] = np.empty(3 * size + 2 + num_classes, np.int64)
    start: cython.longlong[::1] = longs[: size + 1]
    into: cython.longlong[::1] = longs[size + 1 : 2 * size + 2]
    fill: cython.longlong[::1] = longs[2 * size + 2 : 3 * size + 2]
    total: cython.longlong[::1] = longs[3 * size + 2 :]
    class_array = np.empty(_NUM_BYTES, np.uint8)
    classes: cython.uchar[::1] = class_array

    num_columns = _merge_columns(after, class_of_byte, classes, kept, number_of_column, total)
    if not _is_all(after, kept[:num_columns]):
        delta = _with_columns(after, kept[:num_columns])
        after = delta
    targets: cython.int[::1] = list_edges(after, start, queue)
    sources: cython.int[::1] = np.empty(targets.shape[0], np.int32)
    reverse_edges(start, targets, into, sources, fill)
    find_levels(into, sources, accepts, level, queue)
    count = number_breadth_first(start, targets, level, number, queue)
    if count == 0:
        return delta[:0], accepting[:0], class_array
    if not _is_in_order(number, count):
        delta, accepting = _renumber(after, accepts, number, count)
        after = delta
        accepts = accepting.view(np.uint8)
        level = level[:count]
        queue = queue[:count]
        number = number[:count]
        block = block[:count]
        start = start[: count + 1]
        into = into[: count + 1]
        targets = list_edges(after, start, queue)
        sources = sources[: targets.shape[0]]
        reverse_edges(start, targets, into, sources, fill)
        find_levels(into, sources, accepts, level, queue)

    num_blocks = find_blocks(after, accepts, start, targets, into, sources, level, block)
    if num_blocks < count:
        delta, accepting = _renumber(after, accepts, block, num_blocks)
        after = delta
    elif count == size:
        return delta, accepting, class_array  # all states were kept, so no columns became equal
    given: cython.uchar[::1] = class_array.copy()
    num_columns = _merge_columns(after, given, classes, kept, number_of_column[:num_columns], total)
    if num_blocks < count or num_columns < after.shape[1]:
        # Merging classes preserves the order of their first bytes, and so the breadth-first order.
        if not _is_all(after, kept[:num_columns]):
            delta = _with_columns(after, kept[:num_columns])
            after = delta
        level = level[:num_blocks]
        queue = queue[:num_blocks]
        number = number[:num_blocks]
        start = start[: num_blocks + 1]
        targets = list_edges(after, start, queue)
        for s in range(num_blocks):
            level[s] = 0
        number_breadth_first(start, targets, level, number, queue)
        if not _is_in_order(number, num_blocks):
            delta, accepting = _renumber(after, accepting.view(np.uint8), number, num_blocks)
    return delta, accepting, class_array

"""Byte classes: bytes that an automaton never tells apart share one column of its table.

A JSON grammar distinguishes some 30 kinds of byte, not 256, so tables over classes are several
times smaller and everything built on them faster. Operations on several automata first bring them
to a joint alphabet, the coarsest partition of the bytes that refines all of theirs.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from jaxtyping import Int32, Integer, UInt8

NUM_BYTES = 256


def joint_classes(
    maps: Sequence[UInt8[np.ndarray, 256]],
) -> tuple[UInt8[np.ndarray, 256], list[Int32[np.ndarray, K]]]:
    """The coarsest common refinement of several partitions of the bytes.

    Returns:
        class_of_byte: the joint partition, classes numbered by their first byte.
        columns: for each given partition, its class for every joint class.
    """
    distinct = {m.tobytes(): m for m in maps}  # repetitions bring one map many times
    stacked = np.stack(list(distinct.values()), axis=1)
    class_of_byte, representatives = _number_by_first(stacked)
    return class_of_byte, [m[representatives].astype(np.int32) for m in maps]


def merge_equal_columns(
    table: Integer[np.ndarray, "S K"], class_of_byte: UInt8[np.ndarray, 256]
) -> tuple[Int32[np.ndarray, "S K2"], UInt8[np.ndarray, 256]]:
    """Give bytes with equal columns one class; canonical, as classes are numbered by first byte."""
    if table.shape[0] == 0:  # nothing tells any two bytes apart
        return np.zeros((0, 1), np.int32), np.zeros(NUM_BYTES, np.uint8)
    columns = np.ascontiguousarray(table.T)
    as_bytes = columns.view(np.dtype((np.void, columns.dtype.itemsize * columns.shape[1]))).ravel()
    # Only classes that some byte really has count.
    _, same = np.unique(as_bytes, return_inverse=True)
    merged, representatives = _number_by_first(same.reshape(-1)[class_of_byte][:, None])
    return np.ascontiguousarray(table[:, class_of_byte[representatives]], dtype=np.int32), merged


def _number_by_first(
    rows: Integer[np.ndarray, "256 M"],
) -> tuple[UInt8[np.ndarray, 256], Int32[np.ndarray, K]]:
    """Classes of equal rows, numbered in order of appearance, with the first row of each."""
    _, first, inverse = np.unique(rows, axis=0, return_index=True, return_inverse=True)
    order = np.argsort(first)
    rank = np.empty_like(order)
    rank[order] = np.arange(order.size)
    return rank[inverse.reshape(-1)].astype(np.uint8), first[order].astype(np.int32)

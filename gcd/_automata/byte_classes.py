"""Byte classes: bytes that lead to the same state from every state share a column of the table.

A JSON grammar distinguishes about 30 classes of bytes. Tables over classes are several times
smaller than tables over bytes, and operations on them are faster. Operations on several automata
first convert these to joint classes. The joint classes are the coarsest partition of the bytes in
which every class of every automaton is a union of joint classes.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from jaxtyping import Int32, UInt8

from gcd._automata.kernels import canonical as kernels

NUM_BYTES = 256


def joint_classes(
    maps: Sequence[UInt8[np.ndarray, "256"]],
) -> tuple[UInt8[np.ndarray, "256"], list[Int32[np.ndarray, "K"]]]:
    """Return the coarsest common refinement of partitions, given as the class of each byte."""
    distinct = {m.tobytes(): m for m in maps}  # repetitions pass the same map many times
    class_of_byte, first = kernels.joint_classes(np.stack(list(distinct.values())))
    return class_of_byte, [m[first].astype(np.int32) for m in maps]


def merge_equal_columns(
    table: Int32[np.ndarray, "S K"], class_of_byte: UInt8[np.ndarray, "256"]
) -> tuple[Int32[np.ndarray, "S K2"], UInt8[np.ndarray, "256"]]:
    """Merge the classes with equal columns; new classes are numbered by their first bytes."""
    merged, kept = kernels.equal_columns(np.ascontiguousarray(table), class_of_byte)
    return np.ascontiguousarray(table[:, kept]), merged

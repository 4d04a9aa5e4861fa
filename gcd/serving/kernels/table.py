"""This module gives compiled code the arrays of a served constraint by one address.

An array argument costs more to hand over than a step of a matcher takes, and one call serves many
automata. So Python hands over the address of a **header** (`gcd.serving.table` makes it and says
why that is safe), and `table_at` makes typed arrays out of it again, each as long as it is.
"""

from __future__ import annotations

from typing import NamedTuple

import numba
import numpy as np
from numba import types
from numba.extending import intrinsic

from gcd.support.compiled import helper


class TableArrays(NamedTuple):
    """What steps need of a constraint of S states, C classes, V tokens, W words a row, P patterns.

    K rows are cached, the classes in each as a set of B = ceil(C / 64) words of bits.

    Attributes:
        class_of: class of every token; V, int32.
        steps: fewest tokens from each state to the end; S, int32.
        reach: largest of `steps` after one token, beyond which a budget changes nothing; S, int32.
        pattern_of: the pattern of each state's row of transitions; S, int32.
        target_start: where a state's targets lie in `targets`; S + 1, int32.
        targets: states; int32.
        pattern_start: where a pattern's entries lie in the next two; P + 1, int32.
        pattern_class: classes, ascending; int32.
        pattern_target: where these lead, as numbers of the state's own targets; int32.
        pair_start: where a class's tokens lie in the next two; C + 1, int32.
        pair_word: words of the mask; int32.
        pair_bits: the class's bits in them; int32.
        dense_of: row of `dense` with the class's tokens, -1 if they are pairs; C, int32.
        dense: whole rows; rows x W, int32.
        cost: words written for the class, whole rows at the price they have in vectors; C, int32.
        row: cached rows, the first one, which stays, that of most tokens; K x W, int32.
        chosen: work space, the classes of a row; C, int32.
        known_slot: slot of the row without a budget, or none; P, int32.
        key: the classes in each cached row; K x B, int64.
        bits: work space, the classes of a row; B, int64.
        tag: a hash of each key; K, int64.
        serial: number of each slot's content, -1 for none; K, int64.
        used: whether a slot was used lately; K, int64.
        known_serial: the content that was in `known_slot`; P, int64.
        clock: next serial number; the hand of the eviction clock; 2, int64.
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


FIELDS = TableArrays._fields
MATRICES = ("dense", "row", "key")
FIRST_INT64 = FIELDS.index("key")
"""Fields before this one are int32, the others int64."""

PER_FIELD = 3  # address, rows, columns
_SIZE = PER_FIELD * len(FIELDS)


@intrinsic
def _pointer(typing_context, address):
    """An integer as the pointer it is."""

    def codegen(context, builder, signature, arguments):
        return builder.inttoptr(arguments[0], context.get_value_type(signature.return_type))

    return types.voidptr(address), codegen


@helper
def _vector_32(header: np.ndarray, field: int) -> np.ndarray:
    return numba.carray(_pointer(header[3 * field]), header[3 * field + 1], np.int32)


@helper
def _vector_64(header: np.ndarray, field: int) -> np.ndarray:
    return numba.carray(_pointer(header[3 * field]), header[3 * field + 1], np.int64)


@helper
def _matrix_32(header: np.ndarray, field: int) -> np.ndarray:
    shape = (header[3 * field + 1], header[3 * field + 2])
    return numba.carray(_pointer(header[3 * field]), shape, np.int32)


@helper
def _matrix_64(header: np.ndarray, field: int) -> np.ndarray:
    shape = (header[3 * field + 1], header[3 * field + 2])
    return numba.carray(_pointer(header[3 * field]), shape, np.int64)


@helper(forceinline=True)
def table_at(address: int) -> TableArrays:
    """Return the table whose header lies at an address."""
    header = numba.carray(_pointer(address), _SIZE, np.int64)
    return TableArrays(
        _vector_32(header, np.int64(0)),
        _vector_32(header, np.int64(1)),
        _vector_32(header, np.int64(2)),
        _vector_32(header, np.int64(3)),
        _vector_32(header, np.int64(4)),
        _vector_32(header, np.int64(5)),
        _vector_32(header, np.int64(6)),
        _vector_32(header, np.int64(7)),
        _vector_32(header, np.int64(8)),
        _vector_32(header, np.int64(9)),
        _vector_32(header, np.int64(10)),
        _vector_32(header, np.int64(11)),
        _vector_32(header, np.int64(12)),
        _matrix_32(header, np.int64(13)),
        _vector_32(header, np.int64(14)),
        _matrix_32(header, np.int64(15)),
        _vector_32(header, np.int64(16)),
        _vector_32(header, np.int64(17)),
        _matrix_64(header, np.int64(18)),
        _vector_64(header, np.int64(19)),
        _vector_64(header, np.int64(20)),
        _vector_64(header, np.int64(21)),
        _vector_64(header, np.int64(22)),
        _vector_64(header, np.int64(23)),
        _vector_64(header, np.int64(24)),
    )

"""Automata of finite sets of strings, as transition tables."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from jaxtyping import Int32, UInt8

from gcd._automata.byte_classes import NUM_BYTES
from gcd._automata.limits import max_cells, max_states, spend, work_left
from gcd._automata.repetition import TransitionTable
from gcd._errors import StateLimitError

_WHAT = "the set of strings"


def chain(string: bytes) -> TransitionTable:
    """Return the minimal automaton of one string, with states in breadth-first order."""
    alphabet = sorted(set(string))
    delta = _empty(len(string) + 1, len(alphabet))
    # Classes are numbered by their first bytes. All bytes that aren't in the string share a class.
    other = next((i for i, byte in enumerate(alphabet) if i != byte), len(alphabet))
    class_of_byte = np.full(NUM_BYTES, other % NUM_BYTES, np.uint8)
    class_of_byte[alphabet] = [i + (i >= other) for i in range(len(alphabet))]
    if string:
        delta[np.arange(len(string)), class_of_byte[list(string)]] = np.arange(1, len(string) + 1)
    accepting = np.zeros(len(string) + 1, bool)
    accepting[-1] = True
    return TransitionTable(delta, accepting, class_of_byte)


def prefix_tree(ordered: Sequence[bytes]) -> TransitionTable:
    """Return the prefix tree of distinct strings, which must be in ascending order.

    Raises:
        StateLimitError, WorkLimitError: the table would be too large; raised before it is
            allocated.
    """
    alphabet = sorted(set(b"".join(ordered)))
    class_of_byte: UInt8[np.ndarray, "256"] = np.full(NUM_BYTES, len(alphabet) % NUM_BYTES, "u1")
    class_of_byte[alphabet] = np.arange(len(alphabet))
    source, label, accepting_at = [], [], []
    path = [0]
    previous = b""
    count = 1
    for string in ordered:
        pairs = enumerate(zip(previous, string, strict=False))
        shared = next((i for i, (a, b) in pairs if a != b), len(previous))
        del path[shared + 1 :]
        for byte in string[shared:]:
            source.append(path[-1])
            label.append(byte)
            path.append(count)
            count += 1
        accepting_at.append(path[-1])
        previous = string
    delta = _empty(count, len(alphabet))
    if source:
        delta[source, class_of_byte[label]] = np.arange(1, count)
    accepting = np.zeros(count, bool)
    accepting[accepting_at] = True
    return TransitionTable(delta, accepting, class_of_byte)


def _empty(num_states: int, num_bytes: int) -> Int32[np.ndarray, "S K"]:
    """Return a table without transitions, with a column for each of `num_bytes` bytes.

    All other bytes share one more column, the last one, if there are any.
    """
    width = min(num_bytes + 1, NUM_BYTES)
    if num_states > max_states():
        raise StateLimitError(max_states(), _WHAT)
    if num_states * width > max_cells():
        spend(work_left() + 1, _WHAT)
    return np.full((num_states, width), -1, np.int32)

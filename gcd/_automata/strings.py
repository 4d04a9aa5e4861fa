"""Transition tables of finite sets of strings, and of repetitions of one-way automata.

An automaton is *one-way* if no transition leads into its initial state, and none out of its only
accepting state. Characters, words, and groups of digits have such automata. A sequence of copies
merges each copy's accepting state with the next copy's initial state, so the sequence is already
deterministic. A counted repetition therefore takes time linear in its result.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from jaxtyping import Bool, Int32, UInt8

from gcd._automata.byte_classes import NUM_BYTES
from gcd._automata.limits import max_cells, max_states, spend, work_left
from gcd._errors import StateLimitError

_WHAT = "the set of strings"


class TransitionTable(NamedTuple):
    """Deterministic automaton as plain arrays; state 0 is initial."""

    delta: Int32[np.ndarray, "S K"]  # next state for (state, byte class), -1 for none
    accepting: Bool[np.ndarray, "S"]  # whether each state accepts
    class_of_byte: UInt8[np.ndarray, "256"]  # class of each of the 256 bytes


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
    """Return the prefix tree of distinct strings, which must be in ascending order."""
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
    """Return an empty table with a column for each of `num_bytes` bytes, and one for all others."""
    width = min(num_bytes + 1, NUM_BYTES)
    if num_states > max_states():
        raise StateLimitError(max_states(), _WHAT)
    if num_states * width > max_cells():
        spend(work_left() + 1, _WHAT)
    return np.full((num_states, width), -1, np.int32)


def is_one_way(part: TransitionTable) -> bool:
    """Return whether an automaton is one-way, as the module docstring defines it."""
    return bool(
        part.accepting.size > 1
        and part.accepting.sum() == 1
        and (part.delta != 0).all()
        and (part.delta[part.accepting] < 0).all()
    )


def in_a_row(part: TransitionTable, minimum: int, maximum: int | None) -> TransitionTable:
    """Return `minimum` to `maximum` (None: any) repetitions of a one-way automaton."""
    inner = part.accepting.size - 1
    copies = minimum + 1 if maximum is None else maximum
    num_states = copies * inner + (maximum is not None)
    what = f"a repetition ({copies} copies of {part.accepting.size} states)"
    if num_states > max_states():
        raise StateLimitError(max_states(), what)
    if num_states * part.delta.shape[1] > max_cells():
        spend(work_left() + 1, what)
    order = np.cumsum(~part.accepting, dtype=np.int32) - 1
    order[part.accepting] = inner
    rows = part.delta[~part.accepting]
    leads_to = np.where(rows >= 0, order[rows], -1)
    begins = np.arange(copies, dtype=np.int32)[:, None, None] * np.int32(inner)
    delta = np.where(leads_to >= 0, leads_to + begins, -1).reshape(-1, rows.shape[1])
    if maximum is None:  # the last copy is a loop: its end is its own beginning
        delta[delta == copies * inner] = minimum * inner
    else:
        delta = np.concatenate([delta, np.full((1, rows.shape[1]), -1, np.int32)])
    accepting = np.zeros(num_states, bool)
    accepting[inner * np.arange(minimum, copies + (maximum is not None))] = True
    return TransitionTable(delta.astype(np.int32, copy=False), accepting, part.class_of_byte)

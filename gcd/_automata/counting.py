"""Lengths, counts and enumeration of the strings of a byte automaton.

The functions take the arrays of a trimmed automaton with initial state 0, in which every state is
reachable and leads to acceptance.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from jaxtyping import Bool, Int32, UInt8

from gcd._automata.kernels import graph


def longest_length(delta: Int32[np.ndarray, "S K"]) -> int | None:
    """Return the length in bytes of the longest string; None if lengths are unbounded."""
    # Every state is on the path of an accepted string, so a cycle makes the language infinite.
    longest = graph.longest_path(delta)
    return None if longest < 0 else longest


def count(
    delta: Int32[np.ndarray, "S K"],
    accepting: Bool[np.ndarray, "S"],
    class_of_byte: UInt8[np.ndarray, "256"],
    max_length: int,
) -> int:
    """Return the exact number of strings of at most `max_length` bytes."""
    width = np.bincount(class_of_byte, minlength=delta.shape[1])
    source, label = np.nonzero(delta >= 0)
    pairs, inverse = np.unique(
        np.stack([source, delta[source, label]], axis=1), axis=0, return_inverse=True
    )
    ways = np.bincount(inverse.reshape(-1), width[label]).astype(int).astype(object)
    counts = accepting.astype(int).astype(object)
    found = 0
    for _ in range(max_length + 1):
        found += int(counts[0])
        if counts.any():
            after = counts * 0
            np.add.at(after, pairs[:, 0], ways * counts[pairs[:, 1]])
            counts = after
    return found


def in_order(
    delta: Int32[np.ndarray, "S K"],
    accepting: Bool[np.ndarray, "S"],
    transitions: Int32[np.ndarray, "S 256"],
    longest: int | None,
) -> Iterator[bytes]:
    """Yield all strings of at most `longest` bytes (None: any), by length, then in byte order."""
    # `ends_in[r][s]`: whether some string of exactly r bytes leads from state s to acceptance.
    ends_in = [accepting]
    length = 0
    while longest is None or length <= longest:
        yield from _of_length(transitions, length, ends_in)
        after = np.concatenate([ends_in[-1], [False]])
        ends_in.append(after[delta].any(axis=1))
        length += 1


def _of_length(
    transitions: Int32[np.ndarray, "S 256"], length: int, ends_in: list[Bool[np.ndarray, "S"]]
) -> Iterator[bytes]:
    """Yield the strings of exactly `length` bytes, in byte order.

    `ends_in[r][s]` is whether some string of exactly r bytes leads from state s to acceptance.
    """
    if not ends_in[length][0]:
        return
    stack = [(0, b"")]
    while stack:
        state, prefix = stack.pop()
        left = length - len(prefix)
        if left == 0:
            yield prefix
            continue
        after = transitions[state]
        good = np.flatnonzero((after >= 0) & ends_in[left - 1][after])
        stack.extend((int(after[b]), prefix + bytes([b])) for b in good[::-1])

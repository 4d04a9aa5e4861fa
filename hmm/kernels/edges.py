"""This module finds the edges of a token automaton in its table of next states, in compiled loops.

Classes that lead from one state to one other are an edge. Which classes they are is summed up in a
signature: the sum, modulo 2^64, of a random number for each class. Equal sets have equal
signatures; that unequal ones have unequal ones is checked, not believed.
"""

from __future__ import annotations

import numpy as np

from gcd.support.compiled import kernel


@kernel
def count_edges(delta: np.ndarray, final: int) -> int:
    """Count pairs of a state before `final` and a state that it leads to."""
    seen = np.full(delta.shape[0], -1)
    count = 0
    for state in range(final):
        for symbol in range(delta.shape[1]):
            after = delta[state, symbol]
            if after >= 0 and seen[after] != state:
                seen[after] = state
                count += 1
    return count


@kernel
def list_edges(
    delta: np.ndarray,
    final: int,
    number: np.ndarray,
    source: np.ndarray,
    target: np.ndarray,
    signature: np.ndarray,
) -> None:
    """Write every edge, sorted by source, and the sum of `number` over its classes."""
    seen = np.full(delta.shape[0], -1)
    edge_of = np.zeros(delta.shape[0], np.int64)
    count = 0
    for state in range(final):
        for symbol in range(delta.shape[1]):
            after = delta[state, symbol]
            if after < 0:
                continue
            if seen[after] != state:
                seen[after] = state
                edge_of[after] = count
                source[count], target[count], signature[count] = state, after, 0
                count += 1
            signature[edge_of[after]] += number[symbol]


@kernel
def labels_match(
    delta: np.ndarray,
    source: np.ndarray,
    target: np.ndarray,
    set_of: np.ndarray,
    members: np.ndarray,
) -> bool:
    """Check that every edge has just the classes that its set names."""
    for edge in range(source.size):
        row, named, after = delta[source[edge]], members[set_of[edge]], target[edge]
        differ = 0  # counted without leaving the loop, so that it is done for many classes at once
        for symbol in range(row.size):
            differ += (row[symbol] == after) != (named[symbol] != 0)
        if differ:
            return False
    return True

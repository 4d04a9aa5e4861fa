"""Distances in tokens to the end of an answer, and the budget rule based on them.

`steps_to_accept[s]` is the fewest tokens, EOS included, from state s to the end of a text. With r
tokens left, a next token is allowed if and only if

    steps_to_accept[ state after it ] <= r - 1

This is the whole definition of a budget. `fits` makes this comparison for numbers, arrays and
tensors; kernels write it as `steps < remaining`.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from jaxtyping import Int32

from gcd._automata.kernels.graph import distinct_edges
from gcd._tokens.kernels import token_graph as kernels
from gcd._tokens.trie import read_only

UNREACHABLE = 2**30
"""Distance of a state that doesn't lead to `final`; it exceeds every budget and fits into int32."""


def fits(steps_after: Any, remaining: Any) -> Any:
    """Return whether the text can be completed within the budget after a next token.

    Args:
        steps_after: `steps_to_accept` of the state that the token leads to; `UNREACHABLE` if the
            token is not allowed.
        remaining: tokens left, including the next token and EOS.
    """
    return steps_after < remaining  # equals steps_after <= remaining - 1, without the subtraction


def steps_to_accept(delta: Int32[np.ndarray, "S C"], final: int) -> Int32[np.ndarray, "S"]:
    """Return the fewest tokens from each state to the final one, or `UNREACHABLE`; O(S C)."""
    return kernels.distances(edges(delta), delta.shape[0], final, UNREACHABLE, True)


def edges(delta: Int32[np.ndarray, "S C"]) -> Int32[np.ndarray, "E 2"]:
    """Return the pairs (state, next state) of a table, each once; O(S C).

    A table has hundreds of classes, but few distinct targets per row.
    """
    # A read-only view, because compiled code accepts a single array type.
    start, targets = distinct_edges(read_only(delta.view()))
    source = np.repeat(np.arange(delta.shape[0], dtype=np.int32), np.diff(start))
    return np.stack([source, targets], axis=1)


def reach(delta: Int32[np.ndarray, "S C"], steps: Int32[np.ndarray, "S"]) -> Int32[np.ndarray, "S"]:
    """Return, for each state, the largest `steps` after any allowed next token; O(S C).

    If more tokens than that are left, the budget doesn't exclude any token.

    Args:
        delta: state after (state, class), -1 for none; every state has at least one next state.
        steps: `steps_to_accept` of each state.
    """
    start, targets = distinct_edges(read_only(delta.view()))
    return np.maximum.reduceat(steps[targets], start[:-1])

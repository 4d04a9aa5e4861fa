"""The tokens that an answer still needs, and the rule of budgets that follows.

`steps_to_accept[s]` is the fewest tokens, EOS included, from state s to the end of a text. With r
tokens left before the next one, that next token may lead to a state exactly if

    steps_to_accept[ state after it ] <= r - 1

which is all that a budget means. `fits` is this comparison for numbers, arrays and tensors; kernels
write it as `steps < remaining`.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from jaxtyping import Int32

from gcd.automata.kernels.graph import distinct_edges
from gcd.errors import ConstraintError
from gcd.tokens.kernels import token_graph as kernels
from gcd.tokens.trie import read_only

UNREACHABLE = 2**30
"""`steps_to_accept` of a state without a way to `final`; more than any budget, less than int32."""


def fits(steps_after: Any, remaining: Any) -> Any:
    """Return whether a token fits into a budget: the text can be finished with the tokens after it.

    Args:
        steps_after: `steps_to_accept` of the state that the token leads to; `UNREACHABLE` where
            it leads nowhere.
        remaining: tokens left, the next one and EOS included.
    """
    return steps_after < remaining  # that is, steps_after <= remaining - 1, without the subtraction


def steps_to_accept(delta: Int32[np.ndarray, "S C"], final: int) -> Int32[np.ndarray, "S"]:
    """Return the fewest tokens from each state to `final`, or `UNREACHABLE`; O(S C)."""
    return kernels.distances(edges(delta), delta.shape[0], final, UNREACHABLE, True)


def edges(delta: Int32[np.ndarray, "S C"]) -> Int32[np.ndarray, "E 2"]:
    """Return the pairs (state, next state) of a table, each once; O(S C).

    Tables are wide (hundreds of classes) and have few distinct targets in a row.
    """
    # One type for compiled code, whether the table is finished or not.
    start, targets = distinct_edges(read_only(delta.view()))
    source = np.repeat(np.arange(delta.shape[0], dtype=np.int32), np.diff(start))
    return np.stack([source, targets], axis=1)


def reach(delta: Int32[np.ndarray, "S C"], steps: Int32[np.ndarray, "S"]) -> Int32[np.ndarray, "S"]:
    """Return the most tokens that are needed after a next token, from each state; O(S C).

    A budget with more tokens left than that forbids nothing that the language allows.

    Args:
        delta: states after (state, class), from every state at least one.
        steps: `steps_to_accept` of each state.
    """
    start, targets = distinct_edges(read_only(delta.view()))
    return np.maximum.reduceat(steps[targets], start[:-1])


def check_whole(budget: Any, where: str = "") -> None:
    """Refuse what is no number of tokens, such as 1.5 or True; `ConstraintError` after `where`."""
    if isinstance(budget, bool | np.bool_) or not isinstance(budget, int | np.integer):
        raise ConstraintError(
            f"{where}{': ' if where else ''}a budget is a whole number of tokens, got {budget!r}"
        )

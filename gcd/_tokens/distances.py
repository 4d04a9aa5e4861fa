"""Distances in tokens to the end of an answer, and the budget rule based on them.

With r tokens left, a next token is allowed if and only if `steps_to_accept` of the state after it
is at most r - 1. `fits` makes this comparison for numbers, arrays and tensors; kernels write it as
`steps < remaining`.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from jaxtyping import Int32

from gcd._automata.kernels.graph import levels
from gcd._support.kernels.grouping import by_key

UNREACHABLE = 2**30
"""Distance of a state that doesn't lead to `final`; it exceeds every budget and fits into int32."""


def fits(steps_after: Any, remaining: Any) -> Any:
    """Return whether the text can end in time after a next token, one of the `remaining` tokens."""
    return steps_after < remaining  # equals steps_after <= remaining - 1, without the subtraction


def distances_to(final: int, edges: Int32[np.ndarray, "2 E"], num_states: int) -> Int32[Any, "S"]:
    """Return the fewest edges from each state to `final`; with swapped edges, from it."""
    is_final = np.zeros(num_states, np.bool_)
    is_final[final] = True
    distance = levels(*by_key(edges[1], num_states, edges[0]), is_final)
    distance[distance < 0] = UNREACHABLE
    return distance

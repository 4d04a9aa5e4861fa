"""This module has distances along the edges of a token automaton, and the rule of budgets."""

from __future__ import annotations

from typing import Any

import numpy as np
from numba.extending import register_jitable

from gcd.automata.kernels.graph import levels
from gcd.support.compiled import kernel
from gcd.support.kernels.grouping import by_key


@register_jitable
def fits(steps_after: Any, remaining: Any) -> Any:
    """Return whether a token fits into a budget: the text can be finished with the tokens after it.

    Args:
        steps_after: `steps_to_accept` of the state that the token leads to; `UNREACHABLE` where
            it leads nowhere.
        remaining: tokens left, the next one and EOS included.
    """
    return steps_after < remaining  # that is, steps_after <= remaining - 1, without the subtraction


@kernel
def distances(
    pairs: np.ndarray, num_states: int, start: int, unreachable: int, backward: bool
) -> np.ndarray:
    """Return the fewest edges between `start` and each state, by breadth-first search.

    With `backward` against them: the distance to `start`, which else is that from it.
    """
    near, far = (1, 0) if backward else (0, 1)
    is_start = np.zeros(num_states, np.bool_)
    is_start[start] = True
    distance = levels(*by_key(pairs[:, near], num_states, pairs[:, far]), is_start)
    for s in range(num_states):
        if distance[s] < 0:
            distance[s] = unreachable
    return distance

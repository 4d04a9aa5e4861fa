"""This module passes over the graph of a token automaton: its edges, and distances along them.

`delta[s, c]` is the state after token class `c`, -1 for none. Tables are wide (hundreds of
classes) and have few distinct targets in a row, so edges are listed first, each once.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba.extending import register_jitable

from gcd.automata.kernels.graph import levels
from gcd.support.compiled import kernel
from gcd.support.kernels.grouping import by_key
from gcd.support.kernels.growing import more_rows


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
def edges(delta: np.ndarray) -> np.ndarray:
    """List the pairs (state, next state) of a table, each once."""
    num_states, num_classes = delta.shape
    seen = np.full(num_states, -1, np.int32)  # the last source for which a target was counted
    pairs = np.empty((max(4 * num_states, num_classes), 2), np.int32)
    count = 0
    for s in range(num_states):
        pairs = more_rows(pairs, count + num_classes)
        for c in range(num_classes):
            t = delta[s, c]
            if t >= 0 and seen[t] != s:
                seen[t] = s
                pairs[count, 0], pairs[count, 1] = s, t
                count += 1
    return pairs[:count].copy()


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

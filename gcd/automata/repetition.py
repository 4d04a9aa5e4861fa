"""This module repeats languages in which no string continues another, without determinisation.

A character, a word, a group of digits are *one way*: nothing leads back into the first state of
their automata, and nothing out of the only one that accepts. Copies of such an automaton behind
each other, the accepting state of one being the first state of the next, are deterministic as they
stand. So a counted repetition costs what it writes.
"""

from __future__ import annotations

import numpy as np

from gcd.automata.joining import Part, TransitionTable
from gcd.automata.limits import max_cells, max_states, spend, work_left
from gcd.errors import StateLimitError


def is_one_way(part: Part) -> bool:
    """Return whether no edge leads into the first state, or out of the only one that accepts."""
    return bool(
        part.num_states > 1
        and part.accepting.sum() == 1
        and (part.delta != 0).all()
        and (part.delta[part.accepting] < 0).all()
    )


def in_a_row(part: Part, minimum: int, maximum: int | None) -> TransitionTable:
    """Concatenate `minimum` to `maximum` (None: no bound) copies of an automaton that `is_one_way`.

    Raises:
        StateLimitError: before anything is made, if these are too many states.
        WorkLimitError: if their table has too many entries.
    """
    inner = part.num_states - 1
    copies = minimum + 1 if maximum is None else maximum
    num_states = copies * inner + (maximum is not None)
    what = f"a repetition of {part.num_states} states {copies} times"
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
    if maximum is None:  # the last copy is the loop
        delta[delta == copies * inner] = minimum * inner
    else:
        delta = np.concatenate([delta, np.full((1, rows.shape[1]), -1, np.int32)])
    accepting = np.zeros(num_states, bool)
    accepting[inner * np.arange(minimum, copies + (maximum is not None))] = True
    return TransitionTable(delta.astype(np.int32, copy=False), accepting, part.class_of_byte)

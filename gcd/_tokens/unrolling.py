"""Unrolling of segments into automata that count their tokens, to enforce token limits.

If segments have token limits (`gcd._tokens.segments`), a state of the token automaton is a set of
pairs (state of a segment, tokens of this segment so far). The set has one pair for each way to
split the text so far. Of two pairs with the same state, the pair with fewer tokens allows
everything that the other allows, so only this pair is kept. If the ends of segments are
unambiguous, the set has one pair.

A token belongs to the segment in which it begins. So from the pair (state of segment i, n) it leads
to states of segment i with n + 1 tokens, if this is within the limit, and to states of later
segments with 0 tokens. Tokens of segments without a limit are not counted.

Cost: a segment of S states with a limit of n tokens becomes n S states, each with a row over the
token classes. It is refused if the table would exceed `gcd.state_limit` or the limit on entries.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

import numpy as np
from jaxtyping import Bool, Int32

from gcd._automata.limits import count_work, max_cells, max_states, spend, work_left
from gcd._errors import InfeasibleBudgetError, StateLimitError
from gcd._tokens.segments import Segments, SegmentStates
from gcd._tokens.trimming import TokenTable, trim, with_final

_COUNTING = (
    "counting the tokens of segments (lower `tokens`, omit it where a segment is large, or "
    "give free text an `until`)"
)
_PER_COLUMN = 1000  # units of work per distinct token class, in an interpreted loop

Ways = tuple[tuple[int, int], ...]
"""Pairs (state of a segment, fewest tokens of this segment so far), ordered by state."""


def count_tokens(
    segments: Segments,
    states: SegmentStates,
    table: Int32[np.ndarray, "F C"],
    class_of: Int32[np.ndarray, "V"],
) -> TokenTable | None:
    """Return the token automaton's table of the answers that satisfy all limits.

    Args:
        segments: the segments.
        states: the automaton over their bytes.
        table: the row after a token of each class, for the rows of `states`; -1 for none.
        class_of: class of every token id, -1 for EOS. The classes of special tokens that end
            segments are replaced.

    Returns:
        The table; None if the tokens can't spell any answer, even without limits.

    Raises:
        InfeasibleBudgetError: if a segment's limit is too low. The error has the fewest tokens that
            the segment needs if the segments before it satisfy their limits.
        StateLimitError, WorkLimitError: if counting takes too many states, or too large a table.
    """
    table, class_of = _with_specials(segments, states, table, class_of)
    limits = [part.tokens for part in segments.parts]

    def try_limits(limits: Sequence[int | None]) -> TokenTable | None:
        with count_work():
            targets, accepting = _unroll(states, table, limits)
        return trim(*with_final(targets, accepting, class_of, "token"), 0, merge=True)

    found = try_limits(limits)
    if found is not None:
        return found
    for index, limit in enumerate(limits):
        before = limits[:index]
        rest = [None] * (len(limits) - index - 1)
        if limit is None or try_limits([*before, limit, *rest]) is not None:
            continue
        free = try_limits([*before, None, *rest])
        if free is None:
            return None
        least, most = limit + 1, int(free.steps_to_accept[free.initial])
        while least < most:
            middle = (least + most) // 2
            if try_limits([*before, middle, *rest]) is None:
                least = middle + 1
            else:
                most = middle
        counted = "what ends it included" if rest else "EOS included"
        raise InfeasibleBudgetError(least, limit, segments.name(index), counted)
    return None


def _with_specials(
    segments: Segments,
    states: SegmentStates,
    table: Int32[np.ndarray, "F C"],
    class_of: Int32[np.ndarray, "V"],
) -> tuple[Int32[np.ndarray, "M C2"], Int32[np.ndarray, "V"]]:
    """Return the table's rows for single states, with a class for each special token.

    Rows for sets of states are dropped. The special tokens are those that end segments.
    """
    num_states, num_classes = states.segment.size, table.shape[1]
    specials = [part.special for part in segments.parts]
    distinct = sorted({token for token in specials if token is not None})
    wider = np.full((num_states, num_classes + len(distinct)), -1, np.int32)
    wider[:, :num_classes] = table[:num_states]
    class_of = class_of.copy()
    for column, token in enumerate(distinct, num_classes):
        class_of[token] = column
        theirs = np.array([special == token for special in specials])[states.segment]
        wider[theirs, column] = states.after_special[theirs]
    return wider, class_of


def _unroll(
    states: SegmentStates, table: Int32[np.ndarray, "M C"], limits: Sequence[int | None]
) -> tuple[Int32[np.ndarray, "N C"], Bool[np.ndarray, "N"]]:
    """Return the transition table of the automaton that counts tokens, and its accepting states.

    The first state is the initial state.
    """
    segment = states.segment.tolist()

    @lru_cache(1 << 16)
    def after(row: int, source: int, used: int) -> Ways:
        """Return the pairs (state, tokens of its segment so far) after a token.

        The token leads to row `row` of the automaton over bytes. It is token number `used` of
        segment `source`.
        """
        ways = ((state, used if segment[state] == source else 0) for state in states.members(row))
        return tuple(
            (state, 0 if limit is None else count)
            for state, count in ways
            if (limit := limits[segment[state]]) is None or count < limit
        )

    @lru_cache(1 << 10)
    def columns(members: tuple[int, ...]) -> tuple[list[list[int]], np.ndarray]:
        """Return the distinct columns of these states' rows, and which of them each class has."""
        if len(members) == 1:
            distinct, inverse = np.unique(table[members[0]], return_inverse=True)
            return [[row] for row in distinct.tolist()], inverse
        distinct, inverse = np.unique(table[list(members)], axis=1, return_inverse=True)
        return distinct.T.tolist(), inverse.reshape(-1)

    start = after(states.start, -1, 0)
    number: dict[Ways, int] = {start: 0}
    every = [start]
    rows = []
    for ways in every:  # grows during the loop
        if len(every) > max_states():
            raise StateLimitError(max_states(), _COUNTING)
        if len(every) * table.shape[1] > max_cells():
            spend(work_left() + 1, _COUNTING)
        distinct, inverse = columns(tuple(state for state, _ in ways))
        spend(_PER_COLUMN * len(distinct), _COUNTING)
        targets = []
        for column in distinct:
            fewest: dict[int, int] = {}
            for (state, used), row in zip(ways, column, strict=True):
                if row >= 0:
                    for other, count in after(row, segment[state], used + 1):
                        fewest[other] = min(count, fewest.get(other, count))
            reached = tuple(sorted(fewest.items()))
            if reached and reached not in number:
                number[reached] = len(every)
                every.append(reached)
            targets.append(number[reached] if reached else -1)
        rows.append(np.array(targets, np.int32)[inverse])
    accepting = [any(states.accepting[state] for state, _ in ways) for ways in every]
    return np.stack(rows), np.array(accepting)

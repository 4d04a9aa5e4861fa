"""Segments: consecutive parts of one answer, such as free text followed by structure.

"Think in at most 200 tokens, then write JSON" is a list of two segments. Each segment has a
language and, optionally, an end marker (`until`) and a token limit (`tokens`). `gcd.lift` compiles
the segments to one token automaton, and budgets, masks, matchers and samplers work with it as with
any other. The mask accounts for the tokens that the rest of the answer needs, so the structure
after the free text always fits.

An answer satisfies the segments if it can be split into one part per segment, in order (`Segment`
defines the parts; docs/segments.md has examples). If the end of a segment is ambiguous (free text
without `until`), one split that satisfies all limits is enough.

**Automaton over bytes.** The subset construction over the states of all segments gives one
deterministic automaton. Its first rows are these states. The other rows are sets of several states,
which occur if a segment may either end or continue. The automaton is not minimized, because equal
states of two segments count for different limits.

**Token limits.** If segments have token limits, a state of the token automaton is a set of pairs
(state of a segment, tokens of this segment so far). The set has one pair for each way to
split the text so far. Of two pairs with the same state, the pair with fewer tokens allows
everything that the other allows, so only this pair is kept. If the ends of segments are
unambiguous, the set has one pair.

A token belongs to the segment in which it begins. So from the pair (state of segment i, n) it leads
to states of segment i with n + 1 tokens, if this is within the limit, and to states of later
segments with 0 tokens. Tokens of segments without a limit are not counted.

Cost: the states of all segments, and the sets. If the ends are unambiguous, there are few sets. A
segment of S states with a limit of n tokens becomes n S states, each with a row over the token
classes. It is refused if the table would exceed `gcd.state_limit` or the limit on entries.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import KW_ONLY, dataclass
from functools import cache, cached_property, lru_cache
from typing import NamedTuple

import numpy as np
from jaxtyping import Bool, Int32, UInt8

from gcd._arguments import Ids, as_ids, check_whole
from gcd._automata.automaton import Automaton
from gcd._automata.byte_classes import NUM_BYTES, joint_classes
from gcd._automata.horizon import Caveat
from gcd._automata.limits import count_work, max_cells, max_states, spend, work_left
from gcd._errors import (
    ConstraintError,
    EmptyLanguageError,
    InfeasibleBudgetError,
    StateLimitError,
    check_kind,
)
from gcd._readable import readable_bytes
from gcd._tokens.trimming import TokenTable, trim, with_final
from gcd._tokens.vocabulary import Vocabulary

_PER_COLUMN = 1000  # units of work per class of bytes or tokens, in an interpreted loop
_COUNTING = (
    "counting the tokens of segments (lower `tokens`, omit it where a segment is large, or "
    "give free text an `until`)"
)

Ways = tuple[tuple[int, int], ...]
"""Pairs (state of a segment, fewest tokens of this segment so far), ordered by state."""


@dataclass(frozen=True, eq=False)
class Segment:
    """Part of an answer: its language, the text or token that ends it, and its token limit.

    Attributes:
        language: the texts of the part, without the end marker `until`.
        until: end marker: a text (`str` in UTF-8, or `bytes`), which ends the part at its first
            occurrence; or the id of a special token without bytes. None: the part may end wherever
            its language and the rest of the answer allow.
        tokens: maximum number of tokens of the part, including `until`, and EOS if it is the last
            part; None for no limit. A token belongs to the part that contains its first byte; a
            special token belongs to the part that it ends.

    Raises:
        ConstraintError: `until` is empty, or neither text nor a token id; or `tokens` is not a
            whole number, or is below 1.
    """

    language: Automaton
    _: KW_ONLY
    until: str | bytes | int | None = None
    tokens: int | None = None

    def __post_init__(self) -> None:
        if not isinstance(self.language, Automaton):
            raise ConstraintError(
                f"expected a segment's language as a gcd.Automaton, got {self.language!r}; "
                "use gcd.anything() for free text"
            )
        if isinstance(self.until, bool) or not isinstance(self.until, str | bytes | int | None):
            raise ConstraintError(
                f"expected until to be a text or the id of a token, got {self.until!r}"
            )
        if isinstance(self.until, str) and any("\ud800" <= c <= "\udfff" for c in self.until):
            raise ConstraintError(
                f"expected until as Unicode text, got {self.until!r} with a lone surrogate; "
                "remove it"
            )
        if self.until in ("", b""):
            raise ConstraintError(
                "expected until to be non-empty, got an empty text, which would end every segment "
                "at once; pass the text that ends the segment, or omit it"
            )
        if self.tokens is not None:
            check_whole(self.tokens, "the tokens of a segment")
            if self.tokens < 1:
                raise ConstraintError(
                    f"expected at least one token in a segment, got tokens={self.tokens}; "
                    "remove the segment, or its limit"
                )

    @property
    def special(self) -> int | None:
        """Id of the special token that ends the segment; None if there is none."""
        return self.until if isinstance(self.until, int) else None

    @property
    def ending(self) -> bytes:
        """Bytes that end the segment; empty if it ends with a special token or without a marker."""
        until = self.until.encode() if isinstance(self.until, str) else self.until
        return until if isinstance(until, bytes) else b""

    @cached_property
    def text(self) -> Automaton:
        """Language of the part followed by `until`, at its first occurrence."""
        if not isinstance(self.until, str | bytes):
            return self.language
        end, anything = Automaton.literal(self.until), Automaton.any_bytes()
        found = anything + end
        return (self.language + end) & (
            found - (found + Automaton.byte_set(range(NUM_BYTES)) + anything)
        )

    def ends(self, symbols: Sequence[int], begin: int) -> Iterator[int]:
        """Yield the possible ends of the part that starts at index `begin` of `symbols`.

        Symbols are bytes, and -1 - id for a special token.
        """
        text, state = self.text, 0
        for position, symbol in enumerate(symbols[begin:], begin):
            if self.special is None and text.accepting[state]:
                yield position
            if symbol < 0:
                if self.special == -1 - symbol and text.accepting[state]:
                    yield position + 1
                return
            state = int(text.delta[state, text.class_of_byte[symbol]])
            if state < 0:
                return
        if self.special is None and text.accepting[state]:
            yield len(symbols)


class SegmentStates(NamedTuple):
    """Automaton over the bytes of all segments; see the module docstring.

    Attributes:
        delta: row after (row, byte class), -1 for none. The first M rows are the M states of the
            segments; the other rows are sets of several states.
        class_of_byte: class of each byte.
        segment: the segment of each state, counted from zero.
        after_special: the row after the special token that ends the state's segment; -1 if the
            segment can't end in this state.
        accepting: whether the answer may end in a state.
        sets: the states that each row from M on represents, ascending.
        start: the row in which an answer begins.
    """

    delta: Int32[np.ndarray, "F K"]
    class_of_byte: UInt8[np.ndarray, "256"]
    segment: Int32[np.ndarray, "M"]
    after_special: Int32[np.ndarray, "M"]
    accepting: Bool[np.ndarray, "M"]
    sets: list[tuple[int, ...]]
    start: int

    def members(self, row: int) -> tuple[int, ...]:
        """Return the states of segments that a row of `delta` represents."""
        num_states = self.segment.size
        return (row,) if row < num_states else self.sets[row - num_states]


@dataclass(frozen=True, eq=False)
class Segments:
    """Sequence of segments that form an answer; made by `gcd.segments`, for `gcd.lift`."""

    parts: tuple[Segment, ...]

    @property
    def max_bytes(self) -> int | None:
        """Length of answers in bytes up to which the segments are exact; None for any length."""
        known = [part.text.max_bytes for part in self.parts]
        return min((bound for bound in known if bound is not None), default=None)

    @property
    def caveats(self) -> tuple[Caveat, ...]:
        """Parts of the constraints that are not enforced in every answer."""
        return tuple(dict.fromkeys(caveat for part in self.parts for caveat in part.text.caveats))

    def shortest(self) -> bytes:
        """Return one of the shortest answers, without special tokens."""
        return b"".join(part.text.shortest() for part in self.parts)

    def name(self, index: int) -> str:
        """Return the label of a segment in messages."""
        until = self.parts[index].until
        return f"segment {index + 1} of {len(self.parts)}" + (
            "" if until is None else f" (until {until!r})"
        )

    def check(self, vocabulary: Vocabulary) -> None:
        """Raise `ConstraintError` if a segment ends with a token id that isn't a special token."""
        for index, part in enumerate(self.parts):
            token, name = part.special, self.name(index)
            if token is None:
                continue
            if not 0 <= token < vocabulary.size:
                raise ConstraintError(
                    f"{name}: expected a token id in 0..{vocabulary.size - 1}, got {token}"
                )
            if token in vocabulary.eos_ids:
                raise ConstraintError(
                    f"{name}: expected until to be a token that doesn't end the whole text, got "
                    f"EOS id {token}; use another token, or a text"
                )
            if vocabulary.token_bytes[token]:
                raise ConstraintError(
                    f"{name}: expected until to be a special token, got token {token}, which has "
                    "bytes that other tokens may also spell; pass "
                    f"until={vocabulary.token_bytes[token]!r}"
                )

    def split(self, tokens: Ids, vocabulary: Vocabulary) -> tuple[bytes, ...]:
        """Return the text of each segment of an answer, without the end markers.

        Args:
            tokens: the answer's token ids, such as `Sample.ids`. (The text isn't enough, because it
                omits special tokens.) Ids after EOS, such as padding, are ignored.
            vocabulary: the vocabulary of the token ids.

        Returns:
            The texts. If several splits satisfy all limits, the first segment is as short as
            possible, then the second, and so on.

        Raises:
            ConstraintError: if no split into segments satisfies all limits, or a token is out of
                range.
        """
        symbols: list[int] = []  # bytes, and special tokens as negative numbers
        begun = [0]  # number of tokens that begin before each index of `symbols`
        for token in as_ids(tokens):
            if token in vocabulary.eos_ids:
                break
            if not 0 <= token < vocabulary.size:
                raise ConstraintError(
                    f"expected token ids in 0..{vocabulary.size - 1}, got {token}"
                )
            symbols += vocabulary.token_bytes[token] or (-1 - token,)
            begun += [begun[-1] + 1] * (len(symbols) + 1 - len(begun))
        last = len(self.parts) - 1

        @cache
        def cut(index: int, begin: int) -> tuple[int, ...] | None:
            """Return where the segments from `index` on end, if they start at `begin`; or None."""
            limit = self.parts[index].tokens
            for end in self.parts[index].ends(symbols, begin):
                if limit is not None and begun[end] - begun[begin] + (index == last) > limit:
                    return None
                later = () if index == last else cut(index + 1, end)
                if later is not None and (index < last or end == len(symbols)):
                    return end, *later
            return None

        ends = cut(0, 0)
        if ends is None:
            text = readable_bytes(bytes(symbol for symbol in symbols if symbol >= 0))
            raise ConstraintError(
                f"expected an answer that splits into {len(self.parts)} segments within their "
                f"limits, got {text}"
            )
        texts = zip(self.parts, (0, *ends), ends, strict=False)
        return tuple(
            bytes(symbol for symbol in symbols[begin:end] if symbol >= 0).removesuffix(part.ending)
            for part, begin, end in texts
        )

    def states(self) -> SegmentStates:
        """Return the automaton over the bytes of all segments (`SegmentStates`).

        Raises:
            StateLimitError, WorkLimitError: if ambiguous ends produce too many sets of states.
        """
        with count_work():
            return _Joining(self.parts).states()


def segments(parts: Iterable[Segment]) -> Segments:
    """Combine parts of an answer into one constraint for `gcd.lift`.

    Args:
        parts: the segments, such as
            `[gcd.Segment(gcd.anything(), until="</think>", tokens=200), gcd.Segment(schema)]`.

    Raises:
        ConstraintError: if there are no parts, or one of them is not a `Segment`.
        EmptyLanguageError: if a segment has no text, for example because every text of its language
            contains `until` before the end.
    """
    check_kind(parts, Iterable, "a list of segments", "pass [gcd.Segment(...), ...]")
    found = Segments(tuple(parts))
    if not found.parts:
        raise ConstraintError("expected at least one segment for segments(), got none")
    for index, part in enumerate(found.parts):
        if not isinstance(part, Segment):
            raise ConstraintError(f"expected gcd.Segment(...) for segments(), got {part!r}")
        if part.text.is_empty:
            raise EmptyLanguageError(
                f"{found.name(index)}: expected a language with at least one text, got an empty "
                "language"
            )
    return found


class _Joining:
    """Subset construction over the states of all segments."""

    def __init__(self, parts: Sequence[Segment]) -> None:
        texts = [part.text for part in parts]
        self.class_of_byte, columns = joint_classes([text.class_of_byte for text in texts])
        # If a segment ends with a special token, it has one more state, after this token.
        sizes = [t.num_states + (p.special is not None) for t, p in zip(texts, parts, strict=True)]
        first = np.cumsum([0, *sizes])
        self.size = int(first[-1])
        self.segment = np.repeat(np.arange(len(parts), dtype=np.int32), sizes)
        self.ends = np.zeros(self.size, np.bool_)  # where a segment may end
        self.after_special = np.full(self.size, -1, np.int32)
        own = np.full((self.size, int(self.class_of_byte.max()) + 1), -1, np.int32)
        for part, text, column, offset in zip(parts, texts, columns, first[:-1], strict=True):
            end = offset + text.num_states
            table = text.delta[:, column]
            own[offset:end] = np.where(table >= 0, table + offset, -1)
            if part.special is None:
                self.ends[offset:end] = text.accepting
            else:
                self.ends[end] = True
                self.after_special[offset:end] = np.where(text.accepting, end, -1)

        self.sets: list[tuple[int, ...]] = []
        self._number: dict[tuple[int, ...], int] = {}
        # Where a segment may end, the next one may begin without consuming a byte.
        reads = (own >= 0).any(axis=1) | (self.after_special >= 0)
        row_of = np.arange(self.size)
        begin: tuple[int, ...] = ()
        for index in range(len(parts) - 1, -1, -1):
            here = slice(first[index], first[index + 1])
            closed = {
                int(state): self._add_row({*begin, *([int(state)] if reads[state] else [])})
                for state in first[index] + np.flatnonzero(self.ends[here])
                if begin
            }
            row_of[list(closed)] = list(closed.values())
            begin = self.members(int(row_of[first[index]]))
        self.start = int(row_of[0])
        self.own = np.where(own >= 0, row_of[own], -1).astype(np.int32)
        specials = self.after_special
        self.after_special = np.where(specials >= 0, row_of[specials], -1).astype(np.int32)

    def members(self, row: int) -> tuple[int, ...]:
        return (row,) if row < self.size else self.sets[row - self.size]

    def _add_row(self, states: set[int]) -> int:
        """Return the index of the table row for a set of states; add the set if it is new."""
        members = tuple(sorted(states))
        if len(members) == 1:
            return members[0]
        if members not in self._number:
            if self.size + len(self.sets) >= max_states():
                raise StateLimitError(max_states(), what="an answer whose segments end ambiguously")
            self._number[members] = self.size + len(self.sets)
            self.sets.append(members)
        return self._number[members]

    def states(self) -> SegmentStates:
        """Compute the next states of every set of states, including sets found meanwhile."""
        rows = []
        for members in self.sets:  # grows during the loop
            columns, inverse = np.unique(self.own[list(members)], axis=1, return_inverse=True)
            spend(_PER_COLUMN * columns.shape[1], "an answer whose segments end ambiguously")
            after = [
                self._add_row({m for row in column if row >= 0 for m in self.members(row)})
                if max(column) >= 0
                else -1
                for column in columns.T.tolist()
            ]
            rows.append(np.array(after, np.int32)[inverse.reshape(-1)])
        is_last = self.segment == self.segment[-1]
        return SegmentStates(
            np.concatenate([self.own, *(row[None] for row in rows)]),
            self.class_of_byte,
            self.segment,
            self.after_special,
            self.ends & is_last,
            self.sets,
            self.start,
        )


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

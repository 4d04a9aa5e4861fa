"""Segments are parts of one answer that follow each other: free text, then structure.

"Think in at most 200 tokens, then write JSON" is a list of segments, each with a language, perhaps
with what ends it (`until`), perhaps with a limit of its own (`tokens`). `gcd.lift` makes one token
automaton of them, and budgets, masks, matchers and samplers work with it as with any other. As the
mask knows what the whole answer still needs, the structure after the free text always has room.

An answer satisfies the segments if it can be cut into one part for each of them, in their order
(`Segment` says what a part is; docs/segments.md, with examples). Where the end of a segment is
ambiguous (free text without `until`), one cut that keeps all limits is enough.

**Bytes.** The segments are read by one deterministic automaton, the subset construction over the
states of all of them: its first rows are these states, the rest are sets of several, which occur
where one segment may end and go on. It is not minimised, since equal states of two segments count
for different limits. `gcd.tokens.unrolling` counts the tokens.

Cost: the states of all segments, and the sets; where ends are unambiguous there are few.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import KW_ONLY, dataclass
from functools import cache, cached_property
from typing import NamedTuple

import numpy as np
from jaxtyping import Bool, Int32, UInt8

from gcd.automata.automaton import Automaton
from gcd.automata.byte_classes import NUM_BYTES, joint_classes
from gcd.automata.horizon import Caveat
from gcd.automata.limits import max_states, metered, spend
from gcd.errors import ConstraintError, EmptyLanguageError, StateLimitError, check_kind
from gcd.readable import readable_bytes
from gcd.tokens.distances import check_whole
from gcd.tokens.vocabulary import Ids, Vocabulary, as_ids

_PER_COLUMN = 1000  # units of work for a byte class of a set of states, in an interpreted loop


@dataclass(frozen=True, eq=False)
class Segment:
    """A segment is one part of an answer: its language, what ends it, and its limit of tokens.

    Attributes:
        language: the texts of the part, without what ends it.
        until: what ends the part. A text (`str` in UTF-8, or `bytes`), which does not occur before
            the end; or the id of a special token, one without bytes. None: the part ends where its
            language and the rest of the answer allow.
        tokens: most tokens that belong to the part, its `until` included, and EOS if it is the
            last one; None for no limit of its own. A token belongs to the part in which its first
            byte lies, whatever its last ones say; a special token to the part that it ends.

    Raises:
        ConstraintError: for an empty `until`, one that is neither text nor a token id, and a
            number of tokens that is not whole or below one.
    """

    language: Automaton
    _: KW_ONLY
    until: str | bytes | int | None = None
    tokens: int | None = None

    def __post_init__(self) -> None:
        if not isinstance(self.language, Automaton):
            raise ConstraintError(
                f"a segment's language is a gcd.Automaton, got {self.language!r}; "
                "gcd.anything() is free text"
            )
        if isinstance(self.until, bool) or not isinstance(self.until, str | bytes | int | None):
            raise ConstraintError(f"until is a text or the id of a token, got {self.until!r}")
        if isinstance(self.until, str) and any("\ud800" <= c <= "\udfff" for c in self.until):
            raise ConstraintError(
                f"until={self.until!r} holds a lone surrogate, which is not Unicode text; remove it"
            )
        if self.until in ("", b""):
            raise ConstraintError(
                "until is empty, so it would end every segment at once; give the text that ends "
                "the segment, or leave it out"
            )
        if self.tokens is not None:
            check_whole(self.tokens, "the tokens of a segment")
            if self.tokens < 1:
                raise ConstraintError(
                    f"a segment has at least one token, got tokens={self.tokens}; "
                    "leave the segment out, or its limit"
                )

    @property
    def special(self) -> int | None:
        """The id of the special token that ends the segment; None if none does."""
        return self.until if isinstance(self.until, int) else None

    @property
    def ending(self) -> bytes:
        """The bytes that end the segment; none if a special token does, or nothing."""
        until = self.until.encode() if isinstance(self.until, str) else self.until
        return until if isinstance(until, bytes) else b""

    @cached_property
    def text(self) -> Automaton:
        """The strings of the part: the language, and the text that ends it for the first time."""
        if not isinstance(self.until, str | bytes):
            return self.language
        end, anything = Automaton.literal(self.until), Automaton.any_bytes()
        found = anything + end
        return (self.language + end) & (
            found - (found + Automaton.byte_set(range(NUM_BYTES)) + anything)
        )

    def ends(self, symbols: Sequence[int], begin: int) -> Iterator[int]:
        """Yield where the part may end that begins here; special tokens are -1 minus their id."""
        text, state = self.text, 0
        for place, symbol in enumerate(symbols[begin:], begin):
            if self.special is None and text.accepting[state]:
                yield place
            if symbol < 0:
                if self.special == -1 - symbol and text.accepting[state]:
                    yield place + 1
                return
            state = int(text.delta[state, text.class_of_byte[symbol]])
            if state < 0:
                return
        if self.special is None and text.accepting[state]:
            yield len(symbols)


class SegmentStates(NamedTuple):
    """This is what reads the bytes of all segments, one after the other; see the module.

    Attributes:
        delta: row after (row, byte class), -1 for none. The first M rows are the M states of the
            segments; the others are sets of several of these.
        class_of_byte: class of each byte.
        segment: the segment of each state, counted from zero.
        after_special: the row after the special token that ends the state's segment, -1 where it
            may not end.
        accepting: whether the answer may end in a state.
        sets: the states of each row from M on, ascending.
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
        """Return the states that a row stands for."""
        num_states = self.segment.size
        return (row,) if row < num_states else self.sets[row - num_states]


@dataclass(frozen=True, eq=False)
class Segments:
    """Segments in the order in which an answer has them; made by `segments`, for `gcd.lift`."""

    parts: tuple[Segment, ...]

    @property
    def max_bytes(self) -> int | None:
        """The language is known for answers of at most so many bytes; None: for all."""
        known = [part.text.max_bytes for part in self.parts]
        return min((bound for bound in known if bound is not None), default=None)

    @property
    def caveats(self) -> tuple[Caveat, ...]:
        """Parts of the constraints that are not held in every answer."""
        return tuple(dict.fromkeys(caveat for part in self.parts for caveat in part.text.caveats))

    def shortest(self) -> bytes:
        """Return one of the shortest answers, without special tokens."""
        return b"".join(part.text.shortest() for part in self.parts)

    def name(self, index: int) -> str:
        """Return how messages call a segment."""
        until = self.parts[index].until
        return f"segment {index + 1} of {len(self.parts)}" + (
            "" if until is None else f" (until {until!r})"
        )

    def check(self, vocabulary: Vocabulary) -> None:
        """Refuse token ids that end a segment and are no special tokens; `ConstraintError`."""
        for index, part in enumerate(self.parts):
            token, name = part.special, self.name(index)
            if token is None:
                continue
            if not 0 <= token < vocabulary.size:
                raise ConstraintError(f"{name}: its token is none of the {vocabulary.size} ids")
            if token in vocabulary.eos_ids:
                raise ConstraintError(
                    f"{name}: token {token} ends the whole text; give another token, or a text"
                )
            if vocabulary.token_bytes[token]:
                raise ConstraintError(
                    f"{name}: token {token} has bytes, so other tokens may spell it too; give its "
                    f"text, until={vocabulary.token_bytes[token]!r}"
                )

    def split(self, tokens: Ids, vocabulary: Vocabulary) -> tuple[bytes, ...]:
        """Return the text of each segment of an answer, without what ends the segment.

        Args:
            tokens: the answer's ids, such as `Sample.ids`, and not its text, where special tokens
                do not show; what comes after EOS, such as padding, is not read.
            vocabulary: the tokens that it was written with.

        Returns:
            The texts; of several cuts that keep all limits, those of the one that ends its first
            segment first, then its second one, and so on.

        Raises:
            ConstraintError: if no cut into segments keeps all limits, or a token is no id.
        """
        symbols: list[int] = []  # bytes, and special tokens as numbers below zero
        begun = [0]  # how many tokens begin before each symbol
        for token in as_ids(tokens):
            if token in vocabulary.eos_ids:
                break
            if not 0 <= token < vocabulary.size:
                raise ConstraintError(f"token {token} is not one of the {vocabulary.size} ids")
            symbols += vocabulary.token_bytes[token] or (-1 - token,)
            begun += [begun[-1] + 1] * (len(symbols) + 1 - len(begun))
        last = len(self.parts) - 1

        @cache
        def cut(index: int, begin: int) -> tuple[int, ...] | None:
            """Return where the segments from one on end, the first of which begins here."""
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
                f"no cut of {text} into {len(self.parts)} segments keeps all of their limits"
            )
        texts = zip(self.parts, (0, *ends), ends, strict=False)
        return tuple(
            bytes(symbol for symbol in symbols[begin:end] if symbol >= 0).removesuffix(part.ending)
            for part, begin, end in texts
        )

    def states(self) -> SegmentStates:
        """Return the automaton that reads the bytes of all segments.

        Raises:
            StateLimitError, WorkLimitError: if ends are so ambiguous that it takes too many sets.
        """
        with metered():
            return _Joining(self.parts).states()


def segments(parts: Iterable[Segment]) -> Segments:
    """Return an answer's segments, one after the other, for `gcd.lift` to make an automaton of.

    Args:
        parts: the segments, such as
            `[gcd.Segment(gcd.anything(), until="</think>", tokens=200), gcd.Segment(schema)]`.

    Raises:
        ConstraintError: if there are none, or one of them is no `Segment`.
        EmptyLanguageError: if a segment has no text, for example because each one that it might
            have holds its `until` before the end.
    """
    check_kind(
        parts, Iterable, "segments() takes a list of segments", "give [gcd.Segment(...), ...]"
    )
    found = Segments(tuple(parts))
    if not found.parts:
        raise ConstraintError("segments() needs at least one segment, got none")
    for index, part in enumerate(found.parts):
        if not isinstance(part, Segment):
            raise ConstraintError(f"segments() takes gcd.Segment(...), got {part!r}")
        if part.text.is_empty:
            raise EmptyLanguageError(f"{found.name(index)} has no text: its language is empty")
    return found


class _Joining:
    """This is the subset construction over the states of all segments."""

    def __init__(self, parts: Sequence[Segment]) -> None:
        texts = [part.text for part in parts]
        self.class_of_byte, columns = joint_classes([text.class_of_byte for text in texts])
        # After the special token that ends a segment it has one more state, without bytes.
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
        # Where a segment may end, the next one may begin without a byte.
        reads = (own >= 0).any(axis=1) | (self.after_special >= 0)
        row_of = np.arange(self.size)
        begin: tuple[int, ...] = ()
        for index in range(len(parts) - 1, -1, -1):
            here = slice(first[index], first[index + 1])
            closed = {
                int(state): self._numbered({*begin, *([int(state)] if reads[state] else [])})
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

    def _numbered(self, states: set[int]) -> int:
        """Return the row of a set of states, a new one if need be."""
        members = tuple(sorted(states))
        if len(members) == 1:
            return members[0]
        if members not in self._number:
            if self.size + len(self.sets) >= max_states():
                raise StateLimitError(max_states(), "an answer whose segments end ambiguously")
            self._number[members] = self.size + len(self.sets)
            self.sets.append(members)
        return self._number[members]

    def states(self) -> SegmentStates:
        """Follow every set of states, and those that are found on the way."""
        rows = []
        for members in self.sets:  # which grows
            columns, inverse = np.unique(self.own[list(members)], axis=1, return_inverse=True)
            spend(_PER_COLUMN * columns.shape[1], "an answer whose segments end ambiguously")
            after = [
                self._numbered({m for row in column if row >= 0 for m in self.members(row)})
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

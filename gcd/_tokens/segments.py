"""Segments: consecutive parts of one answer, such as free text followed by structure.

"Think in at most 200 tokens, then write JSON" is a list of two segments. Each segment has a
language and, optionally, an end marker (`until`) and a token limit (`tokens`). `gcd.lift` compiles
the segments to one token automaton, and budgets, masks, matchers and samplers work with it as with
any other. The mask accounts for the tokens that the rest of the answer needs, so the structure
after the free text always fits.

An answer satisfies the segments if it can be split into one part per segment, in order (`Segment`
defines the parts; docs/languages.md has an example). There is at most one such split: each segment
but the last ends with `until`, or has a language in which no text is a prefix of another.

**Automaton over bytes.** It has the states of all segments. The state in which a segment ends is
the state in which the next one begins. The automaton is not minimized, because equal states of two
segments count for different limits.

**Token limits.** A state of the token automaton is a state of a segment, and the number of tokens
of this segment so far. A token belongs to the segment in which it begins. So from (state of segment
i, n) it leads to states of segment i with n + 1 tokens, if n + 1 is below the limit, and to states
of later segments with 0 tokens. A state with n tokens needs one more token of its segment, so n
never reaches the limit. Tokens of segments without a limit are not counted.

Cost: the states of all segments. A segment of S states with a limit of n tokens becomes at most n S
states, each with a row over the token classes. It is refused if the table would exceed
`gcd.state_limit` or the limit on entries.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import KW_ONLY, dataclass
from functools import cached_property
from itertools import zip_longest
from typing import NamedTuple

import numpy as np
from jaxtyping import Bool, Int32, Int64, UInt8

from gcd._arguments import Ids, as_ids, check_whole
from gcd._automata.automaton import Automaton
from gcd._automata.byte_classes import NUM_BYTES, joint_classes
from gcd._automata.horizon import Caveat
from gcd._automata.limits import max_cells, max_states, spend, work_left
from gcd._errors import (
    ConstraintError,
    EmptyLanguageError,
    InfeasibleBudgetError,
    StateLimitError,
    check_kind,
)
from gcd._readable import readable_bytes
from gcd._tokens.distances import UNREACHABLE, distances_to
from gcd._tokens.rows import Rows
from gcd._tokens.trimming import TokenTable, trim, with_final
from gcd._tokens.vocabulary import Vocabulary

_COUNTING = "counting the tokens of segments (lower `tokens`, or omit it where a segment is large)"


@dataclass(frozen=True, eq=False)
class Segment:
    """Part of an answer: its language, the text or token that ends it, and its token limit.

    Attributes:
        language: the texts of the part, without the end marker `until`.
        until: end marker: a text (`str` in UTF-8, or `bytes`), which ends the part at its first
            occurrence; or the id of a special token without bytes. None is for the last part of an
            answer, and for languages in which no text is a prefix of another.
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


class SegmentStates(NamedTuple):
    """Automaton over the bytes of all segments; see the module docstring."""

    delta: Int32[np.ndarray, "M K"]  # state after (state, byte class), -1 for none
    class_of_byte: UInt8[np.ndarray, "256"]  # class of each byte
    segment: Int32[np.ndarray, "M"]  # the segment of each state, counted from zero
    # The state after the special token that ends the state's segment; -1 if the segment can't end
    # with it in this state
    after_special: Int32[np.ndarray, "M"]
    accepting: Bool[np.ndarray, "M"]  # whether the answer may end in a state
    start: int  # the state in which an answer begins


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

    @property
    def specials(self) -> tuple[str, ...]:
        """Texts of the special tokens inside of segments (`Automaton.special`)."""
        return tuple(dict.fromkeys(text for part in self.parts for text in part.text.specials))

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
                    f"{name}: expected until=ID with a special token, got token {token}, whose "
                    "bytes other tokens may also spell; pass "
                    f"until={vocabulary.token_bytes[token]!r}"
                )

    def split(self, tokens: Ids, vocabulary: Vocabulary) -> tuple[bytes, ...]:
        """Return the text of each segment of an answer, without the end markers.

        Args:
            tokens: the answer's token ids, such as `Sample.ids`. (The text isn't enough, because it
                omits special tokens.) Ids after EOS, such as padding, are ignored.
            vocabulary: the vocabulary of the token ids.

        Returns:
            The texts.

        Raises:
            ConstraintError: if the answer doesn't satisfy the segments and their limits, or a token
                is out of range.
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
        texts, begin = [], 0
        for index, part in enumerate(self.parts):
            is_last = index == len(self.parts) - 1
            end = _end(part, symbols, begin)
            used = 0 if end is None else begun[end] - begun[begin] + is_last
            if (
                end is None
                or (is_last and end < len(symbols))
                or (part.tokens is not None and used > part.tokens)
            ):
                text = readable_bytes(bytes(symbol for symbol in symbols if symbol >= 0))
                raise ConstraintError(
                    f"expected an answer that splits into {len(self.parts)} segments within their "
                    f"limits, got {text}"
                )
            own = bytes(symbol for symbol in symbols[begin:end] if symbol >= 0)
            texts.append(own.removesuffix(part.ending))
            begin = end
        return tuple(texts)

    def states(self) -> SegmentStates:
        """Return the automaton over the bytes of all segments (`SegmentStates`)."""
        texts = [part.text for part in self.parts]
        class_of_byte, columns = joint_classes([text.class_of_byte for text in texts])
        first = np.cumsum([0, *(text.num_states for text in texts)])
        # The last state follows a special token that ends the last segment.
        size = int(first[-1]) + 1
        delta = np.full((size, int(class_of_byte.max()) + 1), -1, np.int32)
        after_special = np.full(size, -1, np.int32)
        accepting = np.arange(size) == size - 1
        begin = size - 1
        for index in range(len(texts) - 1, -1, -1):
            part, text = self.parts[index], texts[index]
            here = slice(first[index], first[index + 1])
            row_of = np.arange(here.start, here.stop, dtype=np.int32)
            if part.special is not None:
                after_special[here] = np.where(text.accepting, begin, -1)
            elif index == len(texts) - 1:
                accepting[here] = text.accepting
            else:
                row_of[text.accepting] = begin
            table = text.delta[:, columns[index]]
            delta[here] = np.where(table >= 0, row_of[table], -1)
            begin = int(row_of[0])
        segment = np.searchsorted(first[1:-1], np.arange(size), side="right").astype(np.int32)
        return SegmentStates(delta, class_of_byte, segment, after_special, accepting, begin)


def segments(parts: Iterable[Segment]) -> Segments:
    """Combine parts of an answer into one constraint for `gcd.lift`.

    Args:
        parts: the segments, such as
            `[gcd.Segment(gcd.anything(), until="</think>", tokens=200), gcd.Segment(schema)]`.

    Raises:
        ConstraintError: if there are no parts, one of them is not a `Segment`, or one before the
            last has no `until` and a text that is a prefix of another.
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
        shorter = shortest_prefix(part.text)
        if part.special is None and index < len(found.parts) - 1 and shorter is not None:
            raise ConstraintError(
                f"{found.name(index)}: expected an unambiguous end before the next segment, got "
                f"{shorter[:60]!r}, which is a prefix of another text; add `until`, a text or the "
                "id of a special token"
            )
    return found


def shortest_prefix(language: Automaton) -> bytes | None:
    """Return the shortest text of a language that is a prefix of another; None if there is none."""
    goes_on = language.accepting & (language.delta >= 0).any(axis=1)
    if not goes_on.any():
        return None
    return Automaton.minimal(language.delta, goes_on, language.class_of_byte).shortest()


def _end(part: Segment, symbols: Sequence[int], begin: int) -> int | None:
    """Return the last possible end of a part that starts at index `begin` of `symbols`."""
    text, state, found = part.text, 0, None
    for position, symbol in enumerate(symbols[begin:], begin):
        if part.special is None and text.accepting[state]:
            found = position
        if symbol < 0:
            ends = part.special == -1 - symbol and text.accepting[state]
            return position + 1 if ends else found
        state = int(text.delta[state, text.class_of_byte[symbol]])
        if state < 0:
            return found
    return len(symbols) if part.special is None and text.accepting[state] else found


def count_tokens(
    segments: Segments,
    states: SegmentStates,
    table: Int32[np.ndarray, "M C"],
    class_of: Int32[np.ndarray, "V"],
) -> TokenTable | None:
    """Return the token automaton's table of the answers that satisfy all limits."""
    table, class_of = _with_specials(segments, states, table, class_of)
    delta, class_of = with_final(table, states.accepting, class_of, "token")
    final = delta.shape[0] - 1
    alive = distances_to(final, Rows.of(delta).edges, final + 1) < UNREACHABLE
    if not alive[states.start]:
        return None
    delta[~alive[delta]] = -1
    segment = np.append(states.segment, len(segments.parts))  # the final state is one more segment
    limits = [*(part.tokens for part in segments.parts), None]
    layers = _layers(segments, limits, delta, segment, states.start)
    table, initial = _unroll(limits, delta, segment, layers, states.start)
    return trim(table, class_of, initial, merge=True)


def _with_specials(
    segments: Segments,
    states: SegmentStates,
    table: Int32[np.ndarray, "M C"],
    class_of: Int32[np.ndarray, "V"],
) -> tuple[Int32[np.ndarray, "M C2"], Int32[np.ndarray, "V"]]:
    """Return the table with a class for each special token that ends segments."""
    specials = [part.special for part in segments.parts]
    distinct = sorted({token for token in specials if token is not None})
    class_of = class_of.copy()
    added = np.full((states.segment.size, len(distinct)), -1, np.int32)
    for column, token in enumerate(distinct):
        class_of[token] = table.shape[1] + column
        theirs = np.array([special == token for special in specials])[states.segment]
        added[theirs, column] = states.after_special[theirs]
    return np.hstack([table, added]), class_of


def _layers(
    segments: Segments,
    limits: Sequence[int | None],
    delta: Int32[np.ndarray, "M C"],
    segment: Int64[np.ndarray, "M"],
    start: int,
) -> list[list[Int64[np.ndarray, "_"]]]:
    """Return, for each segment, its states after 0, 1, ... of its tokens; all, if not limited."""
    num_rows, found = 0, []
    reached = np.arange(segment.size + 1) == start  # the last element is for -1
    for index, limit in enumerate(limits):
        here, later = np.append(segment == index, False), np.append(segment > index, False)
        layers: list[np.ndarray] = []
        layer = reached & here
        # If the limit is too low, continue until the segment can end, for the message.
        while layer.any() and (limit is None or len(layers) < limit or not (reached & later).any()):
            layers.append(np.flatnonzero(layer))
            num_rows += layers[-1].size
            if num_rows > max_states():
                raise StateLimitError(max_states(), _COUNTING)
            if num_rows * delta.shape[1] > max_cells():
                spend(work_left() + 1, _COUNTING)
            after = np.zeros_like(reached)
            after[delta[layers[-1]]] = True
            fresh = after & ~reached
            reached |= after
            layer = here & (after if limit is not None and len(layers) < limit else fresh)
        if limit is not None and len(layers) > limit:
            counted = "what ends it included" if index < len(limits) - 2 else "EOS included"
            raise InfeasibleBudgetError(len(layers), limit, segments.name(index), counted)
        found.append([np.flatnonzero(reached & here)] if limit is None else layers)
    return found


def _unroll(
    limits: Sequence[int | None],
    delta: Int32[np.ndarray, "M C"],
    segment: Int64[np.ndarray, "M"],
    layers: list[list[Int64[np.ndarray, "_"]]],
    start: int,
) -> tuple[Int32[np.ndarray, "N C"], int]:
    """Return the transition table over the states of all layers in order, and the initial state."""
    begin = np.full(segment.size + 1, -1, np.int32)  # number of each state after 0 tokens
    size = 0
    for own in layers:
        if own:
            begin[own[0]] = size + np.arange(own[0].size)
        size += sum(states.size for states in own)
    table, size = np.empty((size, delta.shape[1]), np.int32), 0
    for index, (limit, own) in enumerate(zip(limits, layers, strict=True)):
        number = begin.copy()
        for states, following in zip_longest(own, own[1:], fillvalue=np.arange(0)):
            rows = slice(size, size := size + states.size)
            if limit is not None:
                number[:-1][segment == index] = -1
                number[following] = size + np.arange(following.size)
            table[rows] = number[delta[states]]
    return table, int(begin[start])

"""Infilling writes the text between a given beginning and a given end.

The whole text is `before`, then a text of the middle's language, then `after`: an automaton as any
other, so tokens may straddle both borders. What needs care is the prompt. A model reads `before` as
a prompt, in the tokenizer's own spelling, and a prompt that ends in the middle of a token which the
model would have written (`http:`, then `//`) excludes that token for good. **Token healing** cuts
the prompt back to a boundary that no token can straddle: with T the prompt's text, the cut i is the
last end of a token of the prompt such that

    no token that begins at a byte j < i of T goes on, past i, with what may follow there.

So every spelling of T, middle and `after` together, whatever its tokens, has a boundary at i, and
is one spelling of T[:i] followed by one of the rest. The prompt keeps its own spelling of T[:i];
the rest, T[i:] included, is what the model has to write, in all of its spellings. Nothing is lost
but other spellings of what every prompt has in one alone. Where text begins behind a special token
or at the very beginning, no token straddles, so a cut exists.

Cost: a set and a sorted list of the vocabulary, and for each byte near the end as many look-ups as
the longest token has bytes.

Sources: Ctrl-G (arXiv 2406.13892) for infilling by automata, arXiv 2603.01243 for suffixes. Token
healing is folklore, first published with the guidance library.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cache, cached_property
from itertools import accumulate

from gcd.automata.automaton import Automaton
from gcd.errors import ConstraintError, EmptyLanguageError, check_kind
from gcd.languages.literal import encodable
from gcd.languages.text.texts import anything
from gcd.readable import readable_bytes
from gcd.tokens.vocabulary import Vocabulary, as_ids


@dataclass(frozen=True, eq=False)
class Infill:
    """A text whose beginning and end are given; made by `infill`.

    Attributes:
        before: the beginning.
        after: the end.
        middle: the texts that may stand between them.
    """

    before: bytes
    after: bytes
    middle: Automaton

    @cached_property
    def language(self) -> Automaton:
        """The whole texts: `before`, a text of the middle, `after`; for `gcd.lift`.

        Raises:
            StateLimitError, WorkLimitError: the end takes too many states, as the middle may hold
                long beginnings of it.
        """
        parts = [Automaton.literal(self.before), self.middle, Automaton.literal(self.after)]
        whole = Automaton.concatenate(parts)
        if self.middle.max_bytes is None:
            return whole
        # What is known of the middle is known behind the beginning, too.
        given = len(self.before) + len(self.after)
        return replace(whole, max_bytes=self.middle.max_bytes + given)

    def heal(self, prompt: Sequence[int], vocabulary: Vocabulary) -> tuple[tuple[int, ...], Infill]:
        """Cut a prompt back to where no token straddles its end; see the module.

        Args:
            prompt: token ids, such as `lm.encode(instruction + before)`. Their text has to end with
                `before`; it may begin with whatever the model should read first.
            vocabulary: the model's tokens.

        Returns:
            The ids that the model reads (a beginning of the prompt, none if it begins with text and
            has no such boundary), and the infilling of what it has to write then: its `before` is
            the rest of the prompt's text.

        Raises:
            ConstraintError: the prompt's text does not end with `before`, or an id is none of the
                vocabulary's.
        """
        check_kind(
            vocabulary,
            Vocabulary,
            "heal() takes a gcd.Vocabulary",
            "give that of the language model, lm.vocabulary",
        )
        ids = as_ids(prompt)
        wrong = next((token for token in ids if not 0 <= token < vocabulary.size), None)
        if wrong is not None:
            raise ConstraintError(
                f"the prompt has token {wrong}, which is not one of the {vocabulary.size} ids"
            )
        spelled = [vocabulary.token_bytes[token] for token in ids]
        # Behind the last id without bytes, a special token, which other tokens cannot straddle.
        begin = max((i + 1 for i, token in enumerate(spelled) if not token), default=0)
        text = b"".join(spelled[begin:])
        if not text.endswith(self.before):
            raise ConstraintError(
                f"the text of the prompt ends with {readable_bytes(text[-len(self.before) :])}, "
                f"not with {readable_bytes(self.before)}; encode a text that ends with `before`, "
                "without special tokens behind it"
            )
        reach = _reach(text, self._rest, vocabulary)
        longest = max(map(len, vocabulary.token_bytes))
        ends = list(accumulate(map(len, spelled[begin:]), initial=0))
        kept = next(
            kept
            for kept, end in reversed(list(enumerate(ends)))
            if all(reach(start) <= end for start in range(max(0, end - longest + 1), end))
        )
        return ids[: begin + kept], replace(self, before=text[ends[kept] :])

    def middle_of(self, text: str | bytes) -> bytes:
        """Return what stands between beginning and end in a text of the language.

        Raises:
            ConstraintError: the text does not begin with `before` and end with `after`.
        """
        whole = text.encode() if isinstance(text, str) else bytes(text)
        start, end = len(self.before), len(whole) - len(self.after)
        if start > end or not (whole.startswith(self.before) and whole.endswith(self.after)):
            raise ConstraintError(
                f"{readable_bytes(whole)} does not begin with {readable_bytes(self.before)} and "
                f"end with {readable_bytes(self.after)}; give an answer to the infilling that "
                "heal() returned, which writes the end of the prompt again"
            )
        return whole[start:end]

    @cached_property
    def _rest(self) -> Automaton:
        """What may follow the prompt's text."""
        return replace(self, before=b"").language


def infill(before: str | bytes, after: str | bytes, middle: Automaton | None = None) -> Infill:
    """Return the infilling of what is missing between a given beginning and a given end.

    Args:
        before: the beginning; a `str` is encoded as UTF-8.
        after: the end. The text ends behind it, with a token that ends a text.
        middle: the texts that may stand between them; None for free text, `gcd.anything()`.

    Raises:
        ConstraintError: `before` or `after` is no text, or `middle` no language (segments are
            refused, as the limits of their tokens would count what is given as well).
        EmptyLanguageError: the middle's language is empty.
    """
    if middle is None:
        middle = anything()
    check_kind(middle, Automaton, "the middle is a gcd.Automaton", "gcd.regex and others make one")
    if middle.is_empty:
        raise EmptyLanguageError("no text can stand in the middle: its language is empty")
    return Infill(_bytes("before", before), _bytes("after", after), middle)


def _bytes(name: str, text: str | bytes) -> bytes:
    check_kind(text, (str, bytes), f"{name} is a text", "give a str, or bytes")
    return encodable(text).encode() if isinstance(text, str) else text


def _reach(text: bytes, rest: Automaton, vocabulary: Vocabulary) -> Callable[[int], int]:
    """Say how far a token may reach that begins at a byte of the text; one byte beyond its end
    stands for anything beyond.
    """
    tokens = sorted(set(vocabulary.token_bytes) - {b""})
    known, longest = set(tokens), max(map(len, tokens), default=0)

    @cache
    def reach(start: int) -> int:
        ahead = text[start : start + longest]
        if start + longest > len(text):
            place = bisect_left(tokens, ahead)
            while place < len(tokens) and tokens[place].startswith(ahead):
                token = tokens[place]
                if len(token) > len(ahead) and rest.run(token[len(ahead) :]) >= 0:
                    return len(text) + 1
                place += 1
        whole = (n for n in range(len(ahead), 0, -1) if ahead[:n] in known)
        return start + next(whole, 0)

    return reach

"""Infilling: generate the text between a given beginning and a given end.

The whole text is `before`, then a text of the middle's language, then `after`. It is compiled as
one language, so tokens may cross both ends of the middle. The difficulty is the prompt. A model
receives `before` as a prompt in the tokenizer's own tokenization. The prompt may end in the middle
of a token that the model would have generated. For example, it ends with `http:`, but the model
would have generated `://` as one token, which is no longer possible. **Token healing** shortens the
prompt to a boundary that no token can cross. Let T be the text of the prompt. The boundary i is the
last end of a prompt token such that

    no token that begins at a byte j < i of T extends past i, given what may follow T.

So every tokenization of T, the middle and `after` together has a token boundary at i. It is a
tokenization of T[:i] followed by a tokenization of the rest. The prompt keeps its own tokenization
of T[:i]. The model generates everything after it, starting with T[i:], and may use any
tokenization. Only other tokenizations of the fixed prompt T[:i] are excluded, as with every prompt.
Such a boundary always exists: no token crosses the beginning of the text, or the end of a special
token.

Cost: sorting the vocabulary, and for each byte near the end of T, as many look-ups as the longest
token has bytes.

Sources: Ctrl-G (arXiv 2406.13892) for infilling by automata, arXiv 2603.01243 for suffixes. Token
healing was first published with the guidance library.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cache, cached_property
from itertools import accumulate

from gcd._arguments import as_ids
from gcd._automata.automaton import Automaton
from gcd._errors import ConstraintError, EmptyLanguageError, check_kind
from gcd._languages.literal import encodable
from gcd._languages.text.code_points import anything
from gcd._readable import readable_bytes
from gcd._tokens.vocabulary import Vocabulary


@dataclass(frozen=True, eq=False)
class Infill:
    """Constraint on the text between a given beginning and a given end; made by `gcd.infill`.

    Attributes:
        before: the beginning.
        after: the end.
        middle: the language of the text between `before` and `after`.
    """

    before: bytes
    after: bytes
    middle: Automaton

    @cached_property
    def language(self) -> Automaton:
        """Language of the whole texts (`before`, middle, `after`), for `gcd.lift`.

        Raises:
            StateLimitError, WorkLimitError: the automaton needs too many states. This happens if
                the middle may contain long beginnings of `after`.
        """
        parts = [Automaton.literal(self.before), self.middle, Automaton.literal(self.after)]
        whole = Automaton.concatenate(parts)
        if self.middle.max_bytes is None:
            return whole
        # The whole text is as long as the middle plus the two given parts.
        given = len(self.before) + len(self.after)
        return replace(whole, max_bytes=self.middle.max_bytes + given)

    def heal(self, prompt: Sequence[int], vocabulary: Vocabulary) -> tuple[tuple[int, ...], Infill]:
        """Shorten a prompt to a boundary that no token can cross, as the module docstring explains.

        Args:
            prompt: token ids, such as `lm.encode(instruction + before)`. Their text must end with
                `before`, and may begin with any other text.
            vocabulary: the model's tokens.

        Returns:
            The token ids of the shortened prompt, and the infilling that the model then has to
            generate. The `before` of that infilling is the text that was removed from the prompt.
            The ids are empty if the only such boundary is the beginning of the text.

        Raises:
            ConstraintError: the prompt's text does not end with `before`, or a token id is outside
                the vocabulary.
        """
        check_kind(
            vocabulary,
            Vocabulary,
            "a gcd.Vocabulary for heal()",
            "pass the language model's, lm.vocabulary",
        )
        ids = as_ids(prompt)
        wrong = next((token for token in ids if not 0 <= token < vocabulary.size), None)
        if wrong is not None:
            raise ConstraintError(
                f"expected token ids of the prompt in 0..{vocabulary.size - 1}, got {wrong}; "
                "encode the prompt with this vocabulary's tokenizer"
            )
        spelled = [vocabulary.token_bytes[token] for token in ids]
        # Start after the last special token, which has no bytes: other tokens cannot cross it.
        begin = max((i + 1 for i, token in enumerate(spelled) if not token), default=0)
        text = b"".join(spelled[begin:])
        if not text.endswith(self.before):
            raise ConstraintError(
                f"expected a prompt whose text ends with {readable_bytes(self.before)}, got "
                f"{readable_bytes(text[-len(self.before) :])} at its end; encode a text that ends "
                "with `before`, without special tokens after it"
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
        """Return the middle of a text that begins with `before` and ends with `after`.

        Raises:
            ConstraintError: the text does not begin with `before` and end with `after`.
        """
        whole = text.encode() if isinstance(text, str) else bytes(text)
        start, end = len(self.before), len(whole) - len(self.after)
        if start > end or not (whole.startswith(self.before) and whole.endswith(self.after)):
            raise ConstraintError(
                f"expected a text that begins with {readable_bytes(self.before)} and ends with "
                f"{readable_bytes(self.after)}, got {readable_bytes(whole)}; pass an answer to the "
                "infilling that heal() returned, which repeats the end of the prompt"
            )
        return whole[start:end]

    @cached_property
    def _rest(self) -> Automaton:
        """Language of the texts that may follow the prompt."""
        return replace(self, before=b"").language


def infill(before: str | bytes, after: str | bytes, middle: Automaton | None = None) -> Infill:
    """Return the constraint that fills in the text between a given beginning and a given end.

    Args:
        before: the beginning; a `str` is encoded as UTF-8.
        after: the end, followed by EOS.
        middle: the language of the text between them; None for any text, `gcd.anything()`.

    Raises:
        ConstraintError: `before` or `after` is not a text, or `middle` is not an automaton. A
            `gcd.Segments` is also refused, because its token limits would count the tokens of
            `before` and `after`.
        EmptyLanguageError: the middle's language is empty.
    """
    if middle is None:
        middle = anything()
    check_kind(middle, Automaton, "the middle as a gcd.Automaton", "make one with gcd.regex")
    if middle.is_empty:
        raise EmptyLanguageError(
            "expected a middle with at least one text, got an empty language; change the middle"
        )
    return Infill(_bytes("before", before), _bytes("after", after), middle)


def _bytes(name: str, text: str | bytes) -> bytes:
    check_kind(text, (str, bytes), f"{name} to be a text", "pass a str or bytes")
    return encodable(text).encode() if isinstance(text, str) else text


def _reach(text: bytes, rest: Automaton, vocabulary: Vocabulary) -> Callable[[int], int]:
    """Return a function from an index in `text` to the farthest end of a token that starts there.

    A token must agree with the bytes of `text`. If it extends past the end of `text`, its
    remaining bytes must begin a string of `rest`, and the function returns `len(text) + 1`.
    """
    tokens = sorted(set(vocabulary.token_bytes) - {b""})
    known, longest = set(tokens), max(map(len, tokens), default=0)

    @cache
    def reach(start: int) -> int:
        ahead = text[start : start + longest]
        if start + longest > len(text):
            index = bisect_left(tokens, ahead)
            while index < len(tokens) and tokens[index].startswith(ahead):
                token = tokens[index]
                if len(token) > len(ahead) and rest.run(token[len(ahead) :]) >= 0:
                    return len(text) + 1
                index += 1
        whole = (n for n in range(len(ahead), 0, -1) if ahead[:n] in known)
        return start + next(whole, 0)

    return reach

"""Drafters: guesses of the next token, so that the language model can compute it in advance.

The sampler checks the guesses (`smc._forward.read_ahead`): a guess never changes an answer or a
weight, only the number of forward passes.

`PromptLookup` copies: it looks up the end of the answer in the prompt and in the answer so far, and
guesses the text that followed there. Values of tool calls and words of a question often come from
the prompt. It compares bytes instead of tokens, because the same word has different tokens after a
space and after a quotation mark (speculative decoding by prompt lookup, Saxena 2023, compares
tokens).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Protocol, runtime_checkable

from gcd import Vocabulary

MOST_PLACES = 64
"""Maximum number of earlier occurrences of a text's end to check; there may be thousands."""


@runtime_checkable
class Drafter(Protocol):
    """Function object that guesses the next token of texts, for reading ahead."""

    def propose(self, texts: Sequence[bytes], vocabulary: Vocabulary) -> Sequence[Sequence[int]]:
        """Return guesses of the next token of each text, the most probable first.

        Args:
            texts: prompt and answer so far, as bytes.
            vocabulary: vocabulary of the language model.

        Returns:
            Token ids for each text; an empty list for no guess. The sampler uses the first token
            that the constraint and the budget allow.
        """
        ...


@dataclass(frozen=True)
class PromptLookup:
    """Drafter that looks up the end of a text earlier in the text, and copies what follows.

    Args:
        longest: maximum number of bytes to look up.
        shortest: minimum number of bytes that must match.
    """

    longest: int = 24
    shortest: int = 3

    def propose(self, texts: Sequence[bytes], vocabulary: Vocabulary) -> list[list[int]]:
        """Return tokens that followed an earlier occurrence of each text's end."""
        by_bytes, longest_token = _ids_by_bytes(vocabulary)
        found = []
        for text in texts:
            start = self.copied_from(text)
            ahead = b"" if start is None else text[start : start + longest_token]
            pieces = (ahead[:size] for size in range(len(ahead), 0, -1))
            found.append([token for piece in pieces for token in by_bytes.get(piece, ())])
        return found

    def copied_from(self, text: bytes) -> int | None:
        """Find the text that follows the longest match of this text's end; None if there is none.

        Of several matches, the last one is used. If the matched end begins a word, the last match
        that also begins a word is preferred, among at most `MOST_PLACES` matches.
        """
        size, place = 0, -1
        while size < min(self.longest, len(text) - 1):
            earlier = text.rfind(text[-size - 1 :], 0, len(text) - 1)
            if earlier < 0:
                break
            size, place = size + 1, earlier
        if size < max(1, self.shortest):
            return None
        if _begins_word(text, len(text) - size):
            other = place
            for _ in range(MOST_PLACES):
                if other < 0:
                    break
                if _begins_word(text, other):
                    place = other
                    break
                other = text.rfind(text[-size:], 0, other + size - 1)
        return place + size


def _begins_word(text: bytes, place: int) -> bool:
    """Return whether neither a letter nor a digit precedes this position."""
    return place == 0 or not (text[place - 1 : place].isalnum() or text[place - 1] > 127)


@lru_cache(maxsize=4)
def _ids_by_bytes(vocabulary: Vocabulary) -> tuple[Mapping[bytes, Sequence[int]], int]:
    """List the tokens of all byte strings; also return the length of the longest string."""
    found: dict[bytes, list[int]] = defaultdict(list)
    for token, piece in enumerate(vocabulary.token_bytes):
        if piece:
            found[bytes(piece)].append(token)
    return dict(found), max(map(len, found), default=0)

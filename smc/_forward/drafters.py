"""Drafters: guesses of next tokens, which the language model then computes in advance.

The sampler checks each guess (`smc._forward.read_ahead`). A guess never changes an answer or a
weight, only the number of forward passes.

`PromptLookup` searches the prompt and the answer so far for an earlier occurrence of the answer's
end, and guesses the text that followed there. Values of tool calls and words of a question often
come from the prompt. `PromptLookup` compares bytes instead of tokens, because the same word has
different tokens after a space and after a quotation mark. (Speculative decoding by prompt lookup,
Saxena 2023, compares tokens.)
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Protocol, runtime_checkable

from gcd import Vocabulary

MOST_PLACES = 64
"""Maximum number of earlier occurrences of a text's end that are checked.

There may be thousands of them.
"""


@runtime_checkable
class Drafter(Protocol):
    """Protocol of objects that guess the next token of texts, for reading ahead."""

    def propose(self, texts: Sequence[bytes], vocabulary: Vocabulary) -> Sequence[Sequence[int]]:
        """Return guesses of the next token of each text, the most probable guess first.

        Args:
            texts: prompt and answer so far, as bytes.
            vocabulary: vocabulary of the language model.

        Returns:
            Token ids for each text; an empty list if there is no guess. The sampler uses the first
            token that the constraint and the budget allow.
        """
        ...


@dataclass(frozen=True)
class PromptLookup:
    """Drafter that finds the end of a text earlier in the text, and copies what follows it there.

    Args:
        longest: maximum number of bytes of the end to search for.
        shortest: minimum number of bytes that must match.
    """

    longest: int = 24
    shortest: int = 3

    def propose(self, texts: Sequence[bytes], vocabulary: Vocabulary) -> list[list[int]]:
        """Return the tokens that followed an earlier occurrence of each text's end."""
        by_bytes, longest_token = _ids_by_bytes(vocabulary)
        found = []
        for text in texts:
            start = self.copied_from(text)
            ahead = b"" if start is None else text[start : start + longest_token]
            pieces = (ahead[:size] for size in range(len(ahead), 0, -1))
            found.append([token for piece in pieces for token in by_bytes.get(piece, ())])
        return found

    def copied_from(self, text: bytes) -> int | None:
        """Find the longest end of the text that also occurs earlier in the text.

        Returns:
            The index after the last earlier occurrence of this end; None if no end of at least
            `shortest` bytes occurs earlier. If the end begins a word, the last occurrence that also
            begins a word is preferred, among at most `MOST_PLACES` occurrences.
        """
        size, position = 0, -1
        while size < min(self.longest, len(text) - 1):
            earlier = text.rfind(text[-size - 1 :], 0, len(text) - 1)
            if earlier < 0:
                break
            size, position = size + 1, earlier
        if size < max(1, self.shortest):
            return None
        if _begins_word(text, len(text) - size):
            other = position
            for _ in range(MOST_PLACES):
                if other < 0:
                    break
                if _begins_word(text, other):
                    position = other
                    break
                other = text.rfind(text[-size:], 0, other + size - 1)
        return position + size


def _begins_word(text: bytes, position: int) -> bool:
    """Return whether a word may begin at an index: no letter or digit precedes it."""
    return position == 0 or not (
        text[position - 1 : position].isalnum() or text[position - 1] > 127
    )


@lru_cache(maxsize=4)
def _ids_by_bytes(vocabulary: Vocabulary) -> tuple[Mapping[bytes, Sequence[int]], int]:
    """Return the tokens of each byte string, and the length in bytes of the longest token."""
    found: dict[bytes, list[int]] = defaultdict(list)
    for token, piece in enumerate(vocabulary.token_bytes):
        if piece:
            found[bytes(piece)].append(token)
    return dict(found), max(map(len, found), default=0)

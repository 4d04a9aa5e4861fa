"""A drafter guesses which token comes next, so that the language model can read it in advance.

Whether a guess was right is for the sampler to find out (`smc.read_ahead`): a guess changes no
answer and no weight, only how many forward passes they take.

`PromptLookup` copies: what has been written in an answer is looked up in the prompt and in the
answer so far, and goes on as it went on there. Values of tool calls and words of a question come
from the prompt. It compares bytes and not tokens, as the same word is other tokens behind a space
than behind a quotation mark (speculative decoding by prompt look-up, Saxena 2023, compares tokens).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Protocol, runtime_checkable

from gcd.tokens.vocabulary import Vocabulary

MOST_PLACES = 64
"""Most earlier places of the end of a text that are looked at; there may be thousands."""


@runtime_checkable
class Drafter(Protocol):
    """Guesses the next token of texts."""

    def propose(self, texts: Sequence[bytes], vocabulary: Vocabulary) -> Sequence[Sequence[int]]:
        """Return guesses of the next token of each text, the likeliest first.

        Args:
            texts: prompt and answer so far, as bytes.
            vocabulary: of the language model.

        Returns:
            Token ids for each text; none where nothing can be guessed. The first one that the
            constraint allows within the budget is taken.
        """
        ...


@dataclass(frozen=True)
class PromptLookup:
    """Copies from where the end of a text occurred before.

    Args:
        longest: bytes at the end of a text that are looked up, at most.
        shortest: fewest bytes that must have occurred before.
    """

    longest: int = 24
    shortest: int = 3

    def propose(self, texts: Sequence[bytes], vocabulary: Vocabulary) -> list[list[int]]:
        """Return tokens with which the text went on where its end occurred before."""
        by_bytes, longest_token = _ids_by_bytes(vocabulary)
        found = []
        for text in texts:
            start = self.copied_from(text)
            ahead = b"" if start is None else text[start : start + longest_token]
            pieces = (ahead[:size] for size in range(len(ahead), 0, -1))
            found.append([token for piece in pieces for token in by_bytes.get(piece, ())])
        return found

    def copied_from(self, text: bytes) -> int | None:
        """Find what follows the longest end of a text that occurred before; None for no such end.

        Of several places the last one is taken. If this end of the text begins a word, the last
        place where it begins a word as well is preferred. At most `MOST_PLACES` are looked at.
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
    """Tell whether no letter and no digit stands before this place."""
    return place == 0 or not (text[place - 1 : place].isalnum() or text[place - 1] > 127)


@lru_cache(maxsize=4)
def _ids_by_bytes(vocabulary: Vocabulary) -> tuple[Mapping[bytes, Sequence[int]], int]:
    """List the tokens of all byte strings; also return the length of the longest string."""
    found: dict[bytes, list[int]] = defaultdict(list)
    for token, piece in enumerate(vocabulary.token_bytes):
        if piece:
            found[bytes(piece)].append(token)
    return dict(found), max(map(len, found), default=0)

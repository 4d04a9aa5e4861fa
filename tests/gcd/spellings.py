"""Spellings of a text by a small vocabulary, by plain enumeration."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import gcd

# Overlapping tokens, an id without bytes that begins prompts, and EOS.
EXTRA = ["ab", "ba", "abb", "bab", "bbb", "aba"]


def vocabulary_of(extra: Sequence[str]) -> gcd.Vocabulary:
    """Make a vocabulary of the letters a and b, more tokens, and two special ids."""
    tokens = [b"a", b"b", *(each.encode() for each in extra), b"", b""]
    return gcd.Vocabulary.from_bytes(tokens, len(tokens) - 1)


def spellings(text: bytes, vocabulary: gcd.Vocabulary) -> Iterator[tuple[int, ...]]:
    """Yield all token sequences with these bytes, by plain enumeration."""
    if not text:
        yield ()
    for token, spelled in enumerate(vocabulary.token_bytes):
        if spelled and text.startswith(spelled):
            for rest in spellings(text[len(spelled) :], vocabulary):
                yield (token, *rest)

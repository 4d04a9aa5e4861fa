"""Splits of token sequences into segments, by plain enumeration."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from functools import lru_cache

import gcd
from gcd import Segment, Segments
from tests.gcd.oracles import strings

Symbols = tuple[int, ...]
"""Bytes, and special tokens as 1000 plus their id."""


def marked(ids: tuple[int, ...], vocabulary: gcd.Vocabulary) -> tuple[Symbols, list[bool]]:
    """Return the symbols of a sequence, and which of them begin a token."""
    symbols: list[int] = []
    begins: list[bool] = []
    for token in ids:
        string = vocabulary.token_bytes[token]
        symbols += string or [1000 + token]
        begins += [True] + [False] * (len(string) - 1)
    return tuple(symbols), begins


@lru_cache(1 << 14)
def is_part(part: Segment, symbols: Symbols) -> bool:
    """Return whether a part of an answer satisfies this segment, apart from its limit."""
    if isinstance(part.until, int):
        if not symbols or symbols[-1] != 1000 + part.until:
            return False
        symbols = symbols[:-1]
    if max(symbols, default=0) >= 1000:
        return False
    text = bytes(symbols)
    if isinstance(part.until, str | bytes):
        end = part.until.encode() if isinstance(part.until, str) else part.until
        if text.find(end) != len(text) - len(end) or len(text) < len(end):
            return False
        text = text[: -len(end)]
    return part.language.accepts(text)


def cuts(
    parts: tuple[Segment, ...], ids: tuple[int, ...], vocabulary: gcd.Vocabulary
) -> Iterator[list[int]]:
    """Yield the ends of the parts for all valid splits of a sequence, without EOS."""
    symbols, begins = marked(ids, vocabulary)
    size = len(symbols)
    for inner in itertools.combinations_with_replacement(range(size + 1), len(parts) - 1):
        bounds = [0, *inner, size]
        for index, part in enumerate(parts):
            begin, end = bounds[index : index + 2]
            used = sum(begins[begin:end]) + (index == len(parts) - 1)
            if part.tokens is not None and used > part.tokens:
                break
            if not is_part(part, symbols[begin:end]):
                break
        else:
            yield bounds[1:]


def truth(plan: Segments, vocabulary: gcd.Vocabulary, most: int) -> set[tuple[int, ...]]:
    """Return all sequences of at most `most` tokens, without EOS, that satisfy the segments."""
    usable = [t for t, text in enumerate(vocabulary.token_bytes) if text]
    usable += {part.until for part in plan.parts if isinstance(part.until, int)}
    return {ids for ids in strings(usable, most) if any(cuts(plan.parts, ids, vocabulary))}

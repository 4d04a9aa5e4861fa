"""Spelling: the fewest tokens that write a text under a constraint.

A tokenizer's own spelling of a text may be one that the constraint does not allow at this place (it
may join the text with what came before), and costs more tokens than need be. Here the shortest way
is found breadth first, over pairs of a position in the text and a state of the automaton.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from gcd.serving.matcher import Matcher
from gcd.tokens.trie import Trie


def fewest_tokens(matcher: Matcher, text: bytes) -> list[int] | None:
    """Return the fewest tokens that spell a text and are allowed from here on; None if none are.

    The matcher stays where it is. O(len(text)) states at most, where the state depends on the text
    alone, as it does unless `gcd.lift` was told to keep canonical spellings only.
    """
    trie = matcher.automaton.vocabulary.trie
    ways: list[tuple[int, Matcher, list[int]]] = [(0, matcher, [])]
    seen = {(0, matcher.is_exact, matcher.state)}
    for position, here, tokens in ways:  # grows as it is read: breadth first
        if position == len(text):
            return tokens
        for end, token in _prefixes(trie, text, position):
            after = here.copy()
            if not after.advance(token):
                continue
            place = (end, after.is_exact, after.state)  # the two forms number states differently
            if place not in seen:
                seen.add(place)
                ways.append((end, after, [*tokens, token]))
    return None


def _prefixes(trie: Trie, text: bytes, position: int) -> Iterator[tuple[int, int]]:
    """The tokens that the text has at a position, the shortest first, and where each ends."""
    node, depth = 0, 0
    while node < trie.num_nodes and trie.depth[node] == depth and position + depth < len(text):
        if trie.byte[node] != text[position + depth]:
            node = int(trie.skip[node])
            continue
        depth += 1
        if trie.entry[node] >= 0:
            for token in np.flatnonzero(trie.entry_of_token == trie.entry[node]).tolist():
                yield position + depth, token
        node += 1

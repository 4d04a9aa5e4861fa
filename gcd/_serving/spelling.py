"""Spelling of a text with the fewest tokens under a constraint.

A tokenizer's own spelling of a text may not be allowed here (it may merge the text with what came
before), and may take more tokens than necessary. The shortest spelling is found by breadth-first
search over pairs of a position in the text and a state of the automaton.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from gcd._serving.matcher import Matcher
from gcd._tokens.trie import Trie


def fewest_tokens(matcher: Matcher, text: bytes) -> list[int] | None:
    """Return the fewest allowed tokens that spell a text; None if no tokens do.

    The matcher doesn't change. O(len(text)) states at most, if the state depends only on the text,
    which is the case unless `gcd.lift` was called with canonical spellings.
    """
    trie = matcher.automaton.vocabulary.trie
    ways: list[tuple[int, Matcher, list[int]]] = [(0, matcher, [])]
    seen = {(0, matcher.is_exact, matcher.state)}
    for position, here, tokens in ways:  # grows during the loop: breadth first
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
    """Yield the tokens that begin at a position of the text, shortest first, and their ends."""
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

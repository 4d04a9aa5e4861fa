"""Spelling of a text with the fewest tokens under a constraint.

The tokenizer's own tokens of a text may not be allowed (because the tokenizer may merge the text
with the preceding text), and may be more than necessary. The shortest spelling is found by
breadth-first search over pairs of a position in the text and a state of the automaton.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from gcd._serving.matcher import Matcher
from gcd._tokens.trie import Trie


def fewest_tokens(matcher: Matcher, text: bytes) -> list[int] | None:
    """Return the fewest allowed tokens that spell a text; None if it can't be spelled.

    The matcher doesn't change. The search visits O(len(text)) states if the state only depends on
    the text. This holds unless the constraint was lifted with `literals="canonical"`.
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
            key = (end, after.is_exact, after.state)  # the lazy form numbers states differently
            if key not in seen:
                seen.add(key)
                ways.append((end, after, [*tokens, token]))
    return None


def _prefixes(trie: Trie, text: bytes, position: int) -> Iterator[tuple[int, int]]:
    """Yield (end, token) for each token that the text has at `position`, the shortest first."""
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

"""The prefix tree: its arrays spell exactly the vocabulary, in preorder."""

from __future__ import annotations

import numpy as np
from hypothesis import example, given, settings
from hypothesis import strategies as st

from gcd._tokens.trie import Trie

_TOKENS = st.lists(st.binary(max_size=4), max_size=12)


def _spelled(trie: Trie) -> dict[int, bytes]:
    """The byte string of every entry, read off the path from the root."""
    path = bytearray()
    found = {}
    for node in range(trie.num_nodes):
        del path[trie.depth[node] :]
        path.append(trie.byte[node])
        if trie.entry[node] >= 0:
            found[int(trie.entry[node])] = bytes(path)
    return found


@settings(max_examples=100)
@given(_TOKENS)
@example([])
@example([b"", b""])
def test_entries_spell_the_distinct_tokens_in_byte_order(tokens: list[bytes]) -> None:
    """There is one node for each distinct prefix, and `skip` leaves exactly the subtree."""
    trie = Trie.build(tokens)
    spelled = _spelled(trie)
    assert [spelled[e] for e in range(trie.num_entries)] == sorted(set(tokens) - {b""})
    for token, entry in zip(tokens, trie.entry_of_token, strict=True):
        assert entry == -1 if token == b"" else spelled[int(entry)] == token
    assert trie.max_depth == max(map(len, tokens), default=0)
    prefixes = {token[:n] for token in tokens for n in range(1, len(token) + 1)}
    assert trie.num_nodes == len(prefixes)
    for node in range(trie.num_nodes):
        deeper = trie.depth[node + 1 :] > trie.depth[node]
        end = node + 1 + (int(np.argmin(deeper)) if not deeper.all() else deeper.size)
        assert trie.skip[node] == end


@settings(max_examples=50)
@given(_TOKENS, st.data())
def test_a_part_is_the_tree_of_the_chosen_entries(tokens: list[bytes], data: st.DataObject) -> None:
    trie = Trie.build(tokens)
    spelled = _spelled(trie)
    chosen = data.draw(st.permutations(range(trie.num_entries)))
    chosen = chosen[: data.draw(st.integers(0, len(chosen)))]
    nodes, (depth, skip, entry) = trie.part(np.array([-1, *chosen], np.int32))
    truth = Trie.build([spelled[e] for e in chosen])
    assert trie.byte[nodes].tolist() == truth.byte.tolist()
    assert depth.tolist() == truth.depth.tolist()
    assert skip.tolist() == truth.skip.tolist()
    # Entry i of the part is the i-th chosen one, number 0 being none.
    ends = {int(e): int(n) for e, n in zip(entry, nodes, strict=True) if e >= 0}
    assert {i: spelled[int(trie.entry[n])] for i, n in ends.items()} == {
        i: spelled[e] for i, e in enumerate(chosen, start=1)
    }

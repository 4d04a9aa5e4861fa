"""The prefix tree of a vocabulary, laid out so that a walk through it is one pass over arrays.

To lift an automaton one needs, from every state, the state after every token. Tokens share
prefixes, so their bytes are stored as a prefix tree, and the tree as arrays in **preorder**: a
node, then all its descendants, then whatever comes next. A walk keeps the automaton's state for
each depth and moves on by one node, or, once a byte has no transition, over the whole subtree to
`skip[node]`. No pointers, no recursion, and the memory is read front to back.

Tokens with the same bytes share one *entry*. Entries are numbered in byte order, which is
preorder, so the entries in a subtree are a contiguous range.

Building costs O(V log V) comparisons to sort the tokens, then O(total bytes).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from jaxtyping import Int32, UInt8

from gcd.kernels import prefix_tree as kernels


@dataclass(frozen=True, eq=False)
class Trie:
    """A prefix tree over the distinct non-empty byte strings of a vocabulary, in preorder.

    Attributes:
        byte: the byte on the way into each node.
        depth: number of bytes before that one; 0 for the children of the (unstored) root.
        skip: the first node after this node's subtree.
        entry: index of the distinct byte string that ends at the node, -1 for none.
        entry_of_token: the entry of every token id, -1 for tokens without bytes.
        num_entries: how many distinct non-empty byte strings there are.
        max_depth: length of the longest one, 0 without any.
    """

    byte: UInt8[np.ndarray, "nodes"]
    depth: Int32[np.ndarray, "nodes"]
    skip: Int32[np.ndarray, "nodes"]
    entry: Int32[np.ndarray, "nodes"]
    entry_of_token: Int32[np.ndarray, "V"]
    num_entries: int
    max_depth: int

    def __post_init__(self) -> None:
        for array in (self.byte, self.depth, self.skip, self.entry, self.entry_of_token):
            array.flags.writeable = False

    @classmethod
    def build(cls, token_bytes: Sequence[bytes]) -> Trie:
        """The prefix tree of a vocabulary; `b""` stands for a token that has no bytes."""
        strings = sorted(set(token_bytes) - {b""})
        number = {string: index for index, string in enumerate(strings)}
        number[b""] = -1
        entry_of_token = np.fromiter(
            map(number.__getitem__, token_bytes), np.int32, len(token_bytes)
        )
        lengths = np.fromiter(map(len, strings), np.int64, len(strings))
        offsets = np.concatenate([np.zeros(1, np.int64), np.cumsum(lengths)])
        text = np.frombuffer(b"".join(strings), np.uint8)
        byte, depth, skip, entry = kernels.build_trie(text, offsets)
        return cls(
            byte, depth, skip, entry, entry_of_token, len(strings), int(lengths.max(initial=0))
        )

    @cached_property
    def ancestry(self) -> tuple[Int32[np.ndarray, "nodes"], Int32[np.ndarray, "entries"]]:
        """The parent of every node (-1: the root), and the node where every entry ends."""
        return kernels.ancestry(self.depth, self.entry, self.num_entries)

    def part(
        self, chosen: Int32[np.ndarray, "chosen"]
    ) -> tuple[Int32[np.ndarray, "part"], tuple[Int32[np.ndarray, "part"], ...]]:
        """The tree of some of the entries, which get the numbers 0, 1, ... (-1: none).

        Returns the nodes that remain, and their `depth`, `skip` and `entry` in the new tree.
        """
        nodes, *arrays = kernels.sub_trie(self.depth, *self.ancestry, chosen)
        return nodes, tuple(arrays)

    @property
    def num_nodes(self) -> int:
        return self.byte.shape[0]

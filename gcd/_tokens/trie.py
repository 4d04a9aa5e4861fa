"""Prefix tree (trie) of a vocabulary, stored in arrays that are traversed sequentially.

Lifting an automaton needs, from every state, the state after every token. Many tokens begin with
the same bytes, so the tokens are stored as a prefix tree. The arrays have its nodes in
**preorder**: each node is followed by its subtree. A traversal stores the automaton's state at each
depth. After an allowed byte it continues with the next node. After a byte without a transition it
skips the whole subtree and continues at `skip[node]`. So it needs neither pointers nor recursion.

Each distinct byte string of a token is an *entry*; tokens with the same bytes share it. Entries are
numbered in the order of their bytes, which is preorder, so the entries of a subtree are a
contiguous range.

Building costs O(V log V) comparisons to sort the tokens, then O(total bytes).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from jaxtyping import Int32, UInt8

from gcd._tokens.kernels import prefix_tree as kernels


def read_only(array: np.ndarray) -> np.ndarray:
    """Make an array read-only and return it, as kernels require for trees."""
    array.flags.writeable = False
    return array


@dataclass(frozen=True, eq=False)
class Trie:
    """Prefix tree of the distinct non-empty byte strings of a vocabulary, in preorder.

    Attributes:
        byte: the byte on the edge into each node.
        depth: number of bytes before that byte; 0 for the children of the root. The root isn't
            stored.
        skip: the first node after this node's subtree.
        entry: the entry that ends at each node, -1 for none.
        entry_of_token: the entry of every token id, -1 for tokens without bytes.
        num_entries: number of distinct non-empty byte strings.
        max_depth: length of the longest byte string, 0 if there are none.
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
            read_only(array)

    @classmethod
    def build(cls, token_bytes: Sequence[bytes]) -> Trie:
        """Build the prefix tree of a vocabulary; `b""` marks a token without bytes."""
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
        """Parent of each node (-1 for the root), and the node where each distinct string ends."""
        return kernels.ancestry(self.depth, self.entry, self.num_entries, self.max_depth)

    def part(
        self, chosen: Int32[np.ndarray, "chosen"]
    ) -> tuple[Int32[np.ndarray, "part"], tuple[Int32[np.ndarray, "part"], ...]]:
        """Reduce the tree to chosen entries; return nodes, and their depth, skip and entry.

        `chosen[i]`, in any order, becomes entry i; values of -1 are ignored.
        """
        order = np.argsort(chosen)
        order = order[np.searchsorted(chosen, 0, sorter=order) :]
        nodes, *arrays = kernels.sub_trie(self.depth, *self.ancestry, chosen, order)
        return nodes, tuple(map(read_only, arrays))

    @property
    def num_nodes(self) -> int:
        return self.byte.shape[0]

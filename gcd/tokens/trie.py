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

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from jaxtyping import Int32, UInt8

from gcd.tokens.kernels import prefix_tree as kernels

_ARRAYS = {
    "byte": np.uint8,
    "depth": np.int32,
    "skip": np.int32,
    "entry": np.int32,
    "entry_of_token": np.int32,
}


def read_only(array: np.ndarray) -> np.ndarray:
    """The array, which can no longer be written. Kernels are compiled for trees of such arrays."""
    array.flags.writeable = False
    return array


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
            read_only(array)

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

    def arrays(self) -> dict[str, np.ndarray]:
        """What `from_arrays` needs."""
        return {name: getattr(self, name) for name in _ARRAYS}

    @classmethod
    def from_arrays(
        cls, arrays: Mapping[str, np.ndarray], token_bytes: Sequence[bytes]
    ) -> Trie | None:
        """The tree of these tokens out of the arrays of one, checked token by token.

        None if the arrays are anything else. The check is complete and costs O(total bytes): every
        node lies where preorder has it, every token spells its entry, and each entry is spelled.
        """
        types = {name: (array.dtype, array.ndim) for name, array in arrays.items()}
        if types != {name: (np.dtype(kind), 1) for name, kind in _ARRAYS.items()}:
            return None
        byte, depth, skip, entry, entry_of_token = (
            read_only(arrays[name].view()) for name in _ARRAYS
        )
        sizes = {array.size for array in (byte, depth, skip, entry)}
        if len(sizes) != 1 or entry_of_token.size != len(token_bytes):
            return None
        lengths = np.fromiter(map(len, token_bytes), np.int64, len(token_bytes))
        offsets = np.concatenate([np.zeros(1, np.int64), np.cumsum(lengths)])
        text = np.frombuffer(b"".join(token_bytes), np.uint8)
        num_entries = int(entry.max(initial=-1)) + 1
        tree = (byte, depth, skip, entry)
        if not kernels.spells(tree, entry_of_token, num_entries, text, offsets):
            return None
        return cls(*tree, entry_of_token, num_entries, int(lengths.max(initial=0)))

    @cached_property
    def ancestry(self) -> tuple[Int32[np.ndarray, "nodes"], Int32[np.ndarray, "entries"]]:
        """The parent of every node (-1: the root), and the node where every entry ends."""
        return kernels.ancestry(self.depth, self.entry, self.num_entries, self.max_depth)

    def part(
        self, chosen: Int32[np.ndarray, "chosen"]
    ) -> tuple[Int32[np.ndarray, "part"], tuple[Int32[np.ndarray, "part"], ...]]:
        """The tree of some of the entries, which get the numbers 0, 1, ... (-1: none).

        Returns the nodes that remain, and their `depth`, `skip` and `entry` in the new tree.
        """
        order = np.argsort(chosen)
        order = order[np.searchsorted(chosen, 0, sorter=order) :]
        nodes, *arrays = kernels.sub_trie(self.depth, *self.ancestry, chosen, order)
        return nodes, tuple(map(read_only, arrays))

    @property
    def num_nodes(self) -> int:
        return self.byte.shape[0]

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

**Profiles.** The same unit of counted runs (`gcd._tokens.kernels.counted_runs`), a character,
occurs in every string of every schema. So the behavior of tokens in it is computed once for each
unit and vocabulary. From a phase of the unit, a token may stay in the run. Then only its last phase
and the number of copies that it completes matter. Otherwise it leaves the run at a boundary, as at
the closing quote of a string, or is not allowed.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from jaxtyping import Int16, Int32, Int64, UInt8

from gcd._automata.byte_classes import NUM_BYTES
from gcd._tokens.kernels import lifting
from gcd._tokens.kernels import prefix_tree as kernels


def read_only(array: np.ndarray) -> np.ndarray:
    """Make an array read-only and return it, as kernels require for trees."""
    array.flags.writeable = False
    return array


@dataclass(frozen=True, eq=False)
class Trie:
    """Prefix tree of the distinct non-empty byte strings of a vocabulary, in preorder."""

    byte: UInt8[np.ndarray, "nodes"]  # the byte on the edge into each node
    # Number of bytes before that byte; 0 for the children of the root. The root isn't stored.
    depth: Int32[np.ndarray, "nodes"]
    skip: Int32[np.ndarray, "nodes"]  # the first node after this node's subtree
    entry: Int32[np.ndarray, "nodes"]  # the entry that ends at each node, -1 for none
    # The entry of every token id, -1 for tokens without bytes
    entry_of_token: Int32[np.ndarray, "V"]
    num_entries: int  # number of distinct non-empty byte strings
    max_depth: int  # length of the longest byte string, 0 if there are none

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


@dataclass(frozen=True, eq=False)
class UnitProfile:
    """Profile of a unit, over the entries (distinct byte strings) of a prefix tree."""

    # A class for each entry, numbered from 0 without gaps. Two entries are in one class if, from
    # every phase, they end at the same phase and complete the same number of copies, or neither of
    # them stays in the run.
    counted: Int32[np.ndarray, "entries"]
    # The same without the number of copies, for runs of unbounded length
    uncounted: Int32[np.ndarray, "entries"]
    # Index in `exits` of each phase's first exit, followed by the number of exits
    exit_start: Int64[np.ndarray, "places1"]
    # Pairs (node of the tree whose byte leaves the run, copies completed before it)
    exits: Int32[np.ndarray, "exits 2"]

    @classmethod
    def of(cls, unit: Int16[np.ndarray, "phases 256"], trie: Trie) -> UnitProfile:
        """Follow the tree from each phase of the unit, in O(phases x visited nodes).

        `unit[p, b]` is the phase after byte b at phase p: 0 at the end of the copy, -1 for none.
        """
        column = read_only(np.arange(NUM_BYTES, dtype=np.uint8))
        tree = (trie.byte, trie.depth, trie.skip, trie.entry, column)
        return cls(*lifting.profile(unit, tree, trie.num_entries, trie.max_depth))

"""Profiles of a vocabulary's tokens inside a counted run.

A text of at most 200 characters is a run of 200 copies of one small automaton, the *unit*, which
consumes one character (`gcd._tokens.kernels.counted_runs` finds such runs). The same unit occurs in
every string of every schema. So the behavior of tokens in it is computed once for a unit and a
vocabulary, not once for each of the 200 copies. The states of a unit are called its *places*;
place 0 is the boundary between two copies. From a place, a token does one of three things:

* it stays in the run; then only the place where it ends matters, and how many copies of the unit it
  completes;
* it leaves the run, at the first byte that is not part of the unit but follows a boundary (the
  closing quote of a string);
* it is not allowed, because a byte inside a copy has no transition.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from jaxtyping import Int16, Int32, Int64

from gcd._tokens.kernels import lifting as kernels
from gcd._tokens.trie import Trie


@dataclass(frozen=True, eq=False)
class UnitProfile:
    """Profile of a unit, over the entries (distinct byte strings) of a prefix tree.

    Attributes:
        counted: a class for each entry. Two entries are in one class if, from every place, they
            end at the same place and complete the same number of copies, or both do not stay in
            the run. Numbered from 0 without gaps.
        uncounted: the same, but copies are not counted, as in a run without bound.
        exit_start: index in `exits` of each place's first exit, and the number of all exits.
        exits: pairs (node of the tree whose byte leaves the run, copies completed before it).
    """

    counted: Int32[np.ndarray, "entries"]
    uncounted: Int32[np.ndarray, "entries"]
    exit_start: Int64[np.ndarray, "places1"]
    exits: Int32[np.ndarray, "exits 2"]

    @classmethod
    def of(cls, unit: Int16[np.ndarray, "places 256"], trie: Trie) -> UnitProfile:
        """Walk the tree from each place of the unit, in O(places x visited nodes).

        Args:
            unit: `unit[p, b]` is the place after byte b at place p: 0 for the next boundary, -1
                for a byte that is not part of the unit.
            trie: the prefix tree of the vocabulary.
        """
        tree = (trie.byte, trie.depth, trie.skip, trie.entry)
        return cls(*kernels.profile(unit, tree, trie.num_entries, trie.max_depth))

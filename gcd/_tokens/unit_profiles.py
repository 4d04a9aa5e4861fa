"""Profiles: the behavior of a vocabulary's tokens inside a counted run.

The automaton of a text of at most 200 characters has 200 copies of one small automaton, the *unit*,
which consumes one character. They form a *counted run* (`gcd._tokens.kernels.counted_runs` finds
such runs). The same unit occurs in every string of every schema. So the behavior of tokens in it is
computed once for each unit and vocabulary, not for each of the 200 copies. The states of a unit are
called its *phases*; phase 0 is the boundary between two copies. From a phase, there are three cases
for a token:

* It stays in the run. Then only two things matter: the phase where it ends, and the number of
  copies that it completes.
* It leaves the run, at the first byte that is not part of the unit but follows a boundary (such as
  the closing quote of a string).
* It is not allowed, because a byte inside a copy has no transition.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from jaxtyping import Int16, Int32, Int64

from gcd._automata.byte_classes import NUM_BYTES
from gcd._tokens.kernels import lifting as kernels
from gcd._tokens.trie import Trie, read_only


@dataclass(frozen=True, eq=False)
class UnitProfile:
    """Profile of a unit, over the entries (distinct byte strings) of a prefix tree.

    Attributes:
        counted: a class for each entry, numbered from 0 without gaps. Two entries are in one class
            if, from every phase, they end at the same phase and complete the same number of copies,
            or neither of them stays in the run.
        uncounted: the same without the number of copies, for runs of unbounded length.
        exit_start: index in `exits` of each phase's first exit, followed by the number of exits.
        exits: pairs (node of the tree whose byte leaves the run, copies completed before it).
    """

    counted: Int32[np.ndarray, "entries"]
    uncounted: Int32[np.ndarray, "entries"]
    exit_start: Int64[np.ndarray, "places1"]
    exits: Int32[np.ndarray, "exits 2"]

    @classmethod
    def of(cls, unit: Int16[np.ndarray, "phases 256"], trie: Trie) -> UnitProfile:
        """Follow the tree from each phase of the unit, in O(phases x visited nodes).

        `unit[p, b]` is the phase after byte b at phase p: 0 at the end of the copy, -1 for none.
        """
        column = read_only(np.arange(NUM_BYTES, dtype=np.uint8))
        tree = (trie.byte, trie.depth, trie.skip, trie.entry, column)
        return cls(*kernels.profile(unit, tree, trie.num_entries, trie.max_depth))

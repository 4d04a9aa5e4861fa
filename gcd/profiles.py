"""What a unit of counted runs says about all tokens of a vocabulary: walked once for both.

A *unit* (`gcd.kernels.cells`) is what repeats in a text of bounded or unbounded length, such as one
character of a JSON string. It recurs: in every string of a schema, in every schema. From each of
its places, a token stays inside, and then what matters of it is at which place it ends and how
many units it completed; or it leaves, at its first byte that is no part of the unit; or it cannot
be there. All this depends on the unit and the vocabulary alone.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from jaxtyping import Int16, Int32, Int64

from gcd.kernels import lifting as kernels
from gcd.trie import Trie


@dataclass(frozen=True, eq=False)
class UnitProfile:
    """A unit and the distinct byte strings of a vocabulary (the entries of its prefix tree).

    Attributes:
        counted: class of each entry; one class goes to the same place, over the same number of
            boundaries, from every place. Numbered from 0 without gaps.
        uncounted: the same where only places count, as in a run without bound.
        exit_start: where the exits from each place begin in `exits`, and the end.
        exits: nodes of the tree where a byte leads out of a boundary, and the boundaries passed.
    """

    counted: Int32[np.ndarray, "entries"]
    uncounted: Int32[np.ndarray, "entries"]
    exit_start: Int64[np.ndarray, "places1"]
    exits: Int32[np.ndarray, "exits 2"]

    @classmethod
    def of(cls, unit: Int16[np.ndarray, "places 256"], trie: Trie) -> UnitProfile:
        """Walk the tree from every place; O(places x nodes that live)."""
        tree = (trie.byte, trie.depth, trie.skip, trie.entry)
        return cls(*kernels.profile(unit, tree, trie.num_entries, trie.max_depth))

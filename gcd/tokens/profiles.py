"""What a unit of counted runs says about all tokens of a vocabulary: walked once for both.

A *unit* (`gcd.tokens.kernels.counted_runs`) is what repeats in a text of bounded or unbounded
length, such as one character of a JSON string. It recurs: in every string of a schema, in every
schema. From each of its places, a token stays inside, and then what matters of it is at which place
it ends and how many units it completed; or it leaves, at its first byte that is no part of the
unit; or it cannot be there. All this depends on the unit and the vocabulary alone.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from jaxtyping import Int16, Int32, Int64

from gcd.tokens.kernels import lifting as kernels
from gcd.tokens.trie import Trie

_ARRAYS = {
    "counted": (np.int32, 1),
    "uncounted": (np.int32, 1),
    "exit_start": (np.int64, 1),
    "exits": (np.int32, 2),
}


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

    def arrays(self) -> dict[str, np.ndarray]:
        """What `from_arrays` needs."""
        return {name: getattr(self, name) for name in _ARRAYS}

    @classmethod
    def from_arrays(
        cls, arrays: Mapping[str, np.ndarray], unit: Int16[np.ndarray, "places 256"], trie: Trie
    ) -> UnitProfile | None:
        """A profile out of its arrays; None if they cannot be one of this unit and this tree.

        Checked are types, shapes and ranges, not the walk: that would be to make it again.
        """
        types = {name: (array.dtype, array.ndim) for name, array in arrays.items()}
        if types != {name: (np.dtype(kind), dim) for name, (kind, dim) in _ARRAYS.items()}:
            return None
        counted, uncounted, start, exits = (arrays[name] for name in _ARRAYS)
        for classes in (counted, uncounted):
            if classes.size != trie.num_entries or not _without_gaps(classes):
                return None
        if start.size != unit.shape[0] + 1 or start[0] != 0 or start[-1] != exits.shape[0]:
            return None
        if exits.shape[1] != 2:
            return None
        nodes = exits[:, 0]
        sound = (
            (np.diff(start) >= 0).all() and (nodes >= 0).all() and (nodes < trie.num_nodes).all()
        )
        passed = exits[:, 1]
        if not sound or (passed < 0).any() or (passed > trie.depth[nodes]).any():
            return None
        return cls(counted, uncounted, start, exits)


def _without_gaps(classes: Int32[np.ndarray, "entries"]) -> bool:
    """Whether the numbers are those of classes: 0, 1, ..., each of them in use."""
    if classes.size == 0:
        return True
    least, most = int(classes.min()), int(classes.max())
    return least == 0 and most < classes.size and bool(np.bincount(classes).all())

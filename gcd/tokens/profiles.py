"""A profile says how every token of a vocabulary reads inside a counted run.

A text of at most 200 characters is a run of 200 copies of one small automaton, the *unit*, which
reads one character (`gcd.tokens.kernels.counted_runs` finds such runs). The same unit occurs in
every string of every schema, so how tokens read in it is computed once for a unit and a vocabulary,
and not once for each of the 200 copies. The states of a unit are called its *places*, of which
place 0 is the boundary between two copies. A token that is read from one of them does one of three
things:

* it stays in the run; then all that matters is the place at which it ends, and how many copies of
  the unit it completes;
* it leaves the run, at the first byte that is no part of the unit but follows a boundary (the
  closing quote of a string);
* it cannot be read, because a byte inside of a copy has no transition.
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
    """This is the profile of a unit, over the entries (distinct byte strings) of a prefix tree.

    Attributes:
        counted: a class for each entry. Two entries are in one class if, from every place, they
            end at the same place and complete the same number of copies, or both do not stay in
            the run. Numbered from 0 without gaps.
        uncounted: the same, but copies are not counted, as in a run without bound.
        exit_start: where the exits from each place begin in `exits`, and the number of all exits.
        exits: pairs (node of the tree whose byte leaves the run, copies completed before it).
    """

    counted: Int32[np.ndarray, "entries"]
    uncounted: Int32[np.ndarray, "entries"]
    exit_start: Int64[np.ndarray, "places1"]
    exits: Int32[np.ndarray, "exits 2"]

    @classmethod
    def of(cls, unit: Int16[np.ndarray, "places 256"], trie: Trie) -> UnitProfile:
        """Walk the tree from every place of the unit; O(places x nodes that are reached).

        Args:
            unit: `unit[p, b]` is the place after byte b at place p: 0 for the next boundary, -1
                for a byte that is no part of the unit.
            trie: the prefix tree of the vocabulary.
        """
        tree = (trie.byte, trie.depth, trie.skip, trie.entry)
        return cls(*kernels.profile(unit, tree, trie.num_entries, trie.max_depth))

    def arrays(self) -> dict[str, np.ndarray]:
        """Return the arrays that `from_arrays` makes a profile of, by name."""
        return {name: getattr(self, name) for name in _ARRAYS}

    @classmethod
    def from_arrays(
        cls, arrays: Mapping[str, np.ndarray], unit: Int16[np.ndarray, "places 256"], trie: Trie
    ) -> UnitProfile | None:
        """Make a profile from its arrays, or return None if they cannot belong to unit and tree.

        Types, shapes and ranges are checked, but not the walk: that would be to make it again.
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
    """Whether these are numbers of classes without gaps: 0, 1, ..., each of them in use."""
    if classes.size == 0:
        return True
    least, most = int(classes.min()), int(classes.max())
    return least == 0 and most < classes.size and bool(np.bincount(classes).all())

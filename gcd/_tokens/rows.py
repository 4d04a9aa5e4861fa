"""Compressed transition tables of token automata, as `gcd._tokens.kernels.row_store` makes them."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from jaxtyping import Bool, Int32, Int64

from gcd._tokens.kernels import row_store
from gcd._tokens.trie import read_only


class Rows(NamedTuple):
    """Transitions of a token automaton with S states and P patterns.

    The pattern of a state has the classes that it allows, and which of them lead to the same next
    state.
    """

    pattern_of: Int32[np.ndarray, "S"]  # the pattern of each state
    target_start: Int32[np.ndarray, "S1"]  # start of each state's targets in `targets`
    targets: Int32[np.ndarray, "E"]  # the distinct next states (targets) of each state
    pattern_start: Int32[np.ndarray, "P1"]  # start of each pattern in the next two arrays
    pattern_class: Int32[np.ndarray, "_"]  # the allowed classes of each pattern, ascending
    # For each of these classes, the index of its target among the targets of a state with this
    # pattern
    pattern_target: Int32[np.ndarray, "_"]

    @classmethod
    def of(cls, delta: Int32[np.ndarray, "S C"]) -> Rows:
        """Compress a table of next states, in which -1 is for none; O(S C)."""
        return cls(*row_store.compress(read_only(np.ascontiguousarray(delta, np.int32).view())))

    def check(self, num_states: int, num_classes: int) -> None:
        """Assert that all lists and indices are valid, as compiled code requires."""
        num_patterns = self.pattern_start.size - 1
        assert self.pattern_of.shape == (num_states,)
        for start, count, contents in (
            (self.target_start, num_states, (self.targets,)),
            (self.pattern_start, num_patterns, (self.pattern_class, self.pattern_target)),
        ):
            assert start.size == count + 1
            assert start[0] == 0
            assert (np.diff(start) > 0).all()
            assert all(content.size == start[-1] for content in contents)
        for indices, size in (
            (self.pattern_of, num_patterns),
            (self.targets, num_states),
            (self.pattern_class, num_classes),
            (self.pattern_target, num_states),
        ):
            assert indices.min() >= 0
            assert indices.max() < size
        last = np.maximum.reduceat(self.pattern_target, self.pattern_start[:-1])
        assert (np.diff(self.target_start) > last[self.pattern_of]).all()

    def dense(
        self, num_classes: int, values: Int32[np.ndarray, "E"] | None = None, none: int = -1
    ) -> Int32[np.ndarray, "S C"]:
        """Return the whole table of next states, or of `values` for the elements of `targets`."""
        table = np.full((self.pattern_of.size, num_classes), none, np.int32)
        patterns = (self.pattern_start, self.pattern_class, self.pattern_target)
        found = self.targets if values is None else values
        row_store.expand(self.pattern_of, self.target_start, *patterns, found, table)
        return table

    def equal_classes(self, num_classes: int) -> Int64[np.ndarray, "C"]:
        """Return, for each class, the first class that leads to the same state from every state."""
        patterns = (self.pattern_start, self.pattern_class, self.pattern_target)
        return row_store.equal_classes(*patterns, num_classes)

    def renumber_classes(self, number: Int32[np.ndarray, "C"]) -> Rows:
        """Return the transitions with other class numbers; classes with number -1 are dropped.

        A class may only be dropped if another one is equal to it, or no state allows it.
        """
        classes = number[self.pattern_class]
        kept = np.flatnonzero(classes >= 0)
        start = np.append(0, np.cumsum(classes >= 0))[self.pattern_start]
        if (np.diff(number[number >= 0]) < 0).any():  # otherwise, classes are still ascending
            counts = np.diff(start)
            kept = kept[np.lexsort((classes[kept], np.repeat(np.arange(counts.size), counts)))]
        return self._replace(
            pattern_start=start.astype(np.int32),
            pattern_class=classes[kept],
            pattern_target=self.pattern_target[kept],
        )

    def row(self, state: int) -> tuple[Int32[np.ndarray, "_"], Int32[np.ndarray, "_"]]:
        """Return the classes that a state allows, ascending, and the next states under them."""
        pattern, own = self.pattern_of[state], self.target_start[state]
        here = slice(self.pattern_start[pattern], self.pattern_start[pattern + 1])
        return self.pattern_class[here], self.targets[own + self.pattern_target[here]]

    def is_allowed(self, token_class: int) -> Bool[np.ndarray, "S"]:
        """Return whether each state allows a class of tokens."""
        patterns = np.zeros(self.pattern_start.size - 1, np.bool_)
        places = np.flatnonzero(self.pattern_class == token_class)
        patterns[np.searchsorted(self.pattern_start, places, side="right") - 1] = True
        return patterns[self.pattern_of]

    @property
    def edges(self) -> Int32[np.ndarray, "2 E"]:
        """The pairs of a state and a next state, each once, in the order of states."""
        states = np.arange(self.pattern_of.size, dtype=np.int32)
        return np.stack([np.repeat(states, np.diff(self.target_start)), self.targets])

"""Languages wired together from finished ones, with a single subset construction at the end.

A JSON object with optional members is a graph, not a chain: each member may be skipped, and a
comma stands before it only if another one came first. Nodes joined by automata say that directly;
the size of the wiring is the sum of its parts, whatever may be skipped.
"""

from __future__ import annotations

import numpy as np

from gcd.automaton import Automaton
from gcd.nfa import NFA, part_offsets


class Assembly:
    """A graph whose nodes are joined by languages; its paths spell the strings of the result."""

    def __init__(self) -> None:
        self._parts: list[Automaton] = []
        self._joints: list[tuple[int, int]] = []  # (source, target) node of each part
        self._skips: list[tuple[int, int]] = []
        self._num_nodes = 0

    def node(self) -> int:
        """A new node."""
        self._num_nodes += 1
        return self._num_nodes - 1

    def insert(self, source: int, target: int, *languages: Automaton) -> None:
        """From `source`, a string of each language in turn leads to `target`."""
        if any(language.is_empty for language in languages):
            return
        written = [language for language in languages if not _is_epsilon(language)]
        if not written:
            self._skips.append((source, target))
            return
        for language in written[:-1]:
            between = self.node()
            self._add(source, between, language)
            source = between
        self._add(source, target, written[-1])

    def skip(self, source: int, target: int) -> None:
        """From `source`, one may go on to `target` without writing anything."""
        self._skips.append((source, target))

    def build(self, start: int, end: int) -> Automaton:
        """The strings spelled on the way from `start` to `end`."""
        if not self._parts:
            return Automaton.epsilon() if self._reaches(start, end) else Automaton.empty()
        offsets = part_offsets(self._parts).tolist()
        first_node = offsets[-1]
        epsilon = [(first_node + a, first_node + b) for a, b in self._skips]
        for part, offset, (source, target) in zip(self._parts, offsets, self._joints, strict=False):
            epsilon.append((first_node + source, offset))
            epsilon.extend((offset + s, first_node + target) for s in _accepting_states(part))
        accepting = np.zeros(first_node + self._num_nodes, bool)
        accepting[first_node + end] = True
        return NFA.from_parts(
            self._parts,
            extra_states=self._num_nodes,
            epsilon=epsilon,
            initial=[first_node + start],
            accepting=accepting,
        ).determinize()

    def _add(self, source: int, target: int, language: Automaton) -> None:
        self._parts.append(language)
        self._joints.append((source, target))

    def _reaches(self, start: int, end: int) -> bool:
        reached = {start}
        while True:
            further = reached | {b for a, b in self._skips if a in reached}
            if further == reached:
                return end in reached
            reached = further


def _is_epsilon(language: Automaton) -> bool:
    return language.num_states == 1 and bool(language.accepting[0] and language.delta.max() < 0)


def _accepting_states(language: Automaton) -> list[int]:
    return np.flatnonzero(language.accepting).tolist()

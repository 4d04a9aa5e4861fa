"""Graph whose edges are languages, converted to an automaton by a single subset construction.

The members of a JSON object form such a graph if some of them are optional. Each optional member
may be skipped, and a comma precedes a member only if another member came first. The size of the
graph is the sum of the sizes of its parts, no matter how many of them may be skipped.
"""

from __future__ import annotations

from gcd._automata.automaton import Automaton


class Assembly:
    """Graph whose edges are languages; its language is the set of strings along its paths."""

    def __init__(self) -> None:
        self._parts: list[Automaton] = []
        self._joints: list[tuple[int, int]] = []  # (source, target) nodes of each part
        self._skips: list[tuple[int, int]] = []
        self._num_nodes = 0

    def node(self) -> int:
        """Add a node and return its number."""
        self._num_nodes += 1
        return self._num_nodes - 1

    def insert(self, source: int, target: int, *languages: Automaton) -> None:
        """Connect `source` to `target` by the concatenation of the given languages."""
        written = []
        for language in languages:
            if language.num_states > 1:
                written.append(language)
            elif language.is_empty:
                return
            elif not _is_epsilon(language):
                written.append(language)
        if not written:
            self._skips.append((source, target))
            return
        for language in written[:-1]:
            between = self.node()
            self._add(source, between, language)
            source = between
        self._add(source, target, written[-1])

    def skip(self, source: int, target: int) -> None:
        """Connect `source` to `target` by the empty string."""
        self._skips.append((source, target))

    def build(self, start: int, end: int, absorbing: int = -1) -> Automaton:
        """Return the strings along all paths between two nodes, as `Automaton.join` does."""
        return Automaton.join(
            self._parts,
            self._joints,
            num_nodes=self._num_nodes,
            skips=self._skips,
            start=start,
            end=end,
            absorbing=absorbing,
        )

    def _add(self, source: int, target: int, language: Automaton) -> None:
        self._parts.append(language)
        self._joints.append((source, target))


def _is_epsilon(language: Automaton) -> bool:
    return language.num_states == 1 and bool(language.accepting[0] and language.delta.max() < 0)

"""Random strings of a language, for comparing other implementations of it.

A string is the labels of a walk from the initial state to an accepting one. At each state the next
state is drawn first, uniformly, and then a byte that leads there. So the one byte that closes a
string literal is as likely as the two hundred that continue it, and rare constructions occur early.
After a number of steps the walk takes the shortest path to acceptance. The distribution over
strings is not uniform.

Cost: O(states x byte classes) once, and one row of the table for each byte.
"""

from __future__ import annotations

import random

import numpy as np

from gcd import Automaton, EmptyLanguageError
from gcd._automata.kernels import graph


class RandomWalks:
    """Random strings of one language.

    Raises:
        EmptyLanguageError: it has none.
    """

    def __init__(self, automaton: Automaton) -> None:
        if automaton.is_empty:
            raise EmptyLanguageError(
                "expected a language with at least one string, got an empty language"
            )
        self._automaton = automaton
        self._distance = graph.distances_to_accept(automaton.delta, automaton.accepting)
        classes = range(automaton.delta.shape[1])
        self._bytes = [np.flatnonzero(automaton.class_of_byte == c).tolist() for c in classes]
        self._ways: dict[tuple[int, bool], list[tuple[int, list[int]]]] = {}

    def draw(self, rng: random.Random, patience: int, stop: float = 0.2) -> bytes:
        """Return one string.

        Args:
            rng: source of randomness.
            patience: bytes after which the shortest path to the end is taken.
            stop: probability of ending wherever a string may end.
        """
        accepting = self._automaton.accepting
        string = bytearray()
        state = self._automaton.initial
        while True:
            is_late = len(string) >= patience
            ways = self._ways_from(state, is_late)
            if accepting[state] and (not ways or rng.random() < stop):
                return bytes(string)
            state, labels = rng.choice(ways)
            string.append(rng.choice(labels))

    def _ways_from(self, state: int, is_late: bool) -> list[tuple[int, list[int]]]:
        """Return next states and their bytes; if late, only states closer to acceptance."""
        ways = self._ways.get((state, is_late))
        if ways is None:
            found: dict[int, list[int]] = {}
            row = self._automaton.delta[state]
            for label in np.flatnonzero(row >= 0).tolist():
                target = int(row[label])
                if not is_late or self._distance[target] < self._distance[state]:
                    found.setdefault(target, []).extend(self._bytes[label])
            ways = self._ways[state, is_late] = list(found.items())
        return ways


def random_strings(automaton: Automaton, count: int, seed: int = 0) -> list[bytes]:
    """Return strings of walks that turn home after 60 bytes."""
    walks, rng = RandomWalks(automaton), random.Random(seed)
    return [walks.draw(rng, patience=60) for _ in range(count)]

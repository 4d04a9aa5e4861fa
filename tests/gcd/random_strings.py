"""Random strings of a language, from walks that take the shortest path after some steps."""

from __future__ import annotations

import random

import numpy as np

from gcd import Automaton
from gcd._automata.kernels import graph


def random_string(automaton: Automaton, rng: random.Random, patience: int = 60) -> bytes:
    """Return a string: at most `patience` random steps, then the shortest path to acceptance."""
    distance = graph.distances_to_accept(automaton.delta, automaton.accepting)
    table = automaton.transitions
    string = bytearray()
    state = 0
    while True:
        alive = np.flatnonzero(table[state] >= 0)
        if automaton.accepting[state] and (not alive.size or rng.random() < 0.2):
            return bytes(string)
        if len(string) >= patience:
            if automaton.accepting[state]:
                return bytes(string)
            alive = alive[distance[table[state][alive]] == distance[state] - 1]
        else:  # successor first, so that rare bytes are drawn too
            successors = sorted(set(table[state][alive].tolist()))
            target = rng.choice(successors)
            alive = alive[table[state][alive] == target]
        byte = int(rng.choice(alive.tolist()))
        string.append(byte)
        state = int(table[state, byte])


def random_strings(automaton: Automaton, count: int, seed: int = 0) -> list[bytes]:
    rng = random.Random(seed)
    return [random_string(automaton, rng) for _ in range(count)]

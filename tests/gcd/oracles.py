"""Oracles by enumeration: every string of tokens, checked against the definition.

Also strategies for random automata, vocabularies and edge lists that are small enough for them.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest
from hypothesis import assume
from hypothesis import strategies as st

from gcd import (
    Automaton,
    EmptyLanguageError,
    TokenAutomaton,
    Vocabulary,
    lift,
)

SHARED = Path(__file__).resolve().parents[3] / "shared"

ALPHABET = b"abc"

# Beartype checks a random item of each sequence, which triggers a warning of hypothesis.
checked_inside_strategies = pytest.mark.filterwarnings("ignore:Do not use the `random` module")


def shared(path: str) -> Path:
    """Return a file of the shared data, or skip the test if it is missing."""
    full = SHARED / path
    if not full.exists():
        pytest.skip(f"needs {path}")
    return full


# -- drawing --------------------------------------------------------------------------------


@st.composite
def byte_automata(draw: st.DrawFn, max_states: int = 5) -> Automaton:
    """Automata over the bytes of ALPHABET, including empty languages.

    In some of them, many other bytes behave like the first one, as inside a string literal.
    """
    num_states = draw(st.integers(1, max_states))
    targets = st.integers(-1, num_states - 1)
    table = np.full((num_states, 256), -1, np.int32)
    for byte in ALPHABET:
        table[:, byte] = draw(st.lists(targets, min_size=num_states, max_size=num_states))
    if draw(st.booleans()):
        table[:, 128:] = table[:, [ALPHABET[0]]]
    accepting = draw(st.lists(st.booleans(), min_size=num_states, max_size=num_states))
    return Automaton.from_transitions(table, np.array(accepting))


@st.composite
def vocabularies(draw: st.DrawFn, max_tokens: int = 6, min_eos: int = 1) -> Vocabulary:
    """Vocabularies over ALPHABET with repeated, empty and unusable tokens and several EOS ids."""
    token = st.binary(max_size=3).map(lambda raw: bytes(ALPHABET[b % 3] for b in raw))
    usual = draw(st.lists(st.one_of(token, st.just(b"z")), min_size=1, max_size=max_tokens))
    ends = draw(st.integers(min_eos, 2))
    tokens = draw(st.permutations([*((token, False) for token in usual), *[(b"$", True)] * ends]))
    eos_ids = [index for index, (_, is_eos) in enumerate(tokens) if is_eos]
    return Vocabulary.from_bytes([token for token, _ in tokens], eos_ids)


class EdgeList(NamedTuple):
    """An automaton over token classes as plain Python, deterministic or not."""

    num_states: int
    edges: list[tuple[int, int, int]]
    num_classes: int
    initial: list[int]
    accepting: list[int]


@st.composite
def edge_lists(draw: st.DrawFn, *, looping: bool = False) -> EdgeList:
    """Random NFAs over classes; with `looping`, accepting states loop under some class."""
    num_states, num_classes = draw(st.integers(1, 5)), draw(st.integers(1, 3))
    state, symbol = st.integers(0, num_states - 1), st.integers(0, num_classes - 1)
    edges = draw(st.lists(st.tuples(state, symbol, state), max_size=10))
    initial = draw(st.lists(state, min_size=1, max_size=2, unique=True))
    accepting = draw(st.lists(state, max_size=2, unique=True))
    if looping:
        edges += [(s, draw(symbol), s) for s in accepting]
    return EdgeList(num_states, edges, num_classes, initial, accepting)


# -- enumerating ----------------------------------------------------------------------------


def strings(symbols: Iterable[int], max_length: int) -> Iterator[tuple[int, ...]]:
    """Yield all strings over the symbols, shorter ones first."""
    symbols = tuple(symbols)
    for length in range(max_length + 1):
        yield from itertools.product(symbols, repeat=length)


def texts(automaton: Automaton, vocabulary: Vocabulary, max_tokens: int) -> set[tuple[int, ...]]:
    """Return all sequences of at most `max_tokens` tokens, without EOS, that spell a string."""
    usable = [i for i, token in enumerate(vocabulary.token_bytes) if token]
    return {ids for ids in strings(usable, max_tokens) if automaton.accepts(vocabulary.decode(ids))}


def nfa_states(nfa: EdgeList, start: Iterable[int], string: Sequence[int]) -> set[int]:
    """Return the states that a string of classes leads to."""
    states = set(start)
    for symbol in string:
        states = {t for s, c, t in nfa.edges if s in states and c == symbol}
    return states


def determinised(
    edges: Sequence[tuple[int, Sequence[int], int]],
    epsilon: Sequence[tuple[int, int]],
    start: int,
    end: int,
) -> Automaton:
    """Run the textbook subset construction on edges (source, bytes, target)."""

    def close(states: set[int]) -> frozenset[int]:
        while more := {t for s, t in epsilon if s in states} - states:
            states = states | more
        return frozenset(states)

    subsets = [close({start})]
    rows: list[list[int]] = []
    for subset in subsets:  # grows during the loop
        row = [-1] * 256
        for byte in {byte for s, labels, _ in edges if s in subset for byte in labels}:
            after = close({t for s, labels, t in edges if s in subset and byte in labels})
            if after not in subsets:
                subsets.append(after)
            row[byte] = subsets.index(after)
        rows.append(row)
    return Automaton.from_transitions(np.array(rows), np.array([end in s for s in subsets]))


def naive_lift(
    automaton: Automaton, vocabulary: Vocabulary
) -> tuple[list[int], dict[tuple[int, int], int]]:
    """Return the kept byte states, and (state, id) -> state among them, without EOS."""
    reached, frontier = {0}, [0]
    step: dict[tuple[int, int], int] = {}
    while frontier:
        state = frontier.pop()
        for index, token in enumerate(vocabulary.token_bytes):
            after = automaton.run(token, state) if token else -1
            if after >= 0:
                step[state, index] = after
                if after not in reached:
                    reached.add(after)
                    frontier.append(after)
    alive = {s for s in reached if automaton.accepting[s]}
    while True:
        more = {s for (s, _), t in step.items() if t in alive} - alive
        if not more:
            break
        alive |= more
    kept = sorted(alive)
    return kept, {(s, i): t for (s, i), t in step.items() if s in alive and t in alive}


def walk(automaton: TokenAutomaton) -> Iterator[tuple[int, int, int]]:
    """Yield all (state, token id, next state) of a token automaton, -1 if a token is refused."""
    for state in range(automaton.num_states):
        for token in range(automaton.vocabulary.size):
            yield state, token, automaton.step(state, token)


LETTERS = Vocabulary.from_bytes([b"a", b"b", b"ab", b"", b"ba", b"<s>", b"</s>"], [5, 6], size=40)


@st.composite
def token_automata(draw: st.DrawFn) -> TokenAutomaton:
    """Lifted automata whose vocabulary is padded to several mask words."""
    vocabulary = draw(vocabularies())
    size = draw(st.sampled_from([vocabulary.size, 32, 70]))
    if size > vocabulary.size:
        vocabulary = Vocabulary.from_bytes(
            vocabulary.token_bytes, vocabulary.eos_ids, max(size, vocabulary.size)
        )
    try:
        return lift(draw(byte_automata()), vocabulary)
    except EmptyLanguageError:
        assume(False)
        raise


def ids_of_mask(row: np.ndarray, size: int) -> list[int]:
    bits = np.unpackbits(row.view(np.uint8), bitorder="little")[:size]
    return np.flatnonzero(bits).tolist()

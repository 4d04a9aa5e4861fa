"""Automata algebra against sets of strings: every operation, on random automata, by enumeration."""

from __future__ import annotations

import itertools
from typing import NamedTuple

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from gcd import Automaton, EmptyLanguageError, StateLimitError, state_limit
from tests.gcd.oracles import (
    assert_canonical,
    byte_automata,
    checked_inside_strategies,
    determinised,
)

ALPHABET = b"ab\xff"
MAX_LENGTH = 4
ALL_STRINGS = [
    bytes(s) for n in range(MAX_LENGTH + 1) for s in itertools.product(ALPHABET, repeat=n)
]


class Nondeterministic(NamedTuple):
    """A random automaton and, independently of the code under test, the strings it accepts."""

    num_states: int
    edges: list[tuple[int, list[int], int]]
    epsilon: list[tuple[int, int]]
    initial: list[int]
    accepting: list[int]

    def build(self) -> Automaton:
        return Automaton.from_nfa(**self._asdict())

    def close(self, states: set[int]) -> set[int]:
        while more := {t for s, t in self.epsilon if s in states} - states:
            states = states | more
        return states

    def language(self) -> set[bytes]:
        found, after = set(), {b"": self.close(set(self.initial))}
        for string in ALL_STRINGS:
            states = after[string]
            if states & set(self.accepting):
                found.add(string)
            for byte in ALPHABET if len(string) < MAX_LENGTH else b"":
                targets = {t for s, label, t in self.edges if s in states and byte in label}
                after[string + bytes([byte])] = self.close(targets)
        return found


@st.composite
def nondeterministic(draw, max_states: int = 4):
    num_states = draw(st.integers(1, max_states))
    state = st.integers(0, num_states - 1)
    label = st.sets(st.sampled_from(sorted(ALPHABET)), min_size=1, max_size=3).map(sorted)
    edges = draw(st.lists(st.tuples(state, label, state), max_size=7))
    epsilon = draw(st.lists(st.tuples(state, state), max_size=2))
    initial = draw(st.sets(state, min_size=1, max_size=2).map(sorted))
    accepting = draw(st.sets(state, max_size=2).map(sorted))
    return Nondeterministic(num_states, edges, epsilon, initial, accepting)


# No word continues another; such automata are repeated without subsets.
ONE_WAY = Nondeterministic(3, [(0, [*b"a"], 1), (1, [*b"b"], 2), (0, [*b"\xff"], 2)], [], [0], [2])


def language(automaton: Automaton) -> set[bytes]:
    return {s for s in ALL_STRINGS if automaton.accepts(s)}


def short(strings: set[bytes]) -> set[bytes]:
    return {s for s in strings if len(s) <= MAX_LENGTH}


@settings(max_examples=40)
@given(nondeterministic(), nondeterministic(), nondeterministic(2))
def test_operations_are_set_operations(a, b, c):
    x, y, z = a.build(), b.build(), c.build()
    one, other, third = a.language(), b.language(), c.language()
    pairs = short({s + t for s in one for t in other})
    for result, truth in [
        (x, one),
        (x | y, one | other),
        (x & y, one & other),
        (x - y, one - other),
        (~x, set(ALL_STRINGS) - one),
        (Automaton.union([x, y, x & y, Automaton.literal("ab")]), one | other | {b"ab"}),
        (x + y, pairs),
        (Automaton.concatenate([x, y, z]), short({s + t for s in pairs for t in third})),
        (x.optional(), one | {b""}),
        (x.reverse(), {s[::-1] for s in one}),
    ]:
        assert language(result) == truth
        assert_canonical(result)
    assert ~~x == x.reverse().reverse() == x
    assert ~(x | y) == ~x & ~y
    assert (x == y) == ((x - y).is_empty and (y - x).is_empty)


@settings(max_examples=25)
@given(nondeterministic(3), st.integers(0, 3), st.one_of(st.none(), st.integers(0, 2)))
@example(ONE_WAY, 0, None)
@example(ONE_WAY, 1, 2)
@example(ONE_WAY, 2, None)
@example(ONE_WAY, 2, 0)
def test_repetition_is_iterated_concatenation(a, minimum, extra):
    automaton = a.build()
    base = a.language()
    maximum = None if extra is None else minimum + extra
    power, result = {b""}, set()
    # Past MAX_LENGTH factors, further ones add nothing of that length that fewer do not give.
    for n in range((maximum if maximum is not None else max(minimum, MAX_LENGTH)) + 1):
        if n >= minimum:
            result |= power
        power = short({s + t for s in power for t in base})
    repeated = automaton.repeat(minimum, maximum)
    assert language(repeated) == result
    assert_canonical(repeated)


@settings(max_examples=50)
@given(nondeterministic())
def test_shortest_count_and_enumerate(nfa):
    automaton = nfa.build()
    truth = sorted(nfa.language(), key=lambda s: (len(s), s))
    for length in range(MAX_LENGTH + 1):
        assert automaton.count(length) == sum(len(s) <= length for s in truth)
    assert automaton.enumerate(len(truth))[: len(truth)] == truth
    if truth:
        assert automaton.shortest() == truth[0]
    if automaton.longest_length is not None and automaton.longest_length <= MAX_LENGTH:
        assert automaton.longest_length == max(map(len, truth), default=-1)
        assert automaton.enumerate(10**6) == truth
    elif automaton.longest_length is None:
        # A cycle through useful states pumps: there is a string of between n and 2n bytes.
        n = automaton.num_states
        assert automaton.count(2 * n) > automaton.count(n - 1)


@settings(max_examples=60)
@given(st.sets(st.binary(max_size=6), max_size=12))
@example({bytes([b]) for b in range(256)})
def test_finite_sets_of_strings(strings):
    automaton = Automaton.from_strings(strings)
    assert automaton.enumerate(300) == sorted(strings, key=lambda s: (len(s), s))
    union = Automaton.union([Automaton.literal(s) for s in strings])
    assert automaton == union
    assert hash(automaton) == hash(union)


def test_initial_state_may_be_any():
    table = np.full((3, 256), -1)
    table[2, ord("a")] = 0
    table[0, ord("b")] = 2
    automaton = Automaton.from_transitions(table, np.array([True, False, False]), initial=2)
    assert automaton.enumerate(3) == [b"a", b"aba", b"ababa"]


def test_empty_language():
    empty = Automaton.empty()
    word = Automaton.literal("x")
    assert empty.is_empty
    assert not empty.accepts("")
    assert empty == word - word
    assert empty.star() == Automaton.epsilon()
    assert empty.longest_length == -1
    assert empty.enumerate(3) == []
    assert empty.count(9) == 0
    with pytest.raises(EmptyLanguageError, match="got an empty language"):
        empty.shortest()
    assert [word.shortest(s) for s in range(2)] == [b"x", b""]
    for state in (-1, 2):
        with pytest.raises(IndexError, match=rf"expected a state in 0\.\.1, got {state}"):
            word.shortest(state)


def test_growth_past_the_limit_is_refused_by_name():
    ab, a = Automaton.byte_set(b"ab"), Automaton.literal("a")
    with state_limit(1000):
        with pytest.raises(StateLimitError, match="more than 1000 states"):
            ab.star() + a + ab.repeat(20, 20)
        with pytest.raises(StateLimitError, match="repetition"):
            a.repeat(0, 1_000_000)
        with pytest.raises(StateLimitError, match="product"):
            a.repeat(40, 40).star() & ab.repeat(67, 67).star()
        assert a.repeat(0, 400).num_states == 401


def test_tens_of_thousands_of_states():
    words = Automaton.from_strings(f"value-{i * 7919}" for i in range(20_000))
    assert words.num_states > 10_000
    assert words.count(20) == 20_000
    counted = Automaton.byte_set(b"ab").star() + Automaton.literal("a")
    blown_up = counted + Automaton.byte_set(b"ab").repeat(14, 14)
    assert blown_up.num_states == 2**15  # the textbook's exponential example


# -- joined parts ----------------------------------------------------------------------------

NODES = 4
nodes = st.integers(0, NODES - 1)


def wired(parts, joints, skips, start, end) -> Automaton:
    """Build the same graph with an explicit copy of each part, edge by edge."""
    edges, epsilon, begin = [], [*skips], NODES
    for part, (source, target) in zip(parts, joints, strict=True):
        for state, byte in zip(*np.nonzero(part.transitions >= 0), strict=True):
            after = int(part.transitions[state, byte])
            edges.append((begin + int(state), [int(byte)], begin + after))
        epsilon.append((source, begin))
        epsilon += [(begin + int(s), target) for s in np.flatnonzero(part.accepting)]
        begin += part.num_states
    return determinised(edges, epsilon, start, end)


@checked_inside_strategies
@settings(max_examples=60)
@given(
    st.lists(byte_automata(4), min_size=1, max_size=3),
    st.lists(st.tuples(st.integers(0, 2), nodes, nodes), max_size=6),
    st.lists(st.tuples(nodes, nodes), max_size=3),
    nodes,
    nodes,
)
@example([Automaton.epsilon()], [(0, 0, 1)], [], 0, 1)
@example([Automaton.literal("a").star()], [(0, 0, 1), (0, 1, 0)], [], 0, 0)
@example([Automaton.literal("a")], [], [(0, 1), (1, 2)], 0, 2)
@example([Automaton.literal("a")], [], [], 0, 2)
def test_a_graph_of_parts_is_the_same_graph_of_states(languages, inserted, skips, start, end):
    parts = [languages[i % len(languages)] for i, _, _ in inserted]
    joints = [(a, b) for _, a, b in inserted]
    found = Automaton.join(parts, joints, num_nodes=NODES, skips=skips, start=start, end=end)
    assert found == wired(parts, joints, skips, start, end)


def test_thousands_of_lone_states():
    """More subsets than initially allocated, most of them single states of one part."""
    digits = Automaton.byte_set(b"0123456789").repeat(0, 3000)
    both = Automaton.literal("a") + digits + Automaton.literal("b") + digits
    assert both.num_states == 2 * 3001 + 1
    assert both.accepts("a" + "7" * 3000 + "b")
    assert not both.accepts("a" + "7" * 3001 + "b")
    # Three paths at once; two of them remain, so every subset has several states.
    several = Automaton.union([digits, digits + Automaton.literal("x"), both])
    assert several.accepts("1" * 3000 + "x")
    assert several.accepts("ab1")
    assert not several.accepts("1" * 3001 + "x")


@pytest.mark.parametrize("limit", [5, 50, 500])
def test_the_limit_holds_wherever_states_come_from(limit):
    part = Automaton.literal("x" * 3)
    with state_limit(limit), pytest.raises(StateLimitError):
        Automaton.join(
            [part] * limit,
            [(i, i + 1) for i in range(limit)],
            num_nodes=limit + 1,
            start=0,
            end=limit,
        )
    # The n-th letter from the end: 2^n subsets of few states.
    ab = Automaton.byte_set(b"ab")
    parts = [ab.star(), Automaton.literal("a"), *[ab] * 12]
    with state_limit(limit), pytest.raises(StateLimitError):
        Automaton.concatenate(parts)

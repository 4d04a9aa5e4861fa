"""Joined parts, compared with sets of strings and with an explicit graph."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from gcd import Automaton, StateLimitError, state_limit
from tests.gcd.oracles import byte_automata, checked_inside_strategies, determinised

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
    # Three paths at once, two of which remain, so all subsets have several states.
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

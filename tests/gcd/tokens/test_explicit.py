"""Automata wired by hand, against walking the wires as they were given."""

from __future__ import annotations

import itertools

from hypothesis import assume, example, given, settings
from hypothesis import strategies as st

from gcd import EmptyLanguageError, TokenAutomaton, Vocabulary

VOCABULARY = Vocabulary.from_bytes([b"a", b"b", b"", b"ab", b"$"], eos_ids=4)
USABLE = [0, 1, 3]
WIRES = st.lists(
    st.tuples(st.sampled_from("PQR"), st.sampled_from(USABLE), st.sampled_from("PQR")),
    max_size=7,
    unique_by=lambda wire: wire[:2],
)


def _accepted(
    wires: list[tuple[str, int, str]], accepting: str, length: int
) -> set[tuple[int, ...]]:
    """Token strings of at most this length that lead from P to an accepting state."""
    step = {(source, token): target for source, token, target in wires}
    found = set()
    for size in range(length + 1):
        for tokens in itertools.product(USABLE, repeat=size):
            state: str | None = "P"
            for token in tokens:
                state = step.get((state, token)) if state else None
            if state is not None and state in accepting:
                found.add(tokens)
    return found


@settings(max_examples=100)
@given(WIRES, st.sampled_from(["P", "Q", "PR", "QR"]))
@example([("P", 0, "Q"), ("Q", 1, "R")], "Q")
def test_accepts_the_texts_of_the_wires(wires: list[tuple[str, int, str]], accepting: str) -> None:
    expected = _accepted(wires, accepting, 4)
    try:
        automaton = TokenAutomaton.from_transitions(
            VOCABULARY, wires, accepting=accepting, initial="P"
        )
    except EmptyLanguageError:
        assert not expected
        return
    found = {
        tokens
        for size in range(5)
        for tokens in itertools.product(range(VOCABULARY.size), repeat=size)
        if 4 not in tokens and automaton.accepts(tokens)
    }
    assert found == expected
    assert automaton.steps_to_accept[automaton.initial] == 1 + min(map(len, expected))
    columns = {tuple(column) for column in automaton.delta.T}
    assert len(columns) == automaton.num_classes, "no two classes are alike"


@settings(max_examples=50)
@given(WIRES, st.sampled_from(["Q", "QR"]))
def test_without_eos_a_text_ends_in_an_accepting_state(
    wires: list[tuple[str, int, str]], accepting: str
) -> None:
    assume(not any(source in accepting for source, _, _ in wires))
    without_eos = Vocabulary.from_bytes([b"a", b"b", b"", b"ab", b"$"], eos_ids=[])
    expected = _accepted(wires, accepting, 4)
    try:
        automaton = TokenAutomaton.from_transitions(
            without_eos, wires, accepting=accepting, initial="P", eos="accept"
        )
    except EmptyLanguageError:
        assert not expected
        return
    assert automaton.steps_to_accept[automaton.initial] == min(map(len, expected))
    for tokens in expected:
        assert automaton.run(tokens) == automaton.final


@settings(max_examples=60)
@given(st.lists(st.lists(st.sampled_from(USABLE), min_size=1), max_size=4))
def test_position_sets_are_their_product(sets: list[list[int]]) -> None:
    automaton = TokenAutomaton.from_position_sets(VOCABULARY, sets)
    length = len(sets)
    assert automaton.steps_to_accept[automaton.initial] == length + 1
    found = {
        tokens
        for size in range(length + 2)
        for tokens in itertools.product(USABLE, repeat=size)
        if automaton.accepts(tokens)
    }
    assert found == set(itertools.product(*map(set, sets)))


def test_many_positions_over_a_wide_vocabulary() -> None:
    wide = Vocabulary.from_bytes([b"x"] * 50_000 + [b"$"], eos_ids=50_000)
    automaton = TokenAutomaton.from_position_sets(wide, [range(t, 50_000, 2) for t in range(60)])
    assert automaton.num_classes < 130
    assert automaton.steps_to_accept[automaton.initial] == 61
    assert automaton.step(automaton.initial, 0) >= 0 > automaton.step(automaton.initial, 1)

"""Automata wired by hand, against walking the wires as they were given."""

from __future__ import annotations

import itertools

from hypothesis import assume, example, given, settings
from hypothesis import strategies as st

from gcd import EmptyLanguageError, TokenAutomaton, Vocabulary
from tests.gcd.oracles import accepted, strings

VOCABULARY = Vocabulary.from_bytes([b"a", b"b", b"", b"ab", b"$"], eos_ids=4)
WITHOUT_EOS = Vocabulary.from_bytes([b"a", b"b", b"", b"ab", b"$"], eos_ids=[])
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
    for tokens in strings(USABLE, length):
        state: str | None = "P"
        for token in tokens:
            state = step.get((state, token)) if state else None
        if state is not None and state in accepting:
            found.add(tokens)
    return found


@settings(max_examples=60)
@given(WIRES, st.sampled_from(["P", "Q", "PR", "QR"]), st.booleans())
@example([("P", 0, "Q"), ("Q", 1, "R")], "Q", False)
def test_accepts_the_texts_of_the_wires(
    wires: list[tuple[str, int, str]], accepting: str, by_itself: bool
) -> None:
    """Texts end with EOS, or by themselves in an accepting state, which nothing leaves."""
    assume(not by_itself or not any(source in accepting for source, _, _ in wires))
    expected = _accepted(wires, accepting, 4)
    vocabulary = WITHOUT_EOS if by_itself else VOCABULARY
    try:
        automaton = TokenAutomaton.from_transitions(
            vocabulary,
            wires,
            accepting=accepting,
            initial="P",
            eos="accept" if by_itself else "token",
        )
    except EmptyLanguageError:
        assert not expected
        return
    assert accepted(automaton, 4) == expected
    fewest = min(map(len, expected)) + (not by_itself)
    assert automaton.steps_to_accept[automaton.initial] == fewest
    assert not by_itself or all(automaton.run(ids) == automaton.final for ids in expected)
    columns = {tuple(column) for column in automaton.delta.T}
    assert len(columns) == automaton.num_classes, "no two classes are alike"


@settings(max_examples=40)
@given(st.lists(st.lists(st.sampled_from(USABLE), min_size=1), max_size=4))
def test_position_sets_are_their_product(sets: list[list[int]]) -> None:
    automaton = TokenAutomaton.from_position_sets(VOCABULARY, sets)
    length = len(sets)
    assert automaton.steps_to_accept[automaton.initial] == length + 1
    assert accepted(automaton, length + 1) == set(itertools.product(*map(set, sets)))


def test_many_positions_over_a_wide_vocabulary() -> None:
    wide = Vocabulary.from_bytes([b"x"] * 10_000 + [b"$"], eos_ids=10_000)
    automaton = TokenAutomaton.from_position_sets(wide, [range(t, 10_000, 2) for t in range(60)])
    assert automaton.num_classes < 130
    assert automaton.steps_to_accept[automaton.initial] == 61
    assert automaton.step(automaton.initial, 0) >= 0 > automaton.step(automaton.initial, 1)

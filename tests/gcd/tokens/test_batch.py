"""Batches of automata behave like each automaton alone."""

from __future__ import annotations

import itertools

import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from gcd import (
    Automaton,
    AutomatonBatch,
    EmptyLanguageError,
    TokenAutomaton,
    Vocabulary,
    lift,
    regex,
)
from tests.gcd.oracles import byte_automata, checked_inside_strategies, vocabularies

pytestmark = checked_inside_strategies

VOCABULARY = Vocabulary.from_bytes([b"a", b"b", b"ab", b"", b"c"], [3], size=7)


def _lifted(*patterns: str) -> list[TokenAutomaton]:
    return [lift(regex(pattern), VOCABULARY) for pattern in patterns]


def _check_against_each_alone(batch: AutomatonBatch) -> None:
    size = batch.vocabulary.size
    states = torch.arange(batch.num_states).repeat_interleave(size)
    tokens = torch.arange(size).repeat(batch.num_states)
    after = batch.next(states, tokens).view(-1, size)
    of, listed, start = batch.classes
    for index, automaton in enumerate(batch.automata):
        cuts = start[index].tolist()
        assert cuts[0] == 0
        assert set(cuts[automaton.num_classes :]) == {size}
        for symbol, (begin, end) in enumerate(itertools.pairwise(cuts)):
            assert (
                listed[index, begin:end].tolist() == (of[index] == symbol).nonzero()[:, 0].tolist()
            )
        first = batch.offset[index]
        assert int(batch.initial[index]) == first + automaton.initial
        assert int(batch.final[index]) == first + automaton.final
        for state in range(automaton.num_states):
            here = first + state
            assert int(batch.automaton_of[here]) == index
            assert bool(batch.is_final[here]) == (state == automaton.final)
            assert bool(batch.accepting[here]) == bool(automaton.accepting[state])
            assert int(batch.steps_to_accept[here]) == automaton.steps_to_accept[state]
            for token in range(size):
                alone = automaton.step(state, token)
                assert int(after[here, token]) == (first + alone if alone >= 0 else -1)


@settings(max_examples=40)
@given(st.lists(byte_automata(), min_size=1, max_size=4), vocabularies())
def test_moves_each_automaton_as_it_moves_alone(
    automata: list[Automaton], vocabulary: Vocabulary
) -> None:
    lifted = []
    for automaton in automata:
        try:
            lifted.append(lift(automaton, vocabulary))
        except EmptyLanguageError:
            continue
    assume(lifted)
    _check_against_each_alone(AutomatonBatch(lifted))


def test_dead_stays_dead() -> None:
    batch = AutomatonBatch(_lifted("a+", "b"))
    states = torch.tensor([-1, int(batch.initial[1]), int(batch.initial[1])])
    assert batch.next(states, torch.tensor([0, 0, 1]))[:2].tolist() == [-1, -1]


def test_states_may_have_any_shape() -> None:
    batch = AutomatonBatch(_lifted("a+", "ab"))
    states = batch.initial.view(2, 1).expand(2, 3)
    tokens = torch.tensor([[0, 1, 2]]).expand(2, 3)
    flat = batch.next(states.flatten(), tokens.flatten())
    assert torch.equal(batch.next(states, tokens).flatten(), flat)


def test_adding_leaves_the_numbers_of_states_as_they_are() -> None:
    first, second, third = _lifted("a+", "(a|b){3}", "ab*")
    batch = AutomatonBatch([first, second])
    more = AutomatonBatch([*batch.automata, third])
    _check_against_each_alone(more)
    assert more.offset[:3] == batch.offset
    assert len(batch) == 2
    assert len(more) == 3


def test_the_same_automaton_may_serve_several_examples() -> None:
    (automaton,) = _lifted("a+b")
    batch = AutomatonBatch([automaton, automaton])
    _check_against_each_alone(batch)
    assert batch.delta_flat.numel() == automaton.delta.size


def test_equal_vocabularies_need_not_be_the_same_object() -> None:
    (automaton,) = _lifted("a")
    again = Vocabulary.from_bytes(list(VOCABULARY.token_bytes), [3])
    assert len(AutomatonBatch([automaton, lift(regex("b"), again)])) == 2

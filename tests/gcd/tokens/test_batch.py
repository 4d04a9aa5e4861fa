"""Batches of automata behave like each automaton alone."""

from __future__ import annotations

import itertools

import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from gcd import Automaton, AutomatonBatch, EmptyLanguageError, Vocabulary, lift, regex
from tests.gcd.oracles import byte_automata, checked_inside_strategies, vocabularies

pytestmark = checked_inside_strategies

VOCABULARY = Vocabulary.from_bytes([b"a", b"b", b"ab", b"", b"c"], [3], size=7)


def _check_against_each_alone(batch: AutomatonBatch) -> None:
    size = batch.vocabulary.size
    states = torch.arange(-1, batch.num_states).unsqueeze(1).expand(-1, size)
    tokens = torch.arange(size).expand(len(states), -1)
    dead, *after = batch.next(states, tokens)
    assert dead.tolist() == [-1] * size
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
                assert int(after[here][token]) == (first + alone if alone >= 0 else -1)


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


def test_an_automaton_may_serve_several_examples_and_vocabularies_need_only_be_equal() -> None:
    automaton = lift(regex("a+b"), VOCABULARY)
    again = Vocabulary.from_bytes(list(VOCABULARY.token_bytes), [3])
    batch = AutomatonBatch([automaton, automaton, lift(regex("b"), again)])
    _check_against_each_alone(batch)
    assert batch.delta_flat.numel() == automaton.delta.size + batch.automata[2].delta.size

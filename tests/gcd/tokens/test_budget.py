"""Batches, like each automaton alone; budgets in all forms, against all strings of tokens."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from contextlib import suppress

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from gcd import (
    Automaton,
    AutomatonBatch,
    BudgetMask,
    ConstraintError,
    EmptyLanguageError,
    InfeasibleBudgetError,
    TensorAutomaton,
    TokenAutomaton,
    Vocabulary,
    check_budget,
    lift,
    regex,
)
from gcd._tokens.batch import pack
from tests.gcd.oracles import (
    byte_automata,
    checked_inside_strategies,
    lift_or_skip,
    strings,
    texts,
    vocabularies,
)

pytestmark = checked_inside_strategies

VOCABULARY = Vocabulary.from_bytes([b"a", b"b", b"ab", b"", b"c", b"<s>"], [3, 5], size=40)


# -- batches -------------------------------------------------------------------------------


@settings(max_examples=30)
@given(st.lists(byte_automata(), min_size=1, max_size=4), vocabularies())
def test_moves_each_automaton_as_it_moves_alone(
    automata: list[Automaton], vocabulary: Vocabulary
) -> None:
    """One of them twice, and with vocabularies that are equal."""
    equal = Vocabulary.from_bytes(list(vocabulary.token_bytes), vocabulary.eos_ids)
    lifted = [lift_or_skip(automata[0], equal)]
    for automaton in automata[1:]:
        with suppress(EmptyLanguageError):
            lifted.append(lift(automaton, vocabulary))
    batch, size = AutomatonBatch([*lifted, lifted[0]]), vocabulary.size
    assert batch.delta_flat.numel() == sum({id(one): one.delta.size for one in lifted}.values())
    states = torch.arange(-1, batch.num_states).unsqueeze(1).expand(-1, size)
    tokens = torch.arange(size).expand(len(states), -1)
    dead, *after = batch.next(states, tokens).tolist()
    assert dead == [-1] * size
    of, listed, start = batch.classes
    for index, one in enumerate(batch.automata):
        cuts = start[index].tolist()
        assert cuts[0] == 0
        assert set(cuts[one.num_classes :]) == {size}
        for symbol, (begin, end) in enumerate(itertools.pairwise(cuts)):
            of_class = (of[index] == symbol).nonzero()[:, 0]
            assert torch.equal(listed[index, begin:end].long(), of_class)
        first = batch.offset[index]
        own, alone = slice(first, first + one.num_states), one.delta[:, one.class_of]
        assert after[own] == np.where(alone >= 0, first + alone, -1).tolist()
        assert int(batch.initial[index]) == first + one.initial
        assert int(batch.final[index]) == first + one.final
        assert (batch.automaton_of[own] == index).all()
        assert batch.is_final[own].nonzero().tolist() == [[one.final]]
        assert batch.accepting[own].tolist() == one.accepting.tolist()
        assert batch.steps_to_accept[own].tolist() == one.steps_to_accept.tolist()


# -- the two forms of a budget -----------------------------------------------------------


@settings(max_examples=40)
@given(byte_automata(), vocabularies())
def test_the_two_forms_agree_on_lifted_automata(
    automaton: Automaton, vocabulary: Vocabulary
) -> None:
    lifted = lift_or_skip(automaton, vocabulary)
    tensors = TensorAutomaton.of(lifted, "cpu")
    assert tensors.deterministic
    assert tensors.initial.nonzero().tolist() == [[lifted.initial]]
    assert tensors.accepting.nonzero().tolist() == [[lifted.final]]
    assert tensors.steps_to_accept().tolist() == lifted.steps_to_accept.tolist()
    alive = tensors.backward_pass(lifted.num_states)
    mask = BudgetMask(lifted, lifted.num_states)
    states = torch.arange(lifted.num_states)
    singletons = torch.eye(lifted.num_states, dtype=torch.bool)
    for symbol in range(lifted.num_classes):
        under = (torch.arange(lifted.num_classes) == symbol).expand(lifted.num_states, -1)
        after = torch.from_numpy(lifted.delta[:, symbol].copy()).unsqueeze(1)
        assert torch.equal(tensors.forward(singletons, under), after == states)
    for remaining in range(1, lifted.num_states + 1):
        left = torch.full_like(states, remaining)
        by_passes = tensors.class_mask(singletons, left, alive)
        by_distance = mask.class_mask(states, left)
        assert torch.equal(by_passes, by_distance)


# -- the mask -------------------------------------------------------------------------------


def _prefixes(lifted: TokenAutomaton, longest: int) -> Iterator[tuple[tuple[int, ...], int]]:
    """Yield all token strings that the automaton can still complete, with their states."""
    for prefix in strings(range(lifted.vocabulary.size), longest):
        state = lifted.run(prefix)
        if state >= 0 and state != lifted.final:
            yield prefix, state


@settings(max_examples=40)
@given(byte_automata(max_states=4), vocabularies(max_tokens=4))
def test_mask_is_the_existence_of_a_completion_in_budget(
    automaton: Automaton, vocabulary: Vocabulary
) -> None:
    lifted = lift_or_skip(automaton, vocabulary)
    mask = BudgetMask(lifted, lifted.fewest_tokens)
    longest = 4
    complete = texts(automaton, vocabulary, longest)
    for prefix, state in _prefixes(lifted, 2):
        begun = {ids for ids in complete if ids[: len(prefix)] == prefix}
        for remaining in range(longest + 2 - len(prefix)):
            # `ids` takes len(ids) - len(prefix) tokens more, and one for EOS.
            truth = {
                ids[len(prefix)]
                for ids in begun
                if len(prefix) < len(ids) and len(ids) - len(prefix) + 1 <= remaining
            }
            if remaining >= 1 and prefix in complete:
                truth |= set(vocabulary.eos_ids)
            row = mask.mask(torch.tensor([state]), torch.tensor([remaining]))
            assert set(row[0].nonzero().flatten().tolist()) == truth
            assert set(lifted.allowed(state, remaining).tolist()) == truth


@pytest.mark.parametrize(
    "remaining", [2**30, 2**30 + 1, 2**31, 10**10, torch.iinfo(torch.int64).max]
)
def test_no_budget_is_large_enough_for_a_forbidden_token(remaining: int) -> None:
    automata = [lift(regex(p), VOCABULARY) for p in ("a{3}b*", "(ab)+c")]
    mask = BudgetMask(AutomatonBatch(automata), 10)
    states = torch.arange(-1, mask.batch.num_states)
    rows, locally = torch.full_like(states, remaining), mask.lcd_mask(states)
    assert torch.equal(mask.mask(states, rows), locally)
    assert torch.equal(mask.packed(states, rows), pack(locally))
    assert not locally[0].any(), "a dead row"
    assert not mask.class_mask(states[:1], rows[:1]).any()
    for automaton in automata:
        for state in range(automaton.num_states):
            every = automaton.allowed(state)
            assert automaton.allowed(state, remaining).tolist() == every.tolist()


def test_a_batch_masks_as_each_example_alone() -> None:
    automata = [lift(regex(p), VOCABULARY) for p in ("a{3}b*", "(ab)+c", "a", "[abc]{2,4}")]
    batch = AutomatonBatch(automata)
    together = BudgetMask(batch, [9, 7, 8, 6])
    states = torch.arange(batch.num_states).repeat(6)
    remaining = torch.arange(6).repeat_interleave(batch.num_states)
    rows = together.mask(states, remaining)
    for index, automaton in enumerate(automata):
        alone = BudgetMask(automaton, 9)
        mine = batch.automaton_of[states] == index
        local = states[mine] - batch.offset[index]
        assert torch.equal(rows[mine], alone.mask(local, remaining[mine]))
    assert torch.equal(together.packed(states, remaining), pack(rows))


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_another_device_gives_the_same_masks_and_passes() -> None:
    automata = [lift(regex(p), VOCABULARY) for p in ("a{3}b*", "(ab)+c")]
    here, there = AutomatonBatch(automata), AutomatonBatch(automata, "cuda")
    states = torch.arange(-1, here.num_states)
    remaining = states.remainder(5)
    packed = BudgetMask(there, 10).packed(states.cuda(), remaining.cuda())
    assert torch.equal(packed.cpu(), BudgetMask(here, 10).packed(states, remaining))
    for automaton in automata:
        alive = TensorAutomaton.of(automaton, "cuda").backward_pass(6)
        assert torch.equal(alive.cpu(), TensorAutomaton.of(automaton, "cpu").backward_pass(6))


def test_a_budget_below_the_shortest_completion_is_refused_with_both_numbers() -> None:
    automata = [lift(regex(p), VOCABULARY) for p in ("a", "a{5}", "b")]
    batch = AutomatonBatch(automata)
    with pytest.raises(InfeasibleBudgetError, match=r"^example 1: needs .* 6 .*is 5") as caught:
        BudgetMask(batch, torch.tensor([2, 5, 2]))
    assert (caught.value.needed, caught.value.budget) == (6, 5)
    BudgetMask(batch, (2, 6, 2))
    with pytest.raises(ConstraintError, match=r"one budget for each of 3 automata"):
        BudgetMask(batch, [2, 6])
    with pytest.raises(InfeasibleBudgetError, match=r"^request 7: needs at least 6"):
        check_budget(automata[1], 5, "request 7")

"""Budgets: the paper's passes, the distance form and the mask, against all strings of tokens."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from hypothesis import given, settings

from gcd import (
    Automaton,
    AutomatonBatch,
    BudgetMask,
    ConstraintError,
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


# -- the two forms of a budget -----------------------------------------------------------


@settings(max_examples=60)
@given(byte_automata(), vocabularies())
def test_the_two_forms_agree_on_lifted_automata(
    automaton: Automaton, vocabulary: Vocabulary
) -> None:
    lifted = lift_or_skip(automaton, vocabulary)
    tensors = TensorAutomaton.of(lifted)
    assert tensors.steps_to_accept().tolist() == lifted.steps_to_accept.tolist()
    alive = tensors.backward_pass(lifted.num_states)
    mask = BudgetMask(lifted, lifted.num_states)
    states = torch.arange(lifted.num_states)
    singletons = torch.eye(lifted.num_states, dtype=torch.bool)
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


@settings(max_examples=50)
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


@settings(max_examples=50)
@given(byte_automata(), vocabularies())
def test_a_sequence_drawn_under_the_mask_always_ends_in_time(
    automaton: Automaton, vocabulary: Vocabulary
) -> None:
    lifted = lift_or_skip(automaton, vocabulary)
    budget = lifted.fewest_tokens
    mask = BudgetMask(lifted, budget)
    states = mask.batch.initial
    for remaining in range(budget, 0, -1):
        row = mask.mask(states, torch.tensor([remaining]))
        assert row.any()
        # Continue with the last allowed token, and check all of them at the last step.
        if remaining == 1:
            assert set(row[0].nonzero().flatten().tolist()) == set(vocabulary.eos_ids)
        states = mask.batch.next(states, row[0].nonzero().flatten()[-1:])
    assert mask.batch.is_final[states].all()


def test_lcd_mask_is_the_mask_of_a_budget_beyond_every_distance() -> None:
    batch = AutomatonBatch([lift(regex(p), VOCABULARY) for p in ("a{3}b*", "(ab)+c")])
    mask = BudgetMask(batch, 10)
    states = torch.arange(batch.num_states)
    after = batch.next_by_class(states)
    targets = after[after >= 0]
    far = torch.full_like(states, 1 + int(batch.steps_to_accept[targets].max()))
    assert torch.equal(mask.lcd_mask(states), mask.mask(states, far))
    assert not torch.equal(mask.lcd_mask(states), mask.mask(states, far - 1))


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
    tokens = states.remainder(VOCABULARY.size)
    assert torch.equal(there.next(states.cuda(), tokens.cuda()).cpu(), here.next(states, tokens))
    packed = BudgetMask(there, 10).packed(states.cuda(), remaining.cuda())
    assert torch.equal(packed.cpu(), BudgetMask(here, 10).packed(states, remaining))
    for automaton in automata:
        alive = TensorAutomaton.of(automaton, "cuda").backward_pass(6)
        assert torch.equal(alive.cpu(), TensorAutomaton.of(automaton).backward_pass(6))


def test_dead_rows_and_rows_without_tokens_left_allow_nothing() -> None:
    mask = BudgetMask(AutomatonBatch([lift(regex("a*"), VOCABULARY)] * 2), 5)
    rows = mask.mask(torch.tensor([-1, 0, 0]), torch.tensor([5, 0, 1]))
    assert rows.sum(dim=1).tolist() == [0, 0, 2]
    assert rows[2].nonzero().flatten().tolist() == [3, 5]
    assert not mask.lcd_mask(torch.tensor([-1])).any()


# -- budgets that are too small -------------------------------------------------------------


def test_a_budget_below_the_shortest_completion_is_refused_with_both_numbers() -> None:
    automaton = lift(regex("a{22}"), VOCABULARY)
    with pytest.raises(InfeasibleBudgetError, match=r"at least 23 .*the budget is 16") as caught:
        BudgetMask(automaton, 16)
    assert (caught.value.needed, caught.value.budget) == (23, 16)
    BudgetMask(automaton, 23)
    with pytest.raises(InfeasibleBudgetError, match=r"^request 7: needs at least 23"):
        check_budget(automaton, 22, "request 7")


def test_in_a_batch_the_message_names_the_example() -> None:
    batch = AutomatonBatch([lift(regex(p), VOCABULARY) for p in ("a", "a{5}", "b")])
    with pytest.raises(InfeasibleBudgetError, match=r"^example 1: needs at least 6"):
        BudgetMask(batch, torch.tensor([2, 5, 2]))
    BudgetMask(batch, (2, 6, 2))
    with pytest.raises(ConstraintError, match=r"one budget for each of 3 automata"):
        BudgetMask(batch, [2, 6])

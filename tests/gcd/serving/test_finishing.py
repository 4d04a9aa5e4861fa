"""Finishing of matchers: the remaining budget, and whether it restricts the mask."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gcd import Matcher, MatcherBatch, TokenAutomaton, lift, regex
from tests.gcd.oracles import LETTERS, checked_inside_strategies, token_automata
from tests.gcd.oracles import ids_of_mask as _ids

pytestmark = checked_inside_strategies


def allowed(matcher: Matcher) -> list[int]:
    return _ids(matcher.mask(), matcher.automaton.vocabulary.size)


@settings(max_examples=40)
@given(token_automata(), st.data())
def test_what_is_told_to_finish_finishes(automaton: TokenAutomaton, data: st.DataObject) -> None:
    """Masks are those of the automaton with the remaining tokens, and every path ends."""
    more = data.draw(st.none() | st.integers(0, 6))
    matcher = Matcher(automaton, budget=None if more is None else automaton.fewest_tokens + more)
    for _ in range(12):
        before = matcher.remaining
        if data.draw(st.booleans()):
            wanted = data.draw(st.integers(0, 8))
            left = matcher.finish_within(wanted)
            if matcher.is_finished:
                assert left == 0
                break
            needed = int(automaton.steps_to_accept[matcher.state])
            assert left == max(needed, wanted if before is None else min(wanted, before))
            assert matcher.remaining == left
        if matcher.is_finished:
            break
        tokens = allowed(matcher)
        assert tokens == automaton.allowed(matcher.state, matcher.remaining).tolist()
        assert matcher.num_allowed == len(tokens)
        assert matcher.budget_binds == (tokens != automaton.allowed(matcher.state).tolist())
        matcher.advance(data.draw(st.sampled_from(tokens)))
    left = matcher.finish()
    for _ in range(left):
        assert not matcher.is_finished
        assert matcher.advance(data.draw(st.sampled_from(allowed(matcher))))
    assert matcher.is_finished
    assert not matcher.budget_binds


def test_a_limit_stays_after_a_rollback_and_ends_with_a_reset() -> None:
    automaton = lift(regex("a{0,20}b"), LETTERS)
    matcher = Matcher(automaton, budget=15)
    for _ in range(3):
        matcher.advance(0)
    assert matcher.finish_within(5) == 5
    assert matcher.finish_within(9) == 5
    matcher.rollback(2)
    assert (matcher.remaining, matcher.budget) == (7, 8)
    matcher.reset()
    assert (matcher.remaining, matcher.budget) == (15, 15)
    free = Matcher(automaton)
    assert free.remaining is None
    assert free.finish() == automaton.fewest_tokens == 2
    free.reset()
    assert free.remaining is None
    assert allowed(free) == automaton.allowed(automaton.initial).tolist()


def test_copies_and_batches_finish_too() -> None:
    automaton = lift(regex("a{0,20}b"), LETTERS)
    one, other = Matcher(automaton, budget=15), Matcher(automaton, budget=15)
    batch = MatcherBatch([one, other])
    batch.advance([0, 0])
    one.finish()
    assert batch.advance([0, 0]).tolist() == [False, True]
    assert one.copy().remaining == 2
    copy = one.copy()
    copy.reset()
    assert (copy.remaining, one.remaining) == (15, 2)


@pytest.mark.parametrize("tokens", [-1, 1.5, True])
@pytest.mark.usefixtures("unchecked_annotations")
def test_invalid_numbers_of_tokens_are_refused(tokens: int) -> None:
    with pytest.raises(ValueError, match=r"number of tokens|whole number"):
        Matcher(lift(regex("a"), LETTERS)).finish_within(tokens)

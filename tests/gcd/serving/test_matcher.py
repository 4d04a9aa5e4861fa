"""Matchers: masks, budgets, rollback, forced runs and batches, compared with the automaton."""

from __future__ import annotations

import copy
import pickle
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from gcd import (
    Automaton,
    BudgetMask,
    Caveat,
    ConstraintError,
    InfeasibleBudgetError,
    Matcher,
    MatcherBatch,
    TokenAutomaton,
    Vocabulary,
    check_budget,
    lift,
    regex,
)
from gcd._serving.kernels.masks import Masks
from gcd._serving.matcher import masks_of
from gcd._tokens.vocabulary import num_words
from tests.gcd.oracles import (
    LETTERS,
    checked_inside_strategies,
    ids_of_mask,
    token_automata,
)

pytestmark = checked_inside_strategies


_LANGUAGES = [lift(regex(p), LETTERS) for p in ("(ab)*", "a{0,3}b?", "[ab]*", "ba|ab", "a+b+")]


def _wide(bound: int = 40) -> TokenAutomaton:
    """Build an automaton with two kinds of wide masks over words of one to three letters.

    Strings of bounded length have masks that shrink toward the end. After each digit, words from
    one letter of the alphabet on are allowed.
    """
    letters = [bytes([c]) for c in range(ord("a"), ord("z") + 1)]
    pairs = [x + y for x in letters for y in letters]
    rest = [x + y for x in pairs for y in letters]
    others = [b'"', *(b"%d" % d for d in range(10)), b"</s>"]
    tokens = [*letters, *pairs, *rest, *others]
    words = "|".join(f"{d}[{chr(ord('a') + d)}-z][a-z]{{2}}" for d in range(10))
    vocabulary = Vocabulary.from_bytes(tokens, [len(tokens) - 1])
    return lift(regex(f'"[a-z]{{0,{bound}}}"|{words}'), vocabulary)


@pytest.fixture(scope="module")
def wide() -> TokenAutomaton:
    return _wide()


# -- masks ----------------------------------------------------------------------------------


@settings(max_examples=40)
@given(token_automata(), st.sampled_from([0, 100, 10_000]))
def test_rows_are_the_budget_mask_for_every_state_and_budget(
    automaton: TokenAutomaton, cache_bytes: int
) -> None:
    shared = Masks(automaton, cache_bytes)
    longest = int(automaton.steps_to_accept.max())
    truth = BudgetMask(automaton, longest + 1)
    states = torch.arange(automaton.num_states)
    for remaining in [*range(longest + 3), 2**40]:
        packed = truth.packed(states, torch.full_like(states, remaining)).numpy()
        for state in range(automaton.num_states):
            row = shared.row(state, remaining)
            assert (row == packed[state]).all()
            assert ids_of_mask(row, automaton.vocabulary.size) == (
                automaton.allowed(state, remaining).tolist()
            )
    for state in range(automaton.num_states):
        assert ids_of_mask(shared.row(state), automaton.vocabulary.size) == (
            automaton.allowed(state).tolist()
        )
    assert not shared.row(-1).any()


@pytest.mark.parametrize("slots", [0, 1, 2, 5, 1000])
def test_rows_are_right_however_few_are_kept(wide: TokenAutomaton, slots: int) -> None:
    size = wide.vocabulary.size
    shared = Masks(wide, slots * (4 * num_words(size) + 4))
    truth = BudgetMask(wide, 100)
    free = truth.packed(torch.arange(wide.num_states), torch.full((wide.num_states,), 99)).numpy()
    rng = np.random.default_rng(slots)
    states = rng.integers(0, wide.num_states, 600)
    remaining = rng.integers(1, 45, 600)
    packed = truth.packed(torch.from_numpy(states), torch.from_numpy(remaining)).numpy()
    for state, left, expected in zip(states.tolist(), remaining.tolist(), packed, strict=True):
        assert (shared.row(state, left) == expected).all()
        assert (shared.row(state) == free[state]).all()
    owner = shared.arrays[-2]
    assert owner.size == slots
    assert (owner >= 0).sum() == slots or (slots == 1000 and (owner >= 0).any())
    shared.forget()
    assert (owner < 0).all()
    for state, left, expected in zip(states.tolist(), remaining.tolist(), packed, strict=True):
        assert (shared.row(state, left) == expected).all()


def test_positions_of_a_bounded_string_share_their_transitions() -> None:
    short, long = (_wide(bound) for bound in (20, 200))
    assert long.num_states > 5 * short.num_states
    assert long.rows.pattern_start.size == short.rows.pattern_start.size
    assert long.nbytes - short.nbytes < 200 * (long.num_states - short.num_states)


# -- sequences ------------------------------------------------------------------------------


@settings(max_examples=40)
@given(token_automata(), st.data())
def test_a_matcher_takes_exactly_what_its_mask_allows(
    automaton: TokenAutomaton, data: st.DataObject
) -> None:
    size = automaton.vocabulary.size
    fewest = automaton.fewest_tokens
    budget = data.draw(st.one_of(st.none(), st.integers(fewest, fewest + 3)))
    matcher = Matcher(automaton, budget=budget)
    state, tokens = automaton.initial, list[int]()
    assert matcher.remaining == budget
    for _ in range(data.draw(st.integers(0, 8))):
        left = None if budget is None else budget - len(tokens)
        ended = state == automaton.final
        allowed = automaton.allowed(state, None if ended else left).tolist()
        assert ids_of_mask(matcher.mask(), size) == allowed
        assert allowed, "every state on the way can be completed"
        before = (matcher.state, matcher.num_tokens, matcher.remaining)
        for token in set(range(size)) - set(allowed):
            assert not matcher.advance(token)
        assert (matcher.state, matcher.num_tokens, matcher.remaining) == before
        token = data.draw(st.sampled_from(allowed))
        assert matcher.advance(token)
        state = automaton.step(state, token)
        if not ended:
            tokens.append(token)
        assert matcher.state == state
        assert matcher.is_finished == (state == automaton.final)
        assert matcher.remaining == (None if budget is None else budget - len(tokens))
    for token in (-1, size):
        with pytest.raises(ValueError, match=f"got {token}"):
            matcher.advance(token)


@settings(max_examples=40)
@given(token_automata(), st.data())
def test_rollback_is_never_having_gone(automaton: TokenAutomaton, data: st.DataObject) -> None:
    fewest = automaton.fewest_tokens
    budget = data.draw(st.one_of(st.none(), st.integers(fewest, fewest + 3)))
    matcher, tokens = Matcher(automaton, budget=budget), list[int]()
    for _ in range(data.draw(st.integers(1, 6))):
        for _ in range(data.draw(st.integers(0, 4))):
            allowed = ids_of_mask(matcher.mask(), automaton.vocabulary.size)
            tokens.append(data.draw(st.sampled_from(allowed)))
            assert matcher.advance(tokens[-1])
        back = data.draw(st.integers(0, len(tokens)))
        matcher.rollback(back)
        del tokens[len(tokens) - back :]
        fresh = Matcher(automaton, budget=budget)
        for token in tokens:
            assert fresh.advance(token)
        for other in (fresh, matcher):
            assert other.num_tokens == len(tokens)
        assert matcher.state == fresh.state
        assert matcher.remaining == fresh.remaining
        assert matcher.is_finished == fresh.is_finished
        assert (matcher.mask() == fresh.mask()).all()
    with pytest.raises(ValueError, match="tokens to roll back, got"):
        matcher.rollback(len(tokens) + 1)
    with pytest.raises(ValueError, match="tokens to roll back, got"):
        matcher.rollback(-1)
    matcher.reset()
    assert (matcher.num_tokens, matcher.state, matcher.remaining) == (0, automaton.initial, budget)


def test_padding_after_the_end_is_free_and_can_be_taken_back() -> None:
    matcher = Matcher(lift(regex("ab"), LETTERS), budget=2)
    assert [matcher.advance(token) for token in (2, 6, 5, 6)] == [True] * 4
    assert (matcher.is_finished, matcher.remaining, matcher.num_tokens) == (True, 0, 4)
    assert ids_of_mask(matcher.mask(), LETTERS.size) == [5, 6]
    matcher.rollback(2)
    assert (matcher.is_finished, matcher.remaining) == (True, 0)
    matcher.rollback()
    assert (matcher.is_finished, matcher.remaining) == (False, 1)


def test_budget_below_the_shortest_text_is_refused() -> None:
    automaton = lift(regex("a{9}"), LETTERS)
    with pytest.raises(InfeasibleBudgetError) as error:
        Matcher(automaton, budget=9)
    assert (error.value.needed, error.value.budget) == (10, 9)


# -- forced runs ----------------------------------------------------------------------------


@settings(max_examples=40)
@given(token_automata(), st.integers(0, 3), st.booleans())
def test_forced_runs_are_the_steps_without_a_choice(
    automaton: TokenAutomaton, slack: int, free: bool
) -> None:
    budget = None if free else automaton.fewest_tokens + slack
    matcher = Matcher(automaton, budget=budget)
    state, expected = automaton.initial, list[int]()
    while state != automaton.final:
        left = None if budget is None else budget - len(expected)
        allowed = automaton.allowed(state, left).tolist()
        if len(allowed) != 1:
            break
        expected.append(allowed[0])
        state = automaton.step(state, allowed[0])
    assert matcher.forced() == expected
    assert matcher.forced(limit=1) == expected[:1]
    assert matcher.num_tokens == 0
    for token in expected:
        assert matcher.advance(token)
    assert matcher.forced() == []


# -- several at once ------------------------------------------------------------------------


def _same(one: Matcher, other: Matcher) -> bool:
    return (one.state, one.remaining, one.num_tokens, one.is_finished) == (
        other.state,
        other.remaining,
        other.num_tokens,
        other.is_finished,
    )


@settings(max_examples=40)
@given(st.data())
def test_many_in_one_call_are_each_alone(data: st.DataObject) -> None:
    automata = data.draw(st.lists(st.sampled_from(_LANGUAGES), min_size=5, max_size=5))
    together = [Matcher(a, budget=data.draw(st.sampled_from([None, 4, 6]))) for a in automata]
    alone = [Matcher(m.automaton, budget=m.budget) for m in together]
    for one, other in zip(together, alone, strict=True):
        token = data.draw(st.integers(0, 6))  # before the batch is made
        assert one.advance(token) == other.advance(token)
    batch = MatcherBatch(together)
    out = np.empty((len(batch), num_words(LETTERS.size)), np.int32)
    for _ in range(5):
        batch.fill_masks(out)
        for row, matcher in zip(out, alone, strict=True):
            assert (row == matcher.mask()).all()
        tokens = data.draw(st.lists(st.integers(0, 6), min_size=5, max_size=5))
        taken = batch.advance(tokens)
        assert taken.tolist() == [m.advance(t) for m, t in zip(alone, tokens, strict=True)]
        i, back = data.draw(st.integers(0, 4)), data.draw(st.integers(0, 1))
        for matcher in (batch[i], alone[i]):
            matcher.rollback(min(back, matcher.num_tokens))
        for one, other in zip(together, alone, strict=True):
            assert _same(one, other)


def test_places_of_a_batch_change_hands() -> None:
    old = [Matcher(_LANGUAGES[0], budget=9), Matcher(_LANGUAGES[2], budget=300)]
    batch = MatcherBatch(old)
    for _ in range(150):
        batch.advance([0, 1])
    new = Matcher(_LANGUAGES[4], budget=5)
    assert new.advance(0)
    batch[1] = new
    assert batch.advance([1, 1]).tolist() == [True, True]
    assert (old[0].num_tokens, old[1].num_tokens, new.num_tokens) == (2, 150, 2)
    assert old[1].advance(0)
    old[1].rollback(151)
    assert (old[1].state, old[1].remaining) == (_LANGUAGES[2].initial, 300)
    batch[-1] = old[1]
    assert batch.advance([0, 0]).tolist() == [True, True]
    assert (old[1].num_tokens, new.num_tokens) == (1, 2)
    with pytest.raises(ConstraintError, match="in this batch yet"):
        batch[0] = old[1]

    other = MatcherBatch([old[0], new])
    with pytest.raises(ConstraintError, match="joined another"):
        batch.advance([0, 0])
    with pytest.raises(ConstraintError, match="joined another"):
        batch.fill_masks(np.empty((2, 2), np.int32))
    assert other.advance([1, 1]).tolist() == [True, True]


def test_unfit_batches_are_refused() -> None:
    one = Matcher(_LANGUAGES[0])
    small = Matcher(lift(regex("a"), Vocabulary.from_bytes([b"a", b"</s>"], [1])))
    with pytest.raises(ConstraintError, match="at least one"):
        MatcherBatch([])
    with pytest.raises(ConstraintError, match="twice"):
        MatcherBatch([one, one])
    with pytest.raises(ConstraintError, match="of size 40, got 2"):
        MatcherBatch([one, small])
    with pytest.raises(ConstraintError, match="of size 40, got 2"):
        MatcherBatch([one])[0] = small


@pytest.mark.parametrize(
    "rows",
    [
        np.empty((1, 2), np.int32),
        np.empty((2, 3), np.int32),
        np.empty((2, 4), np.int32)[:, ::2],
    ],
    ids=["too few", "too wide", "strided"],
)
def test_rows_of_other_shapes_are_refused(rows: np.ndarray) -> None:
    with pytest.raises(ValueError, match="contiguous int32"):
        MatcherBatch([Matcher(_LANGUAGES[0]), Matcher(_LANGUAGES[1])]).fill_masks(rows)


def test_tokens_that_are_none_are_refused_and_nothing_changes() -> None:
    batch = MatcherBatch([Matcher(_LANGUAGES[0]), Matcher(_LANGUAGES[0])])
    with pytest.raises(ValueError, match="2 tokens, one per matcher"):
        batch.advance([0])
    for token in (-1, 40):
        with pytest.raises(ValueError, match=f"got {token} for matcher 1"):
            batch.advance([0, token])
    assert [matcher.num_tokens for matcher in batch.matchers] == [0, 0]


def test_a_language_is_lifted_once_and_matchers_share_masks() -> None:
    language = Automaton.literal("ab")
    one, two = Matcher(language, LETTERS), Matcher(language, LETTERS, budget=3)
    assert one.automaton is two.automaton
    assert one._sequence.table is two._sequence.table
    assert Matcher(one.automaton)._sequence.table is one._sequence.table
    assert (one.mask() == Matcher(lift(language, LETTERS)).mask()).all()


def test_equal_languages_with_other_caveats_are_lifted_apart() -> None:
    caveat = Caveat("maxLength", "", 9, None)
    languages = [Automaton.literal("ab"), replace(Automaton.literal("ab"), caveats=(caveat,))]
    assert languages[0] == languages[1]
    for language in [*languages, languages[0]]:
        assert Matcher(language, LETTERS).automaton.caveats == language.caveats


def test_a_copy_of_a_matcher_goes_its_own_way() -> None:
    automaton = lift(
        Automaton.literal("ab").repeat(1, 3), Vocabulary.from_bytes([b"a", b"b", b""], [2])
    )
    matcher = Matcher(automaton, budget=7)
    assert matcher.advance(0)
    for other in (copy.copy(matcher), copy.deepcopy(matcher)):
        assert other.automaton is matcher.automaton
        assert (other.mask() == matcher.mask()).all()
        assert other.advance(1)
        assert (other.num_tokens, other.remaining) == (2, 5)
        assert (matcher.num_tokens, matcher.remaining) == (1, 6)
        other.rollback(2)
        assert other.state == matcher.automaton.initial


def test_served_constraints_are_not_pickled() -> None:
    automaton = lift(Automaton.literal("ab"), Vocabulary.from_bytes([b"a", b"b", b""], [2]))
    matcher = Matcher(automaton)
    for thing in (matcher, masks_of(automaton), MatcherBatch([matcher])):
        with pytest.raises(TypeError, match="pickle the TokenAutomaton"):
            pickle.dumps(thing)


ABC = Vocabulary.from_bytes([b"a", b"b", b"c", b""], [3])


@pytest.mark.parametrize("budget", [1.5, True, float("inf"), "3", np.bool_(True)])
def test_a_budget_is_a_whole_number(budget: object, unchecked_annotations: None) -> None:
    automaton = lift(regex("ab*"), ABC)
    with pytest.raises(ConstraintError, match="a whole number of tokens, got"):
        Matcher(automaton, budget=budget)
    with pytest.raises(ConstraintError, match="a whole number of tokens, got"):
        check_budget(automaton, budget)
    assert Matcher(automaton, budget=np.int64(9)).remaining == 9


def test_a_forced_run_has_a_limit_of_any_size(unchecked_annotations: None) -> None:
    matcher = Matcher(lift(regex("abcab"), ABC))
    assert matcher.forced(2**40) == matcher.forced()
    assert matcher.forced(0) == []
    with pytest.raises(ValueError, match="a limit of at least 0 tokens, got -1"):
        matcher.forced(-1)


# -- speculative decoding --------------------------------------------------------------------


@settings(max_examples=40)
@given(token_automata(), st.data())
def test_masks_along_a_draft_are_those_of_taking_it(
    automaton: TokenAutomaton, data: st.DataObject
) -> None:
    fewest = automaton.fewest_tokens
    budget = data.draw(st.one_of(st.none(), st.integers(fewest, fewest + 3)))
    matcher = Matcher(automaton, budget=budget)
    size = automaton.vocabulary.size
    for _ in range(data.draw(st.integers(0, 3))):
        assert matcher.advance(data.draw(st.sampled_from(ids_of_mask(matcher.mask(), size))))
    other, draft = matcher.copy(), list[int]()
    expected = np.zeros((6, matcher.automaton.num_words), np.int32)
    accepted, stopped = 0, False
    for i in range(5):
        allowed = ids_of_mask(other.mask(), size)
        assert other.num_allowed == len(allowed)
        assert other.restricts == (len(allowed) < size)
        expected[i] = 0 if stopped else other.mask()
        good = not stopped and data.draw(st.integers(0, 4)) > 0
        draft.append(data.draw(st.sampled_from(allowed) if good else st.integers(0, size - 1)))
        stopped = stopped or not other.advance(draft[-1])
        accepted += not stopped
    expected[5] = 0 if stopped else other.mask()

    before = (matcher.state, matcher.num_tokens, matcher.remaining)
    out = np.full_like(expected, 7)
    assert matcher.validate(draft) == matcher.fill_draft_masks(draft, out) == accepted
    assert (out == expected).all()
    assert (matcher.state, matcher.num_tokens, matcher.remaining) == before
    assert matcher.validate([]) == matcher.fill_draft_masks([], out[:1]) == 0
    assert (out[0] == matcher.mask()).all()
    with pytest.raises(ValueError, match=rf"expected token ids in 0\.\.{size - 1}"):
        matcher.validate([*draft, size])
    with pytest.raises(ValueError, match="contiguous int32 of shape"):
        matcher.fill_draft_masks(draft, out[:5])
    out.flags.writeable = False
    with pytest.raises(ValueError, match="read-only"):
        matcher.fill_mask(out[0])


def test_a_mask_of_all_tokens_restricts_nothing() -> None:
    every = Vocabulary.from_bytes([b"a", b"b", b""], [2])
    matcher = Matcher(lift(regex("[ab]*"), every))
    assert not matcher.restricts
    assert Matcher(lift(regex("[ab]*"), LETTERS)).restricts, "ids without bytes are forbidden"
    assert matcher.advance(2)
    assert matcher.restricts
    assert matcher.num_allowed == 1


def test_a_batch_takes_back_as_its_matchers_do_or_not_at_all() -> None:
    matchers = [Matcher(_LANGUAGES[2], budget=9), Matcher(_LANGUAGES[0]), Matcher(_LANGUAGES[4])]
    batch = MatcherBatch(matchers)
    states = [[matcher.state for matcher in matchers]]
    for tokens in ([0, 0, 0], [1, 1, 1], [0, 0, 1]):
        assert batch.advance(tokens).all()
        states.append([matcher.state for matcher in matchers])
    for wrong in ([0, 4, 0], [0, -1, 0]):
        with pytest.raises(ValueError, match=f"roll back.* matcher 1 has, got {wrong[1]}"):
            batch.rollback(wrong)
    with pytest.raises(ValueError, match=r"expected 3 numbers of tokens, one per matcher, got .*2"):
        batch.rollback([1, 1])
    assert [matcher.state for matcher in matchers] == states[3]
    batch.rollback([2, 0, 1])
    assert [matcher.state for matcher in matchers] == [states[1][0], states[3][1], states[2][2]]
    assert matchers[0].remaining == 8
    batch.rollback()
    assert [matcher.num_tokens for matcher in matchers] == [0, 2, 1]

"""Matchers: masks, budgets, rollback, forced runs and batches, compared with the automaton."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from gcd import (
    Automaton,
    BudgetMask,
    Caveat,
    ConstraintError,
    Matcher,
    MatcherBatch,
    TokenAutomaton,
    Vocabulary,
    lift,
    regex,
)
from gcd._serving.kernels.masks import Masks
from gcd._serving.matcher import masks_of
from gcd._tokens.vocabulary import num_words
from tests.gcd.oracles import LETTERS, checked_inside_strategies, ids_of_mask, token_automata

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


@pytest.mark.parametrize("slots", [0, 1, 5, 1000])
def test_rows_are_right_however_few_are_kept(wide: TokenAutomaton, slots: int) -> None:
    size = wide.vocabulary.size
    shared = Masks(wide, slots * (4 * num_words(size) + 4))
    truth = BudgetMask(wide, 100)
    free = truth.packed(torch.arange(wide.num_states), torch.full((wide.num_states,), 99)).numpy()
    rng = np.random.default_rng(slots)
    states = rng.integers(0, wide.num_states, 400)
    remaining = rng.integers(0, 45, 400)
    remaining[::40] = 2**40
    packed = truth.packed(torch.from_numpy(states), torch.from_numpy(remaining)).numpy()
    for state, left, expected in zip(states.tolist(), remaining.tolist(), packed, strict=True):
        assert (shared.row(state, left) == expected).all()
        assert (shared.row(state) == free[state]).all()
    assert not shared.row(-1).any()
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


class Model:
    """A sequence by definition: all its tokens from the initial state, and its budget."""

    def __init__(self, automaton: TokenAutomaton, budget: int | None) -> None:
        self.automaton, self.budget, self.given = automaton, budget, budget
        self.tokens: list[int] = []

    @property
    def state(self) -> int:
        return self.automaton.run(self.tokens)

    @property
    def is_finished(self) -> bool:
        return self.state == self.automaton.final

    @property
    def remaining(self) -> int | None:
        """Tokens left; EOS after the end is padding, which doesn't count."""
        if self.budget is None:
            return None
        ends = [t in self.automaton.vocabulary.eos_ids for t in self.tokens]
        return self.budget - (ends.index(True) + 1 if any(ends) else len(ends))

    @property
    def allowed(self) -> list[int]:
        left = None if self.is_finished else self.remaining
        return self.automaton.allowed(self.state, left).tolist()

    def advance(self, token: int) -> bool:
        taken = token in self.allowed
        self.tokens += [token] * taken
        return taken


ROWS = st.integers(0, 2)


class MatchersFollowTheirModels(RuleBasedStateMachine):
    """Three matchers of a batch, each compared with its model after every call."""

    @initialize(
        automata=st.one_of(
            token_automata().map(lambda automaton: [automaton] * 3),
            st.lists(st.sampled_from(_LANGUAGES), min_size=3, max_size=3),
        ),
        slacks=st.lists(st.none() | st.integers(0, 6), min_size=3, max_size=3),
    )
    def begin(self, automata: list[TokenAutomaton], slacks: list[int | None]) -> None:
        budgets = [
            None if slack is None else automaton.fewest_tokens + slack
            for automaton, slack in zip(automata, slacks, strict=True)
        ]
        matchers = [Matcher(a, budget=b) for a, b in zip(automata, budgets, strict=True)]
        self.models = [Model(a, b) for a, b in zip(automata, budgets, strict=True)]
        self.batch = MatcherBatch(matchers)
        self.size = automata[0].vocabulary.size
        self.width = automata[0].num_words

    def draw_token(self, data: st.DataObject, model: Model) -> int:
        is_allowed = data.draw(st.integers(0, 4)) > 0
        token = st.sampled_from(model.allowed) if is_allowed else st.integers(0, self.size - 1)
        return data.draw(token)

    @invariant()
    def every_matcher_is_where_its_model_is(self) -> None:
        out = np.full((3, self.width), 7, np.int32)
        self.batch.fill_masks(out)
        for matcher, model, row in zip(self.batch.matchers, self.models, out, strict=True):
            allowed, free = model.allowed, model.automaton.allowed(model.state).tolist()
            assert allowed, "every state on the way can be completed"
            assert (matcher.state, matcher.num_tokens) == (model.state, len(model.tokens))
            assert (matcher.remaining, matcher.budget) == (model.remaining, model.budget)
            assert matcher.is_finished == model.is_finished
            assert ids_of_mask(matcher.mask(), self.size) == allowed
            assert (row == matcher.mask()).all()
            assert matcher.num_allowed == len(allowed)
            assert matcher.restricts == (len(allowed) < self.size)
            assert matcher.budget_binds == (allowed != free)

    @rule(data=st.data(), at_once=st.booleans())
    def advance(self, data: st.DataObject, at_once: bool) -> None:
        tokens = [self.draw_token(data, model) for model in self.models]
        expected = [model.advance(t) for model, t in zip(self.models, tokens, strict=True)]
        one_by_one = (m.advance(t) for m, t in zip(self.batch.matchers, tokens, strict=True))
        assert (self.batch.advance(tokens).tolist() if at_once else [*one_by_one]) == expected

    @rule(shares=st.lists(st.floats(0, 1), min_size=3, max_size=3), at_once=st.booleans())
    def roll_back(self, shares: list[float], at_once: bool) -> None:
        sizes = [len(model.tokens) for model in self.models]
        counts = [int(share * size) for share, size in zip(shares, sizes, strict=True)]
        if at_once:
            self.batch.rollback(counts)
        for matcher, model, count in zip(self.batch.matchers, self.models, counts, strict=True):
            if not at_once:
                matcher.rollback(count)
            del model.tokens[len(model.tokens) - count :]

    @precondition(lambda self: all(model.tokens for model in self.models))
    @rule()
    def roll_a_token_back(self) -> None:
        self.batch.rollback()
        for model in self.models:
            model.tokens.pop()

    @rule(row=ROWS)
    def reset(self, row: int) -> None:
        self.batch[row].reset()
        self.models[row].tokens.clear()
        self.models[row].budget = self.models[row].given

    @rule(row=ROWS, tokens=st.none() | st.integers(0, 8))
    def finish_within(self, row: int, tokens: int | None) -> None:
        """The limit stays after a rollback, and ends with a reset."""
        matcher, model = self.batch[row], self.models[row]
        before = model.remaining
        left = matcher.finish() if tokens is None else matcher.finish_within(tokens)
        if model.is_finished:
            assert left == 0
            return
        wanted = (tokens or 0) if before is None else min(tokens or 0, before)
        assert left == max(int(model.automaton.steps_to_accept[model.state]), wanted)
        model.budget = len(model.tokens) + left

    @rule(row=ROWS, duplicate=st.sampled_from([copy.copy, copy.deepcopy, Matcher.copy]))
    def replace_by_a_copy(self, row: int, duplicate: Callable[[Matcher], Matcher]) -> None:
        """The copy goes its own way, and the old matcher can be used on its own."""
        old = self.batch[row]
        self.batch[row] = duplicate(old)
        assert self.batch[row].automaton is old.automaton
        old.reset()
        assert old.advance(int(old.automaton.allowed(old.state, old.remaining)[0]))

    @rule()
    def join_another_batch(self) -> None:
        before, self.batch = self.batch, MatcherBatch(self.batch.matchers[::-1])
        self.models.reverse()
        for call in (
            lambda: before.advance([0] * 3),
            lambda: before.fill_masks(np.empty((3, self.width), np.int32)),
            lambda: before.__setitem__(0, self.batch[0]),
        ):
            with pytest.raises(ConstraintError, match="joined another"):
                call()

    @rule(row=ROWS, limit=st.none() | st.integers(0, 3))
    def look_at_forced_tokens(self, row: int, limit: int | None) -> None:
        model = self.models[row]
        size, expected = len(model.tokens), list[int]()
        while not model.is_finished and len(model.allowed) == 1:
            expected += model.allowed
            model.advance(expected[-1])
        del model.tokens[size:]
        matcher = self.batch[row]
        assert (matcher.forced() if limit is None else matcher.forced(limit)) == expected[:limit]

    @rule(row=ROWS, data=st.data())
    def follow_a_draft(self, row: int, data: st.DataObject) -> None:
        matcher, model = self.batch[row], self.models[row]
        size, draft, rows = len(model.tokens), list[int](), [matcher.mask()]
        accepted, other = 0, matcher.copy()
        for _ in range(data.draw(st.integers(0, 4))):
            draft.append(self.draw_token(data, model))
            if accepted == len(draft) - 1 and model.advance(draft[-1]):
                accepted += 1
                assert other.advance(draft[-1])
            rows.append(other.mask() if accepted == len(draft) else np.zeros_like(rows[0]))
        del model.tokens[size:]
        out = np.full((len(rows), self.width), 7, np.int32)
        assert matcher.validate(draft) == matcher.fill_draft_masks(draft, out) == accepted
        assert (out == np.array(rows)).all()

    @rule(row=ROWS)
    def refuse_without_a_change(self, row: int) -> None:
        matcher, most = self.batch[row], len(self.models[row].tokens)
        for token in (-1, self.size):
            with pytest.raises(ValueError, match=f"got {token}"):
                matcher.advance(token)
            with pytest.raises(ValueError, match=rf"expected token ids in 0\.\.{self.size - 1}"):
                matcher.validate([token])
            with pytest.raises(ValueError, match=f"got {token} for matcher {row}"):
                self.batch.advance([0] * row + [token] + [0] * (2 - row))
        for count in (most + 1, -1):
            with pytest.raises(
                ValueError, match=f"at most {most} tokens to roll back, got {count}"
            ):
                matcher.rollback(count)
            with pytest.raises(ValueError, match=f"roll back.* matcher {row} has, got {count}"):
                self.batch.rollback([0] * row + [count] + [0] * (2 - row))
        with pytest.raises(ValueError, match="number of tokens of at least 0, got -1"):
            matcher.finish_within(-1)
        for call in (self.batch.advance, self.batch.rollback):
            with pytest.raises(ValueError, match=r"expected 3 .*tokens, one per matcher"):
                call([0, 0])
        with pytest.raises(ConstraintError, match="in this batch yet"):
            self.batch[row] = self.batch[0]


TestMatchersFollowTheirModels = MatchersFollowTheirModels.TestCase
TestMatchersFollowTheirModels.settings = settings(max_examples=50, stateful_step_count=16)


def test_a_long_history_is_rolled_back_and_a_long_run_is_forced() -> None:
    matcher = Matcher(_LANGUAGES[2], budget=300)
    assert all(matcher.advance(token) for token in [0, 1] * 75)
    matcher.rollback(150)
    assert (matcher.state, matcher.remaining) == (_LANGUAGES[2].initial, 300)
    matcher = Matcher(lift(Automaton.literal("b" * 99), LETTERS))
    assert matcher.forced(2**40) == matcher.forced() == [1] * 99


# -- several at once ------------------------------------------------------------------------


def test_a_language_is_lifted_once_and_matchers_share_masks() -> None:
    """Equal languages with other caveats are lifted apart."""
    language, caveat = Automaton.literal("ab"), Caveat("maxLength", "", 9, None)
    one, two = Matcher(language, LETTERS), Matcher(language, LETTERS, budget=3)
    assert one.automaton is two.automaton
    assert one._sequence.table is two._sequence.table
    assert Matcher(one.automaton)._sequence.table is one._sequence.table
    assert (one.mask() == Matcher(lift(language, LETTERS)).mask()).all()
    other = replace(language, caveats=(caveat,))
    assert language == other
    assert Matcher(other, LETTERS).automaton.caveats == (caveat,)
    assert Matcher(language, LETTERS).automaton.caveats == ()


def test_served_constraints_are_not_pickled() -> None:
    automaton = lift(Automaton.literal("ab"), Vocabulary.from_bytes([b"a", b"b", b""], [2]))
    matcher = Matcher(automaton)
    for thing in (matcher, masks_of(automaton), MatcherBatch([matcher])):
        with pytest.raises(TypeError, match="pickle the TokenAutomaton"):
            pickle.dumps(thing)


def test_a_mask_of_all_tokens_restricts_nothing() -> None:
    every = Vocabulary.from_bytes([b"a", b"b", b""], [2])
    matcher = Matcher(lift(regex("[ab]*"), every))
    assert not matcher.restricts
    assert Matcher(lift(regex("[ab]*"), LETTERS)).restricts, "ids without bytes are forbidden"
    assert matcher.advance(2)
    assert matcher.restricts
    assert matcher.num_allowed == 1

"""Properties of `sample` besides unbiasedness, and its errors."""

from __future__ import annotations

import inspect
import itertools
import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import smc
from gcd import (
    Automaton,
    AutomatonBatch,
    ConstraintError,
    InfeasibleBudgetError,
    TokenAutomaton,
    Vocabulary,
    lift,
)
from hmm import HMM
from smc import HMMLanguageModel
from smc.testing import ToyLM
from tests.smc.calls import arguments
from tests.smc.toys import CONSTRAINTS, VOCABULARY, choice, timeless, tiny_model

TOY = ToyLM(VOCABULARY, seed=3, spread=1.5)
PROPOSALS = [smc.LM(), smc.LCD(), smc.GCD()]


def sample(
    prompts: Sequence[Any],
    automata: TokenAutomaton | list[TokenAutomaton],
    lm: smc.LanguageModel = TOY,
    **options: Any,
) -> list[smc.Posterior]:
    defaults = {"max_tokens": 6, "particles": 4, "proposal": smc.GCD(), "algorithm": "smc"}
    # As users call it, without the type checks of the tests.
    return inspect.unwrap(smc.sample)(lm, prompts, automata, **arguments({**defaults, **options}))


words = st.lists(st.text("ab", min_size=0, max_size=5), min_size=1, max_size=4)


@settings(max_examples=40)
@given(words, st.booleans(), st.integers(0, 3), st.integers(0, 1000))
def test_at_any_feasible_budget_every_gcd_particle_finishes(
    texts: list[str], starred: bool, slack: int, seed: int
) -> None:
    language = choice(*texts)
    language = language.star() + Automaton.literal("b") if starred else language
    automaton = lift(language, VOCABULARY)
    budget = automaton.fewest_tokens + slack
    (found,) = sample([[0]], automaton, max_tokens=budget, seed=seed, resampling="systematic")
    assert found.complete
    assert found.valid
    assert not found.dead
    assert found.diagnostics.share_finished == 1
    assert all(len(sample.ids) <= budget for sample in found.particles)
    assert all(language.accepts(answer) for answer in found.answers)
    assert sum(found.probabilities) == pytest.approx(1)


BATCH = {
    "prompts": [[0], [1, 2, 0], [2, 2], [0, 1, 0, 1, 0], [1]],
    "constraint": [CONSTRAINTS[name]() for name in ("a_star_b", "few_words", "a_star_b")]
    + [CONSTRAINTS["forced"](), CONSTRAINTS["few_words"]()],
    "max_tokens": [7, 3, 4, 5, 4],
}


def test_lcd_dies_where_gcd_finishes() -> None:
    automaton = CONSTRAINTS["a_star_b"]()
    prompts = [[0, i % 3, i % 2] for i in range(40)]
    lcd = sample(prompts, automaton, max_tokens=2, particles=1, proposal=smc.LCD())
    gcd = sample(prompts, automaton, max_tokens=2, particles=1)
    assert not any(p.dead for p in gcd)
    dead = [p for p in lcd if p.dead]
    assert 0 < len(dead) < 40
    for p in dead:
        assert (p.texts, p.probabilities, p.ess) == ((), (), 0)
        assert p.log_evidence == -math.inf
        assert not p.complete
        assert not p.valid
        assert p.majority is None
        assert p.expectation(lambda text: 1.0) == 0
        assert p.diagnostics.share_finished == 0
        assert len(p.particles[0].ids) == 2
        with pytest.raises(ValueError, match="dead"):
            p.sample(1)


def test_diagnostics_add_up() -> None:
    prompts, automata, budgets = BATCH["prompts"], BATCH["constraint"], BATCH["max_tokens"]
    for i, p in enumerate(sample(prompts, automata, max_tokens=budgets, ess_threshold=1)):
        d = p.diagnostics
        steps = len(d.ess)
        assert len(d.resampled) == len(d.running) == len(d.alive) == steps
        assert 1 <= steps <= budgets[i]
        assert d.running[0] == d.alive[0] == 4
        assert d.generated >= max(len(sample.ids) for sample in p.particles)
        assert d.lm_calls in (steps, steps + 1)
        assert len(prompts[i]) <= d.tokens <= len(prompts[i]) + 4 * (steps - 1)
        assert all(1 - 1e-9 <= ess <= 4 + 1e-9 for ess in d.ess)
        assert d.seconds > 0


def test_equal_prefixes_are_read_once() -> None:
    """A forced answer costs one token per step for any number of particles."""
    (found,) = sample([[1, 1]], CONSTRAINTS["forced"](), max_tokens=3, particles=50)
    assert found.diagnostics.tokens == 2 + 2
    assert found.diagnostics.generated == 150
    assert found.ess == pytest.approx(50)


@pytest.mark.parametrize("proposal", PROPOSALS)
def test_the_empty_answer_of_a_language_without_eos(proposal: smc.Proposal) -> None:
    """It is certain: nothing is drawn or computed except the prompt, also in a batch."""
    vocabulary = Vocabulary.from_bytes([b"a", b"b"], [])
    empty, word = (lift(choice(text), vocabulary, eos="accept") for text in ("", "ab"))
    lm = ToyLM(vocabulary, seed=5)
    options: dict[str, Any] = {"proposal": proposal, "particles": 60}
    prompts = [[0], [1], [1, 0]]
    found = sample(prompts, [empty, word, empty], lm, max_tokens=2, **options)
    (alone,) = sample([[0]], empty, lm, max_tokens=0, **options)
    for p in (found[0], found[2], alone):
        assert (p.texts, p.probabilities) == (("",), (1.0,))
        assert p.log_evidence == 0
        assert p.complete
        assert p.valid
        assert p.diagnostics.generated == 0
    (word_alone,) = sample([[1]], word, lm, max_tokens=2, example_ids=[1], **options)
    assert timeless(found[1]) == timeless(word_alone)


def test_an_improbable_but_forced_answer() -> None:
    class Unlikely(ToyLM):
        def log_p(self, tokens: tuple[int, ...]) -> torch.Tensor:
            log_p = torch.full((VOCABULARY.size,), -500.0, dtype=torch.float64)
            log_p[4] = 0
            return log_p

    (found,) = sample([[0]], CONSTRAINTS["forced"](), Unlikely(VOCABULARY), max_tokens=3)
    assert found.texts == ("ba",)
    assert found.log_evidence == pytest.approx(-1500 + math.log(2))


def test_every_example_is_handed_out_once() -> None:
    seen: list[dict[int, smc.Posterior]] = []
    prompts = [[0] * (1 + i % 3) for i in range(7)]
    assert not sample(prompts, FORCED, particles=2, max_rows=4, finished=seen.append)
    assert sorted(place for some in seen for place in some) == list(range(7))
    assert len(seen) > 1
    kept = sample(prompts, FORCED, particles=2, max_rows=4)
    assert all(timeless(some[i]) == timeless(kept[i]) for some in seen for i in some)


def test_nothing_to_do() -> None:
    assert sample([], []) == []


FORCED = CONSTRAINTS["forced"]()
OTHER_EOS = Vocabulary.from_bytes(VOCABULARY.token_bytes, [3])
OTHER_BYTES = Vocabulary.from_bytes([b"b", b"a", b"ab", b"", b"", b""], [3, 5])
NARROWER = Vocabulary.from_bytes([b"a", b"b", b"ab", b"", b""], [3])


MESSAGES = [{"role": "user", "content": "Hello!"}]


@pytest.mark.usefixtures("unchecked_annotations")
@pytest.mark.parametrize(
    "prompt", [MESSAGES, MESSAGES[0], b"ab", [0, 1.0], [[0, 1]], [None], 3.5, ["a"]], ids=repr
)
def test_prompts_that_are_neither_text_nor_ids(prompt: Any) -> None:
    hmm = HMM.random(2, VOCABULARY.size, generator=torch.Generator().manual_seed(0))
    for lm in (
        Untouchable(VOCABULARY),
        HMMLanguageModel(hmm, VOCABULARY),
        smc.TransformersLM(tiny_model(), None, VOCABULARY),
    ):
        with pytest.raises(
            ValueError,
            match=r"text or token ids, got .*(template\(|one text)|got a list of|chat template",
        ):
            sample([[0], prompt], FORCED, lm)


@pytest.mark.usefixtures("unchecked_annotations")
def test_what_a_tokenizer_returns_is_no_list_of_prompts() -> None:
    """Iterating it yields its keys, which are texts."""
    transformers = pytest.importorskip("transformers")
    encoded = transformers.BatchEncoding({"input_ids": [[0]], "attention_mask": [[1]]})
    with pytest.raises(ValueError, match="BatchEncoding with the keys input_ids, attention_mask"):
        sample(encoded, FORCED)
    assert len(sample(torch.tensor([[0, 1], [1, 0]]), FORCED)) == 2


def test_integers_may_be_those_of_numpy() -> None:
    options = {"particles": np.int64(3), "seed": np.int32(7), "max_rows": np.int64(9)}
    (expected,) = sample([[0]], FORCED, max_tokens=4, particles=3, seed=7)
    for budget in (np.int64(4), np.array([4]), [np.int32(4)]):
        (found,) = sample([[0]], FORCED, max_tokens=budget, example_ids=np.arange(1), **options)
        assert timeless(found) == timeless(expected)


class Untouchable(ToyLM):
    """A model that fails on any forward pass."""

    def prefill(self, prompts: Sequence[Sequence[int]]) -> Any:
        raise AssertionError("refusals come before any model work")


@pytest.mark.parametrize("proposal", PROPOSALS)
def test_a_budget_too_small_is_refused_with_both_numbers(proposal: smc.Proposal) -> None:
    with pytest.raises(InfeasibleBudgetError, match=r"example 9: .*at least 3 .*budget is 2") as e:
        sample(
            [[0], [0]],
            FORCED,
            Untouchable(VOCABULARY),
            max_tokens=[3, 2],
            example_ids=[8, 9],
            proposal=proposal,
        )
    assert (e.value.needed, e.value.budget) == (3, 2)


def test_prompts_are_never_cut() -> None:
    lm = Untouchable(VOCABULARY, context=10)
    with pytest.raises(
        smc.PromptTooLongError, match=r"example 1 .* of 10 tokens, got 5 tokens and a budget of 6"
    ) as e:
        sample([[0] * 4, [0] * 5], FORCED, lm, max_tokens=6)
    assert (e.value.example, e.value.length, e.value.budget, e.value.context) == (1, 5, 6, 10)
    with pytest.raises(ValueError, match=r"at least one token in the prompt, got none"):
        sample([[]], FORCED, lm)


@pytest.mark.parametrize(
    ("vocabulary", "what"),
    [
        (OTHER_EOS, r"EOS ids are \(3, 5\), the constraint's are \(3,\)"),
        (OTHER_BYTES, "token 0 has other bytes"),
        (NARROWER, "the model has 6 tokens, the constraint has 5"),
    ],
)
def test_another_vocabulary_is_refused(vocabulary: Vocabulary, what: str) -> None:
    automaton = lift(choice("ba"), vocabulary)
    with pytest.raises(ConstraintError, match=what):
        sample([[0]], automaton, Untouchable(VOCABULARY))


def test_an_equal_vocabulary_is_accepted() -> None:
    twin = Vocabulary.from_bytes(VOCABULARY.token_bytes, VOCABULARY.eos_ids)
    (found,) = sample([[0]], lift(choice("ba"), twin))
    assert found.texts == ("ba",)


def test_walks_advance_by_runs_and_stop_at_the_end() -> None:
    """A run equals its tokens one by one; -1 means no token; an ended prefix doesn't advance."""
    automata = [FORCED, CONSTRAINTS["a_star_b"]()]
    batch = smc.Batch(AutomatonBatch(automata), torch.tensor([5, 3]))
    for proposal in PROPOSALS:
        start = proposal.start(batch)
        runs = torch.tensor([[1, 0, 3, 5], [0, -1, 1, -1]])
        together = proposal.advance(start, runs)
        apart = start
        for t in range(4):
            apart = proposal.advance(apart, runs[:, t : t + 1])
        assert together.states.tolist() == apart.states.tolist()
        assert together.remaining.tolist() == apart.remaining.tolist() == [2, 1]
        assert together.finished.tolist() == [True, False]
        assert together.running.tolist() == [False, True]
        swapped = proposal.take(together, torch.tensor([1, 0, 1]))
        assert swapped.finished.tolist() == [False, True, False]
        assert start.remaining.tolist() == [5, 3]
        # A prefix without remaining budget stops too: it takes three of four tokens.
        spent = proposal.advance(start, torch.tensor([[1, 0, 3, 5], [0, 0, 0, 1]]))
        assert spent.remaining.tolist() == [2, 0]


def test_only_the_unguided_proposal_gives_up_what_can_no_longer_finish_in_time() -> None:
    """After "a", a budget of two leaves one token, but "b" and EOS take two."""
    batch = smc.Batch(AutomatonBatch([CONSTRAINTS["a_star_b"]()]), torch.tensor([2]))
    a = torch.tensor([[0]])
    assert smc.LM().advance(smc.LM().start(batch), a).running.tolist() == [False]
    assert smc.LCD().advance(smc.LCD().start(batch), a).running.tolist() == [True]
    b = torch.tensor([[1]])
    assert smc.LM().advance(smc.LM().start(batch), b).running.tolist() == [True]


def test_greedy_closing_begins_when_the_budget_is_just_enough() -> None:
    automaton, proposal = CONSTRAINTS["a_star_b"](), smc.GreedyClose()
    start = proposal.start(smc.Batch(AutomatonBatch([automaton]), torch.tensor([6])))
    closes = 0
    for state in range(automaton.num_states - 1):
        needed = int(automaton.steps_to_accept[state])
        for left in range(1, 7):
            place = start._replace(states=torch.tensor([state]), remaining=torch.tensor([left]))
            guide = proposal.guide(place, torch.zeros(1, automaton.vocabulary.size))
            expected = automaton.allowed(state, None if needed < left else left).tolist()
            assert guide.log_g[0].exp().nonzero().flatten().tolist() == expected
            closes += needed == left and len(expected) < automaton.allowed(state).size
    assert closes > 0


def test_pairs_of_ids_are_independent_streams() -> None:
    """The same prompt with different ids gives different samples."""
    found = sample([[0]] * 6, CONSTRAINTS["a_star_b"](), particles=8)
    ids = [tuple(sample.ids for sample in p.particles) for p in found]
    assert all(a != b for a, b in itertools.combinations(ids, 2))

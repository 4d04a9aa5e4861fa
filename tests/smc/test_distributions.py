"""Computed posteriors, without sampling, against plain enumeration."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import cache
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import gcd
import smc
from gcd import TokenAutomaton, Vocabulary, lift
from smc._forward.revisiting import Run, TreeReader
from smc._search.distributions import count_prefixes, longest_answer
from smc._search.enumerating import Tree
from smc.testing import ToyLM, target
from tests.smc.toys import CONSTRAINTS, VOCABULARY, choice, stories, tiny_model
from tests.smc.walks import HMMAsLM, Ids, by_text, holds, masses, never

PROMPT = (0, 1)
WORDS = ("", "a", "ab", "abab", "ba", "bbb", "aab")
FINITE = {
    "few": lift(choice("a", "ab", "ba", "bbb"), VOCABULARY),
    "words": lift(choice(*WORDS), VOCABULARY),
    "forced": lift(choice("ba"), VOCABULARY),
    "all": lift(gcd.regex("[ab]{0,4}"), VOCABULARY),
    "empty": lift(choice(""), Vocabulary.from_bytes([b"a", b"b", b"ab"], []), eos="accept"),
    "by itself": lift(
        choice("ab", "bb", "bab"), Vocabulary.from_bytes([b"a", b"b", b"ab"], []), eos="accept"
    ),
}
EVERYTHING = 10_000


@cache
def problem(name: str, seed: int, spread: float) -> tuple[ToyLM, TokenAutomaton, dict[Ids, float]]:
    automaton = FINITE[name]
    lm = ToyLM(automaton.vocabulary, seed=seed, spread=spread)
    longest = longest_answer(automaton)
    assert longest is not None
    return lm, automaton, target(lm, PROMPT, automaton, longest)


def prefixes(answers: dict[Ids, float]) -> set[Ids]:
    """Every nonempty prefix of some answer."""
    return {ids[:t] for ids in answers for t in range(1, len(ids))}


@pytest.mark.parametrize("name", sorted(FINITE))
@pytest.mark.parametrize("rows", [1, 3, 256])
def test_a_whole_language_is_the_target(name: str, rows: int) -> None:
    for seed in range(3):
        lm, automaton, truth = problem(name, seed, 2.0)
        [found] = smc.distribution(lm, [PROMPT], automaton, max_rows=rows)
        assert (found.enumerated, found.exact, found.complete, found.valid) == (True,) * 4
        evidence, texts = sum(truth.values()), by_text(truth, automaton.vocabulary)
        assert found.log_evidence == pytest.approx(math.log(evidence), abs=1e-12)
        assert dict(zip(found.answers, found.probabilities, strict=True)) == pytest.approx(
            {answer: p / evidence for answer, p in texts.items()}
        )
        assert list(found.probabilities) == sorted(found.probabilities, reverse=True)
        assert {each.ids for each in found.particles} == set(truth)
        assert found.certified == pytest.approx(1, abs=1e-8)
        assert all(high - low < 1e-8 for low, high in found.intervals or [(0, 1)])
        squares = sum(p * p for p in truth.values())
        assert found.ess == pytest.approx(evidence**2 / squares)
        if rows == 256:  # each prefix once, at most one level of the tree per pass
            assert found.diagnostics.tokens == len(PROMPT) + len(prefixes(truth))
            assert found.diagnostics.lm_calls <= (longest_answer(automaton) or 1)


@settings(max_examples=100)
@given(
    st.sampled_from(["few", "words", "all", "by itself"]),
    st.integers(0, 9),
    st.sampled_from([0.3, 2.0, 6.0]),
    st.integers(1, 40),
    st.sampled_from([0.01, 0.5, 0.9, 0.999, 1.0]),
    st.sampled_from([1, 2, 5, 256]),
)
def test_what_is_found_holds(
    name: str, seed: int, spread: float, most: int, certify: float, rows: int
) -> None:
    lm, automaton, truth = problem(name, seed, spread)
    [found] = smc.distribution(
        lm, [PROMPT], automaton, max_prefixes=most, certify=certify, max_rows=rows
    )
    assert found.bounds is not None
    assert holds(found, truth, automaton.vocabulary)
    for each in found.particles:
        assert math.exp(each.log_p) == pytest.approx(truth[each.ids])
    lower = sum(truth[each.ids] for each in found.particles)
    if found.particles:
        assert found.log_evidence == pytest.approx(math.log(lower))
        shares = by_text({s.ids: truth[s.ids] for s in found.particles}, automaton.vocabulary)
        assert dict(zip(found.answers, found.probabilities, strict=True)) == pytest.approx(
            {answer: p / lower for answer, p in shares.items()}
        )
    else:
        assert found.dead
    every = len(prefixes(truth))
    assert found.enumerated == (len(found.particles) == len(truth))
    assert found.enumerated or most < every or certify < 1
    assert found.enumerated or found.certified >= certify or most < every
    if most >= every and certify == 1:
        assert found.enumerated


def test_the_most_probable_branch_is_read_first(monkeypatch: pytest.MonkeyPatch) -> None:
    """Recompute the open branches before every pass of one row."""
    chosen: list[tuple[Ids, Ids]] = []
    read = TreeReader.read

    def noting(self: TreeReader, runs: Sequence[Run], keep: Any) -> Any:
        chosen.extend((run.ids[: run.known + 1], run.ids) for run in runs)
        return read(self, runs, keep)

    monkeypatch.setattr(TreeReader, "read", noting)
    for seed in range(5):
        lm, automaton, truth = problem("all", seed, 3.0)
        chosen.clear()
        smc.distribution(lm, [PROMPT], automaton, max_rows=1)
        seen: set[Ids] = {()}
        for branch, whole in chosen:
            each = masses(lm, PROMPT, automaton, 5, read=seen)
            assert each[branch] == max(p for ids, p in each.items() if ids not in truth)
            seen |= {whole[:t] for t in range(len(branch), len(whole) + 1)}
        assert seen == {(), *prefixes(truth)}


def test_negative_control_of_what_is_never_read(monkeypatch: pytest.MonkeyPatch) -> None:
    """Branches that are not stored individually are open, too."""
    lm, automaton, truth = problem("all", 1, 3.0)
    [found] = smc.distribution(lm, [PROMPT], automaton, max_prefixes=2)
    assert holds(found, truth, VOCABULARY)
    mass = Tree.log_mass

    def forgetful(self: Tree) -> float:
        self._log_rest = -math.inf
        return mass.fget(self)  # type: ignore[misc]

    monkeypatch.setattr(Tree, "log_mass", property(forgetful))
    [found] = smc.distribution(lm, [PROMPT], automaton, max_prefixes=2)
    assert not holds(found, truth, VOCABULARY)


def test_a_branch_is_read_with_the_rest_of_its_text() -> None:
    """Two labels take one pass after the prompt; later branchings take one pass each."""
    tokens = [bytes([i]) for i in range(97, 123)] + [b"zebra", b""]
    vocabulary = Vocabulary.from_bytes(tokens, [len(tokens) - 1])
    lm = ToyLM(vocabulary, seed=1)
    [found] = smc.distribution(lm, [PROMPT], gcd.choice(["lion", "zebra"]))
    assert found.enumerated
    assert found.diagnostics.lm_calls == 2
    [found] = smc.distribution(lm, [PROMPT], gcd.choice(["lion", "lioness"]))
    assert found.diagnostics.lm_calls == 3


def test_prompts_of_a_batch_are_each_their_own() -> None:
    lm = ToyLM(VOCABULARY, seed=5)
    prompts = [(0,), (1, 2, 0), (0,), (2, 2)]
    automata = [FINITE["few"], FINITE["all"], FINITE["few"], CONSTRAINTS["a_star_b"]()]
    budgets = [4, 5, 3, 4]
    for options in ({}, {"max_prefixes": 5}, {"certify": 0.8, "max_rows": 2}):
        found = smc.distribution(lm, prompts, automata, max_tokens=budgets, **options)
        for place, each in enumerate(found):
            [alone] = smc.distribution(
                lm, [prompts[place]], automata[place], max_tokens=budgets[place], **options
            )
            truth = target(lm, prompts[place], automata[place], budgets[place])
            assert holds(each, truth, VOCABULARY)
            if "max_rows" not in options:
                assert each.answers == alone.answers
                assert each.probabilities == pytest.approx(alone.probabilities)
    again = smc.distribution(lm, [(0,), (0,)], FINITE["few"])
    assert again[0] is again[1]
    assert smc.distribution(lm, [], FINITE["few"]) == []


def test_temperature_and_budget() -> None:
    lm = ToyLM(VOCABULARY, seed=3)
    for temperature in (0.5, 2):
        automaton = CONSTRAINTS["a_star_b"]()
        [found] = smc.distribution(lm, [PROMPT], automaton, max_tokens=5, temperature=temperature)
        truth = target(lm, PROMPT, automaton, 5, temperature=temperature)
        assert found.enumerated
        assert found.log_evidence == pytest.approx(math.log(sum(truth.values())))
        assert dict(zip(found.answers, found.probabilities, strict=True)) == pytest.approx(
            {a: p / sum(truth.values()) for a, p in by_text(truth, VOCABULARY).items()}
        )


def test_a_long_language_has_intervals() -> None:
    """The language has far more prefixes than may be computed or stored individually."""
    lm = ToyLM(VOCABULARY, seed=3, spread=3.0)
    automaton = lift(gcd.regex("[ab]*"), VOCABULARY)
    truth = target(lm, PROMPT, automaton, 7)
    for most in (1, 10, 100):
        [found] = smc.distribution(lm, [PROMPT], automaton, max_tokens=7, max_prefixes=most)
        assert not found.enumerated
        assert holds(found, truth, VOCABULARY)
        assert 0 < (found.certified or 0) < 1
        assert found.diagnostics.lm_calls <= most + 1


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_model_of_transformers(dtype: torch.dtype) -> None:
    pytest.importorskip("transformers")
    lm = smc.TransformersLM(tiny_model(layers=2).to(dtype), None, VOCABULARY)
    wide = smc.TransformersLM(tiny_model(layers=2).double(), None, VOCABULARY)

    class Wide:
        """A model that computes one text at a time in double precision."""

        def log_p(self, tokens: Ids) -> torch.Tensor:
            return wide.prefill([tokens])[1][0]

    prompts = [(0, 1), (2,), (1, 1, 0)]
    for automaton in (FINITE["few"], lift(gcd.regex("[ab]{0,3}"), VOCABULARY)):
        truths = [masses(Wide(), prompt, automaton, 5) for prompt in prompts]
        for options in ({}, {"max_rows": 2}, {"max_prefixes": 9, "max_rows": 4}):
            found = smc.distribution(lm, prompts, automaton, **options)
            for each, truth in zip(found, truths, strict=True):
                for sample in each.particles:
                    assert sample.log_p == pytest.approx(math.log(truth[sample.ids]), abs=1e-5)
                assert each.bounds is not None
                evidence = math.log(sum(truth.values()))
                assert each.bounds.log_lower <= evidence + 1e-5
                assert each.bounds.log_upper >= evidence - 1e-5
                if "max_prefixes" not in options:
                    assert each.enumerated
                    assert len(each.particles) == len(truth)


def test_a_model_that_gives_no_answer_any_probability() -> None:
    lm = HMMAsLM(VOCABULARY, never([0, 2]))  # neither a nor ab
    [found] = smc.distribution(lm, [PROMPT], FINITE["few"])
    assert found.enumerated
    assert found.texts == ("bbb",)
    [found] = smc.distribution(lm, [PROMPT], lift(choice("a", "ab"), VOCABULARY))
    assert (found.dead, found.enumerated) == (True, True)
    assert found.log_evidence == -math.inf


# -- spellings -----------------------------------------------------------------------------------


def test_canonical_spellings() -> None:
    """Exactly the tokenizer's spellings, with the model's probabilities."""
    lm = stories()
    texts = [" park", " zoo", " beach"]
    language = gcd.choice(texts)
    lifted = gcd.lift(language, lm.vocabulary)
    prompt = "One day, Tom went to the"
    found, same = (
        smc.distribution(lm, [prompt], each, spellings="canonical")[0]
        for each in (language, lifted)
    )
    assert same.particles == found.particles
    assert found.enumerated
    assert sorted(found.texts) == sorted(texts)
    [every] = smc.distribution(lm, [prompt], lifted)
    assert every.log_evidence > found.log_evidence
    ids = lm.encode(prompt)
    segmentation = lm.vocabulary.segmentation
    assert segmentation is not None
    for each in found.particles:
        assert list(each.ids[:-1]) == segmentation.encode(each.answer.decode())
        total = 0.0
        for t, token in enumerate(each.ids):
            total += float(lm.prefill([[*ids, *each.ids[:t]]])[1][0, token])
        assert each.log_p == pytest.approx(total, abs=1e-9)


# -- sizes ---------------------------------------------------------------------------------------


def test_extents() -> None:
    for automaton in FINITE.values():
        answers = target(ToyLM(automaton.vocabulary), PROMPT, automaton, 12)
        longest = max(map(len, answers))
        assert longest_answer(automaton) == longest
        for budget in range(automaton.fewest_tokens, longest + 2):
            fit = {ids: 0.0 for ids in answers if len(ids) <= budget}
            assert count_prefixes(automaton, budget, EVERYTHING) == len(prefixes(fit))
    assert longest_answer(CONSTRAINTS["a_star_b"]()) is None
    assert count_prefixes(CONSTRAINTS["a_star_b"](), 1000, 50) > 50


# -- bad input -----------------------------------------------------------------------------------


def test_an_example_is_named() -> None:
    lm = ToyLM(VOCABULARY)
    with pytest.raises(
        gcd.ConstraintError, match="constraint of example 1 has answers of any length"
    ):
        smc.distribution(lm, [PROMPT] * 2, [FINITE["few"], CONSTRAINTS["a_star_b"]()])


def test_log_probabilities_that_are_not_numbers() -> None:
    class Broken(ToyLM):
        def log_p(self, tokens: tuple[int, ...]) -> torch.Tensor:
            return super().log_p(tokens) * (torch.nan if len(tokens) > 2 else 1.0)

    with pytest.raises(FloatingPointError, match="NaN"):
        smc.distribution(Broken(VOCABULARY), [PROMPT], FINITE["all"])

"""Computed posteriors, of languages, labels and joint fields, against plain enumeration."""

from __future__ import annotations

import enum
import json
import math
from collections.abc import Sequence
from functools import cache
from statistics import fmean
from typing import Any, Literal

import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st

import gcd
import smc
from gcd import TokenAutomaton, Vocabulary, lift
from smc._forward.revisiting import Run, TreeReader
from smc._search.distributions import count_prefixes, longest_answer
from smc._search.enumerating import Tree
from smc.testing import ToyLM, target
from tests.smc.cases import JSON_VOCABULARY
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
    return lm, automaton, target(lm, PROMPT, automaton, longest)


def prefixes(answers: dict[Ids, float]) -> set[Ids]:
    """Every nonempty prefix of some answer."""
    return {ids[:t] for ids in answers for t in range(1, len(ids))}


@settings(max_examples=100)
@given(
    st.sampled_from(sorted(FINITE)),
    st.integers(0, 9),
    st.sampled_from([0.3, 2.0, 6.0]),
    st.integers(1, 40) | st.just(EVERYTHING),
    st.sampled_from([0.01, 0.5, 0.9, 0.999, 1.0]),
    st.sampled_from([1, 2, 5, 256]),
)
@example("all", 0, 2.0, EVERYTHING, 1.0, 256)
@example("words", 1, 2.0, EVERYTHING, 1.0, 256)
@example("forced", 2, 2.0, EVERYTHING, 1.0, 256)
@example("empty", 0, 2.0, EVERYTHING, 1.0, 256)
@example("by itself", 0, 2.0, EVERYTHING, 1.0, 3)
def test_what_is_found_holds(
    name: str, seed: int, spread: float, most: int, certify: float, rows: int
) -> None:
    lm, automaton, truth = problem(name, seed, spread)
    [found] = smc.distribution(
        lm, [PROMPT], automaton, max_prefixes=most, certify=certify, max_rows=rows
    )
    assert holds(found, truth, automaton.vocabulary)
    assert list(found.probabilities) == sorted(found.probabilities, reverse=True)
    for each in found.particles:
        assert math.exp(each.log_p) == pytest.approx(truth[each.ids])
    lower = sum(truth[each.ids] for each in found.particles)
    if found.particles:
        assert (found.exact, found.complete, found.valid) == (True, True, True)
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
    if found.enumerated:
        assert found.certified == pytest.approx(1, abs=1e-8)
        assert all(high - low < 1e-8 for low, high in found.intervals)
        assert found.ess == pytest.approx(lower**2 / sum(p * p for p in truth.values()))
    if most >= every and certify == 1:
        assert found.enumerated
        if rows == 256:  # each prefix once, at most one level of the tree per pass
            assert found.diagnostics.tokens == len(PROMPT) + every
            assert found.diagnostics.lm_calls <= (longest_answer(automaton) or 1)


def test_the_most_probable_branch_is_read_first(monkeypatch: pytest.MonkeyPatch) -> None:
    """Recompute the open branches before every pass of one row."""
    chosen: list[tuple[Ids, Ids]] = []
    read = TreeReader.read

    def noting(self: TreeReader, runs: Sequence[Run], keep: Any) -> Any:
        chosen.extend((run.ids[: run.known + 1], run.ids) for run in runs)
        return read(self, runs, keep)

    monkeypatch.setattr(TreeReader, "read", noting)
    for seed in range(2):
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


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_model_of_transformers(dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("transformers")
    if dtype == torch.float64:  # several passes per run
        monkeypatch.setattr("smc._forward.revisiting.MOST_READ", 2 * VOCABULARY.size)
    lm = smc.TransformersLM(tiny_model(layers=2).to(dtype), None, VOCABULARY)

    class Alone:
        """The model, computing one text at a time."""

        def log_p(self, tokens: Ids) -> torch.Tensor:
            return lm.prefill([tokens])[1][0]

    prompts, automaton = [(0, 1), (2,), (1, 1, 0)], lift(gcd.regex("[ab]{0,3}"), VOCABULARY)
    truths = [masses(Alone(), prompt, automaton, 5) for prompt in prompts]
    for options in ({"max_rows": 2}, {"max_prefixes": 9, "max_rows": 4}):
        found = smc.distribution(lm, prompts, automaton, **options)
        for each, truth in zip(found, truths, strict=True):
            assert each.enumerated == ("max_prefixes" not in options)
            for sample in each.particles:
                assert sample.log_p == pytest.approx(math.log(truth[sample.ids]), abs=1e-5)
            evidence = math.log(sum(truth.values()))
            assert each.bounds.log_lower <= evidence + 1e-5
            assert each.bounds.log_upper >= evidence - 1e-5


def test_a_model_that_gives_no_answer_any_probability() -> None:
    lm = HMMAsLM(VOCABULARY, never([0, 2]))  # neither a nor ab
    [found] = smc.distribution(lm, [PROMPT], FINITE["few"])
    assert found.enumerated
    assert found.texts == ("bbb",)
    [found] = smc.distribution(lm, [PROMPT], lift(choice("a", "ab"), VOCABULARY))
    assert (found.dead, found.enumerated) == (True, True)
    assert found.log_evidence == -math.inf


def test_canonical_spellings() -> None:
    """Exactly the tokenizer's spellings, with the model's probabilities."""
    lm, texts = stories(), [" park", " zoo", " beach"]
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
    log_p = {each.ids: each.log_p for each in every.particles}
    for each in found.particles:
        assert list(each.ids[:-1]) == lm.vocabulary.segmentation.encode(each.answer.decode())
        assert each.log_p == pytest.approx(log_p[each.ids], abs=1e-9)


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


# -- labels and joint fields -----------------------------------------------------------------------


LABELS = ("b", "ab", "a", "abba", "")


def truth_of(
    lm: ToyLM, prompt: Any, options: Sequence[str], vocabulary: Vocabulary = VOCABULARY
) -> tuple[list[float], float]:
    """Return P of each option and the evidence, summed over all spellings."""
    automaton = lift(choice(*options), vocabulary)
    mass = by_text(target(lm, prompt, automaton, longest_answer(automaton) or 1), vocabulary)
    evidence = sum(mass.values())
    return [mass[option.encode()] / evidence for option in options], evidence


@cache
def truth_of_labels(seed: int, order: tuple[str, ...]) -> tuple[list[float], float]:
    return truth_of(ToyLM(VOCABULARY, seed=seed, spread=2.0), written(order), LABELS)


@settings(max_examples=60)
@given(
    st.integers(0, 4),
    st.sampled_from([0.2, 0.8, 0.999, 1.0]),
    st.integers(1, 12) | st.just(EVERYTHING),
    st.integers(1, 4) | st.just(10),
)
@example(1, 1.0, EVERYTHING, 1)
@example(2, 1.0, EVERYTHING, 10)
def test_options_have_the_probabilities_of_their_texts(
    seed: int, certify: float, most: int, orders: int
) -> None:
    """Options keep their order; one may begin another, or be empty. Orders are averaged."""
    lm = ToyLM(VOCABULARY, seed=seed, spread=2.0)
    seen: list[list[str]] = []

    def prompt(options: Sequence[str]) -> tuple[int, ...]:
        seen.append([*options])
        return written(options)

    [found] = smc.choose(lm, [prompt], LABELS, certify=certify, max_prefixes=most, orders=orders)
    assert seen == expected_orders(LABELS, orders)
    each = [truth_of_labels(seed, tuple(order)) for order in seen]
    shares = [fmean(column) for column in zip(*(shares for shares, _ in each), strict=True)]
    log_evidence = math.log(fmean(evidence for _, evidence in each))
    assert found.options == LABELS
    for share, (low, high) in zip(shares, found.intervals, strict=True):
        assert low <= share <= high
    assert found.log_evidence <= log_evidence + 1e-9
    assert found.certified >= certify - 1e-8 or most < 12
    assert sum(found.probabilities) in (0, pytest.approx(1))
    assert found.enumerated or certify < 1 or most < EVERYTHING
    if found.enumerated:
        assert found.probabilities == pytest.approx(shares)
        assert found.log_evidence == pytest.approx(log_evidence)
        assert found.best == LABELS[shares.index(max(shares))]


def written(options: Sequence[str]) -> tuple[int, ...]:
    """Build a prompt that lists the options in order."""
    return tuple(i for option in options for i in (*VOCABULARY_IDS[option], 4))


VOCABULARY_IDS = {option: tuple(" ab".index(c) - 1 for c in option) for option in LABELS}


def expected_orders(options: Sequence[str], count: int) -> list[list[str]]:
    n, pairs = len(options), (count + 1) // 2
    orders = []
    for place in range(pairs):
        turn = place * n // pairs
        rotated = [*options[turn:], *options[:turn]]
        orders += [rotated, rotated[::-1]]
    return orders[:count]


def test_prompts_with_different_options() -> None:
    lm = ToyLM(VOCABULARY, seed=2)
    options = [("a", "b"), ("b", "a"), ("abba",)]
    prompts = [(0,), (0,), (1, 2)]
    found = smc.choose(lm, prompts, options, certify=1)
    for each, prompt, texts in zip(found, prompts, options, strict=True):
        assert each.options == texts
        assert each.probabilities == pytest.approx(truth_of(lm, prompt, texts)[0])
    assert found[2].probabilities == (1,)
    assert found[0].probabilities == pytest.approx(found[1].probabilities[::-1])
    same = smc.choose(lm, prompts, ["a", "b"], certify=1)
    assert same[0] == found[0]


def test_options_that_a_model_never_gives() -> None:
    lm = HMMAsLM(VOCABULARY, never([1, 2]))  # neither b nor ab
    [found] = smc.choose(lm, [(0,)], ["b", "ab"])
    assert (found.probabilities, found.best) == ((0, 0), None)
    assert found.log_evidence == -math.inf
    assert found.enumerated
    [found] = smc.choose(lm, [(0,)], ["b", "aa"])
    assert (found.best, found.probabilities) == ("aa", (0, 1))
    assert found.intervals[0] == pytest.approx((0, 0), abs=1e-8)


def test_canonical_spellings_come_first() -> None:
    """Most prefixes are not computed, but none of the spellings is missing."""
    fields = {"positive": bool, "topic": ["food", "staff"]}
    joint = smc.joint(stories(), "One day, Tom went to the", fields, max_prefixes=200)
    assert not joint.enumerated
    assert len(joint.texts) == 4
    assert joint.diagnostics.lm_calls < 50


class Grade(enum.Enum):
    LOW = 1
    HIGH = 2


@pytest.mark.parametrize(
    ("a", "b", "values"),
    [
        (range(1, 3), bool, ([1, 2], [False, True])),
        (Grade, Literal["a", "b"], ([1, 2], ["a", "b"])),
        ([1, True], ["b", 2], ([1, True], ["b", 2])),
    ],
)
def test_a_joint_posterior(a: Any, b: Any, values: tuple[list[Any], list[Any]]) -> None:
    tokens = [*JSON_VOCABULARY.token_bytes[:-1], b"false", b"fal", b"se", b""]
    vocabulary = Vocabulary.from_bytes(tokens, [len(tokens) - 1])
    lm = ToyLM(vocabulary, seed=4)
    found = smc.joint(lm, [0], {"a": a, "b": b}, certify=1, max_prefixes=50_000)
    assert found.enumerated
    pairs = [json.dumps({"a": x, "b": y}, separators=(",", ":")) for x in values[0]
             for y in values[1]]  # fmt: skip
    shares, evidence = truth_of(lm, [0], pairs, vocabulary)
    truth = dict(zip(pairs, shares, strict=True))
    assert found.log_evidence == pytest.approx(math.log(evidence))
    assert dict(zip(found.texts, found.probabilities, strict=True)) == pytest.approx(truth)
    for name in ("a", "b"):
        field = found.fields()[f"/{name}"]
        assert field.absent == 0
        for each in field.values:
            p = sum(p for text, p in truth.items() if json.loads(text)[name] == each.load()
                    and type(json.loads(text)[name]) is type(each.load()))  # fmt: skip
            assert each.probability == pytest.approx(p)

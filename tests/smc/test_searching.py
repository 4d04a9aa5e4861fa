"""The most probable answers, and reading on after sampling, against plain enumeration."""

from __future__ import annotations

import itertools
import math
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import gcd
import smc
import smc._inference.deadlines
from gcd import TokenAutomaton, Vocabulary, lift
from smc.testing import ToyLM, target
from tests.smc.calls import sample_with
from tests.smc.toys import CONSTRAINTS, VOCABULARY, Slow, choice
from tests.smc.walks import (
    EVERY_STEP,
    PROMPT,
    PROPOSALS,
    TOY,
    HMMAsLM,
    SometimesImpossible,
    by_text,
    holds,
    masses,
    never,
    outcomes,
)

MIDDLES = itertools.product("ab", ("", "a", "b"), ("", "a", "ba"))
AUTOMATA = {
    **{name: make() for name, make in CONSTRAINTS.items()},
    "many": lift(choice(*{"".join(parts) for parts in MIDDLES}), VOCABULARY),
    "all": lift(gcd.regex("[ab]{0,4}"), VOCABULARY),
}
EVERY = 2000  # more prefixes than any of these languages has


def search(lm: Any, automaton: TokenAutomaton, **options: Any) -> smc.SearchResult:
    return smc.search(lm, PROMPT, automaton, **options)


def ranked(lm: ToyLM, automaton: TokenAutomaton, budget: int, temperature: float = 1.0):
    """All answers with log p, the most probable first."""
    found = target(lm, PROMPT, automaton, budget, temperature=temperature)
    pairs = ((ids, math.log(p)) for ids, p in found.items() if p > 0)
    return sorted(pairs, key=lambda pair: (-pair[1], pair[0]))


def check(found: smc.SearchResult, truth: list[tuple[tuple[int, ...], float]], wanted: int) -> None:
    """Check the properties of every search: values, order, and optimality if it is claimed."""
    assert len(found.answers) <= wanted
    known = dict(truth)
    logs = [answer.log_p for answer in found.answers]
    assert logs == pytest.approx([known[answer.ids] for answer in found.answers], abs=1e-9)
    assert logs == sorted(logs, reverse=True)
    assert len({answer.ids for answer in found.answers}) == len(logs)
    for answer in found.answers:
        assert answer.answer == VOCABULARY.decode(answer.ids)
    best = [value for _, value in truth[: found.proved]]
    assert logs[: found.proved] == pytest.approx(best, abs=1e-9)
    others = [value for ids, value in truth if ids not in {a.ids for a in found.answers}]
    last = logs[-1] if len(logs) == wanted else -math.inf
    assert max(others, default=-math.inf) <= max(last, found.log_bound) + 1e-9


def problem(name: str, seed: int, slack: int) -> tuple[ToyLM, TokenAutomaton, int]:
    automaton = AUTOMATA[name]
    budget = automaton.fewest_tokens + slack
    return ToyLM(VOCABULARY, seed=seed, spread=2.0), automaton, budget


@settings(max_examples=150)
@given(
    name=st.sampled_from(sorted(AUTOMATA)),
    seed=st.integers(0, 50),
    slack=st.integers(0, 3),
    rows=st.integers(1, 6),
    answers=st.sampled_from([1, 2, 7]),
    temperature=st.sampled_from([0.5, 1.0]),
    most=st.sampled_from([EVERY, 1, 2, 5, 9]),
)
def test_the_most_probable_answers(name, seed, slack, rows, answers, temperature, most):
    lm, automaton, budget = problem(name, seed, slack)
    truth = ranked(lm, automaton, budget, temperature)
    options = {"answers": answers, "temperature": temperature, "max_rows": rows}
    found = search(lm, automaton, max_tokens=budget, max_reads=most, **options)
    check(found, truth, answers)
    assert found.read <= min(most, found.tokens)
    if found.read < most:
        assert found.proved == len(found.answers) == min(answers, len(truth))


def test_no_prefix_is_read_that_is_less_probable_than_the_best_answer():
    """Also none twice: computed one at a time, they are the prefixes with a higher log p."""
    lm, automaton, budget = problem("all", 4, 3)
    found = search(lm, automaton, max_tokens=budget, max_rows=1)
    read = 0

    def visit(state: int, ids: tuple[int, ...], log_p: float, forced: bool) -> None:
        nonlocal read
        after = lm.log_p(PROMPT + ids).tolist()
        allowed = automaton.allowed(state, budget - len(ids)).tolist()
        for token in allowed:
            there = automaton.step(state, token)
            # Forced tokens are computed with the prefix before them.
            is_read = log_p + after[token] > found.best.log_p or (forced and len(allowed) == 1)
            if there != automaton.final and is_read:
                read += 1
                visit(there, (*ids, token), log_p + after[token], True)

    visit(automaton.initial, (), 0.0, False)
    assert found.read == read


def test_an_answer_is_proved_among_many_improbable_ones():
    """Also if they are more than `max_reads`, and more probable together."""
    letters = [bytes([byte]) for byte in range(65, 105)]
    vocabulary = Vocabulary.from_bytes([*letters, b""], [40])

    class OneLikely(ToyLM):
        def log_p(self, tokens):
            if len(tokens) > len(PROMPT):  # EOS is all but certain
                return torch.tensor([1e-6] * 40 + [1 - 4e-5], dtype=torch.float64).log()
            return torch.tensor([0.2] + [0.8 / 40] * 40, dtype=torch.float64).log()

    automaton = lift(gcd.regex(r"[A-\x68]{1,2}"), vocabulary)
    found = search(OneLikely(vocabulary), automaton, max_tokens=3, max_reads=5, max_rows=1)
    assert (found.best.answer, found.proved, found.read) == (b"A", 1, 1)
    assert found.log_bound == -math.inf


def test_a_model_that_gives_no_answer_any_probability():
    lm = HMMAsLM(VOCABULARY, never([0, 2]))  # neither a nor ab
    found = search(lm, AUTOMATA["a_star_b"], max_tokens=6, answers=4)
    assert [answer.answer for answer in found.answers] == [b"b"] * 2  # with either EOS id
    assert found.proved == 2
    lm = HMMAsLM(VOCABULARY, never([1, 2]))
    found = search(lm, AUTOMATA["a_star_b"], max_tokens=6, answers=4)
    assert (found.answers, found.best, found.proved, found.log_bound) == ((), None, 0, -math.inf)


@pytest.mark.parametrize("name", list(AUTOMATA))
@pytest.mark.parametrize("rows", [1, 3])
def test_a_search_ends_in_time(name: str, rows: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """The clock counts the prefixes that the model reads."""
    lm, automaton, budget = Slow(monkeypatch, seed=5), AUTOMATA[name], 8
    truth = ranked(lm, automaton, budget)
    options = {"max_tokens": budget, "max_rows": rows, "answers": 2}
    lm.now = 0.0
    whole = search(lm, automaton, **options)
    assert whole.stopped is None
    needed = lm.now
    for part in (0.0, 0.3, 0.6, 2.0):
        lm.now = 0.0
        found = search(lm, automaton, **options, deadline=part * needed)
        check(found, truth, 2)
        assert found.read <= whole.read
    assert found.stopped is None
    assert found.answers == whole.answers


# -- reading on after sampling ---------------------------------------------------------------------


FLAT = ToyLM(VOCABULARY, seed=1, spread=0.3)


@pytest.mark.parametrize(
    ("name", "proposal", "budget", "options", "certify", "most"),
    [
        ("few_words", "gcd", 2, {"particles": 2, **EVERY_STEP}, 0.8, 100),
        ("few_words", "lcd", 2, {"particles": 2}, 0.999, 100),
        ("a_star_b", "lm", 2, {"particles": 2}, 0.999, 2),
        ("few_words", "gcd", 4, {"particles": 1, "algorithm": "discrete"}, 0.8, 100),
        ("few_words", "lm", 4, {"particles": 2, "algorithm": "discrete"}, 0.999, 2),
        ("a_star_b", "tilted", 4, {"particles": 2, "algorithm": "discrete"}, 0.999, 100),
    ],
)
def test_bounds_hold_in_every_outcome_and_the_evidence_is_unbiased(
    name: str, proposal: str, budget: int, options: dict[str, Any], certify: float, most: int
) -> None:
    automaton = CONSTRAINTS[name]()
    target = masses(TOY, PROMPT, automaton, budget)
    evidence = math.fsum(target.values())
    found = outcomes(
        automaton, budget, proposal=PROPOSALS[proposal](), certify=certify,
        max_tokens_read=most, **options,
    )  # fmt: skip
    truth = by_text(target, automaton.vocabulary)
    mean, read_on = 0.0, 0
    for probability, posterior in found:
        assert holds(posterior, target, automaton.vocabulary)
        mean += probability * math.exp(posterior.log_evidence)
        read = posterior.diagnostics.read_on
        read_on += read
        assert posterior.certified >= certify or read >= most
        if read:
            apart = sum(abs(p - truth[answer] / evidence) for answer, p in _pairs(posterior))
            apart += 1 - sum(truth[answer] for answer in posterior.answers) / evidence
            assert apart / 2 <= 1 - posterior.certified
    assert mean == pytest.approx(evidence)
    assert read_on


def _pairs(posterior: smc.Posterior) -> list[tuple[bytes, float]]:
    return list(zip(posterior.answers, posterior.probabilities, strict=True))


def sample(lm: smc.LanguageModel = FLAT, count: int = 1, **options: Any) -> list[smc.Posterior]:
    given = {"max_tokens": 5, "particles": 2, "proposal": smc.GCD(), "certify": 0.95, **options}
    return sample_with(lm, [PROMPT] * count, CONSTRAINTS["few_words"](), **given)


def test_reading_on_finds_answers_that_sampling_missed() -> None:
    (before,) = sample(certify=None)
    (found,) = sample()
    assert before.certified < 0.95 <= found.certified
    assert set(before.answers) < set(found.answers)
    assert found.log_evidence == before.log_evidence
    assert found.reliability.label == "certified"
    assert found.reliability.log_evidence_error == before.reliability.log_evidence_error
    assert found.diagnostics.tokens == before.diagnostics.tokens + found.diagnostics.read_on
    assert found.diagnostics.lm_calls > before.diagnostics.lm_calls
    for inner, outer in zip(found.confidence_intervals, found.intervals, strict=True):
        assert inner == pytest.approx(outer)
    assert not found.enumerated  # the evidence is still an estimate
    assert math.fsum(found.probabilities) == pytest.approx(1)


def test_reading_on_needs_a_share_that_is_missing_and_within_reach() -> None:
    (before,), (found,) = (sample(certify=share, particles=64) for share in (None, 0.5))
    assert found.diagnostics.read_on == 0
    assert found.particles == before.particles
    assert found.probabilities == before.probabilities
    (found,) = sample(certify=0.999, max_tokens_read=1)
    assert found.certified < 0.9
    assert found.reliability.label == "unknown"
    assert found.reliability.probability_errors[0] == pytest.approx(1 - found.certified)
    assert holds(found, masses(FLAT, PROMPT, CONSTRAINTS["few_words"](), 5), VOCABULARY)


def test_examples_of_a_batch_are_read_as_if_each_were_alone() -> None:
    for i, each in enumerate(sample(count=3)):
        (alone,) = sample(example_ids=[i])
        assert each.bounds == alone.bounds
        assert each.probabilities == pytest.approx(alone.probabilities)


def test_no_answer_has_any_probability() -> None:
    lm = SometimesImpossible(VOCABULARY, seed=2)
    for proposal in (smc.LM(), smc.GCD()):
        for found in sample(lm, count=3, proposal=proposal, max_tokens=2):
            target = masses(lm, PROMPT, CONSTRAINTS["few_words"](), 2)
            assert holds(found, target, VOCABULARY)


def test_reading_ends_with_the_time(monkeypatch: pytest.MonkeyPatch) -> None:
    lm = Slow(monkeypatch, seed=1, spread=0.3)
    (free,) = sample(lm, certify=1.0)
    needed, lm.now = lm.now, 0.0
    (plain,) = sample(lm, certify=None)
    sampling, lm.now = lm.now, 0.0
    (found,) = sample(lm, certify=1.0, deadline=(sampling + needed) / 2)
    assert 0 < found.diagnostics.read_on < free.diagnostics.read_on
    assert found.stopped is None
    assert found.log_evidence == plain.log_evidence
    lm.now = 0.0
    (closed,) = sample(lm, certify=1.0, deadline=0)
    assert closed.stopped == "deadline"
    assert closed.diagnostics.read_on == 0

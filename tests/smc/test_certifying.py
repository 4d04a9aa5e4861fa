"""Reading on after sampling: bounds hold in every outcome, and the evidence stays unbiased."""

from __future__ import annotations

import math
from typing import Any

import pytest

import smc
import smc._inference.deadlines
from smc.testing import ToyLM
from tests.smc.calls import sample_with
from tests.smc.toys import CONSTRAINTS, VOCABULARY
from tests.smc.walks import (
    PROMPT,
    PROPOSALS,
    TOY,
    SometimesImpossible,
    by_text,
    holds,
    masses,
    outcomes,
)

FLAT = ToyLM(VOCABULARY, seed=1, spread=0.3)


@pytest.mark.parametrize(
    ("name", "proposal", "budget", "options"),
    [
        ("few_words", "gcd", 2, {"particles": 2, "ess_threshold": 1.0, "strata": "none"}),
        ("few_words", "lcd", 2, {"particles": 2}),
        ("a_star_b", "lm", 2, {"particles": 2}),
        ("few_words", "gcd", 4, {"particles": 1, "algorithm": "discrete"}),
        ("few_words", "lm", 4, {"particles": 2, "algorithm": "discrete"}),
        ("a_star_b", "tilted", 4, {"particles": 2, "algorithm": "discrete"}),
    ],
)
@pytest.mark.parametrize(("certify", "most"), [(0.8, 100), (0.999, 100), (0.999, 2)])
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
        assert posterior.certified is not None
        assert posterior.log_evidence is not None
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
    assert before.certified is not None
    assert found.certified is not None
    assert before.certified < 0.95 <= found.certified
    assert set(before.answers) < set(found.answers)
    assert found.log_evidence == before.log_evidence
    assert found.reliability.label == "certified"
    assert found.reliability.log_evidence_error == before.reliability.log_evidence_error
    assert found.diagnostics.tokens == before.diagnostics.tokens + found.diagnostics.read_on
    assert found.diagnostics.lm_calls > before.diagnostics.lm_calls
    assert found.intervals is not None
    for inner, outer in zip(found.confidence_intervals, found.intervals, strict=True):
        assert inner == pytest.approx(outer)
    assert not found.enumerated  # the evidence is still an estimate
    assert math.fsum(found.probabilities) == pytest.approx(1)


def test_what_was_found_already_is_left_as_it_is() -> None:
    (before,) = sample(certify=None, particles=64)
    (found,) = sample(certify=0.5, particles=64)
    assert found.diagnostics.read_on == 0
    assert found.particles == before.particles
    assert found.probabilities == before.probabilities


def test_examples_of_a_batch_are_read_as_if_each_were_alone() -> None:
    together = sample(count=3)
    for i, each in enumerate(together):
        (alone,) = sample(example_ids=[i])
        assert each.bounds == alone.bounds
        assert each.probabilities == pytest.approx(alone.probabilities)


def test_a_share_that_is_out_of_reach_is_unknown_and_holds() -> None:
    (found,) = sample(certify=0.999, max_tokens_read=1)
    assert found.certified is not None
    assert found.certified < 0.9
    assert found.reliability.label == "unknown"
    assert found.reliability.probability_errors[0] == pytest.approx(1 - found.certified)
    assert holds(found, masses(FLAT, PROMPT, CONSTRAINTS["few_words"](), 5), VOCABULARY)


def test_no_answer_has_any_probability() -> None:
    lm = SometimesImpossible(VOCABULARY, seed=2)
    for proposal in (smc.LM(), smc.GCD()):
        for found in sample(lm, count=3, proposal=proposal, max_tokens=2):
            target = masses(lm, PROMPT, CONSTRAINTS["few_words"](), 2)
            assert holds(found, target, VOCABULARY)


def test_reading_ends_with_the_time(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [0.0]
    monkeypatch.setattr(smc._inference.deadlines, "_clock", lambda: now[0])

    class Slow(ToyLM):
        def log_p(self, tokens: tuple[int, ...]) -> Any:
            now[0] += 0.01
            return super().log_p(tokens)

    lm = Slow(VOCABULARY, seed=1, spread=0.3)
    (free,) = sample(lm, certify=1.0)
    needed, now[0] = now[0], 0.0
    (plain,) = sample(lm, certify=None)
    sampling, now[0] = now[0], 0.0
    (found,) = sample(lm, certify=1.0, deadline=(sampling + needed) / 2)
    assert 0 < found.diagnostics.read_on < free.diagnostics.read_on
    assert found.stopped is None
    assert found.log_evidence == plain.log_evidence
    now[0] = 0.0
    (closed,) = sample(lm, certify=1.0, deadline=0)
    assert closed.stopped == "deadline"
    assert closed.diagnostics.read_on == 0

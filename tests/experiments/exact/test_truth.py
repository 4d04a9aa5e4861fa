"""The truth against enumeration, laws against the walk over all choices, runs against the truth."""

from __future__ import annotations

import math
from collections import defaultdict
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from scipy import sparse, stats

import smc
from experiments.exact import measures
from experiments.exact.cached import CachedLM
from experiments.exact.measures import Runs, sample_runs
from experiments.exact.truth import levels_of, solve, total_variation
from smc.testing import ToyLM, target, walk
from tests.experiments.exact.test_cached import (
    CONSTRAINTS,
    HMM_,
    LM,
    PROMPT,
    VOCABULARY,
    built,
    restricted,
)
from tests.smc.calls import sample_with


def estimate(*arguments) -> SimpleNamespace:
    return SimpleNamespace(**measures.estimate(*arguments))


def truth(constraint, budget: int, temperature: float = 1.0) -> dict[bytes, float]:
    mass: dict[bytes, float] = defaultdict(float)
    found = target(LM, PROMPT, constraint, budget, temperature=temperature)
    for ids, probability in found.items():
        mass[VOCABULARY.decode(ids)] += probability
    return dict(mass)


@pytest.mark.parametrize("name", list(CONSTRAINTS))
@pytest.mark.parametrize("budget", [2, 3, 5])
@pytest.mark.parametrize("temperature", [1.0, 0.6])
def test_evidence_and_posterior(name, budget, temperature):
    constraint, _ = restricted(name)
    _, lm, levels = built(name, budget, temperature=temperature)
    expected = truth(constraint, budget, temperature)
    found = solve(lm, levels)
    total = sum(expected.values())
    assert found.log_evidence == pytest.approx(math.log(total), abs=1e-10)
    assert dict(zip(found.texts, found.posterior, strict=True)) == pytest.approx(
        {text: mass / total for text, mass in expected.items()}, abs=1e-10
    )
    order = sorted(found.texts, reverse=True)
    assert solve(lm, levels, order).posterior == pytest.approx(found.posterior[::-1])


@pytest.mark.parametrize("method", ["lcd", "gcd"])
@pytest.mark.parametrize("name", ["words", "loop"])
def test_the_law_of_one_sample_is_the_sampler_s(method, name):
    constraint, _ = restricted(name)
    _, lm, levels = built(name, 3)
    found = solve(lm, levels)
    mass: dict[bytes, float] = defaultdict(float)
    proposal = {"lcd": smc.LCD(), "gcd": smc.GCD()}[method]

    def run(draw: smc.Draw, ids: list[int]) -> list[smc.Posterior]:
        return sample_with(
            LM,
            [PROMPT] * len(ids),
            constraint,
            max_tokens=3,
            particles=1,
            proposal=proposal,
            example_ids=ids,
            max_rows=1 << 20,
            draw=draw,
            algorithm="smc",
        )

    for probability, posterior in walk(run):
        for answer in posterior.answers:
            mass[answer] += probability
    assert dict(zip(found.texts, found.laws[method], strict=True)) == pytest.approx(
        {text: mass[text] for text in found.texts}, abs=1e-10
    )


def test_impossible_answers_and_prefixes_have_probability_zero():
    """Also for a token behind which the model gives every allowed token probability zero."""

    class Partial(ToyLM):
        def log_p(self, tokens):
            return super().log_p(tokens).where(self.possible(tokens), torch.tensor(-torch.inf))

        def possible(self, tokens):
            rows = torch.ones(VOCABULARY.size, dtype=torch.bool)
            if tokens[len(PROMPT) :] == (2,):  # after "ab" there is only an x
                rows = torch.arange(VOCABULARY.size) == 3
            return rows

    _, restriction = restricted("words")
    lm = CachedLM(Partial(VOCABULARY, seed=3), PROMPT, restriction)
    found = solve(lm, levels_of(lm, restriction.automaton, 2))
    assert dict(zip(found.texts, found.posterior, strict=True))[b"ab"] == 0
    assert 0 < found.laws["gcd"].sum() < 1


def test_a_model_without_any_answer_is_refused():
    class Silent(ToyLM):
        def log_p(self, tokens):
            return torch.full((VOCABULARY.size,), -torch.inf, dtype=torch.float64)

    _, restriction = restricted("words")
    lm = CachedLM(Silent(VOCABULARY), PROMPT, restriction)
    with pytest.raises(ValueError, match="answer with positive probability"):
        solve(lm, levels_of(lm, restriction.automaton, 3))


@pytest.mark.usefixtures("unchecked_annotations")
@pytest.mark.parametrize("proposal", [lambda _: smc.LCD(), lambda _: smc.GCD(), smc.PGCD])
def test_many_runs_find_the_truth(proposal):
    restriction, lm, levels = built("classes", 4)
    known = solve(lm, levels)
    own = proposal(restriction.hmm(HMM_))
    given = {"max_tokens": 4, "particles": 8, "proposal": own, "algorithm": "smc", "seed": 1}
    found = sample_runs(lm, restriction.automaton, known.texts, 500, **given)
    ratio = np.exp(found.log_evidence - known.log_evidence)
    z = (ratio.mean() - 1) / (ratio.std() / math.sqrt(len(ratio)))
    assert abs(z) < 4
    # Weighted by its evidence, the mean posterior is the exact one.
    weighted = (found.posterior.multiply(ratio[:, None])).mean(axis=0)
    assert np.asarray(weighted).ravel() == pytest.approx(known.posterior, abs=0.05)
    measured = estimate(found, 8, known.posterior, known.log_evidence)
    assert measured.evidence_bias_low <= measured.evidence_bias <= measured.evidence_bias_high
    assert measured.tv_low <= measured.tv <= measured.tv_high


def test_no_answer_is_an_outcome():
    posterior = np.array([0.5, 0.5])
    assert total_variation(np.zeros(2), posterior) == 1
    assert total_variation(posterior, posterior) == 0
    assert total_variation(posterior / 2, posterior) == pytest.approx(0.5)


def runs_of(rows: np.ndarray, dead: np.ndarray) -> Runs:
    evidence = np.where(dead, -np.inf, 0.0)
    read, enumerated = np.full(len(dead), 3), np.zeros(len(dead), bool)
    return Runs(sparse.csr_matrix(rows), evidence, read, enumerated)


def test_dead_runs_count_against_a_method():
    rows = np.array([[1.0, 0.0], [0.0, 1.0], [0.0, 0.0], [0.0, 0.0]])
    dead = np.array([False, False, True, True])
    found = estimate(runs_of(rows, dead), 1, np.array([0.5, 0.5]), 0.0)
    assert found.dead == 0.5
    assert found.tv == pytest.approx(0.5)
    assert found.evidence_bias == pytest.approx(-0.5)
    assert found.read == 3
    assert not found.enumerated


def test_the_floor_agrees_with_exact_draws():
    """Runs that are single exact draws have no bias; what is seen is the floor."""
    generator = np.random.default_rng(0)
    posterior = generator.dirichlet(np.ones(20))
    seen, floors, covered = [], [], 0
    for _ in range(40):
        rows = np.eye(20)[generator.choice(20, 500, p=posterior)]
        found = estimate(runs_of(rows, np.zeros(500, bool)), 1, posterior, 0.0)
        seen.append(found.tv)
        floors.append(found.tv_floor)
        covered += found.tv_low <= found.tv_floor
    assert np.mean(seen) == pytest.approx(np.mean(floors), rel=0.1)
    deviations = [stats.binom(500, p).expect(lambda k, p=p: abs(k / 500 - p)) for p in posterior]
    assert np.mean(seen) == pytest.approx(sum(deviations) / 2, rel=0.1)
    assert covered >= 35

"""The truth against enumeration, laws against the walk over all choices, runs against the truth."""

from __future__ import annotations

import math
from collections import defaultdict
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from scipy import sparse, stats

import smc
from experiments.harness.config import HMMConfig
from experiments.harness.methods import METHODS as ALL_METHODS
from experiments.studies.convergence import measures
from experiments.studies.convergence.evaluate import Evaluator
from experiments.studies.convergence.exact import exact, floor_of_draws, total_variation
from experiments.studies.convergence.methods import law_of_sample
from experiments.studies.convergence.sampler import (
    Runs,
    TreeLM,
    TreeProposal,
    sample_runs,
    tabulate,
)
from smc._inference.algorithms import SMC, Discrete
from smc.testing import target, walk
from tests.experiments.studies.convergence.test_tree import (
    CONSTRAINTS,
    HMM_,
    LM,
    PROMPT,
    VOCABULARY,
    built,
)

METHODS = {name: method for name, method in ALL_METHODS.items() if method.in_convergence}
PLAIN = HMMConfig(lookahead="conditional")
PLAINLY = Discrete(count_finished=False, floor=0.0)  # it enumerates where it has room


def estimate(*arguments) -> SimpleNamespace:
    return SimpleNamespace(**measures.estimate(*arguments))


def on_tree(method: str, restriction, tree, settings: HMMConfig = PLAIN) -> TreeProposal:
    entry = METHODS[method]
    if entry.indicator is not None:
        return TreeProposal(tree, entry.indicator)
    proposal = entry.proposal(settings, restriction.hmm(HMM_))
    return TreeProposal(tree, tabulate(proposal, tree), potential=proposal.potential)


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
    constraint, _, tree = built(name, budget, temperature=temperature)
    expected = truth(constraint, budget, temperature)
    found = exact(tree)
    total = sum(expected.values())
    assert found.log_evidence == pytest.approx(math.log(total), abs=1e-10)
    assert dict(zip(tree.texts, found.posterior.tolist(), strict=True)) == pytest.approx(
        {text: mass / total for text, mass in expected.items()}, abs=1e-10
    )


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("name", ["words", "loop"])
def test_the_law_of_one_sample_is_the_sampler_s(method, name):
    constraint, restriction, tree = built(name, 3)
    law = law_of_sample(on_tree(method, restriction, tree), exact(tree))
    mass: dict[bytes, float] = defaultdict(float)

    def run(draw: smc.Draw, ids: list[int]) -> list[smc.Posterior]:
        return smc.sample(
            LM,
            [PROMPT] * len(ids),
            constraint,
            max_tokens=3,
            particles=1,
            proposal=METHODS[method].proposal(PLAIN, HMM_),
            example_ids=ids,
            max_rows=1 << 20,
            draw=draw,
            algorithm="smc",
        )

    for probability, posterior in walk(run):
        for answer in posterior.answers:
            mass[answer] += probability
    assert dict(zip(tree.texts, law.probabilities.tolist(), strict=True)) == pytest.approx(
        {text: mass[text] for text in tree.texts}, abs=1e-10
    )
    assert law.share_valid == pytest.approx(sum(mass.values()), abs=1e-10)
    expected = truth(constraint, 3)
    total = sum(expected.values())
    distance = sum(abs(mass[t] - expected[t] / total) for t in expected)
    assert law.total_variation == pytest.approx((distance + 1 - sum(mass.values())) / 2, abs=1e-10)
    if method == "lm":
        assert law.share_valid == pytest.approx(total, abs=1e-10)


RUNS = 12
CASES = [
    (1, SMC("systematic", 0.5), PLAIN),
    (5, SMC("systematic", 0.9, "state"), PLAIN),
    (4, SMC("multinomial", 1.0), PLAIN),
    (1, PLAINLY, PLAIN),
    (3, replace(PLAINLY, floor=0.1), PLAIN),
    (3, Discrete(), replace(PLAIN, defense=0.3, exact_top_k=2)),
    (5, Discrete(count_finished=True, floor=0.1), replace(PLAIN, defense=0.0)),
    (1 << 12, PLAINLY, PLAIN),
]


@pytest.mark.parametrize(
    ("method", "name", "particles", "algorithm", "settings"),
    [  # every method in every case, and both under every constraint
        (method, list(CONSTRAINTS)[(i + j) % len(CONSTRAINTS)], *case)
        for i, method in enumerate(list(METHODS)[1:])
        for j, case in enumerate(CASES)
    ],
)
def test_a_run_on_the_tree_is_the_real_run(method, name, particles, algorithm, settings):
    """Equal seeds draw equal tokens, with a large vocabulary or on the tree."""
    constraint, restriction, tree = built(name, 3)
    found = sample_runs(
        TreeLM(tree, Evaluator(LM, PROMPT, restriction.ids)),
        on_tree(method, restriction, tree, settings),
        algorithm=algorithm,
        particles=particles,
        runs=RUNS,
        seed=5,
    )
    kind = "smc" if isinstance(algorithm, SMC) else "discrete"
    options = {"algorithm": kind, **vars(algorithm)}
    real = smc.sample(
        LM,
        [PROMPT] * RUNS,
        constraint,
        max_tokens=3,
        proposal=METHODS[method].proposal(settings, HMM_),
        particles=particles,
        seed=5,
        max_rows=1 << 20,
        forced_runs=False,  # the tree is walked token by token
        **{"algorithm": "smc", **options},
    )
    if found.enumerated[0]:  # then all runs are this one
        assert len(found.enumerated) == 1
        assert all(posterior.probabilities == real[0].probabilities for posterior in real)
        real = real[:1]
    for run, posterior in enumerate(real):
        assert found.enumerated[run] == posterior.enumerated
        assert found.read[run] == posterior.diagnostics.tokens - len(PROMPT)
        assert found.dead[run] == posterior.dead
        assert found.ess[run] == pytest.approx(posterior.ess)
        assert found.log_evidence[run] == pytest.approx(posterior.log_evidence)
        row = found.posterior[run].toarray()[0]
        shares = dict(zip(posterior.answers, posterior.probabilities, strict=True))
        assert row == pytest.approx([shares.get(text, 0.0) for text in tree.texts])


@pytest.mark.parametrize(
    ("method", "algorithm"),
    [
        *((method, SMC("systematic", 1.0)) for method in METHODS),
        ("lcd", PLAINLY),
        ("gcd", PLAINLY),
        ("pgcd", PLAINLY),
        ("pgcd_in_time", Discrete()),
        ("pgcd_tied", Discrete(count_finished=True)),
        ("pgcd_joint", Discrete(floor=0.3)),
    ],
)
def test_over_all_choices_runs_are_unbiased(method, algorithm):
    constraint, restriction, tree = built("words", 3)
    lm = TreeLM(tree, Evaluator(LM, PROMPT, restriction.ids))
    proposal = on_tree(method, restriction, tree)

    def run(draw: smc.Draw, ids: list[int]) -> list[tuple[float, np.ndarray]]:
        found = sample_runs(
            lm,
            proposal,
            algorithm=algorithm,
            particles=2,
            runs=len(ids),
            draw=draw,
        )
        posteriors = found.posterior.toarray()
        return [(math.exp(z), row) for z, row in zip(found.log_evidence, posteriors, strict=True)]

    mass, total = np.zeros(len(tree.texts)), 0.0
    for probability, (evidence, row) in walk(run):
        total += probability
        mass += probability * evidence * row
    expected = truth(constraint, 3)
    assert total == pytest.approx(1, abs=1e-10)
    assert mass == pytest.approx([expected[text] for text in tree.texts], abs=1e-10)


@pytest.mark.parametrize("method", METHODS)
def test_many_runs_find_the_truth(method):
    _, restriction, tree = built("classes", 4)
    known = exact(tree)
    found = sample_runs(
        TreeLM(tree, Evaluator(LM, PROMPT, restriction.ids)),
        on_tree(method, restriction, tree),
        algorithm=SMC(),
        particles=8,
        runs=4000,
        seed=1,
    )
    ratio = np.exp(found.log_evidence - known.log_evidence)
    z = (ratio.mean() - 1) / (ratio.std() / math.sqrt(len(ratio)))
    assert abs(z) < 4
    # Weighted by its evidence, the mean posterior is the exact one.
    weighted = (found.posterior.multiply(ratio[:, None])).mean(axis=0)
    assert np.asarray(weighted).ravel() == pytest.approx(known.posterior.numpy(), abs=0.05)
    measured = estimate(found, 8, known.posterior.numpy(), known.log_evidence)
    assert measured.evidence_bias_low <= measured.evidence_bias <= measured.evidence_bias_high
    assert measured.tv_low <= measured.tv <= measured.tv_high
    assert measured.one_run_tv >= measured.tv - 1e-12  # by convexity


@pytest.mark.parametrize("method", [m for m in METHODS if m != "lm"])
@pytest.mark.parametrize("name", ["words", "loop", "everything"])
def test_with_room_for_every_prefix_the_discrete_filter_is_the_truth(method, name):
    _, restriction, tree = built(name, 3)
    known = exact(tree)
    found = sample_runs(
        TreeLM(tree, Evaluator(LM, PROMPT, restriction.ids)),
        on_tree(method, restriction, tree),
        algorithm=PLAINLY,
        particles=tree.num_prefixes * (100 if method == "lcd" else 1),  # it walks late ones, too
        runs=1000,
    )
    assert found.enumerated.tolist() == [True]
    measured = estimate(found, tree.num_prefixes, known.posterior.numpy(), known.log_evidence)
    assert (measured.runs, measured.enumerated) == (1, True)
    assert measured.tv < 1e-12
    assert measured.tv == measured.tv_low == measured.tv_high
    assert abs(measured.evidence_bias) < 1e-12
    assert measured.read >= tree.num_prefixes - 1  # all but the prompt itself
    if method != "lcd":
        assert measured.read == tree.num_prefixes - 1


@pytest.mark.parametrize("draws", [1, 2, 7, 100])
def test_an_exact_sampler_s_distance(draws):
    posterior = torch.tensor([0.5, 0.3, 0.2, 0.0], dtype=torch.float64)
    expected = 0.0
    for p in posterior.tolist():
        k = np.arange(draws + 1)
        expected += float((stats.binom.pmf(k, draws, p) * np.abs(k / draws - p)).sum()) / 2
    assert floor_of_draws(posterior, draws) == pytest.approx(expected, abs=1e-12)
    assert floor_of_draws(torch.tensor([1.0], dtype=torch.float64), draws) == 0


def test_no_answer_is_an_outcome():
    posterior = np.array([0.5, 0.5])
    assert total_variation(np.zeros(2), posterior) == 1
    assert total_variation(posterior, posterior) == 0
    assert total_variation(posterior / 2, posterior) == pytest.approx(0.5)


def runs_of(rows: np.ndarray, dead: np.ndarray) -> Runs:
    evidence = np.where(dead, -np.inf, 0.0)
    read, enumerated = np.full(len(dead), 3), np.zeros(len(dead), bool)
    ess = np.where(dead, 0.0, 1.0)
    return Runs(sparse.csr_matrix(rows), evidence, ess, read, enumerated)


def test_dead_runs_count_against_a_method():
    rows = np.array([[1.0, 0.0], [0.0, 1.0], [0.0, 0.0], [0.0, 0.0]])
    dead = np.array([False, False, True, True])
    found = estimate(runs_of(rows, dead), 1, np.array([0.5, 0.5]), 0.0)
    assert found.dead == 0.5
    assert found.tv == pytest.approx(0.5)
    assert found.one_run_tv == pytest.approx((0.5 + 0.5 + 1 + 1) / 4)
    assert found.evidence_bias == pytest.approx(-0.5)
    assert found.ess == 0.5
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
    assert np.mean(seen) == pytest.approx(floor_of_draws(torch.from_numpy(posterior), 500), rel=0.1)
    assert covered >= 35

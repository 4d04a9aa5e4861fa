"""AWRS samples from our target, where its package is installed; elsewhere one is told how."""

from __future__ import annotations

import importlib.util
import math
from collections import defaultdict
from pathlib import Path

import numpy as np
import pytest
from hydra import compose, initialize_config_dir

import smc
from experiments import run as experiment
from experiments.harness import awrs
from experiments.harness.methods import METHODS
from smc.testing import ToyLM, target
from tests.smc.toys import CONSTRAINTS, VOCABULARY

TOY = ToyLM(VOCABULARY, seed=1, spread=1.5)
CONFIGS = Path(__file__).resolve().parents[3] / "configs"
RUNS = 500

needs_package = pytest.mark.skipif(
    importlib.util.find_spec("genlm") is None, reason="genlm-control is an optional extra"
)


def composed(*overrides: str):
    with initialize_config_dir(str(CONFIGS), version_base="1.3"):
        return compose("config", ["+task=xlam", *overrides])


def sample(
    proposal: smc.Proposal, name: str, budget: int, runs: int, **options: object
) -> list[smc.Posterior]:
    given = {"particles": 2, "resampling": "multinomial", "ess_threshold": 1.0, **options}
    return awrs.sample(
        TOY,
        [(0, 1)] * runs,
        [CONSTRAINTS[name]()] * runs,
        budget=[budget] * runs,
        proposal=proposal,
        temperature=1.0,
        top_p=1.0,
        seed=0,
        example_ids=range(runs),
        strata="none",
        max_rows=128,
        **given,
    )


@needs_package
@pytest.mark.parametrize("proposal", [smc.LCD(), smc.GCD()], ids=["lcd", "gcd"])
def test_weights_are_proper_for_our_target(proposal):
    """Over runs, evidence x probability averages to p_lm(x), for every answer in the budget."""
    automaton = CONSTRAINTS["few_words"]()
    expected: dict[bytes, float] = defaultdict(float)
    for ids, p in target(TOY, (0, 1), automaton, 3).items():
        expected[automaton.vocabulary.decode(ids)] += p
    found = sample(proposal, "few_words", 3, RUNS)
    mass = {answer: np.zeros(RUNS) for answer in expected}
    for run, posterior in enumerate(found):
        if posterior.dead:
            continue
        evidence = math.exp(posterior.log_evidence)
        for answer, share in zip(posterior.answers, posterior.probabilities, strict=True):
            mass[answer][run] = evidence * share
    for answer, p in expected.items():
        error = mass[answer].std() / math.sqrt(RUNS)
        assert abs(mass[answer].mean() - p) < 4.5 * error + 1e-9, answer
    if isinstance(proposal, smc.GCD):
        assert all(posterior.complete for posterior in found)


@needs_package
def test_results_depend_on_seed_and_example_alone():
    state = np.random.get_state()[1].copy()  # noqa: NPY002
    three, one = (sample(smc.LCD(), "a_star_b", 5, runs) for runs in (3, 1))
    assert (np.random.get_state()[1] == state).all()  # noqa: NPY002
    assert [p.log_weight for p in three[0].particles] == [p.log_weight for p in one[0].particles]
    assert three[0].answers == one[0].answers


@needs_package
def test_it_reads_each_distinct_prefix_once():
    [posterior] = sample(smc.GCD(), "forced", 3, 1, particles=8)
    # The prompt's two tokens, then "b" and "ba", whatever the number of particles.
    assert posterior.answers == (b"ba",)
    assert posterior.diagnostics.lm_calls <= 3
    assert posterior.diagnostics.tokens <= 4


def test_without_the_package_the_command_is_told(monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    overrides = ("task.methods=[gcd,awrs]", "task.algorithms=[smc_all]")
    with pytest.raises(ValueError, match=r"awrs, which needs .*: pip install '\.\[awrs\]'"):
        experiment.check(composed(*overrides))


def test_algorithms_that_it_has_no_counterpart_of_are_refused(monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: object())
    for algorithm in ("smc", "discrete"):
        with pytest.raises(ValueError, match=f"awrs, which cannot run with .*{algorithm}"):
            experiment.check(
                composed("task.methods=[awrs]", f"task.algorithms=[smc_all,{algorithm}]")
            )
    experiment.check(composed("task.methods=[gcd,awrs]", "task.algorithms=[smc_all,smc_none]"))


def test_both_conditions_are_methods():
    assert isinstance(METHODS["awrs"].proposal(None), smc.LCD)
    assert isinstance(METHODS["awrs_gcd"].proposal(None), smc.GCD)

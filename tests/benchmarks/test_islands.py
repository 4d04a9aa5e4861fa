"""The estimate of several runs is the mean of the runs, and its error is their spread."""

import math

import numpy as np
import pytest

pytest.importorskip("transformers")

import smc
from benchmarks.islands import estimate
from benchmarks.reliability import random_problems


def test_the_spread_of_islands_is_the_standard_error_of_their_mean() -> None:
    problem = next(random_problems(1, set()))
    found = smc.sample(
        problem.lm, [problem.prompt] * 4, problem.constraint, budget=problem.budget,
        particles=16, proposal=smc.GCD(), algorithm="smc", seed=2,
    )  # fmt: skip
    evidences = np.exp([each.log_evidence for each in found])
    error = evidences.std(ddof=1) / math.sqrt(4) / evidences.mean()
    several = estimate(problem, "smc", 4)
    assert several["log_evidence"] == pytest.approx(math.log(evidences.mean()))
    assert several["half"] == pytest.approx(2.353 * error, rel=1e-3)  # t with 3 degrees of freedom
    one = estimate(problem, "smc", 1)
    assert one["tokens"] < several["tokens"]

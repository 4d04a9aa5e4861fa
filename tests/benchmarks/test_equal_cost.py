"""The comparison at equal costs interpolates errors of SMC, and pairs the problems."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from benchmarks.equal_cost import FILTER, SMC, at_cost, case_of, interval, kind_of


def row(problem: str, algorithm: str, particles: int, tokens: float, tv: float) -> dict[str, Any]:
    return {
        "problem": problem, "algorithm": algorithm, "particles": particles, "tokens": tokens,
        "processor_s": 1.0, "tv": tv, "log_evidence": -1.0, "log_truth": -1.0, "is_best": True,
        "certified": 0.5,
    }  # fmt: skip


ROWS = [
    *(row("random 1", "smc", n, tokens=n, tv=1 / n) for n in SMC),
    *(row("random 1", "discrete", n, tokens=n, tv=0.0) for n in FILTER),
]


def test_errors_of_smc_are_interpolated_in_the_logarithm_of_the_cost() -> None:
    case = case_of(ROWS)
    found = at_cost(case, "tokens", 32.0)
    assert found is not None
    assert found[0] == "16 to 64"
    assert found[1]["tv"] == pytest.approx([(1 / 16 + 1 / 64) / 2])
    exact = at_cost(case, "tokens", 64.0)
    assert exact is not None
    assert exact[1]["tv"] == pytest.approx([1 / 64])


def test_smc_that_always_costs_more_or_less() -> None:
    case = case_of(ROWS)
    assert at_cost(case, "tokens", 3.0) is None
    found = at_cost(case, "tokens", 5000.0)
    assert found is not None
    assert found[1]["tv"] == pytest.approx([1 / SMC[-1]])


def test_the_largest_number_counts_if_costs_are_equal() -> None:
    found = at_cost(case_of(ROWS), "processor_s", 1.0)
    assert found is not None
    assert found[1]["tv"] == pytest.approx([1 / SMC[-1]])


def test_seeds_are_averaged_by_problem() -> None:
    rows = [row(f"random {k}", "smc", 16, 1.0, tv) for k, tv in ((1, 0.2), (2, 0.5), (1, 0.4))]
    assert case_of(rows).values["smc", 16]["tv"] == pytest.approx([0.3, 0.5])


def test_an_interval_covers_the_mean() -> None:
    values = np.arange(20.0)
    low, high = interval(values)
    assert low < 9.5 < high
    assert interval(np.ones(5)) == (1.0, 1.0)


def test_kinds_of_problems() -> None:
    assert kind_of("random 3") == "random models, GCD"
    assert kind_of("P-GCD, distilled 240") == "random models, P-GCD, distilled HMM"
    assert kind_of("query 3") == "SmolLM2, told, GCD"
    assert kind_of("P-GCD, SmolLM2, tool 4") == "SmolLM2, untold, P-GCD"

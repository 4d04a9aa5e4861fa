"""Estimates that use exact probabilities: their expectations over all random choices."""

from __future__ import annotations

import itertools
import math
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import pytest

pytest.importorskip("transformers")

import smc
from benchmarks.combined import Found, clip, collect, combine, log_sum, pool
from tests.smc.test_bounds import PROMPT, TOY, masses, outcomes
from tests.smc.test_walk import PROPOSALS
from tests.smc.toys import CONSTRAINTS

Ids = tuple[int, ...]


def walks(proposal: str, budget: int, **options: Any) -> list[tuple[float, smc.Posterior]]:
    chosen = PROPOSALS[proposal]()
    return outcomes(TOY, CONSTRAINTS["few_words"](), budget, proposal=chosen, **options)


def truth(budget: int) -> dict[Ids, float]:
    return masses(TOY, PROMPT, CONSTRAINTS["few_words"](), budget)


def mean(outcomes: Iterable[tuple[float, Sequence[Found]]]) -> dict[Ids, float]:
    """Return the expectation of the combined estimate of each sequence."""
    total: dict[Ids, float] = defaultdict(float)
    for probability, runs in outcomes:
        for ids, log_weight in combine(runs).items():
            total[ids] += probability * math.exp(log_weight)
    return dict(total)


def pairs(
    some: Sequence[tuple[float, smc.Posterior]],
) -> Iterator[tuple[float, list[Found]]]:
    """Yield two independent runs, each pooled."""
    for (p, a), (q, b) in itertools.product(some, repeat=2):
        yield p * q, [pool(collect(a)), pool(collect(b))]


@pytest.mark.parametrize("particles", [2, 3])
def test_independent_particles_are_unbiased(particles: int) -> None:
    some = walks("lcd", 2, particles=particles, ess_threshold=0.0)
    assert mean((p, collect(each)) for p, each in some) == pytest.approx(truth(2))


@pytest.mark.parametrize(
    ("proposal", "options"),
    [
        ("gcd", {"particles": 1, "algorithm": "discrete"}),
        ("lcd", {"particles": 2, "algorithm": "discrete"}),
        ("lcd", {"particles": 2, "ess_threshold": 1.0, "strata": "none"}),
    ],
)
def test_independent_runs_are_unbiased(proposal: str, options: dict[str, Any]) -> None:
    assert mean(pairs(walks(proposal, 2, **options))) == pytest.approx(truth(2))


def test_resampled_particles_are_biased() -> None:
    some = walks("lcd", 2, particles=2, ess_threshold=1.0, strata="none")
    found = mean((p, collect(each)) for p, each in some)
    assert sum(found.values()) < 0.95 * sum(truth(2).values())


def test_clipping_is_never_worse_and_biased() -> None:
    evidence, expected = math.fsum(truth(2).values()), 0.0
    for probability, found in walks("lcd", 2, particles=2):
        plain = log_sum(list(pool(collect(found)).log_weight.values()))
        assert plain == pytest.approx(found.log_evidence)
        moved = math.exp(clip([found], plain))
        assert abs(moved - evidence) <= abs(math.exp(plain) - evidence) + 1e-8
        expected += probability * moved
    assert expected < 0.9 * evidence

"""`algorithm` is a name or an object; "auto" is the filter, or SMC for one particle."""

from __future__ import annotations

from typing import Any

import pytest

import smc
from smc.testing import ToyLM
from tests.smc.calls import sample_with
from tests.smc.toys import CONSTRAINTS, VOCABULARY

LM = ToyLM(VOCABULARY, seed=1, spread=1.5)


def sample(**options: Any) -> smc.Posterior:
    (found,) = sample_with(
        LM, [[0]], CONSTRAINTS["a_star_b"](), max_tokens=6, proposal=smc.GCD(), **options
    )
    return found


@pytest.mark.parametrize(
    ("options", "name"),
    [
        ({"particles": 2}, "discrete"),
        ({"particles": 1}, "smc"),
    ],
)
def test_auto_agrees_with_the_algorithm_that_it_names(options: dict[str, Any], name: str) -> None:
    found, expected = sample(**options), sample(**options, algorithm=name)
    assert found.algorithm == expected.algorithm == name
    assert found.particles == expected.particles
    assert found.log_evidence == expected.log_evidence


@pytest.mark.parametrize(
    ("name", "algorithm"),
    [("smc", smc.SMC(ess_threshold=0)), ("discrete", smc.Discrete(kept=1)),
     ("smc", "smc"), ("discrete", "discrete")],
)  # fmt: skip
def test_an_algorithm_that_is_given_is_taken(name: str, algorithm: Any) -> None:
    assert sample(particles=1, algorithm=algorithm).algorithm == name
    if not isinstance(algorithm, str):
        assert sample(particles=3, algorithm=algorithm) != sample(particles=3, algorithm=name)


def test_a_distribution_names_its_algorithm_enumeration() -> None:
    (found,) = smc.distribution(LM, [[0]], CONSTRAINTS["few_words"]())
    assert found.algorithm == "enumeration"

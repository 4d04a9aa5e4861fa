"""`algorithm="auto"` is the discrete filter, and SMC where the filter can't do what is asked."""

from __future__ import annotations

from typing import Any

import pytest

import smc
from smc._inference.algorithms import chosen
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
        ({"particles": 3, "count_finished": False, "floor": 0.0}, "discrete"),
        ({"particles": 1}, "smc"),
        ({"particles": 3, "resampling": "multinomial"}, "smc"),
        ({"particles": 3, "ess_threshold": 1.0}, "smc"),
        ({"particles": 3, "strata": "none"}, "smc"),
    ],
)
def test_auto_agrees_with_the_algorithm_that_it_names(options: dict[str, Any], name: str) -> None:
    found, expected = sample(**options), sample(**options, algorithm=name)
    assert found.algorithm == expected.algorithm == name
    assert found.particles == expected.particles
    assert found.log_evidence == expected.log_evidence


def test_options_of_two_algorithms_are_refused() -> None:
    with pytest.raises(ValueError, match=r"of the algorithm 'smc' .* got floor="):
        sample(particles=3, floor=0.5, strata="none")


def test_an_algorithm_that_is_named_is_taken() -> None:
    for name in ("smc", "discrete"):
        assert chosen(name, {}, 1) == name


def test_a_distribution_names_its_algorithm_enumeration() -> None:
    (found,) = smc.distribution(LM, [[0]], CONSTRAINTS["few_words"]())
    assert found.algorithm == "enumeration"

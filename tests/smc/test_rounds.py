"""As many particles as an error takes: the evidence stays unbiased over all random choices."""

from __future__ import annotations

import math
from collections import Counter
from typing import Any

import pytest

import smc
import smc._inference.deadlines
from smc.testing import ToyLM
from tests.smc.test_bounds import PROMPT, TOY, holds, masses, outcomes
from tests.smc.toys import CONSTRAINTS, VOCABULARY


@pytest.mark.parametrize(
    ("name", "budget", "options"),
    [
        ("few_words", 2, {"max_particles": 3, "target_error": 0.5}),
        ("few_words", 4, {"max_particles": 3, "target_error": 0.1, "algorithm": "discrete"}),
        ("few_words", 3, {"max_particles": 6, "target_error": 0.05, "algorithm": "discrete"}),
    ],
)
def test_the_evidence_is_unbiased(name: str, budget: int, options: dict[str, Any]) -> None:
    automaton = CONSTRAINTS[name]()
    target = masses(TOY, PROMPT, automaton, budget)
    found = outcomes(TOY, automaton, budget, proposal=smc.GCD(), particles=2, **options)
    assert sum(probability for probability, _ in found) == pytest.approx(1)
    mean, rounds = 0.0, Counter[tuple[int, ...]]()
    for probability, posterior in found:
        assert holds(posterior, target, automaton.vocabulary)
        assert posterior.log_evidence is not None
        mean += probability * math.exp(posterior.log_evidence)
        rounds[posterior.diagnostics.rounds] += 1
    assert mean == pytest.approx(math.fsum(target.values()), abs=1e-9)
    assert len(rounds) > 1  # the number of rounds depends on what was drawn


def sample(count: int = 1, **options: Any) -> list[smc.Posterior]:
    lm = ToyLM(VOCABULARY, seed=1, spread=0.3)
    given = {"budget": 9, "particles": 4, "proposal": smc.GCD(), **options}
    return smc.sample(lm, [PROMPT] * count, CONSTRAINTS["a_star_b"](), **given)


@pytest.mark.parametrize("algorithm", ["smc", "discrete"])
def test_particles_are_doubled_until_the_error_is_small(algorithm: str) -> None:
    (found,) = sample(algorithm=algorithm, target_error=0.05, max_particles=512, budget=12)
    *rounds, last = found.diagnostics.rounds
    assert rounds == [4 << i for i in range(len(rounds))]
    assert last in (rounds[-1], 512)
    (small,) = sample(algorithm=algorithm, budget=12)
    assert small.reliability.log_evidence_error > 0.05
    assert found.reliability.log_evidence_error < small.reliability.log_evidence_error
    assert found.diagnostics.tokens > small.diagnostics.tokens


def test_the_most_particles_are_the_last_round() -> None:
    (found,) = sample(algorithm="smc", target_error=1e-9, max_particles=10)
    assert found.diagnostics.rounds == (4, 8, 10)
    assert len(found.particles) == 10


def test_what_was_enumerated_needs_no_other_round() -> None:
    options = {"particles": 64, "count_finished": False, "floor": 0}
    (found,) = sample(target_error=0.01, **options)
    assert found.enumerated
    assert found.diagnostics.rounds == (64,)


def test_a_batch_gives_the_same_results_as_single_examples() -> None:
    options = {"target_error": 0.12, "max_particles": 64, "seed": 5, "algorithm": "smc"}
    together = sample(6, **options, certify=0.9)
    assert len({each.diagnostics.rounds for each in together}) > 1
    for i, each in enumerate(together):
        (alone,) = sample(example_ids=[i], **options, certify=0.9)
        assert each.diagnostics.rounds == alone.diagnostics.rounds
        assert each.answers == alone.answers
        assert each.log_evidence == pytest.approx(alone.log_evidence)


def test_only_the_last_round_is_observed_and_handed_out() -> None:
    seen: list[int] = []
    handed: dict[int, smc.Posterior] = {}
    options = {"target_error": 1e-9, "max_particles": 8}
    (expected,) = sample(**options)
    given = {"observe": lambda names: seen.append(len(names)), "finished": handed.update}
    assert sample(**options, **given) == []
    assert seen == [1]
    assert handed[0].particles == expected.particles


def test_a_round_that_the_deadline_closed_is_returned() -> None:
    (found,) = sample(target_error=1e-9, max_particles=64, deadline=0)
    assert found.stopped == "deadline"
    assert found.diagnostics.rounds == (4,)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"target_error": 0}, "expected target_error to be above 0"),
        ({"target_error": math.nan}, "expected target_error to be above 0"),
        ({"target_error": "small"}, "expected target_error to be a number, got 'small'"),
        (
            {"target_error": 0.1, "max_particles": 3},
            "max_particles to be at least particles=4, got 3",
        ),
    ],
)
def test_arguments_without_sense(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        sample(**options)

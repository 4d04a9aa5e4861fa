"""The HMM alone draws from its own posterior, exactly, and reads nothing of the language model."""

from __future__ import annotations

import math
from collections import defaultdict

import pytest
import torch

import smc
from experiments.arms import METHODS
from experiments.config import HMMConfig
from hmm._model import HMM
from smc.testing import ToyLM, target, walk
from tests.smc.calls import arguments
from tests.smc.toys import CONSTRAINTS, VOCABULARY

GENERATOR = torch.Generator().manual_seed(5)
HMM_ = HMM.random(3, VOCABULARY.size, generator=GENERATOR, dtype=torch.float64)


class _Chain(ToyLM):
    """The HMM's conditional distributions by the definition: a sum over all paths of states."""

    def log_p(self, tokens: tuple[int, ...]) -> torch.Tensor:
        transition = torch.stack([HMM_.transition.forward(row) for row in torch.eye(3).double()])
        ahead = HMM_.initial
        for token in tokens:
            ahead = (ahead * HMM_.emission[token]) @ transition
        joint = HMM_.emission @ ahead
        return (joint / joint.sum()).log()


class _Untouchable(ToyLM):
    """A language model that must not be asked."""

    def prefill(self, prompts: object) -> object:
        raise AssertionError("the language model was read")


def sample(**options: object) -> list[smc.Posterior]:
    method = METHODS["hmm"]
    proposal = method.proposal(HMMConfig(), HMM_)
    return method.sample(
        _Untouchable(VOCABULARY), proposal=proposal, **{"algorithm": "smc", **arguments(options)}
    )


@pytest.mark.parametrize("name", list(CONSTRAINTS))
@pytest.mark.parametrize("budget", [3, 4])
def test_one_particle_is_a_draw_from_the_hmm_given_the_constraint(name: str, budget: int) -> None:
    """Over all choices, each answer comes with its probability: no weight is left to correct."""
    automaton = CONSTRAINTS[name]()
    expected: dict[bytes, float] = defaultdict(float)
    for ids, p in target(_Chain(VOCABULARY), (), automaton, budget).items():
        expected[automaton.vocabulary.decode(ids)] += p
    total = sum(expected.values())
    found: dict[bytes, float] = defaultdict(float)

    def run(draw: smc.Draw, ids: list[int]) -> list[smc.Posterior]:
        return sample(
            prompts=[(0, 1)] * len(ids),
            automata=automaton,
            max_tokens=budget,
            particles=1,
            example_ids=ids,
            max_rows=1 << 20,
            draw=draw,
        )

    for probability, posterior in walk(run):
        [answer] = posterior.answers
        found[answer] += probability
    assert found == pytest.approx({x: p / total for x, p in expected.items()}, abs=1e-10)


def test_particles_are_worth_the_same_and_nothing_is_claimed_of_the_language_model() -> None:
    [posterior] = sample(
        prompts=[(0, 1)], automata=CONSTRAINTS["a_star_b"](), max_tokens=6, particles=8
    )
    weights = [particle.log_weight for particle in posterior.particles]
    assert weights == pytest.approx([weights[0]] * 8, abs=1e-10)
    assert not math.isinf(weights[0])
    assert (posterior.exact, posterior.log_evidence) == (False, None)
    assert (posterior.diagnostics.lm_calls, posterior.diagnostics.tokens) == (0, 0)
    assert posterior.complete
    assert posterior.valid

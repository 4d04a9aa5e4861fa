"""Options of algorithms, none without a reader; the HMM alone draws from its own posterior."""

from __future__ import annotations

import math
from collections import defaultdict
from dataclasses import fields

import pytest
import torch
from omegaconf import OmegaConf

import smc
from experiments import run as experiment
from experiments.arms import ALGORITHMS, METHODS, unread
from experiments.config import DiscreteConfig, HMMConfig, SMCConfig
from hmm._model import HMM
from smc._inference import algorithms
from smc._inference.algorithms import SMC, Discrete
from smc.testing import ToyLM, target, walk
from tests.experiments import composing
from tests.smc.calls import arguments
from tests.smc.toys import CONSTRAINTS, VOCABULARY

GROUPS = {"smc": SMCConfig, "discrete": DiscreteConfig}


def composed(*overrides: str):
    return composing.composed("+task=xlam", "task.algorithms=[smc,discrete]", *overrides)


@pytest.mark.parametrize("name", algorithms.ALGORITHMS)
def test_the_configuration_has_every_option_with_the_library_s_default(name):
    kind = algorithms.ALGORITHMS[name]
    config = OmegaConf.structured(GROUPS[name])
    for option in fields(kind):
        assert config[option.name] == option.default
    whole = composed()[name]
    assert {option.name: whole[option.name] for option in fields(kind)} == {
        option.name: option.default for option in fields(kind)
    }


def test_algorithms_agree_with_their_names():
    config = composed(
        "smc.resampling=multinomial", "smc.ess_threshold=0.25", "discrete.floor=0.125"
    )
    made = {name: variant.make(config) for name, variant in ALGORITHMS.items()}
    assert made["smc"] == SMC("multinomial", 0.25, SMC.strata)
    assert made["smc_paper"] == SMC("multinomial", 1.0, "none")
    assert made["smc_none"] == SMC("systematic", 0.0, "none")
    assert made["discrete"] == Discrete(floor=0.125)
    paper = composed("smc=paper")
    assert ALGORITHMS["smc"].make(paper) == made["smc_paper"]


def test_each_option_has_its_readers_and_the_shared_ones_are_read_by_all():
    """Nothing is raised; options without a reader are refused in `test_config.py`."""
    for algorithms_of_run, *overrides in (
        ("[smc,discrete]", "smc.resampling=multinomial", "discrete.floor=0.125"),
        ("[smc]", "smc=paper"),
        *((f"[{name}]", "smc.temperature=0.5") for name in ALGORITHMS),
    ):
        experiment.check(composed(f"task.algorithms={algorithms_of_run}", *overrides))
    # A task without algorithms reads those of SMC.
    experiment.check(composing.composed("+task=latency", "smc=paper"))
    config = composing.composed("+task=latency")
    assert unread(config) == [f"discrete.{option.name}" for option in fields(Discrete)]


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

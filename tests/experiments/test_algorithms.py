"""Entries of the algorithms: their options, and that no setting is without a reader."""

from __future__ import annotations

from dataclasses import fields
from pathlib import Path

import pytest
from omegaconf import OmegaConf

from experiments import run as experiment
from experiments.arms import ALGORITHMS, unread
from experiments.config import DiscreteConfig, SMCConfig
from experiments.tasks import results_config
from smc._inference import algorithms
from smc._inference.algorithms import SMC, Discrete
from tests.experiments import composing

CONFIGS = Path(__file__).resolve().parents[2] / "configs"
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


@pytest.mark.parametrize(
    ("algorithms_of_run", "override", "reader"),
    [
        ("[discrete]", "smc.resampling=multinomial", "[smc,discrete]"),
        ("[discrete]", "smc=paper", "[smc]"),
        ("[smc_paper,smc_none]", "smc.ess_threshold=0.25", "[smc]"),
        ("[smc]", "discrete.floor=0.125", "[discrete]"),
    ],
)
def test_unused_options_are_refused(algorithms_of_run, override, reader):
    with pytest.raises(ValueError, match="would be ignored: no algorithm of this run"):
        experiment.check(composed(f"task.algorithms={algorithms_of_run}", override))
    experiment.check(composed(f"task.algorithms={reader}", override))


def test_a_task_without_algorithms_reads_those_of_smc():
    config = composing.composed("+task=latency")
    assert unread(config) == [f"discrete.{option.name}" for option in fields(Discrete)]
    with pytest.raises(ValueError, match=r"this run \(smc\) reads it; leave it out$"):
        experiment.check(composing.composed("+task=latency", "discrete.floor=0.25"))
    experiment.check(composing.composed("+task=latency", "smc=paper"))


@pytest.mark.parametrize("shared", ["smc.temperature=0.5", "smc.max_rows=3"])
def test_what_all_algorithms_read_is_refused_for_none(shared):
    """Nothing is raised."""
    for name in ALGORITHMS:
        experiment.check(composed(f"task.algorithms=[{name}]", shared))


def test_results_do_not_depend_on_unused_options():
    identity = results_config(composed("task.algorithms=[smc_none]"))
    assert "discrete" not in identity
    assert set(identity["smc"]) == {"temperature", "execution"}
    both = results_config(composed())
    assert set(both["discrete"]) == {option.name for option in fields(Discrete)}
    assert both != results_config(composed("discrete.kept=1"))
    assert both != results_config(composed("discrete.floor=0.125"))

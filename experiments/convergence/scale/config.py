"""This module has the settings of the task at scale, and checks them."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from omegaconf import DictConfig

from experiments.convergence.config import check_convergent
from experiments.convergence.scale.mismatch import LOOKAHEADS
from experiments.convergence.scale.sentences import SENTENCES
from experiments.convergence.scale.tools import TOOLS
from experiments.harness.checks import at_least, distinct, left_alone, one_of
from experiments.harness.config import Config
from experiments.harness.methods import needs_hmm

PROBLEMS = {**TOOLS, **SENTENCES}
"""Makers of all problems, by name."""


@dataclass
class ScaleConfig:
    """Samplers against the exact answer of an HMM as the language model, on long answers."""

    name: str = "convergence_scale"
    problems: list[str] = field(default_factory=lambda: list(PROBLEMS))
    methods: list[str] = field(default_factory=lambda: ["lcd", "gcd", "pgcd", "pgcd_in_time"])
    algorithms: list[str] = field(default_factory=lambda: ["smc", "discrete"])
    # What methods that look ahead do it with: the HMM itself, or worse ones made of it.
    lookaheads: list[str] = field(default_factory=lambda: list(LOOKAHEADS))
    particles: list[int] = field(default_factory=lambda: [1, 4, 16, 64])
    seeds: int = 20  # independent runs of each

    toolcalls: str = "smollm2"  # the model of whose calls of tools there is an HMM,
    toolcalls_hmm: str = "auto"  # which is in this directory; "auto": models/smollm2-xlam-hmm
    stories: str = "tests/models/stories260K"  # the model that the HMM of stories is made of
    hmm_states: int = 1024  # of that HMM, at most
    hmm_sequences: int = 40000  # continuations that it is made of


def check(config: DictConfig) -> None:
    """Refuse values that no run could honour: `ValueError` with the value and what to give."""
    task = config.task
    for key, known in (("problems", PROBLEMS), ("lookaheads", LOOKAHEADS)):
        distinct(f"task.{key}", task[key])
        for name in task[key]:
            one_of(f"task.{key}", name, tuple(known))
    check_convergent(config, "has its problems built in")
    at_least("task.seeds", task.seeds, 1)
    at_least("task.hmm_states", task.hmm_states, 2)
    at_least("task.hmm_sequences", task.hmm_sequences, 20)
    if not any(map(needs_hmm, task.methods)) and list(task.lookaheads) != list(LOOKAHEADS):
        raise ValueError(
            f"task.lookaheads={list(task.lookaheads)} is for methods that look ahead, and "
            f"task.methods={list(task.methods)} has none: add pgcd, or leave task.lookaheads out"
        )
    tells_stories = any(name in SENTENCES for name in task.problems)
    if tells_stories and not (Path(task.stories).expanduser() / "config.json").is_file():
        raise ValueError(
            f"task.stories={task.stories}: no model there, and the problems "
            f"{', '.join(name for name in task.problems if name in SENTENCES)} need one; give its "
            f"directory, or task.problems=[{','.join(TOOLS)}]"
        )
    if config.smc.temperature != 1:
        raise ValueError(
            f"smc.temperature={config.smc.temperature}: the exact answer is known at 1 alone; "
            "leave it out"
        )
    others = ["model.path", "model.dtype", "model.prompt"]
    left_alone(config, Config, others, "the problems of +task=convergence_scale are built in")
    reason = "+task=convergence_scale makes its HMMs (task.lookaheads)"
    left_alone(config, Config, ["hmm.path"], reason)

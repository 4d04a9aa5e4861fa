"""What the convergence task can be told, and the checks of it."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from omegaconf import DictConfig, OmegaConf

METHODS = (
    "lm", "lcd", "gcd", "pgcd", "pgcd_tied", "pgcd_exact", "pgcd_in_time", "pgcd_joint",
)  # fmt: skip
MOST_PREFIXES = 200_000


@dataclass
class ConvergenceConfig:
    """Samplers against the exact posterior, by particles and by time."""

    name: str = "convergence"
    problems: str | None = None  # a JSON file of own problems; None: the built-in ones
    # Models whose built-in problems are run; none: model.path alone.
    models: list[str] = field(default_factory=list)
    methods: list[str] = field(default_factory=lambda: list(METHODS))
    particles: list[int] = field(default_factory=lambda: [1, 2, 4, 8, 16, 32, 64, 128, 256])
    runs: int = 1000  # independent runs of each method and number of particles, at least
    draws: int = 16000  # and at least so many particles over all runs
    timed_runs: int = 3  # at most, with the real model; their median is reported; 0: none
    max_prefixes: int = MOST_PREFIXES  # of a problem; up to the default

    # The HMM of P-GCD: a checkpoint, or (None) distilled on the spot from free continuations.
    hmm: str | None = None
    hmm_for: str = "model"  # one for all prompts of a model; or "problem": one for each prompt
    hmm_states: int = 1024  # at most
    hmm_sequences: int = 50000  # for each HMM
    hmm_length: int = 16  # most tokens of a sequence; less where all budgets are


def check(config: DictConfig) -> None:
    """Refuse values that no run could honour: `ValueError` with the value and what to give."""
    task = config.task
    for key in ("runs", "draws", "hmm_length"):
        _at_least(f"task.{key}", task[key], 1)
    _at_least("task.hmm_sequences", task.hmm_sequences, 1)
    _at_least("task.hmm_states", task.hmm_states, 2)
    _at_least("task.timed_runs", task.timed_runs, 0)
    if not 1 <= task.max_prefixes <= MOST_PREFIXES:
        raise ValueError(
            f"task.max_prefixes must lie in 1..{MOST_PREFIXES}, got {task.max_prefixes}"
        )
    for method in task.methods:
        if method not in METHODS:
            raise ValueError(
                f"unknown value {method!r} for task.methods: use some of {', '.join(METHODS)}"
            )
    for count in task.particles:
        _at_least("task.particles", count, 1)
    for key in ("methods", "particles"):
        values = list(task[key])
        if not values:
            raise ValueError(f"task.{key} needs at least one entry")
        if len(set(values)) != len(values):
            raise ValueError(f"task.{key} has an entry twice: {values}")
    if len(set(task.models)) != len(task.models):
        raise ValueError(f"task.models has an entry twice: {list(task.models)}")
    if task.hmm_for not in ("model", "problem"):
        raise ValueError(f"unknown value {task.hmm_for!r} for task.hmm_for: use model or problem")
    if task.problems is not None and task.models:
        raise ValueError("task.problems are for one model: give model.path, leave task.models out")
    if task.problems is not None and not Path(task.problems).expanduser().is_file():
        raise ValueError(f"task.problems={task.problems}: there is no such file")
    if task.models and config.model.path != "embedded":
        raise ValueError(
            f"model.path={config.model.path} and task.models={list(task.models)}: give one of them"
        )
    if config.data.path or config.data.hub or config.data.offset:
        raise ValueError("+task=convergence reads no records: leave data.* out (see task.problems)")
    _check_hmm(config)
    if config.smc.top_p != 1:
        raise ValueError(
            f"smc.top_p={config.smc.top_p} changes the target, so there is no exact answer to "
            "converge to: leave it at 1"
        )


def _check_hmm(config: DictConfig) -> None:
    """The HMM's own settings; of `hmm.*` the methods here leave temper, defence, potential open."""
    task = config.task
    if task.hmm is not None:
        directory = Path(task.hmm).expanduser()
        if not (directory / "config.json").is_file():
            raise ValueError(
                f"task.hmm={task.hmm}: no HMM there ({directory} has no config.json); give a "
                "directory that scripts.distill_hmm has written (runs/distill-*/hmm), or one in "
                "Ctrl-G's layout"
            )
        if len(task.models) > 1:
            raise ValueError(
                "task.hmm is for one vocabulary: leave it out with several task.models"
            )
        if task.hmm_for == "problem":
            raise ValueError("task.hmm is one HMM for all problems: leave task.hmm_for=problem out")
        if not any(method.startswith("pgcd") for method in task.methods):
            raise ValueError(
                f"task.hmm={task.hmm} is for methods that look ahead, and task.methods="
                f"{list(task.methods)} has none: add pgcd, or leave task.hmm out"
            )
    if config.hmm.path != "auto":
        raise ValueError("+task=convergence takes its HMM from task.hmm=DIR: leave hmm.path out")
    settings: Any = OmegaConf.get_type(config.hmm)
    untouched = settings()
    if (config.hmm.lookahead, config.hmm.exact_top_k) != (
        untouched.lookahead,
        untouched.exact_top_k,
    ):
        raise ValueError(
            "+task=convergence has a method for each lookahead and exact_top_k (pgcd_in_time, "
            "pgcd_joint, pgcd_tied, pgcd_exact): leave hmm.lookahead and hmm.exact_top_k out"
        )


def _at_least(key: str, value: int, least: int) -> None:
    if value < least:
        raise ValueError(f"{key} must be at least {least}, got {value}")

"""Settings of the convergence study, and their checks."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from omegaconf import DictConfig

from experiments.arms import (
    METHODS,
    algorithms_of,
    existing_hmm,
    is_discrete,
    method_of,
    methods_of,
    needs_hmm,
)
from experiments.config import Config, at_least, inside, refuse_unused

MOST_PREFIXES = 200_000


@dataclass
class ConvergenceConfig:
    """Samplers compared with the exact posterior, by particles and by prefixes read."""

    name: str = "convergence"
    problems: str | None = None  # JSON file of problems; None: the built-in ones
    methods: list[str] = field(
        default_factory=lambda: ["lcd", "gcd", "pgcd", "pgcd_tied", "pgcd_exact", "pgcd_in_time"]
    )
    algorithms: list[str] = field(
        default_factory=lambda: ["smc_paper", "smc", "smc_none", "discrete"]
    )
    particles: list[int] = field(default_factory=lambda: [1, 2, 4, 8, 16, 32, 64, 128, 256])
    runs: int = 1000  # minimum of independent runs per arm and number of particles
    draws: int = 16000  # minimum of particles over all runs
    max_prefixes: int = MOST_PREFIXES  # of a problem; at most the default

    # The HMM of P-GCD: a checkpoint, or None to distill one from free continuations.
    hmm: str | None = None
    hmm_states: int = 1024  # at most
    hmm_sequences: int = 10000
    hmm_length: int = 16  # maximum tokens of a sequence; at most the largest budget


def check(config: DictConfig) -> None:
    """Check the settings; raise a `ValueError` with the invalid value and the remedy."""
    task = config.task
    for key in ("runs", "draws", "hmm_length", "hmm_sequences"):
        at_least(f"task.{key}", task[key], 1)
    at_least("task.hmm_states", task.hmm_states, 2)
    most = task.max_prefixes
    inside("task.max_prefixes", most, f"1..{MOST_PREFIXES}", 1 <= most <= MOST_PREFIXES)
    if task.problems is not None and not Path(task.problems).expanduser().is_file():
        raise ValueError(f"expected an existing file, got task.problems={task.problems}")
    _check_methods(config)
    records = ["data.path", "data.hub", "data.offset"]
    refuse_unused(config, Config, records, "+task=convergence reads no records; see task.problems")
    unread = ["smc.execution", "smc.read_ahead"]
    refuse_unused(config, Config, unread, "+task=convergence runs on tables, which have one form")
    _check_hmm(config)
    _check_discrete(config)


def _check_methods(config: DictConfig) -> None:
    """Check that every method can be tabulated."""
    names = [n for n in methods_of(config) if ":" in n or not method_of(n).in_convergence]
    if names:
        known = [name for name, method in METHODS.items() if method.in_convergence]
        raise ValueError(
            f"expected methods that +task=convergence can run ({', '.join(known)}) in "
            f"task.methods, got {', '.join(names)}"
        )


def _check_discrete(config: DictConfig) -> None:
    """Refuse the combination of the discrete filter with the method `lm`."""
    names = [name for name in algorithms_of(config) if is_discrete(name)]
    methods = [name for name in methods_of(config) if METHODS[name].indicator == "lm"]
    if names and methods:
        raise ValueError(
            f"expected task.algorithms=[smc] with {', '.join(methods)} in task.methods, got "
            f"{','.join(names)}, where all forbidden tokens together would be a single candidate; "
            f"give task.algorithms=[smc], or leave {', '.join(methods)} out"
        )


def _check_hmm(config: DictConfig) -> None:
    """Check the settings of the HMM that the study distills or loads."""
    task = config.task
    if task.hmm is not None:
        existing_hmm("task.hmm", task.hmm)
        if not any(map(needs_hmm, methods_of(config))):
            raise ValueError(
                f"expected a method that looks ahead with task.hmm={task.hmm}, got task.methods="
                f"{methods_of(config)}; add pgcd, or leave task.hmm out"
            )
    refuse_unused(config, Config, ["hmm.path"], "+task=convergence takes its HMM from task.hmm=DIR")
    own = "pgcd, pgcd_in_time, pgcd_joint, pgcd_tied, pgcd_exact"
    reason = f"+task=convergence has a method for each ({own})"
    refuse_unused(config, Config, ["hmm.exact_top_k", "hmm.lookahead"], reason)

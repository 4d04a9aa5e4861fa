"""This module checks the settings that every task shares, before anything is loaded.

A task checks its own settings beside these. All raise `ValueError`.
"""

from __future__ import annotations

import math
import os
import re

from omegaconf import DictConfig

from experiments.harness.algorithms import ALGORITHMS, algorithms_of, unread
from experiments.harness.budgets import check_budget
from experiments.harness.checks import at_least, distinct, inside, left_alone, one_of
from experiments.harness.config import (
    DTYPES,
    PROMPTS,
    WANDB_MODES,
    Config,
    HMMConfig,
    ModelConfig,
    RecordConfig,
    TraceConfig,
)
from experiments.harness.lookahead import AUTO
from experiments.harness.methods import METHODS, hmms_of, method_of, methods_of, needs_hmm
from gcd.tokens.canonical import LITERALS
from smc.proposals.twisted import belief_of
from smc.settings import COLDEST, EXECUTIONS

MOST_TRACED = 4096
"""Particles of one trial that are traced, over all examples: some 20 MB at 60 tokens each."""


def check_model(config: DictConfig) -> None:
    """Check `model.*` and `wandb.*`, which distillation has too."""
    one_of("model.prompt", config.model.prompt, PROMPTS)
    one_of("model.dtype", config.model.dtype, DTYPES)
    one_of("wandb.mode", config.wandb.mode, WANDB_MODES)
    one_of("model.device_map", config.model.device_map, ("none", "auto"))
    if config.model.device_map == "auto":
        reason = "model.device_map=auto takes all devices that there are, in one process"
        left_alone(
            config, {"model": ModelConfig}, ("model.device", "model.tensor_parallel"), reason
        )
        if int(os.environ.get("WORLD_SIZE", "1")) > 1:
            raise ValueError(f"{reason}: run it without torchrun")
    at_least("model.tensor_parallel", config.model.tensor_parallel, 1)
    at_least("model.prompt_mib", config.model.prompt_mib, 0)
    at_least("seed", config.seed, 0)
    # More would be refused by torch, some of it after hours.
    inside("seed", config.seed, "[0, 2**63)", config.seed < 1 << 63)


def check_shared(config: DictConfig) -> None:
    """Check every setting that is not the task's alone, the methods that it compares among them."""
    check_model(config)
    check_methods(config)
    check_algorithms(config)
    at_least("data.offset", config.data.offset, 0)
    share = config.data.max_skipped
    inside("data.max_skipped", share, "[0, 1]", 0 <= share <= 1)
    if config.data.path and config.data.hub:
        raise ValueError("give data.path or data.hub, not both")
    at_least("smc.max_rows", config.smc.max_rows, 1)
    temperature = config.smc.temperature
    if not (temperature > 0 and math.isfinite(temperature)):
        raise ValueError(f"smc.temperature must be positive and finite, got {temperature}")
    inside("smc.temperature", temperature, f"[{COLDEST:g}, infinity)", temperature >= COLDEST)
    inside("smc.top_p", config.smc.top_p, "(0, 1]", 0 < config.smc.top_p <= 1)
    one_of("smc.execution", config.smc.execution, EXECUTIONS)
    ahead = config.smc.read_ahead
    if ahead != "auto" and (type(ahead) is not int or ahead < 0):
        raise ValueError(f"smc.read_ahead must be auto, or tokens, 0 for none; got {ahead}")
    if ahead not in (0, "auto") and config.smc.execution == "static":
        raise ValueError(
            f"smc.execution=static reads nothing ahead: leave smc.read_ahead={ahead} out"
        )
    _check_hmm(config.hmm)
    _check_trace(config)


def check_records(config: DictConfig) -> None:
    """Check what all tasks with records have (`RecordConfig`)."""
    task = config.task
    at_least("task.num_examples", task.num_examples, 1)
    at_least("task.repeats", task.repeats, 1)
    check_budget("task.budget", task.budget)
    one_of("task.literals", task.literals, LITERALS)
    one_of("task.reference", task.reference.partition(":")[0], tuple(METHODS))
    if task.reference not in (RecordConfig.reference, *task.methods):
        raise ValueError(
            f"task.reference={task.reference} is not among task.methods={list(task.methods)}: add "
            "it, or give another reference"
        )


def check_methods(config: DictConfig) -> None:
    """Check `task.methods` and `task.particles`, and that a method reads what `hmm.*` says."""
    if "methods" in config.task:
        distinct("task.methods", config.task.methods)
        distinct("task.particles", config.task.particles)
        for method in config.task.methods:
            one_of("task.methods", method.partition(":")[0], tuple(METHODS))
        _check_named_hmms(config)
        for count in config.task.particles:
            at_least("task.particles", count, 1)
    looking = [method_of(name) for name in methods_of(config) if needs_hmm(name)]
    settings = list(HMMConfig.__dataclass_fields__)
    if not looking:
        names = ", ".join(filter(needs_hmm, METHODS))
        reason = f"of the methods {names} alone look ahead, and none is run; leave hmm.* out"
        left_alone(config, Config, [f"hmm.{name}" for name in settings], reason)
        return
    if "" not in hmms_of(config):
        reason = "all methods of this run that look ahead name their HMM (hmm.paths); leave it out"
        left_alone(config, Config, ["hmm.path"], reason)
    fixed = [name for name in settings if all(name in method.fixed for method in looking)]
    reason = "all methods of this run that look ahead have their own; leave it out"
    left_alone(config, Config, [f"hmm.{name}" for name in fixed], reason)


def _check_named_hmms(config: DictConfig) -> None:
    """Check that every HMM which a method names is in `hmm.paths`, which may hold others."""
    paths = list(config.hmm.paths)
    for method in config.task.methods:
        base, colon, name = method.partition(":")
        if colon and not needs_hmm(base):
            raise ValueError(f"task.methods has {method}, but {base} needs no HMM: give {base}")
        if colon and name not in paths:
            raise ValueError(
                f"task.methods has {method}, but hmm.paths has no {name!r} "
                f"({', '.join(paths) or 'it is empty'}): give +hmm.paths.{name}=DIR"
            )
    for name in paths:
        if not re.fullmatch(r"[A-Za-z0-9]{1,12}", name):
            raise ValueError(f"hmm.paths has {name!r}: a name is up to 12 letters and digits")
    if hmms_of(config) == [""]:
        reason = "no method of task.methods names one of them (pgcd:NAME); leave it out"
        left_alone(config, Config, ["hmm.paths"], reason)


def check_algorithms(config: DictConfig) -> None:
    """Check `task.algorithms`, and that they read, and can honour, what the configuration says."""
    if "algorithms" in config.task:
        distinct("task.algorithms", config.task.algorithms)
        for name in config.task.algorithms:
            one_of("task.algorithms", name, tuple(ALGORITHMS))
    names = algorithms_of(config)
    reason = f"no algorithm of this run ({', '.join(names)}) reads it; leave it out"
    if "algorithms" in config.task:
        reason += ", or add one that does to task.algorithms"
    left_alone(config, Config, unread(config), reason)
    for name in names:
        try:
            ALGORITHMS[name].make(config)
        except ValueError as error:
            raise ValueError(f"{ALGORITHMS[name].algorithm}.*, for {name}: {error}") from error


def _check_trace(config: DictConfig) -> None:
    if "num_examples" not in config.task:
        keys = [f"trace.{name}" for name in TraceConfig.__dataclass_fields__]
        left_alone(config, Config, keys, f"+task={config.task.name} traces nothing; leave it out")
    trace = config.trace
    at_least("trace.examples", trace.examples, 0)
    at_least("trace.particles", trace.particles, 1)
    size = trace.examples * trace.particles
    inside(
        "trace.examples times trace.particles",
        size,
        f"[0, {MOST_TRACED}], as traces would be too large: give fewer of either",
        size <= MOST_TRACED,
    )


def _check_hmm(hmm: HMMConfig) -> None:
    if hmm.lookahead != AUTO:
        belief_of("hmm.lookahead", hmm.lookahead)
    at_least("hmm.exact_top_k", hmm.exact_top_k, 0)
    if not 0 <= hmm.defence <= 1:
        raise ValueError(f"hmm.defence must be a share, from 0 to 1, got {hmm.defence}")
    at_least("hmm.max_table_mib", hmm.max_table_mib, 1)

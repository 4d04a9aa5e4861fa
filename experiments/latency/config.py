"""The settings of the latency task, and the checks of them."""

from __future__ import annotations

from dataclasses import dataclass, field

from omegaconf import DictConfig

from experiments.harness.checks import at_least, distinct, left_alone, one_of
from experiments.harness.config import Config
from experiments.harness.models import SHAPE, resolve_device

KINDS = ("generate", "lm", "lcd", "gcd", "discrete", "pgcd")
"""What is timed: `transformers.generate`; `smc.sample` in static shapes, under each proposal; and
the discrete filter, likewise, under GCD, which keeps `task.batch` prefixes."""
LOOKAHEADS = ("conditional", "in_time")


@dataclass
class LatencyConfig:
    """Milliseconds a token of `smc.sample` in static shapes, with tokens fixed in advance."""

    name: str = "latency"
    kinds: list[str] = field(default_factory=lambda: list(KINDS))
    hidden: list[int] = field(default_factory=lambda: [64, 256])  # states of HMMs, for pgcd
    batch: int = 16  # particles of one prompt
    tokens: int = 40  # most of a text, its end included
    prompt_tokens: int = 64
    warm_up: int = 1  # runs of each kind that do not count
    repeats: int = 3  # runs of each kind that do, in turns, under seeds of their own
    lookahead: str = "conditional"  # of pgcd, as in the paper; or "in_time"
    exact_top_k: int = 64
    max_table_mib: int = 2048  # memory of the lookahead tables; results do not depend on it


def check(config: DictConfig) -> None:
    """Refuse values that no run could honour: `ValueError` with the value and what to give."""
    task = config.task
    distinct("task.kinds", task.kinds)
    for kind in task.kinds:
        one_of("task.kinds", kind, KINDS)
    if "lm" not in task.kinds:
        raise ValueError(
            f"task.kinds={list(task.kinds)}: the others are compared with our own unconstrained "
            "loop; add lm"
        )
    if "pgcd" in task.kinds:
        distinct("task.hidden", task.hidden)
        for hidden in task.hidden:
            at_least("task.hidden", hidden, 1)
    else:
        reason = "of task.kinds pgcd alone looks ahead, and it is not run; leave it out"
        keys = ("task.hidden", "task.lookahead", "task.exact_top_k")
        left_alone(config, {"task": LatencyConfig}, keys, reason)
    for key, least in (("batch", 1), ("tokens", 8), ("prompt_tokens", 1), ("warm_up", 0),
                       ("repeats", 1), ("exact_top_k", 0), ("max_table_mib", 1)):  # fmt: skip
        at_least(f"task.{key}", getattr(task, key), least)
    one_of("task.lookahead", task.lookahead, LOOKAHEADS)
    unread = ("data.path", "data.hub", "data.offset", "model.prompt", "model.prompt_mib",
              "smc.top_p", "smc.max_rows", "smc.execution", "smc.read_ahead")  # fmt: skip
    left_alone(config, Config, unread, "+task=latency times tokens that are fixed in advance")
    device = resolve_device(config.model.device)
    if config.model.path == SHAPE and device.type != "cuda":
        raise ValueError(
            f"model.path={SHAPE} has 8 billion weights, 16 GB in bfloat16, and is for a CUDA "
            f"device, not for {device}: give model=smollm2, or a checkpoint that is small"
        )

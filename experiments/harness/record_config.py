"""The settings that all tasks with records have, and the checks of them."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from omegaconf import DictConfig

from experiments.harness.budgets import check_budget
from experiments.harness.checks import at_least, one_of
from gcd.tokens.canonical import LITERALS


@dataclass
class RecordConfig:
    """Methods x algorithms x particle counts on the same records; a task sets its own defaults."""

    num_examples: int = 100
    methods: list[str] = field(default_factory=lambda: ["lcd", "gcd", "pgcd"])
    algorithms: list[str] = field(default_factory=lambda: ["smc", "discrete"])
    particles: list[int] = field(default_factory=lambda: [1, 4, 16])
    repeats: int = 1  # independent runs of every row
    budget: Any = "default"  # tokens, "tight", "default", "loose", "gold:1.25"; or a list of these
    literals: str = "all"  # "canonical": text without choice as the tokenizer spells it


def check_records(config: DictConfig) -> None:
    """Refuse values that no run could honour: `ValueError` with the value and what to give."""
    task = config.task
    at_least("task.num_examples", task.num_examples, 1)
    at_least("task.repeats", task.repeats, 1)
    check_budget("task.budget", task.budget)
    one_of("task.literals", task.literals, LITERALS)

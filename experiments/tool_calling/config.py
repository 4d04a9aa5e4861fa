"""The settings of the tool-calling task, and the checks of them."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from omegaconf import DictConfig

from experiments.harness.budgets import check_budget
from experiments.harness.checks import at_least, distinct, one_of
from experiments.tool_calling.answers import STYLES
from gcd.tokens.canonical import LITERALS


@dataclass
class XlamConfig:
    """Tool calling: methods x algorithms x particle counts on the same requests."""

    name: str = "xlam"
    styles: list[str] = field(default_factory=lambda: ["json"])  # each request in every style
    num_examples: int = 24
    methods: list[str] = field(default_factory=lambda: ["lcd", "gcd", "pgcd"])
    algorithms: list[str] = field(default_factory=lambda: ["smc"])
    particles: list[int] = field(default_factory=lambda: [1, 4, 16])
    repeats: int = 1  # independent runs of every row
    budget: Any = "default"  # a number of tokens, or "tight", "default", "loose"
    literals: str = "canonical"  # how text without choice is spelled; "all": in all ways
    max_calls: int | None = None  # None: as many as the budget allows


def check(config: DictConfig) -> None:
    """Refuse values that no run could honour: `ValueError` with the value and what to give."""
    task = config.task
    distinct("task.styles", task.styles)
    for style in task.styles:
        one_of("task.styles", style, STYLES)
    at_least("task.num_examples", task.num_examples, 1)
    at_least("task.repeats", task.repeats, 1)
    if task.max_calls is not None:
        at_least("task.max_calls", task.max_calls, 1)
    check_budget("task.budget", task.budget)
    one_of("task.literals", task.literals, LITERALS)

"""The settings of the query task, and the checks of them."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from omegaconf import DictConfig

from experiments.harness.budgets import check_budget
from experiments.harness.checks import at_least, one_of
from gcd.tokens.canonical import LITERALS


@dataclass
class SqlConfig:
    """Text to SQL: methods x algorithms x particle counts on the same questions."""

    name: str = "sql"
    num_examples: int = 100
    methods: list[str] = field(default_factory=lambda: ["lcd", "gcd", "pgcd"])
    algorithms: list[str] = field(default_factory=lambda: ["smc", "discrete"])
    particles: list[int] = field(default_factory=lambda: [1, 4, 16])
    repeats: int = 1  # independent runs of every row
    budget: Any = 96  # a number of tokens, or "tight", "default", "loose"
    literals: str = "all"  # "canonical": text without choice as the tokenizer spells it
    tables: int = 3  # most tables that one SELECT joins
    subquery_depth: int = 1
    max_states: int = 60_000  # of a language; a schema with many tables gets a narrower dialect
    fillings: int = 4  # generated ones, for each database that comes without rows


def check(config: DictConfig) -> None:
    """Refuse values that no run could honour: `ValueError` with the value and what to give."""
    task = config.task
    for name in ("num_examples", "repeats", "tables", "max_states", "fillings"):
        at_least(f"task.{name}", task[name], 1)
    at_least("task.subquery_depth", task.subquery_depth, 0)
    check_budget("task.budget", task.budget)
    one_of("task.literals", task.literals, LITERALS)
    if config.data.hub is not None:
        raise ValueError(
            f"data.hub={config.data.hub}: questions need their databases, which a hub's data set "
            "does not hold; give data.path=FOLDER with both"
        )

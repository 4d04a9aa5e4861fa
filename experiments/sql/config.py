"""The settings of the query task, and the checks of them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from omegaconf import DictConfig

from experiments.harness.checks import at_least
from experiments.harness.record_config import RecordConfig, check_records


@dataclass
class SqlConfig(RecordConfig):
    """Text to SQL: methods x algorithms x particle counts on the same questions."""

    name: str = "sql"
    budget: Any = 96  # a number of tokens, or "tight", "default", "loose"
    tables: int = 3  # most tables that one SELECT joins
    subquery_depth: int = 1
    max_states: int = 60_000  # of a language; a schema with many tables gets a narrower dialect
    fillings: int = 4  # generated ones, for each database that comes without rows


def check(config: DictConfig) -> None:
    """Refuse values that no run could honour: `ValueError` with the value and what to give."""
    task = config.task
    check_records(config)
    for name in ("tables", "max_states", "fillings"):
        at_least(f"task.{name}", task[name], 1)
    at_least("task.subquery_depth", task.subquery_depth, 0)
    if config.data.hub is not None:
        raise ValueError(
            f"data.hub={config.data.hub}: questions need their databases, which a hub's data set "
            "does not hold; give data.path=FOLDER with both"
        )

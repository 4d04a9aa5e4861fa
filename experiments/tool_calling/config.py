"""The settings of the tool-calling task, and the checks of them."""

from __future__ import annotations

from dataclasses import dataclass, field

from omegaconf import DictConfig

from experiments.harness.checks import at_least, distinct, one_of
from experiments.harness.record_config import RecordConfig, check_records
from experiments.tool_calling.answers import STYLES


@dataclass
class XlamConfig(RecordConfig):
    """Tool calling: methods x algorithms x particle counts on the same requests."""

    name: str = "xlam"
    styles: list[str] = field(default_factory=lambda: ["json"])  # each request in every style
    num_examples: int = 24
    algorithms: list[str] = field(default_factory=lambda: ["smc"])
    literals: str = "canonical"  # how text without choice is spelled; "all": in all ways
    max_calls: int | None = None  # None: as many as the budget allows


def check(config: DictConfig) -> None:
    """Refuse values that no run could honour: `ValueError` with the value and what to give."""
    task = config.task
    distinct("task.styles", task.styles)
    for style in task.styles:
        one_of("task.styles", style, STYLES)
    check_records(config)
    at_least("task.max_calls", task.max_calls, 1)

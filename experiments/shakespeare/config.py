"""The settings of the Shakespeare task, and the checks of them."""

from __future__ import annotations

from dataclasses import dataclass

from omegaconf import DictConfig

from experiments.harness import smollm2
from experiments.harness.checks import at_least


@dataclass
class ShakespeareConfig:
    """Lines `UPPER+: LOWER+` of a play, by a character-level model trained on the spot."""

    name: str = "shakespeare"
    steps: int = 600  # of training
    context: int = 128  # characters the model is trained to look back over
    num_lines: int = 48  # under each constraint
    particles: int = 16  # for each line
    budget: int = 40  # most characters of a line
    upper: str = "ABCDEFGHIJKLMNOPQRSTUVWXYZ"
    lower: str = "abcdefghijklmnopqrstuvwxyz"
    name_length: int = 5  # of the fixed form
    word_length: int = 6


def check(config: DictConfig) -> None:
    """Refuse values that no run could honour: `ValueError` with the value and what to give."""
    task = config.task
    if config.model.path != smollm2.NAME:  # the default
        raise ValueError("+task=shakespeare trains its own model: leave model.path out")
    if config.data.hub or config.data.offset:
        raise ValueError("+task=shakespeare reads one text file: data.path=FILE and no more of it")
    for key in ("steps", "context", "num_lines", "particles", "name_length", "word_length"):
        at_least(f"task.{key}", getattr(task, key), 1)
    longest = task.name_length + task.word_length + 3
    if task.budget < longest:
        raise ValueError(
            f"task.budget={task.budget} is shorter than the fixed form's lines, which have "
            f"{longest} characters (task.name_length, task.word_length and three more)"
        )
    both = set(task.upper) & set(task.lower)
    if both or not task.upper or not task.lower or ":" in task.upper or "\n" in task.lower:
        raise ValueError(
            "task.upper and task.lower must be two sets of characters without a common one, the "
            f"first without ':', the second without a line end; got {task.upper!r}, {task.lower!r}"
        )

"""The settings of the CommonGen task, and the checks of them."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from omegaconf import DictConfig

import gcd
from experiments.harness.budgets import check_budget
from experiments.harness.checks import at_least, one_of
from gcd.tokens.canonical import LITERALS

AUTO, LEMMINFLECT = "auto", "lemminflect"


@dataclass
class CommonGenConfig:
    """Sentences from concepts: methods x algorithms x particle counts on the same concept sets."""

    name: str = "commongen"
    num_examples: int = 100
    methods: list[str] = field(default_factory=lambda: ["lcd", "gcd", "pgcd"])
    algorithms: list[str] = field(default_factory=lambda: ["smc", "discrete"])
    particles: list[int] = field(default_factory=lambda: [1, 4, 16])
    repeats: int = 1  # independent runs of every row
    budget: Any = "default"  # a number of tokens, or "tight", "default", "loose"
    literals: str = "all"  # "canonical": text without choice as the tokenizer spells it
    max_words: int | None = None  # null: as many as the budget allows
    letters: str = "ascii"  # or "latin", "unicode"
    punctuation: str = ",;:'’-"  # inside the sentence; see `gcd.keywords`
    # "auto": the records' own, "lemminflect" where they have none; "lemminflect": those always; or
    # a file with a line for each line of data.path
    inflections: str = AUTO


def check(config: DictConfig) -> None:
    """Refuse values that no run could honour: `ValueError` with the value and what to give."""
    task = config.task
    at_least("task.num_examples", task.num_examples, 1)
    at_least("task.repeats", task.repeats, 1)
    if task.max_words is not None:
        at_least("task.max_words", task.max_words, 1)
    check_budget("task.budget", task.budget)
    one_of("task.literals", task.literals, LITERALS)
    if task.inflections not in (AUTO, LEMMINFLECT):
        if not Path(task.inflections).is_file():
            raise ValueError(
                f"task.inflections={task.inflections}: no such file; give {AUTO}, {LEMMINFLECT}, "
                "or a file with a list of lists of words a line"
            )
        if config.data.path is None:
            raise ValueError(
                f"task.inflections={task.inflections} goes line by line with data.path, and none "
                "is given"
            )
    try:
        gcd.keywords([["a"]], letters=task.letters, punctuation=task.punctuation)
    except gcd.ConstraintError as error:
        raise ValueError(f"task.letters, task.punctuation: {error}") from error

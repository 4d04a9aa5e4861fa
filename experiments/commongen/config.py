"""Settings of the CommonGen task, and their checks."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from omegaconf import DictConfig

import gcd
from experiments.config import RecordConfig, at_least, one_of
from experiments.evaluate import check_records

AUTO, LEMMINFLECT = "auto", "lemminflect"
TOLD = {
    "all": "all named in the prompt",
    "some": "all but one named in the prompt",
    "none": "none named in the prompt",
}
"""Descriptions of the number of concepts that a prompt names."""


@dataclass
class CommonGenConfig(RecordConfig):
    """Sentences from concepts: methods x algorithms x particle counts on the same concept sets."""

    name: str = "commongen"
    told: str = "all"  # concepts that the prompt names: "all", "some" (all but one), "none"
    max_words: int | None = None  # null: limited by the budget only
    letters: str = "ascii"  # or "latin", "unicode"
    punctuation: str = ",;:'’-"  # within the sentence; see `gcd.keywords`
    # "auto": from the records, or lemminflect if they have none; "lemminflect": always; or
    # a file with one line per line of data.path
    inflections: str = AUTO


def check(config: DictConfig) -> None:
    """Check the settings; raise a `ValueError` with the invalid value and the remedy."""
    task = config.task
    check_records(config)
    one_of("task.told", task.told, tuple(TOLD))
    at_least("task.max_words", task.max_words, 1)
    if task.inflections not in (AUTO, LEMMINFLECT):
        if not Path(task.inflections).is_file():
            raise ValueError(
                f"expected task.inflections to be {AUTO}, {LEMMINFLECT} or a file, got "
                f"{task.inflections}; give a file in which each line has a list of lists of words"
            )
        if config.data.path is None:
            raise ValueError(
                f"expected data.path with task.inflections={task.inflections}, whose lines belong "
                "to the lines of data.path; got none"
            )
    try:
        gcd.keywords([["a"]], letters=task.letters, punctuation=task.punctuation)
    except gcd.ConstraintError as error:
        raise ValueError(f"task.letters, task.punctuation: {error}") from error

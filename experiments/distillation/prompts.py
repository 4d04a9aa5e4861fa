"""Prompts that a language model answers freely for distillation, by task.

A task is an entry of `SOURCES` with a function that makes its prompts. The records must not include
those that the task is evaluated on.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from itertools import cycle
from pathlib import Path
from typing import Any, NamedTuple

from omegaconf import DictConfig

from experiments.commongen.task import prompt_of, read_training
from experiments.json_schema import task as json_schema
from experiments.models import encode
from experiments.sql.databases import build_prompt as build_query_prompt
from experiments.sql.databases import find_questions, read_databases, read_questions
from experiments.tool_calling.task import STYLES, build_prompt, load_records


class PromptSource(NamedTuple):
    """The prompts of a task.

    Attributes:
        token_ids: makes at most a given number of prompts from the configuration (`records`,
            `model.prompt`, `seed`) and the tokenizer, in the task's own format.
        settings: configuration keys that only this task uses.
        needs: description of the required `records.path`; "" if no records are read.
        hub: whether `records.hub` can replace `records.path`.
    """

    token_ids: Callable[[DictConfig, int, Any], list[list[int]]]
    settings: tuple[str, ...] = ()
    needs: str = ""
    hub: bool = False

    def check(self, config: DictConfig) -> None:
        """Refuse a configuration without the required records, with a `ValueError`."""
        given = config.records.path or (self.hub and config.records.hub)
        if self.needs and not given:
            also = ", or records.hub=NAME" if self.hub else ""
            raise ValueError(
                f"expected records for source={config.source}, got none; give records.path="
                f"{self.needs}{also}, with other records than those of the experiments"
            )


def _tool_calls(config: DictConfig, num: int, tokenizer: Any) -> list[list[int]]:
    """Return requests for tool calls, each in every requested style."""
    styles = STYLES if config.style == "both" else (config.style,)
    found = load_records(config.records, math.ceil(num / len(styles))).records
    kind = config.model.prompt
    return [
        list(encode(build_prompt(record, style, tokenizer=tokenizer, kind=kind), kind, tokenizer))
        for record in found
        for style in styles
    ][:num]


def _concept_sets(config: DictConfig, num: int, tokenizer: Any) -> list[list[int]]:
    """Return prompts of concept sets; successive prompts take successive values of `told`.

    Raises:
        ValueError: the prompts aren't compact.
    """
    if config.model.prompt != "compact":
        raise ValueError(
            f"expected model.prompt=compact with source=commongen, got {config.model.prompt}"
        )
    sets = read_training([Path(config.records.path).expanduser()])
    rng = random.Random(f"concepts-{config.seed}")
    some = rng.sample(sets, min(num, len(sets)))
    return [
        list(encode(prompt_of(each, rng, told), "compact", tokenizer))
        for each, told in zip(some, cycle(config.told))
    ]


def _questions(config: DictConfig, num: int, tokenizer: Any) -> list[list[int]]:
    """Return questions to databases in random order, as neighboring questions are similar.

    Raises:
        DataError: the folder has no databases or questions, or damaged ones.
    """
    folder = Path(config.records.path).expanduser()
    databases = read_databases(folder)
    questions = read_questions(find_questions(folder), databases).records
    rng = random.Random(f"questions-{config.seed}")
    kind = config.model.prompt
    prompts = (
        build_query_prompt(
            databases[question.database].schema, question.text, tokenizer=tokenizer, kind=kind
        )
        for question in rng.sample(questions, min(num, len(questions)))
    )
    return [list(encode(prompt, kind, tokenizer)) for prompt in prompts]


def _requests_for_json(config: DictConfig, num: int, tokenizer: Any) -> list[list[int]]:
    """Return requests for JSON with their schemas."""
    found, kind = json_schema.load_records(config.records, num).records, config.model.prompt
    prompts = (json_schema.build_prompt(record, tokenizer=tokenizer, kind=kind) for record in found)
    return [list(encode(prompt, kind, tokenizer)) for prompt in prompts]


SOURCES = {
    "xlam": PromptSource(_tool_calls, ("style",), "FILE.jsonl in xLAM's form", hub=True),
    "json_schema": PromptSource(
        _requests_for_json, needs="FILE.jsonl of prompt, schema and completion", hub=True
    ),
    "commongen": PromptSource(
        _concept_sets, ("told",), needs="FILE.tsv, CommonGen's training sentences"
    ),
    "sql": PromptSource(_questions, needs="FOLDER of questions and schemas, in Spider's form"),
}
"""The prompts of each task, by the name of the task."""

"""Tasks say which prompts a language model answers, for an HMM to be distilled from its answers.

A task is one entry of `SOURCES`: how its prompts are made, and how the model card calls them. None
of their records may be among those that the task is measured on.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from itertools import cycle
from pathlib import Path
from typing import Any, NamedTuple

from omegaconf import DictConfig

from experiments.commongen.training import prompt_of, read_training
from experiments.harness.models import encode
from experiments.json_schema import records as schema_records
from experiments.sql.databases import read_sources
from experiments.sql.prompts import build_prompt as build_query_prompt
from experiments.sql.questions import find_questions, read_questions
from experiments.tool_calling.answers import STYLES
from experiments.tool_calling.prompts import build_prompt
from experiments.tool_calling.records import load_records


class PromptSource(NamedTuple):
    """The prompts of a task.

    Attributes:
        token_ids: makes at most so many prompts, by the configuration (`records`, `model.prompt`,
            `seed`) and the tokenizer, as the task itself would.
        words: what they are, by the configuration, after "answers to".
        settings: keys of the configuration that no other task reads.
        needs: what `records.path` must be, in words; "" where no records are read.
        hub: whether `records.hub` will do, too.
    """

    token_ids: Callable[[DictConfig, int, Any], list[list[int]]]
    words: Callable[[DictConfig], str]
    settings: tuple[str, ...] = ()
    needs: str = ""
    hub: bool = False

    def check(self, config: DictConfig) -> None:
        """Refuse a configuration without the records that prompts are made of: `ValueError`."""
        given = config.records.path or (self.hub and config.records.hub)
        if self.needs and not given:
            also = ", or records.hub=NAME" if self.hub else ""
            raise ValueError(
                f"source={config.source}: an HMM is distilled from answers to records that it is "
                f"not measured on: give records.path={self.needs}{also}"
            )


def _tool_calls(config: DictConfig, num: int, tokenizer: Any) -> list[list[int]]:
    """Requests for tool calls, each in every style that is asked for."""
    styles = STYLES if config.style == "both" else (config.style,)
    found = load_records(config.records, math.ceil(num / len(styles))).records
    kind = config.model.prompt
    return [
        list(encode(build_prompt(record, style, tokenizer=tokenizer, kind=kind), kind, tokenizer))
        for record in found
        for style in styles
    ][:num]


def _tool_calls_in_words(config: DictConfig) -> str:
    kind = Path(config.records.path).name if config.records.path else config.records.hub
    styles = "JSON and Python" if config.style == "both" else config.style
    return f"requests of {kind}, {styles} style"


def _concept_sets(config: DictConfig, num: int, tokenizer: Any) -> list[list[int]]:
    """Sets of concepts to write sentences of; `told` says, in turn, how many the prompt names.

    Raises:
        ValueError: prompts that are not compact.
    """
    if config.model.prompt != "compact":
        raise ValueError(f"model.prompt={config.model.prompt}: give model.prompt=compact")
    sets = read_training([Path(config.records.path).expanduser()])
    rng = random.Random(f"concepts-{config.seed}")
    some = rng.sample(sets, min(num, len(sets)))
    return [
        list(encode(prompt_of(each, rng, told), "compact", tokenizer))
        for each, told in zip(some, cycle(config.told))
    ]


def _concept_sets_in_words(config: DictConfig) -> str:
    shares = ", ".join(
        f"{config.told.count(told) / len(config.told):.0%} {told}"
        for told in dict.fromkeys(config.told)
    )
    named = "" if set(config.told) == {"all"} else f", named in the prompt: {shares}"
    return f"concepts of {Path(config.records.path).name}{named}"


def _questions(config: DictConfig, num: int, tokenizer: Any) -> list[list[int]]:
    """Questions to databases, drawn at random: what one question needs says little of the next.

    Raises:
        DataError: the folder has no databases or questions, or damaged ones.
    """
    folder = Path(config.records.path).expanduser()
    sources = read_sources(folder)
    questions = read_questions(find_questions(folder), sources).records
    rng = random.Random(f"questions-{config.seed}")
    kind = config.model.prompt
    prompts = (
        build_query_prompt(
            sources[question.database].schema, question.text, tokenizer=tokenizer, kind=kind
        )
        for question in rng.sample(questions, min(num, len(questions)))
    )
    return [list(encode(prompt, kind, tokenizer)) for prompt in prompts]


def _requests_for_json(config: DictConfig, num: int, tokenizer: Any) -> list[list[int]]:
    """Requests for JSON, each with its schema."""
    found, kind = schema_records.load_records(config.records, num).records, config.model.prompt
    prompts = (
        schema_records.build_prompt(record, tokenizer=tokenizer, kind=kind) for record in found
    )
    return [list(encode(prompt, kind, tokenizer)) for prompt in prompts]


SOURCES = {
    "xlam": PromptSource(
        _tool_calls, _tool_calls_in_words, ("style",), "FILE.jsonl in xLAM's form", hub=True
    ),
    "json_schema": PromptSource(
        _requests_for_json,
        lambda config: f"requests of {Path(config.records.path or config.records.hub).name}",
        needs="FILE.jsonl of prompt, schema and completion",
        hub=True,
    ),
    "commongen": PromptSource(
        _concept_sets,
        _concept_sets_in_words,
        ("told",),
        needs="FILE.tsv, CommonGen's training sentences",
    ),
    "sql": PromptSource(
        _questions,
        lambda config: f"questions of {Path(config.records.path).name}",
        needs="FOLDER of questions and schemas, in Spider's form",
    ),
}
"""The prompts of each task, by the name that it has after `+task=`."""

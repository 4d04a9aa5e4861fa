"""Lessons: a common prompt prefix with the continuations to learn.

Requests in two styles, sentences with the same words, and questions to one database differ only
near their end. Their common prefix is computed once: a lesson has a stem and branches, and each
branch attends to the stem and itself (`experiments.finetuning.batches`).
"""

from __future__ import annotations

import dataclasses
import random
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from experiments.commongen.records import ConceptSet
from experiments.commongen.training import prompt_of, read_training
from experiments.sql.databases import read_databases
from experiments.sql.prompts import build_prompt as build_query_prompt
from experiments.sql.questions import read_questions
from experiments.tool_calling.answers import STYLES, write_answer
from experiments.tool_calling.prompts import compact_prompt
from experiments.tool_calling.records import ToolRecord, read_xlam

_SENTENCES = 4  # per concept set and epoch
_QUESTIONS = 6  # per database and lesson


class Answered(NamedTuple):
    """A prompt and its answer."""

    prompt: str
    answer: str


class Branch(NamedTuple):
    """Continuation of the stem.

    Attributes:
        tokens: the rest of the prompt, the answer and EOS.
        learned: number of learned tokens: the answer and EOS.
    """

    tokens: tuple[int, ...]
    learned: int


class Lesson(NamedTuple):
    """A stem and its branches, in token ids."""

    stem: tuple[int, ...]
    branches: tuple[Branch, ...]

    @property
    def size(self) -> int:
        """Total number of tokens."""
        return len(self.stem) + sum(len(branch.tokens) for branch in self.branches)

    @property
    def learned(self) -> int:
        """Number of learned tokens."""
        return sum(branch.learned for branch in self.branches)


class Source(NamedTuple):
    """Source of lessons.

    Attributes:
        read: reads the items in files; each item becomes a lesson.
        answered: returns prompts and answers of an item, with random choices per epoch.
    """

    read: Callable[[Sequence[Path], int | None], list[Any]]
    answered: Callable[[Any, random.Random], list[Answered]]


def lesson_of(answered: Sequence[Answered], tokenizer: Any) -> Lesson:
    """Make one lesson of prompts with a common prefix.

    Answers are tokenized separately, as the model generates them, and without a BOS token.
    """
    prompts = [_ids(tokenizer, each.prompt) for each in answered]
    # The last token of a prompt predicts the first answer token, so it belongs to the branch.
    shared = min(map(len, prompts)) - 1
    for number in range(shared):
        if any(prompt[number] != prompts[0][number] for prompt in prompts):
            shared = number
            break
    branches = []
    for prompt, each in zip(prompts, answered, strict=True):
        answer = [*_ids(tokenizer, each.answer, begun=True), tokenizer.eos_token_id]
        branches.append(Branch((*prompt[shared:], *answer), len(answer)))
    return Lesson(tuple(prompts[0][:shared]), tuple(branches))


def _ids(tokenizer: Any, text: str, begun: bool = False) -> list[int]:
    return list(tokenizer(text, add_special_tokens=not begun, verbose=False)["input_ids"])


def _tool_records(paths: Sequence[Path], limit: int | None) -> list[ToolRecord]:
    """Return the records whose answers can be written in both styles."""
    records: list[ToolRecord] = []
    for path in paths:
        found = read_xlam(path).records
        records += found if path.suffix == ".json" else found[:limit]
    return [record for record in records if _writable(record)]


def _writable(record: ToolRecord) -> bool:
    try:
        for style in STYLES:
            write_answer(record.calls, record.tools, style)
    except ValueError:
        return False
    return bool(record.calls)


def _tool_calls(record: ToolRecord, rng: random.Random) -> list[Answered]:
    """Return the prompt and answer of a record in both styles, with its tools in random order."""
    tools = list(record.tools)
    rng.shuffle(tools)
    record = dataclasses.replace(record, tools=tuple(tools))
    return [
        Answered(compact_prompt(record, style), write_answer(record.calls, record.tools, style))
        for style in STYLES
    ]


def _sentences(item: ConceptSet, rng: random.Random) -> list[Answered]:
    """Return at most four sentences with the same concepts."""
    prompt = prompt_of(item, rng)
    some = rng.sample(item.references, min(_SENTENCES, len(item.references)))
    return [Answered(prompt, sentence) for sentence in some]


def _select_questions(paths: Sequence[Path], limit: int | None) -> list[list[Answered]]:
    """Return questions with their gold queries as written, grouped by database."""
    together = []
    for path in paths:
        databases = read_databases(path.parent)
        by_database: dict[str, list[Answered]] = {}
        for question in read_questions(path, databases).records[:limit]:
            schema = databases[question.database].schema
            prompt = build_query_prompt(schema, question.text, tokenizer=None, kind="compact")
            written = Answered(prompt, question.query)
            by_database.setdefault(question.database, []).append(written)
        for answered in by_database.values():
            together += [answered[i : i + _QUESTIONS] for i in range(0, len(answered), _QUESTIONS)]
    return together


SOURCES: dict[str, Source] = {
    "xlam": Source(_tool_records, _tool_calls),
    "commongen": Source(read_training, _sentences),
    "sql": Source(_select_questions, lambda together, _: together),
}


def lessons(
    items: Sequence[Any], source: str, tokenizer: Any, seed: int, epoch: int
) -> Iterator[Lesson]:
    """Yield the lesson of each item in this epoch."""
    for number, item in enumerate(items):
        rng = random.Random(f"{seed}-{epoch}-{number}")
        yield lesson_of(SOURCES[source].answered(item, rng), tokenizer)

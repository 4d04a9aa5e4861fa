"""SQL task, `+task=sql`: methods, algorithms and particles on the same questions.

The schema of each question's database becomes the language of its queries. Each method samples
queries from it, and SQLite checks whether they compile and give the result of the gold query.
"""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from omegaconf import DictConfig

import gcd
import smc
from experiments.config import RecordConfig, at_least
from experiments.evaluate import (
    DataError,
    Example,
    ReadResult,
    RecordHandler,
    check_records,
    evaluate,
    identity,
    load_engine,
)
from experiments.models import ROOT
from experiments.results import report
from experiments.sql.databases import (
    Database,
    Question,
    build_prompt,
    find_questions,
    read_databases,
    read_questions,
)
from experiments.tables import ACCURACIES, Metric
from experiments.tasks import ExperimentTask, Identity, Row, Run, as_lines

if TYPE_CHECKING:
    from experiments.sql.judge import Judge

_LOG = logging.getLogger(__name__)
OWN = ROOT / "data" / "sql"


@dataclass
class SqlConfig(RecordConfig):
    """Text to SQL: methods x algorithms x particle counts on the same questions."""

    name: str = "sql"
    budget: Any = 96  # a number of tokens, or "tight", "default", "loose"
    tables: int = 3  # maximum number of tables that one SELECT joins
    subquery_depth: int = 1
    max_states: int = 60_000  # states of a language; large schemas get a narrower dialect


def check(config: DictConfig) -> None:
    """Check the settings; raise a `ValueError` with the invalid value and the remedy."""
    task = config.task
    check_records(config)
    for name in ("tables", "max_states"):
        at_least(f"task.{name}", task[name], 1)
    at_least("task.subquery_depth", task.subquery_depth, 0)
    if config.data.hub is not None:
        raise ValueError(
            f"expected data.path for this task, got data.hub={config.data.hub}; give data.path="
            "FOLDER with the questions and their databases, which data sets on the hub don't have"
        )


@dataclass(frozen=True)
class Asked:
    """Inputs of a run.

    Attributes:
        questions: questions of the run.
        databases: databases by name.
        judge: judge of the answers.
    """

    questions: ReadResult[Question]
    databases: Mapping[str, Database]
    judge: Judge


def read(config: DictConfig) -> Asked:
    """Read questions and databases, and run all gold queries.

    Raises:
        DataError: a folder or file is missing or damaged, or no question can be judged.
    """
    from experiments.sql.judge import Judge  # sqlglot is slow to import

    folder = OWN if config.data.path is None else Path(config.data.path).expanduser()
    databases = read_databases(folder)
    everything = read_questions(find_questions(folder), databases)
    questions = everything.part(config.data.offset, config.task.num_examples)
    judge = Judge(databases, questions.records)
    if len(judge.unjudged) == len(questions.records):
        name, reason = next(iter(judge.unjudged.items()))
        raise DataError(
            f"expected questions that can be judged in data.path={folder}, but none of "
            f"{len(questions.records)} can; the reason of the first, {name}, is: {reason}"
        )
    return Asked(questions, databases, judge)


def _identity(config: DictConfig, asked: Asked) -> Identity:
    named = sorted({question.database for question in asked.questions.records})
    digests = {name: asked.databases[name].digest for name in named}
    return {**identity(config, asked.questions), "databases": digests}


def _if_judged(metric: Metric) -> Metric:
    """Restrict a metric of correct answers to questions that can be judged."""
    return dataclasses.replace(
        metric,
        title=metric.title.replace("accuracy", "execution accuracy"),
        value=lambda row: metric.of(row) if row["judged"] else None,
        label="execution accuracy",
    )


EXECUTION = tuple(map(_if_judged, ACCURACIES))
"""Execution accuracies, over judged questions only (`experiments.sql.judge`)."""
METRICS = (
    *EXECUTION,
    Metric(
        "prepares",
        "prepares %",
        "the probability of queries that SQLite compiles",
        interval=False,
    ),
)
"""Metrics of queries; `record_handler` adds their columns to the rows."""


def record_handler(config: DictConfig, asked: Asked, tokenizer: Any) -> RecordHandler:
    """Return the functions that define the task on questions."""
    task, judge = config.task, asked.judge

    @cache
    def language_of(database: str) -> gcd.Automaton:
        schema = asked.databases[database].schema
        wanted = gcd.SqlDialect(tables=task.tables, subquery_depth=task.subquery_depth)
        dialect = gcd.widest_dialect(schema, task.max_states, wanted)
        if dialect != wanted:
            _LOG.warning("database %s: queries are of a narrower dialect, %s", database, dialect)
        return gcd.sql(schema, dialect)

    def prompt(question: Question) -> str:
        schema = asked.databases[question.database].schema
        return build_prompt(schema, question.text, tokenizer=tokenizer, kind=config.model.prompt)

    def columns(example: Example, posterior: smc.Posterior) -> Row:
        question: Any = example.record
        pairs = list(zip(posterior.answers, posterior.probabilities, strict=True))
        return {
            "database": question.database,
            "judged": question.id not in judge.unjudged,
            "prepares": sum(p for answer, p in pairs if judge.prepares(question, answer)),
            "gold": question.query,
        }

    return RecordHandler(
        language=lambda question: language_of(question.database),
        prompt=prompt,
        is_correct=judge.is_correct,
        columns=columns,
    )


def _run(run: Run, asked: Asked) -> None:
    """Compile the languages, sample the missing rows, and report."""
    config = run.config
    lm, tokenizer = load_engine(config)
    own = record_handler(config, asked, tokenizer)
    prepared, rows = evaluate(run, asked.questions, own, lm, tokenizer)
    unjudged = _report_unjudged(run, asked)
    named = {question.database for question in asked.questions.records}
    report(
        run,
        asked.questions,
        prepared,
        rows,
        title=(
            f"SQL: {prepared.num_records} questions to {len(named)} databases "
            f"({config.data.path or 'our own'})"
        ),
        metrics=METRICS,
        main=EXECUTION[0],
        notes=[
            "Execution accuracy is the probability of queries whose result equals that of the gold "
            "query, with 95% bootstrap intervals over questions. Rows whose particles all died "
            "count as wrong.",
            f"{unjudged} questions are excluded from execution accuracy, because their gold query "
            "has an empty or undetermined result, or fails (unjudged.jsonl).",
            "Tokens are those that the language model computed, including prompts; `read` is the "
            "mean number of prefixes that it computed for one question, without the prompt.",
        ],
        more={"unjudged": unjudged},
    )


def _report_unjudged(run: Run, asked: Asked) -> int:
    """Write the questions that can't be judged to a file, and return their number."""
    unjudged = asked.judge.unjudged
    lines = as_lines({"record": name, "reason": why} for name, why in unjudged.items())
    (run.directory / "unjudged.jsonl").write_text(lines, encoding="utf-8")
    return len(unjudged)


TASK = ExperimentTask("sql", SqlConfig, check, read, _identity, _run)

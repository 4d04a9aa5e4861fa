"""JSON task, `+task=json_schema`: every request has its own schema and a correct answer.

The schema of a record becomes the constraint. The budget is a multiple of the tokens of the correct
answer, so the comparison shows which methods finish with the tight budgets that users set. The
setup follows TruncProof (arXiv 2605.13076); its data set JSON-Mode-Eval has the same format.
"""

from __future__ import annotations

import json
import logging
import warnings
from collections import Counter
from dataclasses import dataclass, field
from functools import cache
from typing import Any

from omegaconf import DictConfig

import gcd
import smc
from experiments.config import RecordConfig, at_least, one_of
from experiments.evaluate import Example, RecordHandler, check_records, evaluate, identity, report
from experiments.json_schema.records import SchemaRecord, build_prompt, gold, load_records
from experiments.records import ReadResult
from experiments.rows import Row
from experiments.tasks import ExperimentTask, Run
from experiments.tool_calling.records import PARSES, parses, same_values
from experiments.vllm_model import load_engine
from gcd._automata.horizon import refuse_unchecked

_LOG = logging.getLogger(__name__)


@dataclass
class JsonSchemaConfig(RecordConfig):
    """Answers in JSON: methods x algorithms x particle counts on the same requests."""

    name: str = "json_schema"
    methods: list[str] = field(default_factory=lambda: ["lm", "lcd", "greedy_close", "gcd"])
    algorithms: list[str] = field(default_factory=lambda: ["smc"])
    particles: list[int] = field(default_factory=lambda: [1])
    budget: Any = field(default_factory=lambda: ["gold:1.0", "gold:1.25", "gold:2.0"])
    literals: str = "canonical"
    formats: str = "assert"  # see `gcd.json_schema`; "ignore": as annotations
    max_bytes: int | None = None  # longest answer that is compiled; None: no limit
    reference: str = "lcd"  # the method of paired comparisons


def check(config: DictConfig) -> None:
    """Check the settings; raise a `ValueError` with the invalid value and the remedy."""
    check_records(config)
    one_of("task.formats", config.task.formats, ("assert", "ignore"))
    at_least("task.max_bytes", config.task.max_bytes, 1)


def _read(config: DictConfig) -> ReadResult[SchemaRecord]:
    return load_records(config.data, config.task.num_examples)


METRICS = (PARSES,)
"""Metrics of JSON answers; `record_handler` adds their columns to the rows."""


def record_handler(config: DictConfig, tokenizer: Any, ignored: Counter[str]) -> RecordHandler:
    """Return the functions that define the task, and count ignored schema keywords."""

    @cache
    def language_of(schema: str) -> gcd.Automaton:
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")  # counted here and reported once
            language = gcd.json_schema(
                schema,
                whitespace="spaced",
                formats=config.task.formats,
                max_bytes=config.task.max_bytes,
            )
        refuse_unchecked(language.caveats, "an answer is valid by its constraint", "remove it")
        for warning in caught:
            if isinstance(warning.message, gcd.IgnoredKeywordWarning):
                ignored.update(each.keyword for each in warning.message.ignored)
        return language

    def language(record: SchemaRecord) -> gcd.Automaton:
        """Return the language, or refuse a record whose correct answer violates its schema."""
        allowed, right = language_of(json.dumps(record.schema)), gold(record)
        if not allowed.accepts(right.encode()):
            raise gcd.ConstraintError(
                f"expected a correct answer that satisfies the schema, got {right!r}; write "
                "members in the order of `properties`, and whole numbers without a point"
            )
        return allowed

    def is_correct(record: SchemaRecord, answer: bytes) -> bool:
        try:
            return same_values(json.loads(answer), record.answer)
        except ValueError:
            return False

    def columns(example: Example, posterior: smc.Posterior) -> Row:
        answer = posterior.answers[0] if posterior.answers else b""
        text = answer.decode(errors="replace")
        record: Any = example.record
        return {"gold": gold(record), "parses": parses(text, "json")}

    return RecordHandler(
        language=language,
        prompt=lambda record: build_prompt(record, tokenizer=tokenizer, kind=config.model.prompt),
        is_correct=is_correct,
        columns=columns,
        gold=gold,
    )


def _run(run: Run, read: ReadResult[SchemaRecord]) -> None:
    """Compile the schemas, sample the missing rows, and report."""
    config = run.config
    lm, tokenizer = load_engine(config)
    ignored = Counter[str]()
    prepared, rows = evaluate(run, read, record_handler(config, tokenizer, ignored), lm, tokenizer)
    if ignored:
        listed = ", ".join(f"{name} ({n})" for name, n in ignored.most_common())
        _LOG.warning("keywords of schemas that constrain nothing: %s", listed)
    source = config.data.path or config.data.hub or "our own"
    report(
        run,
        read,
        prepared,
        rows,
        title=f"JSON by a schema: {prepared.num_records} requests ({source})",
        metrics=METRICS,
        notes=[
            "An answer is correct if it equals the correct JSON value; the order of keys is "
            "ignored. Accuracies are in percent, with 95% bootstrap intervals over requests. Rows "
            "whose particles all died count as wrong."
        ],
        more={"ignored_keywords": dict(ignored)},
    )


TASK = ExperimentTask("json_schema", JsonSchemaConfig, check, _read, identity, _run)

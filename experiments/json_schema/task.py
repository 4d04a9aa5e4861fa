"""JSON task, `+task=json_schema`: every request has its own schema and a correct answer.

The schema of a record becomes the constraint. The budget is a multiple of the tokens of the correct
answer, so the comparison shows which methods finish with the tight budgets that users set. The
setup follows TruncProof (arXiv 2605.13076).

Records have the format of JSON-Mode-Eval (NousResearch/json-mode-eval on the hub): `prompt`, a text
or a list of messages; `schema` and `completion`, as JSON or as text of JSON. Messages are used
unchanged, as they contain the schema in that data set. A text prompt gets the schema added.
"""

from __future__ import annotations

import json
import logging
import warnings
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from typing import Any

from omegaconf import DictConfig

import gcd
import smc
from experiments.config import DataConfig, RecordConfig, at_least, one_of
from experiments.evaluate import (
    Example,
    ReadResult,
    RecordHandler,
    check_fields,
    check_records,
    evaluate,
    identity,
    load_engine,
    read_file,
    read_hub,
    refuse_unwritable,
)
from experiments.models import ROOT, chat, dialogue, is_chat
from experiments.results import report
from experiments.tasks import ExperimentTask, Row, Run
from experiments.tool_calling.task import PARSES, parses, same_values
from gcd._automata.horizon import refuse_unchecked

_LOG = logging.getLogger(__name__)
OWN = ROOT / "data" / "json_schema" / "records.jsonl"
"""A hundred records in the repository, two for each of fifty schemas."""
_NEEDS = "the fields prompt, schema and completion"
_INSTRUCTION = "Reply with nothing but JSON, on one line, that satisfies this JSON Schema:\n"
_CUE = "Answer in JSON:\n"


@dataclass(frozen=True)
class SchemaRecord:
    """A request with the schema of its answer.

    Attributes:
        id: unique within the source.
        request: a text, or messages with `role` and `content` that end with the user's.
        schema: parsed JSON Schema.
        answer: the correct answer, a JSON value.
    """

    id: str
    request: str | tuple[dict[str, str], ...]
    schema: Any
    answer: Any


def load_records(data: DataConfig, num_examples: int) -> ReadResult[SchemaRecord]:
    """Load at most `num_examples` records after `data.offset`; malformed ones are skipped.

    Raises:
        DataError: the source can't be read or has no well-formed record.
    """
    if data.hub is None:
        found = read_file(data.path or OWN, record_of, _NEEDS)
    else:
        wanted = data.offset + num_examples
        found = read_hub(data.hub, data.split, record_of, _NEEDS, wanted)
    return found.part(data.offset, num_examples)


def record_of(row: Any, default_id: str) -> SchemaRecord:
    """Make a record from a parsed row; raise a `ValueError` if it is malformed."""
    fields = check_fields(row, ("prompt", "schema", "completion"))
    schema, answer = (_parse(fields[name], name) for name in ("schema", "completion"))
    if not isinstance(schema, Mapping | bool):
        raise ValueError(f"expected a schema to be an object, got {type(schema).__name__}")
    identity = fields.get("id")
    name = default_id if identity is None else str(identity)
    record = SchemaRecord(name, _request(fields["prompt"]), schema, answer)
    refuse_unwritable(record, answer)
    return record


def _parse(value: Any, field: str) -> Any:
    """Parse a field that is JSON or text of JSON."""
    if not isinstance(value, str):
        return value
    try:
        return json.loads(value)
    except ValueError as error:
        raise ValueError(f"expected text of JSON in {field}, got {error}") from error


def _request(prompt: Any) -> str | tuple[dict[str, str], ...]:
    if isinstance(prompt, str) and prompt.strip():
        return prompt
    if not isinstance(prompt, list) or not prompt:
        raise ValueError(f"expected a prompt to be a text or a list of messages, got {prompt!r}")
    for message in prompt:
        if not isinstance(message, Mapping) or not all(
            isinstance(message.get(key), str) for key in ("role", "content")
        ):
            raise ValueError(f"expected a message with a role and a content, got {message!r}")
    if prompt[-1]["role"] != "user":
        raise ValueError(
            f"expected the last message to have the role 'user', got {prompt[-1]['role']!r}"
        )
    return tuple({key: message[key] for key in ("role", "content")} for message in prompt)


def gold(record: SchemaRecord) -> str:
    """Return the correct answer as formatted by `json.dumps`, with members in the given order."""
    return json.dumps(record.answer, ensure_ascii=False)


def build_prompt(record: SchemaRecord, *, tokenizer: Any, kind: str) -> str:
    """Build a prompt, to be tokenized without adding special tokens.

    Args:
        record: the record.
        tokenizer: tokenizer whose chat template is used, if it has one.
        kind: "compact", "chat", or "auto".

    Raises:
        ValueError: the kind is unknown, or is `chat` without a chat template.
    """
    schema = json.dumps(record.schema, ensure_ascii=False)
    if isinstance(record.request, str):
        if is_chat(kind, tokenizer):
            return chat(tokenizer, _INSTRUCTION + schema, record.request)
        return f"JSON Schema: {schema}\n{record.request}\n{_CUE}"
    if is_chat(kind, tokenizer):
        return dialogue(tokenizer, record.request)
    return "\n".join([*(message["content"] for message in record.request), _CUE])


# -- the task


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

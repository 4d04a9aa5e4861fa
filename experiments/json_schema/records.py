"""Records that ask for JSON: a request, the schema of its answer, and the correct answer.

The format is that of JSON-Mode-Eval (NousResearch/json-mode-eval on the hub): `prompt`, a text or a
list of messages; `schema` and `completion`, as JSON or as text of JSON. Messages are used
unchanged, as they contain the schema in that data set. A text prompt gets the schema added.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from experiments.config import DataConfig
from experiments.models import ROOT, chat, dialogue, is_chat
from experiments.records import ReadResult, check_fields, read_file, read_hub, refuse_unwritable

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

"""Tool-calling records from files and the hub.

A record has a request, the available tools (as given; `conversion` makes their JSON schemas), and
the gold calls. Public data sets differ in format: xLAM stores tools and answers as JSON
strings, Hammer's conversions use `name`/`arguments` or `tool`/`parameters`, and a request may be a
dialogue. All formats become a `ToolRecord`.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from experiments import records
from experiments.config import DataConfig
from experiments.models import ROOT
from experiments.records import ReadResult, refuse_unwritable
from experiments.tool_calling.answers import Call, declaration_of, get_parameters, name_of

OWN = ROOT / "data" / "xlam" / "records_500_599.jsonl"
"""Records in the repository that no adapter or HMM is trained on."""
_NEEDS = "the fields query, tools and answers"


@dataclass(frozen=True)
class ToolRecord:
    """A request with its tools and the calls that answer it.

    Attributes:
        id: unique within the source.
        query: the request; a dialogue has one line `role: content` per turn.
        tools: the declarations as in the source.
        calls: the gold answer.
    """

    id: str
    query: str
    tools: tuple[dict[str, Any], ...]
    calls: tuple[Call, ...]


def read_xlam(path: str | Path) -> ReadResult[ToolRecord]:
    """Read the records of a file: JSON lines in xLAM's format, or a JSON list in any of Hammer's.

    Raises:
        DataError: the file doesn't exist, is named *.json and isn't a list, or has no well-formed
            record.
    """
    return records.read_file(path, record_of, _NEEDS, prefix=f"{Path(path).stem}-")


def record_of(row: Any, default_id: str) -> ToolRecord:
    """Make a record from a parsed row; raise a `ValueError` if it is malformed."""
    fields = records.check_fields(row, ("query", "tools", "answers"))
    tools, answers = (_parse(fields[key], key) for key in ("tools", "answers"))
    for tool in tools:
        _check_tool(tool)
    identity = fields.get("id")
    record = ToolRecord(
        id=default_id if identity is None else str(identity),
        query=_query_of(fields["query"]),
        tools=tuple(dict(tool) for tool in tools),
        calls=tuple(_call_of(answer) for answer in answers),
    )
    refuse_unwritable(record, [call.arguments for call in record.calls])
    return record


def _parse(value: Any, field: str) -> list[Any]:
    if isinstance(value, str):
        try:
            value = json.loads(value)
        except json.JSONDecodeError as error:
            raise ValueError(f"expected JSON in {field}, got {error}") from error
    if not isinstance(value, list):
        raise ValueError(f"expected {field} to be a list, got {type(value).__name__}")
    return value


def _check_tool(tool: Any) -> None:
    if not isinstance(tool, Mapping):
        raise ValueError(f"expected a tool to be an object, got {type(tool).__name__}")
    if not isinstance(declaration_of(tool).get("name"), str):
        raise ValueError(f"expected a tool with a name, got {str(tool)[:80]}")
    if not isinstance(get_parameters(tool), Mapping):
        raise ValueError(f"expected the parameters of {name_of(tool)!r} to be an object")


def _call_of(answer: Any) -> Call:
    if not isinstance(answer, Mapping):
        raise ValueError(f"expected an answer to be an object, got {type(answer).__name__}")
    name = answer.get("name", answer.get("tool"))
    arguments = answer.get("arguments", answer.get("parameters", {}))
    if isinstance(arguments, str):
        arguments = json.loads(arguments)
    if not isinstance(name, str) or not isinstance(arguments, Mapping):
        raise ValueError(
            f"expected an answer with a name and an object of arguments, got {str(answer)[:80]}"
        )
    return Call(name, dict(arguments))


def _query_of(query: Any) -> str:
    if isinstance(query, str):
        text = query
    elif isinstance(query, list) and all(isinstance(turn, Mapping) for turn in query):
        text = "\n".join(f"{turn.get('role', 'user')}: {turn.get('content', '')}" for turn in query)
    else:
        raise ValueError(f"expected a query to be a text or a list, got {type(query).__name__}")
    if not text.strip():
        raise ValueError("expected a query, got an empty text")
    return text


def load_records(data: DataConfig, num_examples: int) -> ReadResult[ToolRecord]:
    """Load at most `num_examples` records after `data.offset`; malformed ones are skipped."""
    if data.hub is None:
        found = read_xlam(data.path or OWN)
    else:
        wanted = data.offset + num_examples
        found = records.read_hub(data.hub, data.split, record_of, _NEEDS, wanted)
    return found.part(data.offset, num_examples)

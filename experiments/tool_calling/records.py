"""Tool-calling records are read from files and the hub.

A record is a request, the tools on offer (as given: their declarations are the constraint's
business), and the gold calls. Public sets differ in spelling: xLAM stores tools and answers as JSON
strings, Hammer's conversions use `name`/`arguments` or `tool`/`parameters`, a request may be a
dialogue. All become one `ToolRecord`.

A malformed record is passed over and reported with its position and the reason; it never ends a
run half way. A file without a single good record is refused.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from experiments.tool_calling.answers import Call, name_of


class DataError(ValueError):
    """Records that cannot be read: no such file, not JSON, or none of them well formed."""


@dataclass(frozen=True)
class ToolRecord:
    """A request with its tools and the calls that answer it.

    Attributes:
        id: unique within its source.
        query: the request; a dialogue is one line per turn, `role: content`.
        tools: the declarations as the source gives them.
        calls: the gold answer.
    """

    id: str
    query: str
    tools: tuple[dict[str, Any], ...]
    calls: tuple[Call, ...]


@dataclass(frozen=True)
class SkippedRecord:
    """A malformed record: line number (from 1) or position in the list (from 1), and why."""

    position: int
    reason: str


@dataclass(frozen=True)
class ReadResult:
    """The records that a source held, and those that were skipped."""

    records: tuple[ToolRecord, ...]
    skipped: tuple[SkippedRecord, ...] = ()


def read_xlam(path: str | Path) -> ReadResult:
    """Read the records of a JSON-lines file in xLAM's form.

    Raises:
        DataError: no such file, not UTF-8, or no well-formed record in it.
    """
    lines = _read_text(path).split("\n")
    rows = ((number, line) for number, line in enumerate(lines, 1) if line.strip())
    return _collect(rows, str(path))


def read_toolcalls(path: str | Path) -> ReadResult:
    """Read the records of a JSON file that is one list of them, in any of Hammer's spellings.

    Raises:
        DataError: no such file, not a JSON list, or no well-formed record in it.
    """
    text = _read_text(path)
    try:
        rows = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise DataError(f"{path} is not JSON: {error}; JSON lines end in .jsonl") from error
    if not isinstance(rows, list):
        raise DataError(f"{path} holds a {type(rows).__name__}; a list of records is needed")
    return _collect(enumerate(rows, 1), str(path), prefix=f"{Path(path).stem}-")


def read_hub(name: str, split: str = "train", limit: int | None = None) -> ReadResult:
    """Read the first `limit` records of a set on the hub (all without one), through `datasets`.

    Raises:
        DataError: the set cannot be loaded, or holds no well-formed record.
    """
    import datasets

    try:
        rows = datasets.load_dataset(name, split=split)
    except (OSError, ValueError) as error:  # no network, no such set, no such split, no access
        raise DataError(
            f"{name!r} (split {split!r}) cannot be loaded: {error}; check the name and the "
            "network, log in with `hf auth login` where access must be granted, or give a file "
            "instead"
        ) from error
    if limit is not None:
        rows = rows.select(range(min(limit, len(rows))))
    return _collect(enumerate(rows, 1), name)


def record_of(row: Any, default_id: str) -> ToolRecord:
    """Make one record of a parsed row; `ValueError` says what is wrong with it."""
    if isinstance(row, str):
        row = json.loads(row)
    if not isinstance(row, Mapping):
        raise ValueError(f"a record is an object, not {type(row).__name__}")
    missing = [key for key in ("query", "tools", "answers") if key not in row]
    if missing:
        raise ValueError(f"no field {' and no field '.join(map(repr, missing))}")
    tools, answers = (_parsed(row[key], key) for key in ("tools", "answers"))
    for tool in tools:
        _check_tool(tool)
    identity = row.get("id")
    record = ToolRecord(
        id=default_id if identity is None else str(identity),
        query=_query_of(row["query"]),
        tools=tuple(dict(tool) for tool in tools),
        calls=tuple(_call_of(answer) for answer in answers),
    )
    _check_writable(record)
    return record


def _read_text(path: str | Path) -> str:
    try:
        return Path(path).read_text(encoding="utf-8")
    except FileNotFoundError as error:
        raise DataError(f"no such file: {path}; give the path of an existing one") from error
    except (OSError, UnicodeDecodeError) as error:
        raise DataError(f"{path} cannot be read: {error}") from error


def _collect(rows: Iterable[tuple[int, Any]], source: str, prefix: str = "") -> ReadResult:
    records, skipped = [], []
    for position, row in rows:
        try:
            records.append(record_of(row, f"{prefix}{position}"))
        except (ValueError, RecursionError) as error:
            skipped.append(SkippedRecord(position, str(error)))
    if not records:
        first = f"; the first ({skipped[0].position}): {skipped[0].reason}" if skipped else ""
        raise DataError(
            f"no well-formed record in {source}: {len(skipped)} malformed{first}. A record needs "
            "the fields query, tools and answers"
        )
    return ReadResult(tuple(records), tuple(skipped))


def _parsed(value: Any, field: str) -> list[Any]:
    if isinstance(value, str):
        try:
            value = json.loads(value)
        except json.JSONDecodeError as error:
            raise ValueError(f"{field} is not JSON: {error}") from error
    if not isinstance(value, list):
        raise ValueError(f"{field} is a list, not {type(value).__name__}")
    return value


def _check_tool(tool: Any) -> None:
    if not isinstance(tool, Mapping):
        raise ValueError(f"a tool is an object, not {type(tool).__name__}")
    inner = tool.get("function") if isinstance(tool.get("function"), Mapping) else tool
    if not isinstance(inner, Mapping) or not isinstance(inner.get("name"), str):
        raise ValueError(f"a tool without a name: {str(tool)[:80]}")
    if not isinstance(inner.get("parameters") or {}, Mapping):
        raise ValueError(f"the parameters of {name_of(tool)!r} are not an object")


def _call_of(answer: Any) -> Call:
    if not isinstance(answer, Mapping):
        raise ValueError(f"an answer is an object, not {type(answer).__name__}")
    name = answer.get("name", answer.get("tool"))
    arguments = answer.get("arguments", answer.get("parameters", {}))
    if isinstance(arguments, str):
        arguments = json.loads(arguments)
    if not isinstance(name, str) or not isinstance(arguments, Mapping):
        raise ValueError(f"an answer without a name or with odd arguments: {str(answer)[:80]}")
    return Call(name, dict(arguments))


def _check_writable(record: ToolRecord) -> None:
    """Python reads NaN, infinities and lone surrogates; no answer or prompt can hold them."""
    try:
        json.dumps([call.arguments for call in record.calls], allow_nan=False)
    except ValueError as error:
        raise ValueError(f"an answer holds a number that JSON does not have: {error}") from error
    try:
        json.dumps(dataclasses.asdict(record), ensure_ascii=False).encode()
    except UnicodeEncodeError as error:
        raise ValueError(f"the record holds text that is not Unicode: {error}") from error


def _query_of(query: Any) -> str:
    if isinstance(query, str):
        text = query
    elif isinstance(query, list) and all(isinstance(turn, Mapping) for turn in query):
        text = "\n".join(f"{turn.get('role', 'user')}: {turn.get('content', '')}" for turn in query)
    else:
        raise ValueError(f"a query is a text or a list of turns, not {type(query).__name__}")
    if not text.strip():
        raise ValueError("the query is empty")
    return text

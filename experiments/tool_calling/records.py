"""Tool-calling records from files and the hub, and their prompts.

A record has a request, the available tools (as given; `conversion` makes their JSON schemas), and
the gold calls. Public data sets differ in format: xLAM stores tools and answers as JSON
strings, Hammer's conversions use `name`/`arguments` or `tool`/`parameters`, and a request may be a
dialogue. All formats become a `ToolRecord`.

**Prompts.** `compact` is the format that adapters are trained on: one signature per line (types,
defaults, a short description), the request, and the style. Descriptions of parameters are left out
to keep the prompt short, as names and types mostly suffice.

    get_weather(city: str, days: int = 3) - Weather forecast for a city
    book_table(restaurant: str, guests: int, time: str) - Book a table
    Request: How will the weather be in Oslo over the next 5 days?
    Calls in JSON:

`chat` is for instruction-tuned models: the complete tools as JSON with an instruction, in the
tokenizer's chat template. `auto` is `chat` if the tokenizer has a template, otherwise `compact`.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import gcd
from experiments import records
from experiments.config import DataConfig, one_of
from experiments.models import ROOT, chat, dialogue, is_chat
from experiments.records import ReadResult, refuse_unwritable
from experiments.tool_calling.answers import (
    NATIVE,
    STYLES,
    Call,
    declaration_of,
    get_parameters,
    name_of,
    parameters_of,
)
from experiments.tool_calling.conversion import to_json_schema_tools
from gcd._automata.automaton import SPECIAL
from gcd._languages.tools.tool_lists import is_schema

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


_DESCRIPTION_WORDS = 12
_ENUM_VALUES = 6
_DEFAULT_CHARACTERS = 20
CUES = {"json": "Calls in JSON:\n", "python": "Calls in Python:\n"}
_FORMATS = {
    "json": '[{"name": "tool_name", "arguments": {"parameter": "value"}}]',
    "python": '[tool_name(parameter="value", other=1)]',
}


def build_prompt(
    record: ToolRecord, style: str, *, tokenizer: Any = None, kind: str = "auto"
) -> str:
    """Build a prompt, to be tokenized without adding special tokens.

    A chat template that knows tools writes them, if the style is a model's own format.

    Raises:
        ValueError: the style or kind is unknown, or the kind is `chat` without a chat template.
    """
    one_of("style", style, STYLES + NATIVE)
    if not is_chat(kind, tokenizer):
        return compact_prompt(record, style)
    return _chat_prompt(record, style, tokenizer)


def compact_prompt(record: ToolRecord, style: str) -> str:
    """Build a prompt of signatures, the request, and the final cue."""
    lines = [signature(tool) for tool in record.tools]
    return "\n".join([*lines, f"Request: {record.query}", CUES.get(style, "Calls:\n")])


def signature(tool: Mapping[str, Any]) -> str:
    """Write a tool as `name(parameter: type, other: type = default) - description`."""
    parameters = parameters_of(tool)
    required = _list_required(tool)
    described = ", ".join(
        _parameter(name, declaration, required) for name, declaration in parameters.items()
    )
    words = str(declaration_of(tool).get("description") or "").split()
    text = " ".join(words[:_DESCRIPTION_WORDS])
    return f"{name_of(tool)}({described})" + (f" - {text}" if text else "")


def _list_required(tool: Mapping[str, Any]) -> frozenset[str] | None:
    """Return the names of required parameters; None if the tool doesn't list them."""
    parameters = get_parameters(tool)
    for schema in (parameters, declaration_of(tool)):
        if isinstance(schema, Mapping) and isinstance(schema.get("required"), list):
            return frozenset(str(name) for name in schema["required"])
    return frozenset() if is_schema(parameters) else None


def _parameter(name: str, declaration: Any, required: frozenset[str] | None) -> str:
    if not isinstance(declaration, Mapping):
        return f"{name}: {declaration}"
    kind = _type_name(declaration).removesuffix(", optional")
    optional = str(declaration.get("type")).endswith(", optional")
    optional = optional or (required is not None and name not in required)
    if "default" in declaration:
        text = json.dumps(declaration["default"], ensure_ascii=False, default=str)
        if len(text) <= _DEFAULT_CHARACTERS:
            return f"{name}: {kind} = {text}"
        optional = True
    return f"{name}?: {kind}" if optional else f"{name}: {kind}"


def _type_name(declaration: Mapping[str, Any]) -> str:
    options = declaration.get("enum")
    if isinstance(options, list) and options:
        shown = [json.dumps(option, ensure_ascii=False) for option in options[:_ENUM_VALUES]]
        return " | ".join(shown) + (" | ..." if len(options) > _ENUM_VALUES else "")
    kind = declaration.get("type", "any")
    if isinstance(kind, list):
        return " | ".join(map(str, kind))
    items = declaration.get("items")
    if kind == "array" and isinstance(items, Mapping):
        return f"array[{_type_name(items)}]"
    return str(kind)


def _chat_prompt(record: ToolRecord, style: str, tokenizer: Any) -> str:
    if style in NATIVE and "tools" in str(tokenizer.chat_template):
        tools = [
            {"type": "function", "function": {"description": "", **tool}}
            for tool in to_json_schema_tools(record.tools)
        ]
        return dialogue(tokenizer, [{"role": "user", "content": record.query}], tools=tools)
    listed = "\n".join(json.dumps(tool, ensure_ascii=False) for tool in record.tools)
    instruction = (
        "You answer requests by calling tools. Reply with nothing but a list of calls in this "
        f"form:\n{_FORMATS.get(style) or _example(style)}\nUse only these tools, and give their "
        f"parameters in the order in which they are listed:\n{listed}"
    )
    joined = f"{instruction}\n\nRequest: {record.query}"
    return chat(tokenizer, instruction, record.query, joined)


def _example(style: str) -> str:
    """Return a call in a model's own format."""
    only = {"properties": {"parameter": {"const": "value"}}, "required": ["parameter"]}
    tool = {"name": "tool_name", "parameters": {"type": "object", **only}}
    return gcd.tool_calls([tool], style=style).shortest().replace(SPECIAL, b"").decode()

"""Prompts of tool-calling requests.

`compact` is the format that adapters are trained on: one signature per line (types, defaults, a
short description), the request, and the style. Descriptions of parameters are left out to keep the
prompt short, as names and types mostly suffice.

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
from typing import Any

from experiments.config import one_of
from experiments.models import chat, is_chat
from experiments.tool_calling.answers import (
    STYLES,
    declaration_of,
    get_parameters,
    name_of,
    parameters_of,
)
from experiments.tool_calling.records import ToolRecord
from gcd._languages.tools.tool_lists import is_schema

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

    Raises:
        ValueError: the style or kind is unknown, or the kind is `chat` without a chat template.
    """
    one_of("style", style, STYLES)
    if not is_chat(kind, tokenizer):
        return compact_prompt(record, style)
    return _chat_prompt(record, style, tokenizer)


def compact_prompt(record: ToolRecord, style: str) -> str:
    """Build a prompt of signatures, the request, and the final cue."""
    lines = [signature(tool) for tool in record.tools]
    return "\n".join([*lines, f"Request: {record.query}", CUES[style]])


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
    tools = "\n".join(json.dumps(tool, ensure_ascii=False) for tool in record.tools)
    instruction = (
        "You answer requests by calling tools. Reply with nothing but a list of calls in this "
        f"form:\n{_FORMATS[style]}\nUse only these tools, and give their parameters in the order "
        f"in which they are listed:\n{tools}"
    )
    joined = f"{instruction}\n\nRequest: {record.query}"
    return chat(tokenizer, instruction, record.query, joined)

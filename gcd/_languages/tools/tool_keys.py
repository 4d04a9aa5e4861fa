"""Keys under which the description of a tool has its arguments.

    parameters              OpenAI, Gemini, BFCL: a JSON schema; xLAM: a description for each name
    parametersJsonSchema    Gemini: a JSON schema
    input_schema            Anthropic: a JSON schema
    inputSchema             MCP: a JSON schema; Bedrock: {"json": a JSON schema}

A tool without any of them has no arguments. If a schema were under another key, such as a
misspelled `paramters`, it would be ignored without notice. So an error names every other key that
may contain a schema, unless it is a known key for something else, such as the tool's result.
"""

from __future__ import annotations

from collections.abc import Mapping
from difflib import get_close_matches
from typing import Any

from gcd._errors import ConstraintError, UnsupportedSchemaError, show
from gcd._languages.tools.type_strings import parse_type

BY_NAME = "parameters"  # the key that may contain a description for each name
_USUAL = (BY_NAME, "input_schema", "inputSchema")
_KEYS = (*_USUAL, "parametersJsonSchema", "parameters_json_schema")
_INNER = "json"  # Bedrock's key inside `inputSchema`
# Keys that don't constrain the calls of a tool, although they may contain a schema.
_DESCRIPTIONS = frozenset(
    [
        *("outputSchema", "output_schema", "return", "returns", "response", "responseJsonSchema"),
        *(
            "response_json_schema",
            "annotations",
            "cache_control",
            "examples",
            "input_examples",
            "metadata",
            "_meta",
        ),
    ]
)
SCHEMA_WORDS = ("properties", "$defs", "$schema", "definitions", "allOf", "anyOf", "$ref")


def schema_key(tool: Mapping[str, Any]) -> str | None:
    """Return the key of a tool's arguments; None if there is none.

    Raises:
        ConstraintError: there are several keys.
    """
    found = [key for key in _KEYS if tool.get(key) is not None]
    if len(found) > 1:
        raise ConstraintError(
            f"expected one key for the arguments of the tool {show(tool.get('name'))}, got both "
            f"{found[0]!r} and {found[1]!r}; remove one of them"
        )
    return found[0] if found else None


def get_parameters(tool: Mapping[str, Any]) -> Any:
    """Return the value under the key of a tool's arguments; an empty object if there is no key."""
    key = schema_key(tool)
    if key is None:
        return {}
    return tool[key][_INNER] if _is_nested(key, tool[key]) else tool[key]


def schema_path(tool: Mapping[str, Any]) -> str:
    """Return the JSON pointer from a tool to its arguments."""
    key = schema_key(tool) or BY_NAME
    return f"/{key}/{_INNER}" if _is_nested(key, tool.get(key)) else f"/{key}"


def _is_nested(key: str, value: Any) -> bool:
    """Return whether a value is the object that Bedrock wraps around a schema."""
    if key not in ("inputSchema", "input_schema") or not isinstance(value, Mapping):
        return False
    return value.keys() == {_INNER} and isinstance(value[_INNER], Mapping)


def is_schema(parameters: Any) -> bool:
    """Return whether a value is a JSON schema, rather than parameter descriptions by name."""
    if not isinstance(parameters, Mapping):
        return False
    if isinstance(parameters.get("type"), (str, list)):
        return True
    # A tool may have a parameter called "properties"; its description then has a type.
    return any(word in parameters and not _has_type(parameters[word]) for word in SCHEMA_WORDS)


def _has_type(description: Any) -> bool:
    return isinstance(description, Mapping) and isinstance(description.get("type"), (str, list))


def check_keys(tool: Mapping[str, Any], name: str, pointer: str, *, outside: str = "") -> None:
    """Raise `UnsupportedSchemaError` if a tool, or its wrapper, has a schema under an unknown key.

    Args:
        tool: the tool or the wrapper.
        name: the tool's name, for the message.
        pointer: JSON pointer of `tool` in the tool list.
        outside: for a wrapper, the key under which it contains the tool. Arguments under any other
            key of the wrapper are an error. "" if `tool` is the tool itself.
    """
    for key, value in tool.items():
        if value is None or key in _DESCRIPTIONS or (outside and key == outside):
            continue
        if key in _KEYS:
            if outside:
                raise UnsupportedSchemaError(
                    key,
                    pointer,
                    f"expected the arguments of the tool {name!r} inside {outside!r}, got them "
                    f"beside {outside!r}; move them",
                )
            continue
        near = _near_miss(str(key))
        if near or _holds_schema(value):
            meant = f" (did you mean {near!r}?)" if near else ""
            raise UnsupportedSchemaError(
                str(key),
                pointer,
                f"this key of a tool is unknown{meant}; put the arguments of {name!r} under "
                f"{', '.join(map(repr, _USUAL[:-1]))} or {_USUAL[-1]!r}, or remove this key",
            )
    kind = tool.get("type", "function")
    if not outside and kind != "function" and schema_key(tool) is None:
        raise ConstraintError(
            f"expected arguments for the tool {name!r} of type {show(kind)} at {pointer!r}, got "
            f"none; put their schema under {BY_NAME!r}, or remove the tool if its provider runs it"
        )


def _near_miss(key: str) -> str | None:
    lower = {name.lower(): name for name in reversed(_KEYS)}
    found = get_close_matches(key.lower(), lower, n=1, cutoff=0.75)
    return lower[found[0]] if found else None


def _holds_schema(value: Any) -> bool:
    """Return whether a value is a JSON schema, or an object or a list of JSON schemas."""
    inner = value if isinstance(value, list) else []
    if isinstance(value, Mapping):
        inner = [value, *value.values()]
    return any(_is_like_schema(each) for each in inner)


def _is_like_schema(value: Any) -> bool:
    if not isinstance(value, Mapping):
        return False
    kinds = value.get("type")
    names = kinds if isinstance(kinds, list) else [kinds]
    is_typed = any(isinstance(name, str) and not parse_type(name).unknown for name in names)
    return is_typed or any(word in value for word in SCHEMA_WORDS)

"""Schemas inside requests, and the refusal of mappings that aren't schemas.

Providers put the schema of an answer into wrappers such as `{"type": "json_schema", "json_schema":
{"name": "answer", "schema": {...}}}`. By the standard, each of these is a schema that any value
satisfies, because none of its keys is a keyword.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from gcd._errors import ConstraintError, show
from gcd._languages.json_schema.keywords import CONSTRAINING, DEFINITIONS, is_quiet
from gcd._languages.json_schema.reader import escape

_OBJECT = "json_object"
_KINDS = ("json_schema", _OBJECT, "json")  # values of `type` in wrappers
_NO_TYPES = (*_KINDS, "function")
# Keys that hold a schema. Data may also have these names, except for those of `_ALWAYS`. So
# `_NAMED` only counts beside a name or a flag, `_TYPED` beside a kind, and `_OUTER` around another
# wrapper.
_ALWAYS = (
    *("json_schema", "response_schema", "responseSchema", "response_json_schema"),
    *("responseJsonSchema", "guided_json"),
)
_NAMED = ("schema",)
_TYPED = ("schema", "value")
_OUTER = (
    *("response_format", "output_format", "format", "text", "output_config"),
    *("generationConfig", "generation_config", "config"),
)
_OF_TOOLS = ("parameters", "input_schema", "inputSchema", "function", "function_declarations")


def unwrap(given: Any) -> tuple[Any, str]:
    """Return the schema inside a request or another wrapper, and its JSON pointer in there."""
    pointer = ""
    while (key := _key_of(given)) is not None:
        given, pointer = given[key], f"{pointer}/{key}"
    if not isinstance(given, Mapping):
        return given, pointer
    if given.get("type") == _OBJECT:
        return {"type": "object"}, pointer
    unknown = [str(key) for key in given if not is_quiet(key)]
    if unknown and not _keywords(given):
        raise ConstraintError(
            f"expected a JSON schema, got {show(given)}, which has none of its keywords; "
            f"{_remedy(given, unknown)}"
        )
    return given, pointer


def _key_of(given: Any, levels: int = 4) -> str | None:
    """Return the key of a wrapper's content, in `levels` more wrappers; None for others."""
    if not isinstance(given, Mapping) or _keywords(given):
        return None
    keys = list(_ALWAYS)
    if given.get("type") in _KINDS:
        keys += _TYPED
    elif isinstance(given.get("name"), str) or isinstance(given.get("strict"), bool):
        keys += _NAMED
    keys += [key for key in _OUTER if levels and _is_wrapper(given.get(key), levels - 1)]
    return next((key for key in keys if isinstance(given.get(key), Mapping | bool)), None)


def _keywords(given: Mapping[str, Any]) -> list[str]:
    """Return the keys that constrain values, except for `type` and `format` of a wrapper."""
    return [
        key
        for key in CONSTRAINING.intersection(given)
        if not (key == "type" and given[key] in _NO_TYPES)
        and not (key == "format" and isinstance(given[key], Mapping))
    ]


def _is_wrapper(value: Any, levels: int) -> bool:
    is_object = isinstance(value, Mapping) and value.get("type") == _OBJECT
    return is_object or _key_of(value, levels) is not None


def _remedy(given: Mapping[str, Any], unknown: list[str]) -> str:
    """Return what to do with a mapping that isn't a schema, given its unknown keys."""
    components = given.get("components")
    schemas = components.get("schemas") if isinstance(components, Mapping) else None
    for path, found in (("components/schemas", schemas), *((k, given.get(k)) for k in DEFINITIONS)):
        if isinstance(found, Mapping) and found:
            reference = f"#/{path}/{escape(str(next(iter(found))))}"
            return (
                f"select one of its schemas under {path!r} by a reference, as in "
                f'{{**given, "$ref": "{reference}"}}'
            )
    for key in _OF_TOOLS:
        if key in given:
            return f"pass tools to gcd.tool_calls, or only the schema inside {key!r}"
    found = f'for an object, write {{"type": "object", "properties": {{"{unknown[0]}": {{...}}}}}}'
    inside = f"pass only the schema inside {unknown[0]!r}; " if unknown == ["schema"] else ""
    return inside + found

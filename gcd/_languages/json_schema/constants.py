"""Constants (`const`, `enum`): their equality, and schemas for constant objects and arrays.

Constant scalars stay a list of values. A constant object or array becomes a schema that only this
value satisfies. Its members are then described, ordered and compared like all others.
"""

from __future__ import annotations

import json
from collections.abc import Hashable, Mapping
from decimal import Decimal
from typing import Any

from gcd._automata.automaton import Automaton

CONSTANTS = ("const", "enum")


def values_of(schema: Mapping[str, Any], keyword: str) -> list[Any]:
    """Return the constants in a schema's `const` or `enum`."""
    return [schema["const"]] if keyword == "const" else list(schema["enum"])


def has_containers(schema: Mapping[str, Any], keyword: str) -> bool:
    """Return whether the constants under a keyword include an object or an array."""
    return keyword in schema and any(map(_is_container, values_of(schema, keyword)))


def constant_schemas(schema: Mapping[str, Any], keyword: str) -> list[Any]:
    """Return schemas for the constants under a keyword, which together have these values alone."""
    values = values_of(schema, keyword)
    scalars = [value for value in values if not _is_container(value)]
    found: list[Any] = [{"enum": scalars}] if scalars else []
    return found + [_schema_of(value) for value in values if _is_container(value)]


def identity(value: Any) -> Hashable:
    """Return a key for a scalar, by which 1 and 1.0 are equal, but 1 and true are not."""
    return isinstance(value, bool), value


def kind_of(value: Any) -> str:
    """Return the narrowest JSON type of a scalar."""
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "boolean"
    if isinstance(value, (int, float)):
        return "integer" if value == value // 1 else "number"
    return "string"


def few_values(language: Automaton, limit: int) -> list[Any] | None:
    """Return the values whose JSON texts are in a language; None for more than `limit` texts."""
    if language.longest_length is None and not language.is_empty:
        return None
    texts = language.enumerate(limit + 1)
    if len(texts) > limit:
        return None
    found: dict[str, Any] = {}
    for text in texts:
        value = json.loads(text)
        if isinstance(value, float) and value.is_integer():
            value = int(value)
        found[json.dumps(value, sort_keys=True)] = value
    return list(found.values())


def exact(number: int | float) -> Decimal:
    """Return a number exactly as it is written in the schema."""
    return Decimal(repr(number))


def _is_container(value: object) -> bool:
    return isinstance(value, (Mapping, list))


def _schema_of(value: Any) -> dict[str, Any]:
    if isinstance(value, Mapping):
        return {
            "type": "object",
            "properties": {name: {"const": item} for name, item in value.items()},
            "required": list(value),
            "additionalProperties": False,
        }
    schema: dict[str, Any] = {"type": "array", "minItems": len(value), "items": False}
    return schema | ({"prefixItems": [{"const": item} for item in value]} if value else {})

"""The keywords of a JSON schema that are honoured, and what a well-formed one looks like.

Four sorts: keywords that constrain, keywords that only describe (`title`, `default`, …) and
constrain nothing by the standard, containers of schemas that are reached through `$ref` alone, and
all others, which are refused by name with their JSON pointer.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping

from gcd.errors import ConstraintError, UnsupportedSchemaError
from gcd.languages.numbers import MAX_DIGITS

TYPES = ("null", "boolean", "integer", "number", "string", "array", "object")

_TOO_LARGE = 10**MAX_DIGITS
CONTAINER = "x-python-container"  # how Python writes an array: "list", "tuple" or "set"

_ANNOTATIONS = frozenset(
    [
        *("title", "description", "default", "examples"),
        *("$comment", "deprecated", "readOnly", "writeOnly"),
    ]
)
_DEFINITIONS = frozenset(["$defs", "definitions"])
_DRAFTS = ("draft/2020-12/schema", "draft/2019-09/schema", "draft-07/schema", "draft-06/schema")


def _is_schema(value: object) -> bool:
    return isinstance(value, (bool, Mapping))


def _is_count(value: object) -> bool:
    return _is_number(value) and value >= 0 and value == int(value)  # type: ignore[operator, call-overload]


def _is_number(value: object) -> bool:
    if isinstance(value, float):
        return math.isfinite(value)
    return isinstance(value, int) and not isinstance(value, bool) and abs(value) < _TOO_LARGE


def _is_names(value: object) -> bool:
    return (
        isinstance(value, list)
        and all(isinstance(name, str) for name in value)
        and len(set(value)) == len(value)
    )


def _is_json(value: object, depth: int = 64) -> bool:
    if isinstance(value, Mapping):
        return depth > 0 and all(
            isinstance(k, str) and _is_json(v, depth - 1) for k, v in value.items()
        )
    if isinstance(value, list):
        return depth > 0 and all(_is_json(item, depth - 1) for item in value)
    return value is None or isinstance(value, (bool, str)) or _is_number(value)


def _is_types(value: object) -> bool:
    if isinstance(value, str):
        return value in TYPES
    return _is_names(value) and bool(value) and all(name in TYPES for name in value)  # type: ignore[attr-defined]


def _is_schemas(value: object) -> bool:
    return isinstance(value, list) and bool(value) and all(map(_is_schema, value))


def _is_named_schemas(value: object) -> bool:
    return isinstance(value, Mapping) and all(
        isinstance(name, str) and _is_schema(sub) for name, sub in value.items()
    )


_A_SCHEMA = (_is_schema, "a schema (an object or a boolean)")
_A_COUNT = (_is_count, "a whole number, at least 0")
_A_NUMBER = (_is_number, f"a finite number of at most {MAX_DIGITS} digits")
_SOME_SCHEMAS = (_is_schemas, "a list of at least one schema")
_NAMED_SCHEMAS = (_is_named_schemas, "an object of schemas")

_RULES: dict[str, tuple[Callable[[object], bool], str]] = {
    "type": (_is_types, f"one of {', '.join(TYPES)}, or a list of different ones"),
    "enum": (lambda v: isinstance(v, list) and _is_json(v), "a list of JSON values"),
    "const": (_is_json, "a JSON value"),
    "allOf": _SOME_SCHEMAS,
    "anyOf": _SOME_SCHEMAS,
    "$ref": (lambda v: isinstance(v, str), "a string"),
    "properties": _NAMED_SCHEMAS,
    "required": (_is_names, "a list of different names"),
    "additionalProperties": _A_SCHEMA,
    "items": _A_SCHEMA,
    "prefixItems": _SOME_SCHEMAS,
    "minItems": _A_COUNT,
    "maxItems": _A_COUNT,
    "minLength": _A_COUNT,
    "maxLength": _A_COUNT,
    "minimum": _A_NUMBER,
    "maximum": _A_NUMBER,
    "exclusiveMinimum": _A_NUMBER,
    "exclusiveMaximum": _A_NUMBER,
    "$defs": _NAMED_SCHEMAS,
    "definitions": _NAMED_SCHEMAS,
    CONTAINER: (lambda v: v in ("list", "tuple", "set"), '"list", "tuple" or "set"'),
}

HONOURED = tuple(sorted(_RULES.keys() - _DEFINITIONS))


def check_keywords(schema: object, pointer: str, *, is_root: bool) -> None:
    """Raise unless every keyword of this schema (not of those inside it) is honoured.

    Raises:
        UnsupportedSchemaError: for a keyword that is not.
        ConstraintError: for one whose value is malformed, or something that is no schema at all.
    """
    if isinstance(schema, bool):
        return
    if not isinstance(schema, Mapping):
        raise ConstraintError(
            f"the schema at {pointer or '/'!r} must be an object or a boolean, got {shown(schema)}"
        )
    for keyword, value in schema.items():
        if keyword in _ANNOTATIONS:
            continue
        if keyword in ("$schema", "$id"):
            _check_identity(keyword, value, pointer, is_root)
            continue
        if keyword not in _RULES:
            raise UnsupportedSchemaError(
                str(keyword),
                pointer,
                "is not supported; remove it, or express it with one of " + ", ".join(HONOURED),
            )
        holds, expected = _RULES[keyword]
        if not holds(value):
            raise ConstraintError(
                f"keyword {keyword!r} at {pointer or '/'!r} must be {expected}, got {shown(value)}"
            )


def shown(value: object) -> str:
    """A value in a message, cut to a readable length."""
    try:
        text = repr(value)
    except ValueError:  # Python does not write integers of thousands of digits
        return f"a value of type {type(value).__name__} too long to show"
    return text if len(text) <= 80 else text[:77] + "..."


def _check_identity(keyword: str, value: object, pointer: str, is_root: bool) -> None:
    if not isinstance(value, str):
        raise ConstraintError(
            f"keyword {keyword!r} at {pointer or '/'!r} must be a string, got {shown(value)}"
        )
    if not is_root:
        raise UnsupportedSchemaError(keyword, pointer, "is only supported at the root; remove it")
    if keyword == "$schema" and not value.rstrip("#").endswith(_DRAFTS):
        raise UnsupportedSchemaError(
            keyword, pointer, f"names the dialect {value!r}, which is not supported; use 2020-12"
        )

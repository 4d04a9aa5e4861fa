"""Keywords of JSON schemas, and the values that each keyword may have.

The vocabulary is that of draft 2020-12. `gcd._languages.json_schema.drafts` translates the other
drafts into it, and leaves out annotations. There are three kinds of keywords: those that constrain
a value by themselves (`PLAIN`), those that choose between schemas or exclude them (`CHOICES`), and
those that stand for another schema (`$ref`, `allOf`).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping

from gcd._errors import show
from gcd._languages.values.numbers import MAX_DIGITS

TYPES = ("null", "boolean", "integer", "number", "string", "array", "object")

_TOO_LARGE = 10**MAX_DIGITS
# Extension of this project: notation of an array in Python, "list", "tuple" or "set".
CONTAINER = "x-python-container"
ORDERING = "propertyOrdering"  # Gemini's extension: the order of an object's members
# Keywords of generated schemas.
VALIDATOR = "~ validator"  # Python code that also checks the value
ABSENT = "x-absent"  # names of members that must be absent
UNSEEN = "x-contains-unseen"  # elements that satisfy `contains` don't count as evaluated

# Annotations of any draft; they constrain nothing.
ANNOTATIONS = frozenset(
    [
        *("title", "description", "default", "examples", "$vocabulary"),
        *("$comment", "deprecated", "readOnly", "writeOnly"),
        *("contentEncoding", "contentMediaType", "contentSchema"),
        # from OpenAPI
        *("discriminator", "example", "externalDocs", "xml", "jsonSchemaDialect"),
    ]
)
EXTENSION = "x-"  # prefix of users' own keywords in OpenAPI and other dialects
# Formats of OpenAPI's registry that are annotations only.
DESCRIBING_FORMATS = frozenset(
    [
        *("int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64", "double-int"),
        *("float", "double", "decimal", "decimal128", "password", "byte", "binary", "base64url"),
        *("char", "commonmark", "html", "media-range", "date-time-local", "time-local"),
        *("http-date", "sf-binary", "sf-boolean", "sf-decimal", "sf-integer", "sf-string"),
        "sf-token",
    ]
)
DEFINITIONS = ("$defs", "definitions")
ANCHORS = ("$anchor", "$dynamicAnchor")
IDENTITY = frozenset(["$schema", "$id", *ANCHORS])


def _is_schema(value: object) -> bool:
    return isinstance(value, (bool, Mapping))


def _is_count(value: object) -> bool:
    return _is_number(value) and value >= 0 and value == int(value)  # type: ignore[operator, call-overload]


def _is_number(value: object) -> bool:
    if isinstance(value, float):
        return math.isfinite(value)
    return isinstance(value, int) and not isinstance(value, bool) and abs(value) < _TOO_LARGE


def _is_positive(value: object) -> bool:
    return _is_number(value) and value > 0  # type: ignore[operator]


def _is_names(value: object) -> bool:
    """Return whether a value is a list of names, possibly with repetitions."""
    return isinstance(value, list) and all(isinstance(name, str) for name in value)


def _is_named_names(value: object) -> bool:
    return isinstance(value, Mapping) and all(
        isinstance(name, str) and _is_names(names) for name, names in value.items()
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


def _is_named(value: object) -> bool:
    return isinstance(value, Mapping) and all(isinstance(name, str) for name in value)


def _is_text(value: object) -> bool:
    return isinstance(value, str)


_Rule = tuple[Callable[[object], bool], str]

_A_SCHEMA = (_is_schema, "a schema (an object or a boolean)")
_A_COUNT = (_is_count, "a whole number, at least 0")
_A_NUMBER = (_is_number, f"a finite number of at most {MAX_DIGITS} digits")
_A_TEXT = (_is_text, "a string")
_A_FLAG = (lambda v: isinstance(v, bool), "true or false")
# The schemas inside are checked by themselves.
_SOME_SCHEMAS = (lambda v: isinstance(v, list) and bool(v), "a list of at least one schema")
_NAMED_SCHEMAS = (_is_named, "an object of schemas")
_NAMES = (_is_names, "a list of names")

PLAIN: dict[str, _Rule] = {
    "type": (_is_types, f"one of {', '.join(TYPES)}, or a list of them"),
    "enum": (lambda v: isinstance(v, list) and _is_json(v), "a list of JSON values"),
    "const": (_is_json, "a JSON value"),
    "minLength": _A_COUNT,
    "maxLength": _A_COUNT,
    "pattern": _A_TEXT,
    "format": _A_TEXT,
    "minimum": _A_NUMBER,
    "maximum": _A_NUMBER,
    "exclusiveMinimum": _A_NUMBER,
    "exclusiveMaximum": _A_NUMBER,
    "multipleOf": (_is_positive, "a number greater than 0"),
    "prefixItems": _SOME_SCHEMAS,
    "items": _A_SCHEMA,
    "unevaluatedItems": _A_SCHEMA,
    "minItems": _A_COUNT,
    "maxItems": _A_COUNT,
    "contains": _A_SCHEMA,
    "minContains": _A_COUNT,
    "maxContains": _A_COUNT,
    "uniqueItems": _A_FLAG,
    "properties": _NAMED_SCHEMAS,
    "patternProperties": _NAMED_SCHEMAS,
    "additionalProperties": _A_SCHEMA,
    "unevaluatedProperties": _A_SCHEMA,
    "propertyNames": _A_SCHEMA,
    "required": _NAMES,
    "minProperties": _A_COUNT,
    "maxProperties": _A_COUNT,
    ORDERING: _NAMES,
    CONTAINER: (lambda v: v in ("list", "tuple", "set"), '"list", "tuple" or "set"'),
    ABSENT: _NAMES,
    UNSEEN: _A_FLAG,
}

CHOICES: dict[str, _Rule] = {
    "anyOf": _SOME_SCHEMAS,
    "oneOf": _SOME_SCHEMAS,
    "not": _A_SCHEMA,
    "if": _A_SCHEMA,
    "then": _A_SCHEMA,
    "else": _A_SCHEMA,
    "dependentSchemas": _NAMED_SCHEMAS,
    "dependentRequired": (_is_named_names, "an object of lists of names"),
}

_RULES: dict[str, _Rule] = {
    **PLAIN,
    **CHOICES,
    "allOf": _SOME_SCHEMAS,
    "$ref": _A_TEXT,
    "$dynamicRef": _A_TEXT,
    "$recursiveRef": (lambda v: v == "#", '"#"'),
    "$recursiveAnchor": _A_FLAG,
    "$defs": _NAMED_SCHEMAS,
    "definitions": _NAMED_SCHEMAS,
    VALIDATOR: _A_TEXT,
    **dict.fromkeys(IDENTITY, _A_TEXT),
}

_INTERNAL = frozenset([ABSENT, UNSEEN, VALIDATOR, "$recursiveRef", "$recursiveAnchor"])
HONORED = tuple(sorted(_RULES.keys() - set(DEFINITIONS) - IDENTITY - _INTERNAL))

# Keywords that contain a schema, a list of schemas, or an object of schemas.
SINGLE = (
    *("items", "unevaluatedItems", "contains", "additionalProperties", "unevaluatedProperties"),
    *("propertyNames", "not", "if", "then", "else"),
)
LISTS = ("allOf", "anyOf", "oneOf", "prefixItems")
NAMED = ("properties", "patternProperties", "dependentSchemas")


def check_rules(keywords: Mapping[str, object]) -> Iterator[tuple[str, str]]:
    """Yield each malformed keyword of a schema, and the problem with its value."""
    for keyword, value in keywords.items():
        holds, expected = _RULES[keyword]
        if not holds(value):
            yield keyword, f"must be {expected}, got {show(value)}"

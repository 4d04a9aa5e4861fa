"""Keywords of JSON schemas: the values that they may have, and the drafts that have them.

The vocabulary is that of draft 2020-12, into which `gcd._languages.json_schema.reader` translates
all other drafts. There are three kinds of keywords: those that constrain a value by themselves
(`PLAIN`), those that choose between schemas or exclude them (`anyOf`, `not`, ...), and those that
stand for another schema (`$ref`, `allOf`).

A new keyword needs a row in `_ROWS`, one in `_DIFFERENCES` unless all drafts have it, an attribute
of `facets.Facets`, and its language in `languages` or `scalars`. A new string format only needs an
entry in `gcd._languages.text.formats`.

Sources: the specifications and meta-schemas at json-schema.org.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, NamedTuple

from gcd._errors import ConstraintError, show
from gcd._languages.values.numbers import MAX_DIGITS

TYPES = ("null", "boolean", "integer", "number", "string", "array", "object")
DEFINITIONS = ("$defs", "definitions")
ANCHORS = ("$anchor", "$dynamicAnchor")
IDENTITY = frozenset(["$schema", "$id", *ANCHORS])
REFERENCES = ("$ref", "$dynamicRef", "$recursiveRef")
# Keywords that contain a schema, a list of schemas, or an object of schemas.
SINGLE = (
    *("items", "unevaluatedItems", "contains", "additionalProperties", "unevaluatedProperties"),
    *("propertyNames", "not", "if", "then", "else"),
)
LISTS = ("allOf", "anyOf", "oneOf", "prefixItems")
NAMED = ("properties", "patternProperties", "dependentSchemas")
# Keyword -> function from an upper bound on a count to the greatest length in bytes at which no
# text can exceed the bound. A character takes at least one byte; an element with its comma takes
# two; a member with its comma, quotes and colon takes five.
HORIZONS: dict[str, Callable[[int], int]] = {
    "maxLength": lambda count: int(count) + 2,
    "maxItems": lambda count: 2 * int(count) + 2,
    "maxContains": lambda count: 2 * int(count) + 2,
    "maxProperties": lambda count: 5 * int(count) + 5,
}
COUNTS = (*HORIZONS, "minLength", "minItems", "minContains", "minProperties")

# Extension of this project: notation of an array in Python, "list", "tuple" or "set".
CONTAINER = "x-python-container"
ORDERING = "propertyOrdering"  # Gemini's extension: the order of an object's members
# Keywords of generated schemas.
VALIDATOR = "~ validator"  # Python code that also checks the value
ABSENT = "x-absent"  # names of members that must be absent
UNSEEN = "x-contains-unseen"  # elements that satisfy `contains` don't count as evaluated

# Annotations of any draft and of OpenAPI; they constrain nothing.
ANNOTATIONS = frozenset(
    [
        *("title", "description", "default", "examples", "deprecated", "readOnly", "writeOnly"),
        *("contentEncoding", "contentMediaType", "contentSchema", "$vocabulary", "$comment"),
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
# Formats of draft 7 and later that are not enforced, which the standard permits.
NOT_BUILT = frozenset(["idn-email", "idn-hostname", "iri", "iri-reference", "regex"])


def _is_number(value: Any) -> bool:
    if isinstance(value, float):
        return math.isfinite(value)
    return isinstance(value, int) and not isinstance(value, bool) and abs(value) < 10**MAX_DIGITS


def _is_text(value: Any) -> bool:
    return isinstance(value, str)


def _is_named(value: Any) -> bool:
    return isinstance(value, Mapping) and all(map(_is_text, value))


def _is_names(value: Any) -> bool:
    return isinstance(value, list) and all(map(_is_text, value))


def _is_json(value: Any, depth: int = 64) -> bool:
    if isinstance(value, Mapping):
        return depth > 0 and _is_named(value) and _is_json([*value.values()], depth)
    if isinstance(value, list):
        return depth > 0 and all(_is_json(item, depth - 1) for item in value)
    return value is None or isinstance(value, (bool, str)) or _is_number(value)


def _is_types(value: Any) -> bool:
    names = [value] if isinstance(value, str) else value
    return _is_names(names) and bool(names) and all(name in TYPES for name in names)


_BOUNDS = ("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum")
_TEXTS = ("pattern", "format", "$ref", "$dynamicRef", VALIDATOR, *IDENTITY)
# Keywords, a function that tells whether they may have a value, and the values in words. The
# schemas inside are checked by themselves.
_ROWS: tuple[tuple[Iterable[str], Callable[[Any], bool], str], ...] = (
    (SINGLE, lambda v: isinstance(v, (bool, Mapping)), "a schema (an object or a boolean)"),
    (LISTS, lambda v: isinstance(v, list) and bool(v), "a list of at least one schema"),
    ((*NAMED, *DEFINITIONS), _is_named, "an object of schemas"),
    (COUNTS, lambda v: _is_number(v) and 0 <= v == int(v), "a whole number, at least 0"),
    (_BOUNDS, _is_number, f"a finite number of at most {MAX_DIGITS} digits"),
    (["multipleOf"], lambda v: _is_number(v) and v > 0, "a number greater than 0"),
    (_TEXTS, _is_text, "a string"),
    (["uniqueItems", UNSEEN, "$recursiveAnchor"], lambda v: isinstance(v, bool), "true or false"),
    (["required", ORDERING, ABSENT], _is_names, "a list of names"),
    (
        ["dependentRequired"],
        lambda v: _is_named(v) and all(map(_is_names, v.values())),
        "an object of lists of names",
    ),
    (["type"], _is_types, f"one of {', '.join(TYPES)}, or a list of them"),
    (["enum"], lambda v: isinstance(v, list) and _is_json(v), "a list of JSON values"),
    (["const"], _is_json, "a JSON value"),
    (["$recursiveRef"], lambda v: v == "#", '"#"'),
    ([CONTAINER], lambda v: v in ("list", "tuple", "set"), '"list", "tuple" or "set"'),
)
_RULES = {keyword: (holds, words) for names, holds, words in _ROWS for keyword in names}
_INTERNAL = frozenset([ABSENT, UNSEEN, VALIDATOR, "$recursiveRef", "$recursiveAnchor"])
_CHOICES = ("anyOf", "oneOf", "not", "if", "then", "else", "dependentSchemas", "dependentRequired")
_ABOUT = (*DEFINITIONS, *IDENTITY, "$recursiveAnchor")  # keywords that constrain nothing themselves
HONORED = tuple(sorted(_RULES.keys() - {*DEFINITIONS, *IDENTITY, *_INTERNAL}))
PLAIN = _RULES.keys() - {*_CHOICES, *_ABOUT, *REFERENCES, "allOf", VALIDATOR}
# Types of scalars, and keywords that describe scalars.
SCALARS = ("string", "integer", "number", "boolean", "null")
OF_SCALARS = frozenset(
    ["type", "enum", "const", "minLength", "maxLength", "pattern", "format", "multipleOf", *_BOUNDS]
)


def check_rules(keywords: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Yield each malformed keyword of a schema, and the problem with its value."""
    for keyword, value in keywords.items():
        holds, expected = _RULES[keyword]
        if not holds(value):
            yield keyword, f"must be {expected}, got {show(value)}"


_ORDER = ("4", "6", "7", "2019-09", "2020-12")
# First and last draft, and the keywords and rules that only the drafts in between have.
_DIFFERENCES: tuple[tuple[str, str, tuple[str, ...]], ...] = (
    ("4", "4", ("id",)),
    ("4", "4", ("boolean bounds",)),  # `"exclusiveMinimum": true`
    ("4", "7", ("lone $ref",)),  # keywords beside `$ref` are ignored
    ("4", "7", ("anchors in identifiers",)),  # `"$id": "#name"`
    ("4", "2019-09", ("additionalItems",)),  # also `items` as a list
    ("6", "2020-12", ("numeric bounds",)),  # `"exclusiveMinimum": 1`
    ("6", "2020-12", ("boolean schemas",)),
    ("6", "2020-12", ("$id", "const", "contains", "propertyNames")),
    ("7", "2020-12", ("if", "then", "else")),
    ("7", "2020-12", ("formats that are not enforced",)),  # `NOT_BUILT`
    ("2019-09", "2020-12", ("$defs", "$anchor", "minContains", "maxContains")),
    ("2019-09", "2020-12", ("dependentSchemas", "dependentRequired")),
    ("2019-09", "2020-12", ("unevaluatedItems", "unevaluatedProperties")),
    ("2019-09", "2019-09", ("$recursiveRef", "$recursiveAnchor")),
    ("2020-12", "2020-12", ("prefixItems", "$dynamicRef", "$dynamicAnchor")),
    ("2020-12", "2020-12", ("evaluating contains",)),  # its elements count as evaluated
)
# Keywords of draft 3 that later drafts removed. A schema without `$schema` may still use them.
DRAFT_3 = frozenset(["divisibleBy", "disallow", "extends"])
_EVERY = frozenset([*_RULES, "id", "additionalItems", "dependencies"]) - {ABSENT, UNSEEN}
CONSTRAINING = (_EVERY | DRAFT_3) - {*_ABOUT, "id", CONTAINER, ORDERING, VALIDATOR}
"""Keywords of any draft that constrain values by themselves."""


class Draft(NamedTuple):
    """Draft of JSON Schema."""

    name: str  # name in the option `draft` of `gcd.json_schema`, and in messages
    has: frozenset[str]  # its keywords and rules, as `_DIFFERENCES` calls them
    # True for 2020-12 with the spellings of all drafts, instead of a real draft
    lenient: bool = False


def _draft(name: str) -> Draft:
    at = _ORDER.index(name)
    found = set(_EVERY)
    for first, last, names in _DIFFERENCES:
        holds = _ORDER.index(first) <= at <= _ORDER.index(last)
        found = found.union(names) if holds else found.difference(names)
    return Draft(name, frozenset(found))


DRAFTS = {name: _draft(name) for name in _ORDER}
_ALL = _EVERY.union(*(names for _, _, names in _DIFFERENCES))
LENIENT = Draft("2020-12", _ALL - {"lone $ref"}, lenient=True)
_BY_URI = {
    **{f"json-schema.org/draft-0{name}/schema": DRAFTS[name] for name in ("4", "6", "7")},
    **{f"json-schema.org/draft-0{name}/hyper-schema": DRAFTS[name] for name in ("4", "6", "7")},
    **{f"json-schema.org/draft/{name}/schema": DRAFTS[name] for name in ("2019-09", "2020-12")},
    "json-schema.org/schema": LENIENT,  # the draft that was current when the schema was written
}


def draft_named(name: object) -> Draft | None:
    """Return the draft that the option `draft` names; None if the option is None."""
    if name is None:
        return None
    if not isinstance(name, str) or name not in DRAFTS:
        listed = ", ".join(f'"{known}"' for known in DRAFTS)
        raise ConstraintError(f"expected draft to be one of {listed}, or None, got {name!r}")
    return DRAFTS[name]


def draft_of(uri: object) -> Draft | None:
    """Return the draft that the URI in a `$schema` names, or None if it is unknown."""
    if not isinstance(uri, str):
        return None
    name = uri.partition("://")[2].rstrip("#")
    return LENIENT if name.startswith("spec.openapis.org/oas/3.") else _BY_URI.get(name)


def is_quiet(key: object) -> bool:
    """Return whether a key of a schema constrains nothing, and is known to be an annotation."""
    return key in ANNOTATIONS or key in _EVERY or str(key).startswith(EXTENSION)

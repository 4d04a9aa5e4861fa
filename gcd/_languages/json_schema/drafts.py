"""Translation of schemas of any draft into the keywords of draft 2020-12.

Five drafts are in use (4, 6, 7, 2019-09, 2020-12). They have different keywords, and spell some of
them differently. `translate` rewrites one schema, without the schemas inside it, so that all other
modules handle a single vocabulary:

    written as                              in drafts      is read as
    `items: [S, T]`, `additionalItems: U`   4 to 2019-09   `prefixItems: [S, T]`, `items: U`
    `dependencies: {a: S, b: ["c"]}`        all            `dependentSchemas`, `dependentRequired`
    `minimum: 1, exclusiveMinimum: true`    4              `exclusiveMinimum: 1` (maximum likewise)
    `id`                                    4              `$id`
    keywords beside `$ref`                  4, 6, 7        nothing, except for definitions

A schema without `$schema` is treated as 2020-12, but all of these spellings and `$recursiveRef` are
also understood (`LENIENT`). Keywords beside `$ref` are then enforced.

Some spellings of code generators and of Gemini are understood in every draft: types in upper case,
counts as strings (`"minItems": "1"`), null for an absent keyword, and `propertyOrdering`, the order
of the members.

A draft treats a keyword that it doesn't know as an annotation. Such a keyword is left out, and
recorded with the reason in `Schema.ignored`. A keyword that a draft forbids, or that is not
supported, is a `Fault`, which becomes an error when the schema is used. A schema also records how
its keywords were written, because JSON pointers in references and messages refer to the original
document.

Sources: the specifications and meta-schemas at json-schema.org.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

from gcd._errors import ConstraintError, show
from gcd._languages.json_schema.keywords import (
    ANNOTATIONS,
    CONTAINER,
    DEFINITIONS,
    DESCRIBING_FORMATS,
    EXTENSION,
    IDENTITY,
    LISTS,
    NAMED,
    ORDERING,
    SINGLE,
    TYPES,
    UNSEEN,
    VALIDATOR,
)
from gcd._languages.text.formats import FORMATS

_ORDER = ("4", "6", "7", "2019-09", "2020-12")

# First and last draft of each keyword that constrains, identifies or refers; None: the newest
# draft.
_SPANS: dict[str, tuple[str, str | None]] = {
    **dict.fromkeys(
        (
            *("$schema", "$ref", "definitions", "type", "enum", "allOf", "anyOf", "oneOf", "not"),
            *("minLength", "maxLength", "pattern", "format", "minimum", "maximum", "multipleOf"),
            *("exclusiveMinimum", "exclusiveMaximum", "minItems", "maxItems", "uniqueItems"),
            *("items", "properties", "patternProperties", "additionalProperties", "required"),
            *("minProperties", "maxProperties", "dependencies"),
        ),
        ("4", None),
    ),
    "id": ("4", "4"),
    "additionalItems": ("4", "2019-09"),
    **dict.fromkeys(("$id", "const", "contains", "propertyNames"), ("6", None)),
    **dict.fromkeys(("if", "then", "else"), ("7", None)),
    **dict.fromkeys(
        (
            *("$defs", "$anchor", "minContains", "maxContains", "dependentSchemas"),
            *("dependentRequired", "unevaluatedItems", "unevaluatedProperties"),
        ),
        ("2019-09", None),
    ),
    **dict.fromkeys(("$recursiveRef", "$recursiveAnchor"), ("2019-09", "2019-09")),
    **dict.fromkeys(("prefixItems", "$dynamicRef", "$dynamicAnchor"), ("2020-12", None)),
}
_INSIDE = frozenset([*SINGLE, *LISTS, *NAMED, "$defs", "definitions"])
# Types of scalars, and keywords that describe scalars.
_SCALARS = ("string", "integer", "number", "boolean", "null")
OF_SCALARS = frozenset(
    [
        *("type", "enum", "const", "minLength", "maxLength", "pattern", "format"),
        *("minimum", "exclusiveMinimum", "maximum", "exclusiveMaximum", "multipleOf"),
    ]
)
# Keywords of draft 3 that later drafts removed. A schema without `$schema` may still use them.
_DRAFT_3 = frozenset(["divisibleBy", "disallow", "extends"])
# Formats that are not enforced, which the standard permits, with the first draft that defines them.
_NOT_BUILT = dict.fromkeys(("idn-email", "idn-hostname", "iri", "iri-reference", "regex"), "7")
_BESIDE_REF = frozenset(["$ref", "$schema", "$defs", "definitions"])  # allowed beside `$ref`
_EXTENSIONS = frozenset([CONTAINER, ORDERING, VALIDATOR])
CONSTRAINING = frozenset([*_SPANS, *_DRAFT_3]) - {*IDENTITY, "id", "$recursiveAnchor", *DEFINITIONS}
"""Keywords of any draft that constrain values by themselves."""
_COUNTS = ("minItems", "maxItems", "minLength", "maxLength", "minProperties", "maxProperties")
_IN_SLASHES = re.compile("/.+/[gimsuy]+", re.DOTALL)
_API = ("openapi", "swagger")  # keys that mark the description of an API, which may have a `$ref`


@dataclass(frozen=True)
class Draft:
    """Draft of JSON Schema, described by its differences from the others.

    Attributes:
        name: name in the option `draft` of `gcd.json_schema`, and in messages.
        keywords: keywords that constrain, identify or refer.
        ref_alone: whether the siblings of `$ref` are ignored.
        boolean_schemas: whether `true` and `false` are schemas.
        boolean_bounds: whether `exclusiveMinimum` is `true` or `false`; None: it may also be a
            number.
        anchors_in_ids: whether an identifier may be a fragment, which then names the schema.
        contains_evaluates: whether elements that satisfy `contains` count as evaluated.
        lenient: whether this is 2020-12 with the spellings of all drafts, instead of a real draft.
    """

    name: str
    keywords: frozenset[str]
    ref_alone: bool
    boolean_schemas: bool
    boolean_bounds: bool | None
    anchors_in_ids: bool
    contains_evaluates: bool
    lenient: bool = False

    def knows_format(self, name: str) -> bool:
        """Return whether the draft defines a format that is not enforced here."""
        return name in _NOT_BUILT and self._is_since(_NOT_BUILT[name])

    def _is_since(self, first: str) -> bool:
        return self.lenient or _ORDER.index(self.name) >= _ORDER.index(first)


def _draft(name: str) -> Draft:
    at = _ORDER.index(name)
    return Draft(
        name=name,
        keywords=frozenset(
            keyword
            for keyword, (first, last) in _SPANS.items()
            if _ORDER.index(first) <= at <= _ORDER.index(last or _ORDER[-1])
        )
        | _EXTENSIONS,
        ref_alone=name in ("4", "6", "7"),
        boolean_schemas=name != "4",
        boolean_bounds=name == "4",
        anchors_in_ids=name in ("4", "6", "7"),
        contains_evaluates=name == "2020-12",
    )


DRAFTS: dict[str, Draft] = {name: _draft(name) for name in _ORDER}
LENIENT = Draft(
    name="2020-12",
    keywords=frozenset(_SPANS) | _EXTENSIONS,
    ref_alone=False,
    boolean_schemas=True,
    boolean_bounds=None,
    anchors_in_ids=True,
    contains_evaluates=True,
    lenient=True,
)
_BY_URI = {
    **{f"json-schema.org/draft-0{name}/schema": DRAFTS[name] for name in ("4", "6", "7")},
    **{f"json-schema.org/draft-0{name}/hyper-schema": DRAFTS[name] for name in ("4", "6", "7")},
    **{f"json-schema.org/draft/{name}/schema": DRAFTS[name] for name in ("2019-09", "2020-12")},
    "json-schema.org/schema": LENIENT,  # the draft that was current when the schema was written
}


class Fault(NamedTuple):
    """Problem in a schema that becomes an error if the schema is used.

    Attributes:
        keyword: the keyword with the problem.
        reason: the problem: for an unsupported keyword a clause, for a malformed keyword the rest
            of a sentence that begins with the keyword.
        refused: whether the keyword is not supported, rather than malformed.
    """

    keyword: str
    reason: str
    refused: bool


class Schema(dict[str, Any]):
    """Mapping from keywords, in the vocabulary of draft 2020-12, to their values as written.

    Attributes:
        written: the original spelling of keywords that this mapping has under another name. Keys
            are (keyword,) or, if only the entry of one name was renamed, (keyword, name).
        ignored: pairs (keyword as written, reason) of keywords without effect in this draft.
        faults: problems that become errors when the schema is used.
    """

    def __init__(self, keywords: Mapping[str, Any]) -> None:
        super().__init__(keywords)
        self.written: dict[tuple[str | int, ...], str] = {}
        self.ignored: list[tuple[str, str]] = []
        self.faults: list[Fault] = []

    @cached_property
    def scalar(self) -> str | None:
        """The schema as text if its own keywords describe only scalars; otherwise None."""
        types = self.get("type")
        listed = types if isinstance(types, list) else [types]
        if not self.keys() <= OF_SCALARS or not all(each in _SCALARS for each in listed):
            return None
        return repr(sorted(self.items()))

    def name_of(self, keyword: str) -> str:
        """Return a keyword as written in the document."""
        return self.written.get((keyword,), keyword)

    def path(self, *steps: str | int) -> str:
        """Return the JSON pointer from this schema along the given steps, as written."""
        first = self.written.get(steps[:2]) or self.written.get(steps[:1]) or steps[0]
        return "".join("/" + escape(str(step)) for step in (first, *steps[1:]))

    def schemas_inside(self, *, definitions: bool = False) -> Iterator[tuple[str, Any]]:
        """Yield the schemas directly inside this one.

        Yields:
            Pairs (JSON pointer from this schema, schema as written). If `definitions`, this
            includes the schemas under `$defs` and `definitions`.
        """
        if _INSIDE.isdisjoint(self):  # true for most schemas
            return
        for keyword in SINGLE:
            if keyword in self:
                yield self.path(keyword), self[keyword]
        for keyword in LISTS:
            found = self.get(keyword)
            for i, sub in enumerate(found if isinstance(found, list) else ()):
                yield self.path(keyword, i), sub
        for keyword in (*NAMED, "$defs", "definitions") if definitions else NAMED:
            found = self.get(keyword)
            for name, sub in (found if isinstance(found, Mapping) else {}).items():
                path = (
                    self.path(keyword, name) if self.written else f"/{keyword}/{escape(str(name))}"
                )
                yield path, sub


def escape(step: str) -> str:
    """Escape one step of a JSON pointer."""
    if "~" not in step and "/" not in step:
        return step
    return step.replace("~", "~0").replace("/", "~1")


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
    return key in ANNOTATIONS or key in _SPANS or str(key).startswith((EXTENSION, ORDERING))


def translate(
    raw: Mapping[str, Any], draft: Draft, *, assert_formats: bool, chosen: bool = False
) -> Schema:
    """Return a schema in the vocabulary of draft 2020-12, and record its faults without raising.

    Args:
        raw: the schema as written.
        draft: the draft of the schema.
        assert_formats: whether `format` constrains values.
        chosen: whether the user selected the draft, which then overrides `$schema`.
    """
    schema = Schema({})
    alone = draft.ref_alone and "$ref" in raw
    for keyword, value in raw.items():
        if keyword in ANNOTATIONS or (value is None and _is_absent(keyword, raw)):
            continue
        if draft.lenient and keyword in _DRAFT_3:
            reason = "it belongs to draft 3; use the keywords of a newer draft"
            schema.faults.append(Fault(str(keyword), reason, refused=True))
        elif alone and keyword not in _BESIDE_REF:
            reason = f"has no effect beside $ref in draft {draft.name}"
            schema.ignored.append((str(keyword), reason))
        elif keyword not in draft.keywords or (
            draft.lenient and keyword == "id" and ("$id" in raw or not isinstance(value, str))
        ):
            reason = _why_ignored(str(keyword), raw, draft)
            if reason:
                schema.ignored.append((str(keyword), reason))
        else:
            schema[keyword] = value
    if not chosen:
        _check_dialect(schema, draft)
    _rename(schema, "id", "$id")
    _translate_generated(schema)
    _translate_format(schema, draft, assert_formats)
    _translate_bounds(schema, draft)
    _translate_items(schema, draft)
    _translate_dependencies(schema)
    if "contains" in schema and not draft.contains_evaluates:
        schema[UNSEEN] = True
    if not draft.boolean_schemas:
        _refuse_boolean_schemas(schema)
    return schema


def _why_ignored(keyword: str, raw: Mapping[str, Any], draft: Draft) -> str:
    """Return why an unknown keyword has no effect; "" for keywords that need no warning."""
    if keyword.startswith(EXTENSION) or any(key in raw for key in _API):
        return ""
    if keyword == "nullable":
        types = raw.get("type")
        listed = types if isinstance(types, list) else [types]
        if raw[keyword] is not True or types is None or "null" in listed:
            return ""
        return (
            'permits null only in OpenAPI 3.0, not in JSON Schema; add "null" to the list of `type`'
        )
    return f"is not a keyword of draft {draft.name}"


def _is_absent(keyword: str, raw: Mapping[str, Any]) -> bool:
    """Return whether null as the value of a keyword means that the keyword is absent.

    Alone, `"type": null` is rather a misspelled `"type": "null"`.
    """
    others = (key for key, value in raw.items() if value is not None and key in CONSTRAINING)
    return keyword != "const" and (keyword != "type" or any(others))


def _translate_generated(schema: Schema) -> None:
    """Translate the spellings of generators, except for null."""
    types = schema.get("type")
    if isinstance(types, str):
        schema["type"] = _lower(types)
    elif isinstance(types, list):
        schema["type"] = [_lower(name) for name in types]
    for keyword in _COUNTS:
        count = schema.get(keyword)
        if isinstance(count, str) and re.fullmatch("[0-9]{1,18}", count):
            schema[keyword] = int(count)
    order, members = schema.get(ORDERING), schema.get("properties")
    if isinstance(order, list) and isinstance(members, Mapping):
        first = {name: members[name] for name in order if isinstance(name, str) and name in members}
        schema["properties"] = {**first, **members}

    if isinstance(schema.get("pattern"), str) and _IN_SLASHES.fullmatch(schema["pattern"]):
        reason = "has slashes and flags, which are literal text in JSON Schema; leave them out"
        schema.ignored.append(("pattern", reason))


def _lower(name: Any) -> Any:
    return name.lower() if isinstance(name, str) and name.lower() in TYPES else name


def _rename(schema: Schema, old: str, new: str) -> None:
    if old in schema:
        schema[new] = schema.pop(old)
        schema.written[new,] = old


def _check_dialect(schema: Schema, draft: Draft) -> None:
    """Record a fault if a schema inside another one changes the draft of the document."""
    if "$schema" not in schema or draft_of(schema["$schema"]) is draft:
        return
    reason = "it may only occur at the root, and beside `$id`; remove it"
    schema.faults.append(Fault("$schema", reason, refused=True))


def _translate_format(schema: Schema, draft: Draft, assert_formats: bool) -> None:
    name = schema.get("format")
    if not assert_formats:
        schema.pop("format", None)
    elif isinstance(name, str) and name not in FORMATS:
        del schema["format"]
        reason = f"is {name!r}, which is not a known format"
        if draft.knows_format(name):
            reason = f"is {name!r}, a format that no automaton decides here, so it has no effect"
        elif name in DESCRIBING_FORMATS or _is_described(schema):
            return
        schema.ignored.append(("format", reason))


def _is_described(schema: Schema) -> bool:
    """Return whether a schema has no strings, or describes them by other keywords than `format`."""
    types = schema.get("type", "string")
    has_strings = "string" in (types if isinstance(types, list) else [types])
    return not has_strings or not schema.keys().isdisjoint(("pattern", "enum", "const"))


def _translate_bounds(schema: Schema, draft: Draft) -> None:
    for bound, strict in (("minimum", "exclusiveMinimum"), ("maximum", "exclusiveMaximum")):
        value = schema.get(strict)
        if isinstance(value, bool) and draft.boolean_bounds is not False:
            del schema[strict]
            if value and bound in schema:
                schema[strict] = schema.pop(bound)
                schema.written[strict,] = bound
            elif value:
                schema.ignored.append((strict, f"has no effect without {bound!r}"))
        elif strict in schema and draft.boolean_bounds:
            reason = f"must be true or false in draft {draft.name}, got {show(value)}"
            schema.faults.append(Fault(strict, reason, refused=False))


def _translate_items(schema: Schema, draft: Draft) -> None:
    more = schema.pop("additionalItems", None)
    items = schema.get("items")
    if not isinstance(items, list) or "additionalItems" not in draft.keywords:
        return  # `additionalItems` has no effect then; in draft 2020-12, a list is malformed
    if "prefixItems" in schema:
        reason = "is a list beside prefixItems, which is ambiguous; keep one of them"
        schema.faults.append(Fault("items", reason, refused=False))
    del schema["items"]
    if items:
        schema["prefixItems"] = items
        schema.written["prefixItems",] = "items"
    if more is not None:
        schema["items"] = more
        schema.written["items",] = "additionalItems"


def _translate_dependencies(schema: Schema) -> None:
    found = schema.pop("dependencies", None)
    if found is None:
        return
    if not isinstance(found, Mapping):
        schema.faults.append(
            Fault("dependencies", f"must be an object, got {show(found)}", refused=False)
        )
        return
    for new in ("dependentSchemas", "dependentRequired"):
        here = {n: value for n, value in found.items() if (new[-8:] == "Required") == _lists(value)}
        there = schema.get(new, {})
        if here and isinstance(there, Mapping):
            twice = sorted(here.keys() & there.keys())
            if twice:
                reason = f"has {twice[0]!r}, and so has {new}, which is ambiguous; keep one"
                schema.faults.append(Fault("dependencies", reason, refused=False))
            schema[new] = {**here, **there}
            schema.written.update({(new, name): "dependencies" for name in here})


def _lists(value: object) -> bool:
    return isinstance(value, list)


def _refuse_boolean_schemas(schema: Schema) -> None:
    may_be = {schema.path("additionalProperties"), "/additionalItems"}
    for pointer, sub in schema.schemas_inside(definitions=True):
        if isinstance(sub, bool) and pointer not in may_be:
            keyword = pointer.split("/")[1]
            written = "{}" if sub else '{"not": {}}'
            reason = f"must contain objects in draft 4, got {str(sub).lower()}; write {written}"
            schema.faults.append(Fault(keyword, reason, refused=False))

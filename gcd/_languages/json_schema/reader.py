"""Reader of JSON Schema documents: one vocabulary for all drafts, and the targets of references.

Five drafts are in use (4, 6, 7, 2019-09, 2020-12). `gcd._languages.json_schema.keywords` has the
table of their differences. `Reader` translates every schema of a document into the keywords of
2020-12, so that all other modules handle a single vocabulary:

    written as                              in drafts      is read as
    `items: [S, T]`, `additionalItems: U`   4 to 2019-09   `prefixItems: [S, T]`, `items: U`
    `dependencies: {a: S, b: ["c"]}`        all            `dependentSchemas`, `dependentRequired`
    `minimum: 1, exclusiveMinimum: true`    4              `exclusiveMinimum: 1` (maximum likewise)
    `id`                                    4              `$id`
    keywords beside `$ref`                  4, 6, 7        nothing, except for definitions

A schema without `$schema` is treated as 2020-12, but all of these spellings and `$recursiveRef` are
also understood (`LENIENT`). In every draft, so are some spellings of code generators and of Gemini:
types in upper case, counts as strings (`"minItems": "1"`), null for an absent keyword, and
`propertyOrdering`, the order of the members.

**Faults.** By the standard, an unknown keyword is an annotation. It could also be a misspelled
constraint, so it is left out and recorded with the reason. Malformed and unsupported keywords only
become errors if their schema is reachable from the root. JSON pointers in references and messages
refer to the document as written.

**References** are resolved among the schemas of the document (RFC 3986, section 5, and RFC 6901);
other documents are never downloaded. `$dynamicRef` refers to the outermost schema with its anchor
on the path from the root. If only one schema has the anchor, or the root resource has it, that
schema is the target. Otherwise the reference is refused. `$recursiveRef` works in the same way.
"""

from __future__ import annotations

import re
import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cached_property, reduce
from typing import Any, NamedTuple
from urllib.parse import unquote, urldefrag, urljoin

from gcd._automata.horizon import Caveat
from gcd._errors import ConstraintError, UnsupportedSchemaError, at, show, show_first
from gcd._languages.cycles import components
from gcd._languages.json_schema.keywords import (
    ANCHORS,
    ANNOTATIONS,
    CONSTRAINING,
    COUNTS,
    DEFINITIONS,
    DESCRIBING_FORMATS,
    DRAFT_3,
    DRAFTS,
    EXTENSION,
    HORIZONS,
    LENIENT,
    LISTS,
    NAMED,
    NOT_BUILT,
    OF_SCALARS,
    ORDERING,
    REFERENCES,
    SCALARS,
    SINGLE,
    TYPES,
    UNSEEN,
    VALIDATOR,
    Draft,
    check_rules,
    draft_of,
)
from gcd._languages.text.formats import FORMATS

_MAX_NESTING = 64  # maximum number of levels of schemas inside schemas
_MAX_SCHEMAS = 50_000
_MAX_BESIDE = 64  # most nested schemas of the same value, including references
_INSIDE = (*SINGLE, *LISTS, *NAMED)
_ANYWHERE = (*_INSIDE, *DEFINITIONS)
_CONTAINING = frozenset(_ANYWHERE)
SAME_VALUE = ("allOf", "anyOf", "oneOf", "not", "if", "then", "else", "dependentSchemas")
_BESIDE_REF = frozenset(["$ref", "$schema", *DEFINITIONS])  # allowed beside `$ref`
_RECURSIVE = "$recursiveAnchor"  # no other anchor begins with a dollar sign
_NAMING = frozenset(["$id", *ANCHORS, _RECURSIVE])
_API = ("openapi", "swagger")  # keys that mark the description of an API, which may have a `$ref`


class IgnoredKeyword(NamedTuple):
    """Schema keyword that has no effect in the draft of the schema.

    Attributes:
        pointer: JSON pointer (RFC 6901) of the schema that contains the keyword, `""` for the root.
        keyword: the keyword as written.
        reason: why it has no effect, as the continuation of a sentence that begins with the
            keyword.
    """

    pointer: str
    keyword: str
    reason: str


class IgnoredKeywordWarning(UserWarning):
    """Warning about schema keywords without effect.

    Attributes:
        ignored: all such keywords.
    """

    def __init__(self, message: str, ignored: Sequence[IgnoredKeyword] = ()) -> None:
        super().__init__(message)
        self.ignored = tuple(ignored)

    @classmethod
    def of(cls, ignored: Sequence[IgnoredKeyword]) -> IgnoredKeywordWarning:
        """Return a warning that lists the given keywords."""
        listed = show_first([f"{k.keyword!r} {at(k.pointer)} {k.reason}" for k in ignored])
        return cls(
            f"keywords without the expected effect: {listed}. The warning's `ignored` lists all of "
            'them; pass unknown="ignore" to hide it, or unknown="refuse" to raise an error',
            ignored,
        )


def warn_of(ignored: Sequence[IgnoredKeyword]) -> None:
    """Warn once if there are keywords without effect, on behalf of the caller's caller."""
    if ignored:
        warnings.warn(IgnoredKeywordWarning.of(ignored), stacklevel=3)


class Schema(dict[str, Any]):
    """Mapping from keywords, in the vocabulary of draft 2020-12, to their values as written."""

    def __init__(self, keywords: Mapping[str, Any]) -> None:
        super().__init__(keywords)
        # The original spelling of a (keyword,), or of the entry of one name, (keyword, name).
        self.written: dict[tuple[str | int, ...], str] = {}
        self.ignored: list[tuple[str, str]] = []  # (keyword as written, why it has no effect)
        # Pairs (keyword, reason) that become errors if the schema is used.
        self.unsupported: list[tuple[str, str]] = []
        self.malformed: list[tuple[str, str]] = []

    @cached_property
    def scalar(self) -> str | None:
        """The schema as text if its own keywords describe only scalars; otherwise None."""
        types = self.get("type")
        listed = types if isinstance(types, list) else [types]
        if not self.keys() <= OF_SCALARS or not all(each in SCALARS for each in listed):
            return None
        return repr(sorted(self.items()))

    def name_of(self, keyword: str) -> str:
        """Return a keyword as written in the document."""
        return self.written.get((keyword,), keyword)

    def path(self, *steps: str | int) -> str:
        """Return the JSON pointer from this schema along the given steps, as written."""
        first = self.written.get(steps[:2]) or self.written.get(steps[:1]) or steps[0]
        return "".join("/" + escape(str(step)) for step in (first, *steps[1:]))

    def steps(self, keywords: Iterable[str]) -> Iterator[tuple[str | int, ...]]:
        """Yield the path to each schema that is directly inside this one, under some keywords."""
        if _CONTAINING.isdisjoint(self):  # true for most schemas
            return
        for keyword in keywords:
            if keyword in self:
                found = self[keyword]
                if keyword in SINGLE:
                    yield (keyword,)
                elif isinstance(found, list if keyword in LISTS else Mapping):
                    names = range(len(found)) if isinstance(found, list) else found
                    yield from ((keyword, name) for name in names)

    def value(self, steps: Iterable[str | int]) -> Any:
        """Return the value at the end of a path."""
        found: Any = self
        for step in steps:
            found = found[step]
        return found


def escape(step: str) -> str:
    """Escape one step of a JSON pointer."""
    if "~" not in step and "/" not in step:
        return step
    return step.replace("~", "~0").replace("/", "~1")


class _Resource(NamedTuple):
    """Part of a document with its own URI and draft, and the pointer of its root schema."""

    uri: str
    pointer: str
    draft: Draft


class _Place(NamedTuple):
    """Value at a pointer of a document."""

    pointer: str
    value: Any

    def step(self, escaped: str) -> _Place:
        """Return the value at one more step of a pointer; raise LookupError if there is none."""
        step = escaped.replace("~1", "/").replace("~0", "~")
        if isinstance(self.value, Mapping):
            value = self.value[step]
        elif isinstance(self.value, list) and re.fullmatch("0|[1-9][0-9]{0,9}", step):
            value = self.value[int(step)]
        else:
            raise KeyError(step)
        return _Place(f"{self.pointer}/{escape(step)}", value)


class Reader:
    """Schemas of a document, in the vocabulary of draft 2020-12.

    `bounds`, `validators` (Python code that also checks values) and `ignored` (keywords without
    effect) are those of reachable schemas.
    """

    def __init__(self, root: Any, *, base: str, draft: Draft | None, assert_formats: bool) -> None:
        self.schemas: dict[str, Any] = {}  # by pointer; values that aren't objects as they are
        self.below: dict[str, set[str]] = {}  # schemas inside each reachable schema, and targets
        self.bounds: list[Caveat] = []
        self.validators: list[Caveat] = []
        self._base = base
        self._draft = draft
        self._assert_formats = assert_formats
        self._resource_of: dict[str, _Resource] = {}  # by pointer of a schema in the resource
        # By URI and anchor, all schemas with these; "" is the anchor of a resource's root.
        self._named: dict[tuple[str, str], list[_Place]] = {("", ""): [_Place("", root)]}
        self._dynamic: dict[str, list[str]] = {}  # dynamic anchor -> pointers
        self._read("", root, _Resource("", "", draft or LENIENT), names=True)
        self.ignored = tuple(sorted(set(self._scan())))

    def rebase(self, pointer: str) -> str:
        """Convert a pointer from the document's root to one from the root of the user's input."""
        return self._base + pointer

    # -- every schema ------------------------------------------------------------------------

    def _read(self, pointer: str, raw: Any, resource: _Resource, *, names: bool) -> None:
        """Translate the schema at a pointer and all inside it; `names`: record identifiers."""
        stack = [(pointer, raw, resource, 0)]
        while stack:
            pointer, raw, resource, depth = stack.pop()
            if pointer in self.schemas:
                continue
            self.schemas[pointer] = raw
            if not isinstance(raw, Mapping):
                continue
            if depth > _MAX_NESTING or len(self.schemas) > _MAX_SCHEMAS:
                most = f"{_MAX_NESTING} levels of nested schemas"
                if depth <= _MAX_NESTING:
                    most = f"{_MAX_SCHEMAS} schemas in the document"
                raise ConstraintError(
                    f"expected at most {most}, got more {at(self.rebase(pointer))}; write repeated "
                    "parts once, under $defs"
                )
            if "$schema" in raw and self._draft is None:
                resource = resource._replace(draft=self._draft_at(pointer, raw, resource.draft))
            schema = translate(
                raw,
                resource.draft,
                assert_formats=self._assert_formats,
                chosen=self._draft is not None,
            )
            if names and not _NAMING.isdisjoint(schema):
                resource = self._name(_Place(pointer, raw), schema, resource)
            self.schemas[pointer], self._resource_of[pointer] = schema, resource
            stack.extend(
                (pointer + schema.path(*steps), schema.value(steps), resource, depth + 1)
                for steps in schema.steps(_ANYWHERE)
            )

    def _draft_at(self, pointer: str, raw: Mapping[str, Any], around: Draft) -> Draft:
        """Return the draft that the `$schema` of a schema names."""
        if pointer and not around.lenient and not ("$id" in raw or "id" in raw):
            return around  # here, `$schema` must not change the draft
        found = draft_of(raw["$schema"])
        if found is None:
            raise UnsupportedSchemaError(
                "$schema",
                self.rebase(pointer),
                f"the dialect {raw['$schema']!r} is unknown; pass the closest draft with the "
                "option draft: " + " or ".join(f'"{name}"' for name in DRAFTS),
            )
        return found

    def _name(self, place: _Place, schema: Schema, around: _Resource) -> _Resource:
        """Record the identifiers of a schema; return its resource, which may be a new one."""
        pointer, identifier = place.pointer, schema.get("$id")
        anchors = [schema[k] for k in ANCHORS if isinstance(schema.get(k), str)]
        if isinstance(identifier, str):
            uri, fragment = self._join(around, "$id", identifier, self.rebase(pointer))
            if fragment and "anchors in identifiers" not in around.draft.has:
                reason = f"the identifier {identifier!r} has a fragment; use $anchor instead"
                raise UnsupportedSchemaError("$id", self.rebase(pointer), reason)
            anchors += [fragment] if fragment else []
            if uri != around.uri:
                self._named.setdefault((uri, ""), []).append(place)
                around = around._replace(uri=uri, pointer=pointer)
        for anchor in dict.fromkeys(anchors):
            self._named.setdefault((around.uri, anchor), []).append(place)
        if isinstance(schema.get("$dynamicAnchor"), str):
            self._dynamic.setdefault(schema["$dynamicAnchor"], []).append(pointer)
        if schema.get(_RECURSIVE) is True and pointer == around.pointer:
            self._dynamic.setdefault(_RECURSIVE, []).append(pointer)
        return around

    def _join(self, base: _Resource, keyword: str, reference: str, where: str) -> tuple[str, str]:
        """Return the URI of a reference in a resource, and its fragment."""
        if reference.startswith("#"):  # `urljoin` drops the base if it is a URN
            return base.uri, reference[1:]
        try:
            found = urldefrag(urljoin(base.uri, reference))
        except ValueError as error:
            reason = f"expected a URI reference, got {reference!r} ({error}); correct it"
            raise UnsupportedSchemaError(keyword, where, reason) from None
        return found.url, found.fragment

    # -- references --------------------------------------------------------------------------

    def target(self, keyword: str, pointer: str) -> str:
        """Return the pointer of the schema to which a keyword of the schema at `pointer` refers."""
        reference, here = self.schemas[pointer][keyword], self._around(pointer)
        where = self.rebase(pointer)
        uri, fragment = self._join(here, keyword, reference, where)
        fragment = unquote(fragment)
        anchor = "" if fragment.startswith("/") else fragment
        places = self._named.get((uri, anchor), [])
        if (uri, anchor) == (here.uri, ""):
            places = [place for place in places if place.pointer == here.pointer]
        if (uri, "") not in self._named or len(places) > 1:
            reason = f"several schemas have the name {reference!r}; rename all but one"
            if not places:
                reason = (
                    f"the target {reference!r} is not in the document, and other documents are "
                    "never downloaded; put the target under $defs"
                )
            raise UnsupportedSchemaError(keyword, where, reason)
        try:
            found = reduce(_Place.step, [] if anchor else fragment.split("/")[1:], places[0])
        except LookupError:
            remedy = "add an $anchor with this name, or correct" if anchor else "correct"
            raise ConstraintError(
                f"the reference {reference!r} ({keyword} {at(where)}) has no target in the "
                f"document; {remedy} the reference"
            ) from None
        if found.pointer not in self.schemas:  # below an unknown keyword such as "x-types"
            self._read(found.pointer, found.value, self._around(found.pointer), names=False)
        if keyword == "$ref":
            return found.pointer
        anchor = _RECURSIVE if keyword == "$recursiveRef" else anchor
        return self._outermost(keyword, found.pointer, self._dynamic.get(anchor, []), where)

    def _outermost(self, keyword: str, found: str, everywhere: list[str], where: str) -> str:
        """Return the target of a dynamic reference, given all schemas that have its anchor."""
        if found not in everywhere or len(everywhere) == 1:
            return found
        for other in everywhere:
            if self._resource_of[other].pointer == "":
                return other
        raise UnsupportedSchemaError(
            keyword,
            where,
            "several schemas have this anchor, so the target depends on the path from the root; "
            "use $ref",
        )

    def _around(self, pointer: str) -> _Resource:
        """Return the resource that contains the value at a pointer."""
        while pointer not in self._resource_of:
            pointer = pointer.rpartition("/")[0]
        return self._resource_of[pointer]

    # -- reachable schemas -------------------------------------------------------------------

    def _scan(self) -> Iterator[IgnoredKeyword]:
        """Check all reachable schemas, record their links, and yield the ignored keywords."""
        stack = [""]
        same_value: dict[str, list[str]] = {}
        targets: set[str] = set()
        while stack:
            pointer = stack.pop()
            if pointer in self.below:
                continue
            schema = self.schemas[pointer]
            self._check(schema, pointer)
            below, same_value[pointer] = [], []
            if isinstance(schema, Schema):
                below = [pointer + schema.path(*p) for p in schema.steps(_INSIDE)]
                same_value[pointer] = [pointer + schema.path(*p) for p in schema.steps(SAME_VALUE)]
                for keyword in REFERENCES:
                    if keyword in schema:
                        below.append(self.target(keyword, pointer))
                        same_value[pointer].append(below[-1])
                        targets.add(below[-1])
                self._collect(schema, pointer)
            self.below[pointer] = set(below)
            stack.extend(below)
        self._refuse_empty_cycles(same_value)
        for pointer in self.below:
            schema = self.schemas[pointer]
            for keyword, reason in schema.ignored if isinstance(schema, Schema) else ():
                # A keyword that contains the target of a reference has an effect.
                inside = f"{pointer}/{escape(keyword)}/"
                if not any(f"{target}/".startswith(inside) for target in targets):
                    yield IgnoredKeyword(self.rebase(pointer), keyword, reason)

    def _check(self, schema: Any, pointer: str) -> None:
        """Raise an error if a schema is malformed or unsupported, apart from those inside it."""
        if isinstance(schema, Schema):
            for keyword, reason in schema.unsupported:
                raise UnsupportedSchemaError(keyword, self.rebase(pointer), reason)
            for keyword, reason in [*schema.malformed, *check_rules(schema)]:
                raise ConstraintError(
                    f"keyword {schema.name_of(keyword)!r} {at(self.rebase(pointer))} is malformed: "
                    f"it {reason}"
                )
        elif not isinstance(schema, bool):
            remedy = f'write {{"type": "{schema}"}}' if schema in TYPES else "correct it"
            raise ConstraintError(
                f"expected the schema {at(self.rebase(pointer))} to be an object or a boolean, "
                f"got {show(schema)}; {remedy}"
            )

    def _collect(self, schema: Schema, pointer: str) -> None:
        """Record the bounds and validators of a schema."""
        where = self.rebase(pointer)
        for k in COUNTS:
            if k in schema:
                horizon = HORIZONS[k](schema[k]) if k in HORIZONS else None
                self.bounds.append(Caveat(schema.name_of(k), where, schema[k], horizon))
        if VALIDATOR in schema:
            self.validators.append(Caveat("validator", where, schema[VALIDATOR], None))

    def _refuse_empty_cycles(self, same_value: dict[str, list[str]]) -> None:
        """Raise an error for a schema that leads back to itself, or too far, within one value."""
        done: dict[str, int] = {}  # longest chain of schemas of one value
        for group in components(same_value):  # a schema comes after those to which it leads
            pointer = group[0]
            if len(group) > 1 or pointer in same_value[pointer]:
                first = next(each for each in same_value if each in group)
                raise ConstraintError(
                    f"the schema {at(self.rebase(first))} leads back to itself without entering an "
                    "object or array, so it constrains no value; remove the cycle"
                )
            done[pointer] = 1 + max((done[p] for p in same_value[pointer]), default=0)
            if done[pointer] > _MAX_BESIDE:
                raise ConstraintError(
                    f"expected at most {_MAX_BESIDE} nested schemas for one value, including "
                    f"references, got more {at(self.rebase(pointer))}; reduce the nesting"
                )


# -- translation of one schema, without the schemas inside it --------------------------------


def translate(
    raw: Mapping[str, Any], draft: Draft, *, assert_formats: bool, chosen: bool
) -> Schema:
    """Return a schema in the vocabulary of 2020-12; if `chosen`, its draft overrides `$schema`."""
    schema = Schema({})
    is_alone = "$ref" in raw and "lone $ref" in draft.has
    for keyword, value in raw.items():
        if keyword in ANNOTATIONS or (value is None and _is_absent(keyword, raw)):
            continue
        if draft.lenient and keyword in DRAFT_3:
            reason = "it belongs to draft 3; use the keywords of a newer draft"
            schema.unsupported.append((keyword, reason))
        elif is_alone and keyword not in _BESIDE_REF:
            schema.ignored.append(
                (str(keyword), f"has no effect beside $ref in draft {draft.name}")
            )
        elif keyword not in draft.has or (
            draft.lenient and keyword == "id" and ("$id" in raw or not isinstance(value, str))
        ):
            reason = _why_ignored(str(keyword), raw, draft)
            schema.ignored += [(str(keyword), reason)] if reason else []
        else:
            schema[keyword] = value
    if "$schema" in schema and not chosen and draft_of(schema["$schema"]) is not draft:
        reason = "it may only occur at the root, and beside `$id`; remove it"
        schema.unsupported.append(("$schema", reason))
    if "id" in schema:
        schema["$id"] = schema.pop("id")
        schema.written["$id",] = "id"
    if "contains" in schema and "evaluating contains" not in draft.has:
        schema[UNSEEN] = True
    _translate_generated(schema)
    _translate_format(schema, draft, assert_formats)
    _translate_bounds(schema, draft)
    _translate_items(schema, draft)
    _translate_dependencies(schema)
    if "boolean schemas" not in draft.has:
        _refuse_boolean_schemas(schema)
    return schema


def _why_ignored(keyword: str, raw: Mapping[str, Any], draft: Draft) -> str:
    """Return why an unknown keyword has no effect; "" for keywords that need no warning."""
    if keyword.startswith(EXTENSION) or any(key in raw for key in _API):
        return ""
    if keyword != "nullable":
        return f"is not a keyword of draft {draft.name}"
    types = raw.get("type")
    if raw[keyword] is not True or types is None or "null" in _list_types(types):
        return ""
    return 'permits null only in OpenAPI 3.0, not in JSON Schema; add "null" to the list of `type`'


def _is_absent(keyword: str, raw: Mapping[str, Any]) -> bool:
    """Return whether null as the value of a keyword means that the keyword is absent.

    Alone, `"type": null` is rather a misspelled `"type": "null"`.
    """
    others = (key for key, value in raw.items() if value is not None and key in CONSTRAINING)
    return keyword != "const" and (keyword != "type" or any(others))


def _list_types(types: Any) -> list[Any]:
    return types if isinstance(types, list) else [types]


def _lower(name: Any) -> Any:
    return name.lower() if isinstance(name, str) and name.lower() in TYPES else name


def _translate_generated(schema: Schema) -> None:
    """Translate the spellings of generators, except for null."""
    types = schema.get("type")
    if isinstance(types, list):
        schema["type"] = [_lower(name) for name in types]
    elif "type" in schema:
        schema["type"] = _lower(types)
    for keyword in COUNTS:
        count = schema.get(keyword)
        if isinstance(count, str) and re.fullmatch("[0-9]{1,18}", count):
            schema[keyword] = int(count)
    order, members = schema.get(ORDERING), schema.get("properties")
    if isinstance(order, list) and isinstance(members, Mapping):
        first = {name: members[name] for name in order if isinstance(name, str) and name in members}
        schema["properties"] = {**first, **members}
    pattern = schema.get("pattern")
    if isinstance(pattern, str) and re.fullmatch("/.+/[gimsuy]+", pattern, re.DOTALL):
        reason = "has slashes and flags, which are literal text in JSON Schema; leave them out"
        schema.ignored.append(("pattern", reason))


def _translate_format(schema: Schema, draft: Draft, assert_formats: bool) -> None:
    name = schema.get("format")
    if not assert_formats:
        schema.pop("format", None)
    elif isinstance(name, str) and name not in FORMATS:
        del schema["format"]
        is_string = "string" in _list_types(schema.get("type", "string"))
        is_described = not is_string or not schema.keys().isdisjoint(("pattern", "enum", "const"))
        if name in NOT_BUILT and "formats that are not enforced" in draft.has:
            reason = f"is {name!r}, a format that no automaton decides here, so it has no effect"
            schema.ignored.append(("format", reason))
        elif name not in DESCRIBING_FORMATS and not is_described:
            schema.ignored.append(("format", f"is {name!r}, which is not a known format"))


def _translate_bounds(schema: Schema, draft: Draft) -> None:
    for bound, strict in (("minimum", "exclusiveMinimum"), ("maximum", "exclusiveMaximum")):
        value = schema.get(strict)
        if isinstance(value, bool) and "boolean bounds" in draft.has:
            del schema[strict]
            if value and bound in schema:
                schema[strict] = schema.pop(bound)
                schema.written[strict,] = bound
            elif value:
                schema.ignored.append((strict, f"has no effect without {bound!r}"))
        elif strict in schema and "numeric bounds" not in draft.has:
            reason = f"must be true or false in draft {draft.name}, got {show(value)}"
            schema.malformed.append((strict, reason))


def _translate_items(schema: Schema, draft: Draft) -> None:
    more = schema.pop("additionalItems", None)
    items = schema.get("items")
    if not isinstance(items, list) or "additionalItems" not in draft.has:
        if more is not None:  # in draft 2020-12, a list is malformed
            schema.ignored.append(("additionalItems", "has no effect without a list in items"))
        return
    if "prefixItems" in schema:
        reason = "is a list beside prefixItems, which is ambiguous; keep one of them"
        schema.malformed.append(("items", reason))
    del schema["items"]
    if items:
        schema["prefixItems"] = items
        schema.written["prefixItems",] = "items"
    if more is not None:
        schema["items"] = more
        schema.written["items",] = "additionalItems"


def _translate_dependencies(schema: Schema) -> None:
    if "dependencies" not in schema:
        return
    found = schema.pop("dependencies")
    if not isinstance(found, Mapping):
        schema.malformed.append(("dependencies", f"must be an object, got {show(found)}"))
        return
    lists = {name: value for name, value in found.items() if isinstance(value, list)}
    others = {name: value for name, value in found.items() if name not in lists}
    for new, here in (("dependentSchemas", others), ("dependentRequired", lists)):
        there = schema.get(new, {})
        if here and isinstance(there, Mapping):
            for name in sorted(here.keys() & there.keys()):
                reason = f"has {name!r}, and so has {new}, which is ambiguous; keep one"
                schema.malformed.append(("dependencies", reason))
            schema[new] = {**here, **there}
            schema.written.update({(new, name): "dependencies" for name in here})


def _refuse_boolean_schemas(schema: Schema) -> None:
    may_be = {schema.path("additionalProperties"), "/additionalItems"}
    for steps in schema.steps(_ANYWHERE):
        sub, pointer = schema.value(steps), schema.path(*steps)
        if isinstance(sub, bool) and pointer not in may_be:
            written = "{}" if sub else '{"not": {}}'
            reason = f"must contain objects in draft 4, got {str(sub).lower()}; write {written}"
            schema.malformed.append((pointer.split("/")[1], reason))

"""What a conjunction of plain schemas says about one value, merged into a single description.

Keywords of one kind of value say nothing about the others: `{"minLength": 3}` admits every number.
So the description has a part for each kind, and a value is judged by the part of its own kind.
Constants (`enum`, `const`) are judged as values, by `admission`, as the standard defines it;
all else becomes a language in `gcd.languages.json_schema`.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Mapping
from dataclasses import dataclass
from decimal import Decimal
from typing import Any, NamedTuple

from gcd.languages.numbers import Bound
from gcd.languages.schema_document import Conjunction, Document, Place
from gcd.languages.schema_keywords import CONTAINER, TYPES


class Property(NamedTuple):
    """A declared member of an object: every schema its value must satisfy."""

    name: str
    places: Conjunction
    required: bool


@dataclass(frozen=True)
class Facets:
    """One value, described.

    Attributes:
        kinds: JSON types it may have; "number" comes with "integer".
        constants: the only values there are, by `identity` (None: no `enum` or `const`).
        length: shortest and longest string, in code points; None is no upper bound.
        lower, upper: bounds of a number.
        size: fewest and most elements of an array.
        head: schemas of the first elements, one conjunction for each.
        items: schemas of every further element.
        container: how Python writes an array.
        properties: declared members, in order.
        extra: schemas of undeclared members, None where there may be none.
    """

    kinds: frozenset[str]
    constants: dict[Hashable, Any] | None
    length: tuple[int, int | None]
    lower: Bound | None
    upper: Bound | None
    size: tuple[int, int | None]
    head: tuple[Conjunction, ...]
    items: Conjunction
    container: str
    properties: tuple[Property, ...]
    extra: Conjunction | None


def merge(document: Document, places: Conjunction, *, closed: bool) -> Facets:
    """The description of values that satisfy every one of these plain schemas.

    `closed`: undeclared members are out where some schema has `properties` and none has
    `additionalProperties`; otherwise they are in, as the standard has it.
    """
    schemas = [place.schema for place in places]
    return Facets(
        kinds=frozenset(TYPES).intersection(*(_kinds(schema) for schema in schemas)),
        constants=_constants(schemas),
        length=_interval(schemas, "minLength", "maxLength"),
        lower=max(_bounds(schemas, "minimum", "exclusiveMinimum"), default=None),
        upper=min(_bounds(schemas, "maximum", "exclusiveMaximum"), default=None, key=_upper_key),
        size=_interval(schemas, "minItems", "maxItems"),
        head=tuple(
            _element_places(document, places, i)
            for i in range(max((len(s.get("prefixItems", ())) for s in schemas), default=0))
        ),
        items=_element_places(document, places, None),
        container=next((s[CONTAINER] for s in schemas if CONTAINER in s), "list"),
        properties=_properties(document, places),
        extra=_extra(document, places, closed),
    )


def admission(document: Document, places: Conjunction) -> Callable[[Any], bool]:
    """Whether a value satisfies all these schemas, by the standard's own definition."""
    alternatives = [
        [merge(document, (place,), closed=False) for place in conjunction]
        for conjunction in document.alternatives(places)
    ]
    return lambda value: any(
        all(_fits(document, value, facets) for facets in conjunction)
        for conjunction in alternatives
    )


def identity(value: Any) -> Hashable:
    """Equal for values that JSON Schema calls equal: 1 is 1.0, true is not 1, order is free."""
    if isinstance(value, Mapping):
        return "object", frozenset((name, identity(item)) for name, item in value.items())
    if isinstance(value, (list, tuple)):
        return "array", tuple(map(identity, value))
    return isinstance(value, bool), value


def kind_of(value: Any) -> str | None:
    """The narrowest JSON type of a value, None if it has none."""
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "boolean"
    if isinstance(value, (int, float)):
        return "integer" if value == value // 1 else "number"
    if isinstance(value, str):
        return "string"
    if isinstance(value, (list, tuple)):
        return "array"
    return "object" if isinstance(value, Mapping) else None


def _kinds(schema: Mapping[str, Any]) -> frozenset[str]:
    types = schema.get("type", TYPES)
    names = {types} if isinstance(types, str) else set(types)
    return frozenset(names | {"integer"} if "number" in names else names)


def _constants(schemas: list[Mapping[str, Any]]) -> dict[Hashable, Any] | None:
    found: dict[Hashable, Any] | None = None
    for schema in schemas:
        for values in ([schema["const"]] if "const" in schema else None, schema.get("enum")):
            if values is not None:
                allowed = {identity(value): value for value in values}
                kept = allowed if found is None else found
                found = {key: value for key, value in kept.items() if key in allowed}
    return found


def _interval(schemas: list[Mapping[str, Any]], least: str, most: str) -> tuple[int, int | None]:
    lower = max((int(s[least]) for s in schemas if least in s), default=0)
    upper = min((int(s[most]) for s in schemas if most in s), default=None)
    return lower, upper


def _bounds(schemas: list[Mapping[str, Any]], closed: str, strict: str) -> list[Bound]:
    return [
        Bound(exact(schema[keyword]), keyword == strict)
        for schema in schemas
        for keyword in (closed, strict)
        if keyword in schema
    ]


def exact(number: int | float) -> Decimal:
    """The number as it is written in the schema."""
    return Decimal(repr(number))


def _upper_key(bound: Bound) -> tuple[Decimal, bool]:
    return bound.value, not bound.strict


def _element_places(document: Document, places: Conjunction, index: int | None) -> Conjunction:
    """Schemas of the element at an index, None being any one behind all the first elements."""
    found = []
    for place in places:
        if index is not None and index < len(place.schema.get("prefixItems", ())):
            found.append(document.child(place, "prefixItems", index))
        elif "items" in place.schema:
            found.append(document.child(place, "items"))
    return tuple(found)


def _properties(document: Document, places: Conjunction) -> tuple[Property, ...]:
    required = _names(place.schema.get("required", ()) for place in places)
    declared = _names(place.schema.get("properties", ()) for place in places)
    found = []
    for name in dict.fromkeys([*declared, *required]):
        schemas: list[Place] = []
        for place in places:
            if name in place.schema.get("properties", ()):
                schemas.append(document.child(place, "properties", name))
            elif "additionalProperties" in place.schema:
                schemas.append(document.child(place, "additionalProperties"))
        found.append(Property(name, tuple(schemas), name in required))
    return tuple(found)


def _extra(document: Document, places: Conjunction, closed: bool) -> Conjunction | None:
    explicit = [place for place in places if "additionalProperties" in place.schema]
    if not explicit and closed and any("properties" in place.schema for place in places):
        return None
    if any(place.schema["additionalProperties"] is False for place in explicit):
        return None
    return tuple(document.child(place, "additionalProperties") for place in explicit)


def _names(lists: Iterable[Iterable[str]]) -> dict[str, None]:
    return dict.fromkeys(name for names in lists for name in names)


def _fits(document: Document, value: Any, facets: Facets) -> bool:
    """Whether a value satisfies one plain schema."""
    kind = kind_of(value)
    if kind not in facets.kinds:
        return False
    if facets.constants is not None and identity(value) not in facets.constants:
        return False
    if kind in ("integer", "number"):
        return _within(exact(value), facets.lower, facets.upper)
    if kind == "string":
        return _counts(len(value), facets.length)
    if kind == "array":
        return _counts(len(value), facets.size) and all(
            admission(document, facets.head[i] if i < len(facets.head) else facets.items)(item)
            for i, item in enumerate(value)
        )
    if kind == "object":
        declared = {p.name: p for p in facets.properties}
        return all(p.name in value for p in facets.properties if p.required) and all(
            admission(document, declared[name].places)(item)
            if name in declared
            else facets.extra is not None and admission(document, facets.extra)(item)
            for name, item in value.items()
        )
    return True


def _counts(size: int, interval: tuple[int, int | None]) -> bool:
    return interval[0] <= size and (interval[1] is None or size <= interval[1])


def _within(value: Decimal, lower: Bound | None, upper: Bound | None) -> bool:
    above = lower is None or value > lower.value or (value == lower.value and not lower.strict)
    below = upper is None or value < upper.value or (value == upper.value and not upper.strict)
    return above and below

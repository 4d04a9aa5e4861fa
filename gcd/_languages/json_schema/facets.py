"""Merging of plain schemas (without references and choices) into one description of a value.

Keywords for one kind of value don't affect the others. For example, `{"minLength": 3}` accepts
every number. So the description has a part for each kind of value, and a value only has to fit the
part for its kind. Schemas are merged, rather than their languages, so that siblings stay exact. For
example, `properties` beside an `anyOf` of `required` describes one object, whose members have one
order.

**Comparison.** The language of one description may be subtracted from that of another, for "this
but not that". Both languages then have to write the members of an object in the same order. So all
schemas with which the value is compared are passed as `compared_with`. They only contribute the
names of members.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping
from dataclasses import dataclass, replace
from decimal import Decimal
from itertools import product
from typing import Any, NamedTuple

from gcd._automata.limits import spend
from gcd._languages.json_schema.constants import CONSTANTS, exact, identity, values_of
from gcd._languages.json_schema.document import Conjunction, Document, Node, matches
from gcd._languages.json_schema.keywords import ABSENT, CONTAINER, HORIZONS, TYPES, UNSEEN
from gcd._languages.values.numbers import Bound

_PER_SCHEMA = 10_000  # units of work
_MAX_PATTERNS = 6  # maximum number of patterns that undeclared names may match
OPENING = ("additionalProperties", "patternProperties", "unevaluatedProperties")
_WITH_MEMBERS = frozenset([*OPENING, "properties"])


class Property(NamedTuple):
    """Member whose name occurs in the schemas, such as a declared member."""

    name: str
    nodes: Conjunction  # all schemas that its value must satisfy
    required: bool  # required, forbidden: whether it must be present, and whether it must be absent
    forbidden: bool
    compared_with: Conjunction  # schemas with which its value is compared


class Other(NamedTuple):
    """Undeclared members whose names match all patterns in `matched`, and no other pattern."""

    matched: tuple[str, ...]
    nodes: Conjunction


class Contains(NamedTuple):
    """Requirement that between `fewest` and `most` elements of an array satisfy a schema."""

    node: Node
    fewest: int
    most: int | None


@dataclass(frozen=True)
class Facets:
    """Description of a value."""

    kinds: frozenset[str]  # its possible JSON types; if "number" is one of them, so is "integer"
    # The only possible scalars, by `identity`; None if there is no `enum` or `const`
    constants: dict[Hashable, Any] | None
    # Shortest and longest string, in code points; None means no upper bound
    length: tuple[int, int | None]
    # patterns, formats: pairs (pattern or format of a string, schema that has it)
    patterns: tuple[tuple[str, Node], ...]
    formats: tuple[tuple[str, Node], ...]
    lower: Bound | None
    upper: Bound | None
    divisors: tuple[Decimal, ...]  # a number has to be a multiple of each of them
    size: tuple[int, int | None]  # minimum and maximum number of elements of an array
    head: tuple[Conjunction, ...]  # schemas of the first elements, one conjunction for each
    items: Conjunction  # schemas of every further element
    contains: tuple[Contains, ...]  # schemas that some elements must satisfy
    unique: Node | None  # a schema that requires distinct elements; None if there is none
    container: str  # notation of an array in Python
    # Members whose names occur in the schemas, in the order that objects have
    properties: tuple[Property, ...]
    others: tuple[Other, ...]  # undeclared members; empty if there must be none
    # Patterns that distinguish undeclared members, with their schemas
    patterns_of_names: tuple[tuple[str, Node], ...]
    names: Conjunction  # schemas that the name of every member must satisfy
    count: tuple[int, int | None]  # fewest and most members
    fewest_members: Node | None  # the schema that requires the most members; None if there is none
    compared_others: Conjunction  # schemas with which the values of undeclared members are compared
    compared_items: Conjunction  # schemas with which elements are compared


def merge(
    document: Document, nodes: Conjunction, compared_with: Conjunction, *, closed: bool
) -> Facets:
    """Return the description of the values that satisfy all of the given plain schemas."""
    spend(_PER_SCHEMA * len((*nodes, *compared_with)))
    schemas = [node.schema for node in nodes]
    shut = closed and is_closed(nodes)
    return Facets(
        kinds=frozenset(TYPES).intersection(*(types_of(schema) for schema in schemas)),
        constants=scalar_constants(schemas),
        length=_interval(schemas, "minLength", "maxLength"),
        patterns=_with_nodes(nodes, "pattern"),
        formats=_with_nodes(nodes, "format"),
        lower=max(_bounds(schemas, "minimum", "exclusiveMinimum"), default=None),
        upper=min(
            _bounds(schemas, "maximum", "exclusiveMaximum"),
            default=None,
            key=lambda bound: (bound.value, not bound.strict),
        ),
        divisors=tuple(dict.fromkeys(exact(s["multipleOf"]) for s in schemas if "multipleOf" in s)),
        size=_interval(schemas, "minItems", "maxItems"),
        head=tuple(
            _element_nodes(document, nodes, i)
            for i in range(max((len(s.get("prefixItems", ())) for s in schemas), default=0))
        ),
        items=_element_nodes(document, nodes, None),
        contains=tuple(
            Contains(
                document.child(node, "contains"),
                int(node.schema.get("minContains", 1)),
                int(node.schema["maxContains"]) if "maxContains" in node.schema else None,
            )
            for node in nodes
            if "contains" in node.schema
        ),
        unique=max(
            (node for node in nodes if node.schema.get("uniqueItems")),
            key=lambda node: node.asserted,
            default=None,
        ),
        container=next((s[CONTAINER] for s in schemas if CONTAINER in s), "list"),
        properties=_properties(document, nodes, compared_with, shut),
        others=() if shut else _others(document, nodes),
        patterns_of_names=_patterns_of_names(nodes),
        names=tuple(
            document.child(node, "propertyNames")
            for node in nodes
            if "propertyNames" in node.schema
        ),
        count=_interval(schemas, "minProperties", "maxProperties"),
        fewest_members=max(
            (node for node in nodes if "minProperties" in node.schema),
            key=lambda node: (node.schema["minProperties"], node.asserted),
            default=None,
        ),
        compared_others=_list_compared_others(document, compared_with),
        compared_items=_list_compared_items(document, nodes, compared_with),
    )


def within_reach(facets: Facets, max_bytes: int) -> Facets:
    """Remove bounds that no text of at most `max_bytes` bytes can reach."""
    elements = (max_bytes - 1) // 2
    return replace(
        facets,
        length=_simplify_bounds(*facets.length, max_bytes - 2),
        size=_simplify_bounds(*facets.size, elements),
        contains=tuple(
            Contains(contains.node, *_simplify_bounds(contains.fewest, contains.most, elements))
            for contains in facets.contains
        ),
        count=_simplify_bounds(*facets.count, (max_bytes - 1) // 5),
    )


def horizons(facets: Facets, kind: str) -> list[int]:
    """Return, for each upper bound, the greatest length in bytes at which no text exceeds it."""
    bounds = {
        "string": [("maxLength", facets.length[1])],
        "array": [("maxItems", facets.size[1])]
        + [("maxContains", contains.most) for contains in facets.contains],
        "object": [("maxProperties", facets.count[1])],
    }
    return [HORIZONS[keyword](most) for keyword, most in bounds.get(kind, ()) if most is not None]


def without_bounds(facets: Facets, kind: str, *, lower: bool) -> Facets:
    """Remove the upper bounds on counts of one kind; if `lower`, also lower bounds above 1."""

    def keep(fewest: int) -> tuple[int, None]:
        return (min(fewest, 1) if lower else fewest), None

    match kind:
        case "string":
            return replace(facets, length=keep(facets.length[0]))
        case "array":
            contains = tuple(Contains(each.node, *keep(each.fewest)) for each in facets.contains)
            return replace(facets, size=keep(facets.size[0]), contains=contains)
        case _:
            return replace(facets, count=keep(facets.count[0]))


def _simplify_bounds(fewest: int, most: int | None, highest: int) -> tuple[int, int | None]:
    """Simplify bounds of a count that can't exceed `highest`: drop a larger `most`."""
    if fewest > max(highest, 0):
        return 1, 0
    return fewest, None if most is None or most >= highest else most


def is_closed(nodes: Conjunction) -> bool:
    """Return whether asserted schemas have `properties`, but no keyword for other members."""
    asserted = [node.schema for node in nodes if node.asserted]
    return any("properties" in schema for schema in asserted) and not any(
        keyword in schema for schema in asserted for keyword in OPENING
    )


def types_of(schema: Mapping[str, Any]) -> frozenset[str]:
    """Return the JSON types that the `type` of a schema allows."""
    types = schema.get("type", TYPES)
    names = {types} if isinstance(types, str) else set(types)
    return frozenset(names | {"integer"} if "number" in names else names)


def scalar_constants(schemas: Iterable[Mapping[str, Any]]) -> dict[Hashable, Any] | None:
    """Return the scalars in all lists without containers, by `identity`; None without a list."""
    found: dict[Hashable, Any] | None = None
    for schema in schemas:
        for keyword in CONSTANTS:
            if keyword in schema and not any(
                isinstance(v, (Mapping, list)) for v in values_of(schema, keyword)
            ):
                allowed = {identity(value): value for value in values_of(schema, keyword)}
                kept = allowed if found is None else found
                found = {key: value for key, value in kept.items() if key in allowed}
    return found


def _with_nodes(nodes: Conjunction, keyword: str) -> tuple[tuple[str, Node], ...]:
    found = {node.schema[keyword]: node for node in nodes if keyword in node.schema}
    return tuple(found.items())


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


# -- arrays ----------------------------------------------------------------------------------


def _element_nodes(document: Document, nodes: Conjunction, index: int | None) -> Conjunction:
    """Return the schemas of the element at `index` (None: of elements after `prefixItems`)."""
    found = []
    for node in nodes:
        if index is not None and index < len(node.schema.get("prefixItems", ())):
            found.append(document.child(node, "prefixItems", index))
        elif "items" in node.schema:
            found.append(document.child(node, "items"))
        if "unevaluatedItems" in node.schema and not any(
            (index is not None and index < len(other.schema.get("prefixItems", ())))
            or "items" in other.schema
            or (other.pointer != node.pointer and "unevaluatedItems" in other.schema)
            for other in _list_evaluating(nodes, node)
        ):
            if any(
                "contains" in other.schema and UNSEEN not in other.schema
                for other in _list_evaluating(nodes, node)
            ):
                raise document.refuse(
                    "unevaluatedItems",
                    node,
                    "unevaluatedItems cannot be combined with contains; use items",
                )
            found.append(document.child(node, "unevaluatedItems"))
    return tuple(found)


def _list_compared_items(
    document: Document, nodes: Conjunction, compared_with: Conjunction
) -> Conjunction:
    """Return the schemas with which elements are compared, including those of `contains`."""
    found = [child for node in nodes for child in _at(document, node, "contains")]
    for node in compared_with:
        found += _at(document, node, "items", "contains", "unevaluatedItems")
        count = len(node.schema.get("prefixItems", ()))
        found += [document.child(node, "prefixItems", i) for i in range(count)]
    return document.closure(tuple(found))


def _list_evaluating(nodes: Conjunction, node: Node) -> list[Node]:
    """Return the schemas on whose results an `unevaluated…` keyword of `node` depends."""
    return [p for p in nodes if p.pointer == node.pointer or node.pointer in p.under]


# -- objects ---------------------------------------------------------------------------------


def _properties(
    document: Document, nodes: Conjunction, compared_with: Conjunction, shut: bool
) -> tuple[Property, ...]:
    required = _names(node.schema.get("required", ()) for node in nodes)
    absent = _names(node.schema.get(ABSENT, ()) for node in nodes)
    asserted = [node for node in nodes if node.asserted]
    order = list_declared(asserted)
    allowed = set(order)
    if not shut:
        # Languages that are compared must agree on the order. `compared_with` is the same for all
        # of them, so its names come first.
        order = {**order, **list_declared(compared_with), **list_declared(nodes)}
        allowed = set(order)
    # Skip schemas without keywords for members, which are the majority.
    nodes, compared_with = (
        tuple(node for node in conjunction if not _WITH_MEMBERS.isdisjoint(node.schema))
        for conjunction in (nodes, compared_with)
    )
    return tuple(
        Property(
            name,
            _member_nodes(document, nodes, name),
            name in required,
            name in absent or name not in allowed,
            document.closure(
                tuple(
                    child for p in compared_with for child in _all_member_nodes(document, p, name)
                )
            ),
        )
        for name in {**order, **required}
    )


def list_declared(nodes: Iterable[Node]) -> dict[str, None]:
    """Return the names of declared members in the order of their declaration."""
    schemas = [node.schema for node in nodes]
    return _names(
        [
            *(schema.get("properties", ()) for schema in schemas),
            *(schema.get("required", ()) for schema in schemas),
            *(schema.get(ABSENT, ()) for schema in schemas),
            *(schema.get("dependentSchemas", ()) for schema in schemas),
            *(
                (name, *others)
                for schema in schemas
                for name, others in schema.get("dependentRequired", {}).items()
            ),
        ]
    )


def _names(lists: Iterable[Iterable[str]]) -> dict[str, None]:
    return dict.fromkeys(name for names in lists for name in names)


def _member_nodes(document: Document, nodes: Conjunction, name: str) -> Conjunction:
    """Return all schemas that the value of a declared member must satisfy."""
    found: list[Node] = []
    for node in nodes:
        own = own_member_nodes(document, node, name)
        if not own and "additionalProperties" in node.schema:
            own = [document.child(node, "additionalProperties")]
        found += own
        if "unevaluatedProperties" in node.schema and not any(
            own_member_nodes(document, other, name)
            or "additionalProperties" in other.schema
            or (other.pointer != node.pointer and "unevaluatedProperties" in other.schema)
            for other in _list_evaluating(nodes, node)
        ):
            found.append(document.child(node, "unevaluatedProperties"))
    return tuple(dict.fromkeys(found))


def own_member_nodes(document: Document, node: Node, name: str) -> list[Node]:
    """Return the schemas of a member under one schema's `properties` and `patternProperties`."""
    found = []
    if name in node.schema.get("properties", ()):
        found.append(document.child(node, "properties", name))
    for pattern in node.schema.get("patternProperties", ()):
        # This raises an error with the pattern's pointer if the pattern is not supported.
        document.pattern(pattern, node, "patternProperties")
        if matches(pattern, name):
            found.append(document.child(node, "patternProperties", pattern))
    return found


def _all_member_nodes(document: Document, node: Node, name: str) -> list[Node]:
    return [
        *own_member_nodes(document, node, name),
        *_at(document, node, "additionalProperties", "unevaluatedProperties"),
    ]


def _at(document: Document, node: Node, *keywords: str) -> list[Node]:
    return [document.child(node, keyword) for keyword in keywords if keyword in node.schema]


def _list_compared_others(document: Document, compared_with: Conjunction) -> Conjunction:
    """Return the schemas with which the values of undeclared members are compared."""
    found: list[Node] = []
    for node in compared_with:
        found += _at(document, node, "additionalProperties", "unevaluatedProperties")
        patterns = node.schema.get("patternProperties", ())
        found += [document.child(node, "patternProperties", pattern) for pattern in patterns]
    return document.closure(tuple(found))


def _patterns_of_names(nodes: Conjunction) -> tuple[tuple[str, Node], ...]:
    found = {p: node for node in nodes for p in node.schema.get("patternProperties", ())}
    return tuple(found.items())


def _others(document: Document, nodes: Conjunction) -> tuple[Other, ...]:
    """Return the undeclared members, grouped by the set of patterns that their names match."""
    patterns = _patterns_of_names(nodes)
    if len(patterns) > _MAX_PATTERNS:
        raise document.refuse(
            "patternProperties",
            patterns[-1][1],
            f"expected at most {_MAX_PATTERNS} patterns of undeclared names, got {len(patterns)}; "
            "declare the names, or merge the patterns",
        )
    found = []
    for chosen in product((False, True), repeat=len(patterns)):
        matched = tuple(p for (p, _), holds in zip(patterns, chosen, strict=True) if holds)
        schemas: list[Node] = []
        for node in nodes:
            own = [p for p in node.schema.get("patternProperties", ()) if p in matched]
            schemas += [document.child(node, "patternProperties", pattern) for pattern in own]
            if not own:
                schemas += _at(document, node, "additionalProperties")
            if "unevaluatedProperties" in node.schema and not any(
                "additionalProperties" in other.schema
                or any(p in matched for p in other.schema.get("patternProperties", ()))
                or (other.pointer != node.pointer and "unevaluatedProperties" in other.schema)
                for other in _list_evaluating(nodes, node)
            ):
                schemas.append(document.child(node, "unevaluatedProperties"))
        found.append(Other(matched, tuple(dict.fromkeys(schemas))))
    return tuple(found)

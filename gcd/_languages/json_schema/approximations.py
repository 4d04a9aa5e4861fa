"""Approximations of the values of schemas, which show that schemas are disjoint.

Deciding with automata whether two schemas have a value in common takes a product of automata. Most
pairs of branches in a `oneOf` don't need it. For example, `kind` is `"a"` in one schema and `"b"`
in the other, one schema excludes a member that the other requires, or one describes objects and the
other strings. An approximation A(S) of the schema S stores such properties. It is never narrower
than the schema:

    A(S and T) = meet(A(S), A(T))        A(S or T) = join(A(S), A(T))

So schemas have no common value if the meet of their approximations `has_no_value`. The converse
does not hold, because approximations ignore patterns, formats, divisors and negations.
Approximations of members are computed on demand, only as deep as needed.

For a choice with many branches, `possible_overlaps` looks for a *tag*: a member that branches
require, and whose possible values they list. It compares only branches that share a value of the
tag. This takes O(branches) approximations instead of O(branches^2).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from decimal import Decimal
from typing import Any

from gcd._automata.limits import spend
from gcd._languages.json_schema.constants import CONSTANTS, exact, has_containers, kind_of
from gcd._languages.json_schema.document import Document, Node
from gcd._languages.json_schema.facets import own_member_nodes, scalar_constants, types_of
from gcd._languages.json_schema.keywords import ABSENT, TYPES

Step = str | int  # name of a member, or index of an element

_DEPTH = 3  # levels of members that are examined
_FIRST = 4  # elements of an array that are examined
_PER_MEET = 1_000  # units of work
_CONTAINERS = frozenset(["array", "object"])
_NUMBERS = frozenset(["integer", "number"])

# Each row: a quantity, the kinds of values that have it, and the keywords with its least and its
# greatest value.
_FACETS = (
    ("length", frozenset(["string"]), ("minLength",), ("maxLength",)),
    ("value", _NUMBERS, ("minimum", "exclusiveMinimum"), ("maximum", "exclusiveMaximum")),
    ("size", frozenset(["array"]), ("minItems",), ("maxItems",)),
    ("count", frozenset(["object"]), ("minProperties",), ("maxProperties",)),
)
_Bounds = dict[str, tuple[Decimal, Decimal]]
_ANY = Decimal("-Infinity"), Decimal("Infinity")


class Approximation:
    """Coarse description of values; every value of a schema fits the schema's approximation."""

    __slots__ = ("_bounds", "_find", "_members", "kinds", "required", "scalars")

    def __init__(
        self,
        kinds: frozenset[str],
        scalars: frozenset[Hashable] | None,
        bounds: _Bounds,
        required: frozenset[Step],
        find: Callable[[Step], Approximation],
    ) -> None:
        if scalars is not None:
            kinds &= _CONTAINERS | {kind_of(value[1]) for value in scalars}  # type: ignore[index]
        for facet, described, _, _ in _FACETS:
            least, greatest = bounds.get(facet, _ANY)
            if least > greatest:
                kinds -= described
        self.kinds = kinds  # possible JSON types of a value
        self.scalars = scalars  # the possible ones, by `constants.identity`; None: any
        self.required = required  # names of an object's members, and indices of elements
        self._bounds = bounds
        self._find = find
        self._members: dict[Step, Approximation] = {}

    def member(self, step: Step) -> Approximation:
        """Return the approximation of a member or an element."""
        if step not in self._members:
            self._members[step] = self._find(step)
        return self._members[step]

    def has_no_value(self, closed_to: frozenset[str] | None = None) -> bool:
        """Return whether no value fits; objects only have members of `closed_to` (None: any)."""
        if closed_to is not None and any(
            isinstance(step, str) and step not in closed_to for step in self.required
        ):
            return not self.kinds - {"object"}
        return any(self._is_empty(depth) for depth in range(_DEPTH))

    def _is_empty(self, depth: int) -> bool:
        if not self.kinds:
            return True
        if depth == 0 or self.kinds - _CONTAINERS:
            return False
        return all(
            any(
                self.member(step)._is_empty(depth - 1)
                for step in self.required
                if isinstance(step, str) == (kind == "object")
            )
            for kind in self.kinds
        )

    @property
    def tag(self) -> frozenset[Hashable] | None:
        """The only possible values, if they are all scalars that are listed; otherwise None."""
        return None if self.kinds & _CONTAINERS else self.scalars


ANYTHING: Approximation = Approximation(frozenset(TYPES), None, {}, frozenset(), lambda _: ANYTHING)
NOTHING: Approximation = Approximation(frozenset(), None, {}, frozenset(), lambda _: NOTHING)


def meet(parts: Sequence[Approximation]) -> Approximation:
    """Return the approximation of the values that fit all given approximations."""
    parts = [part for part in parts if part is not ANYTHING]
    if len(parts) < 2:
        return parts[0] if parts else ANYTHING
    spend(_PER_MEET)
    listed = [part.scalars for part in parts if part.scalars is not None]
    bounds: _Bounds = {}
    for part in parts:
        for facet, (least, greatest) in part._bounds.items():
            known = bounds.get(facet, _ANY)
            bounds[facet] = max(known[0], least), min(known[1], greatest)
    return Approximation(
        frozenset.intersection(*(part.kinds for part in parts)),
        frozenset.intersection(*listed) if listed else None,
        bounds,
        frozenset[Step]().union(*(part.required for part in parts)),
        lambda step: meet([part.member(step) for part in parts]),
    )


def join(parts: Sequence[Approximation]) -> Approximation:
    """Return an approximation of the values that fit any of the given approximations."""
    parts = [part for part in parts if part.kinds]
    if len(parts) < 2:
        return parts[0] if parts else NOTHING
    spend(_PER_MEET)
    scalars: frozenset[Hashable] | None = frozenset()
    for part in parts:
        if scalars is None or (part.scalars is None and part.kinds - _CONTAINERS):
            scalars = None
        else:
            scalars |= part.scalars or frozenset()
    bounds: _Bounds = {}
    for facet, described, _, _ in _FACETS:
        known = [part._bounds.get(facet, _ANY) for part in parts if part.kinds & described]
        if known:
            bounds[facet] = min(low for low, _ in known), max(high for _, high in known)
    objects = [part for part in parts if "object" in part.kinds]
    arrays = [part for part in parts if "array" in part.kinds]
    required = {
        step
        for holders in (objects, arrays)
        for step in (frozenset.intersection(*(p.required for p in holders)) if holders else ())
        if isinstance(step, str) == (holders is objects)
    }
    return Approximation(
        frozenset[str]().union(*(part.kinds for part in parts)),
        scalars,
        bounds,
        frozenset(required),
        lambda step: join([p.member(step) for p in (objects if isinstance(step, str) else arrays)]),
    )


def approximate(document: Document, nodes: Iterable[Node]) -> Approximation:
    """Return the approximation of the values that satisfy all given schemas."""
    return meet([_of_node(document, node) for node in nodes])


def possible_overlaps(approximations: Sequence[Approximation]) -> list[list[int]]:
    """Return, for each approximation, the indices of the others with which it may share a value."""
    tags = [_tags(part) for part in approximations]
    counts = Counter(path for each in tags for path in each)
    best = max(counts, key=lambda path: counts[path], default=())
    holders: dict[Hashable, list[int]] = {}
    untagged = []
    for i, each in enumerate(tags):
        if best in each:
            for value in each[best]:
                holders.setdefault(value, []).append(i)
        else:
            untagged.append(i)
    found = []
    for i, each in enumerate(tags):
        others: Iterable[int] = range(len(approximations))
        if best in each:
            others = {j for value in each[best] for j in holders[value]}.union(untagged)
        found.append(
            [
                j
                for j in sorted(others)
                if j != i and not meet([approximations[i], approximations[j]]).has_no_value()
            ]
        )
    return found


def _tags(
    part: Approximation, depth: int = _DEPTH - 1
) -> dict[tuple[Step, ...], frozenset[Hashable]]:
    """Return the possible scalars of a value's parts, if listed, by paths to the parts."""
    if part.tag is not None:
        return {(): part.tag}
    if depth == 0 or len(part.kinds) != 1 or not part.kinds <= _CONTAINERS:
        return {}
    steps = [s for s in part.required if isinstance(s, str) == ("object" in part.kinds)]
    return {
        (step, *path): tag
        for step in steps
        for path, tag in _tags(part.member(step), depth - 1).items()
    }


def _of_node(document: Document, node: Node) -> Approximation:
    known = document.approximations
    if node not in known:
        flat = document.flatten((node,), wide=True)
        if flat is None:
            known[node] = NOTHING
        else:
            known[node] = meet([_of_schema(document, each) for each in flat])
    return known[node]


def _of_schema(document: Document, node: Node) -> Approximation:
    """Return the approximation of a schema, without the schemas of its references and `allOf`."""
    schema = node.schema
    scalars = scalar_constants([schema])
    kinds = types_of(schema)
    fewest = int(min(schema.get("minItems", 0), _FIRST))
    own = Approximation(
        kinds if scalars is None else kinds - _CONTAINERS,
        None if scalars is None else frozenset(scalars),
        _bounds(schema),
        frozenset([*schema.get("required", ()), *range(fewest)]),
        lambda step: _member(document, node, step),
    )
    parts = [own]
    if not node.plain:
        choices = [
            [document.beside(node, keyword, i) for i in range(len(schema[keyword]))]
            for keyword in ("anyOf", "oneOf")
            if keyword in schema
        ]
        choices += [
            document.constants(node, keyword)
            for keyword in CONSTANTS
            if has_containers(schema, keyword)
        ]
        parts += [join([_of_node(document, each) for each in choice]) for choice in choices]
    return meet(parts)


def _bounds(schema: Mapping[str, Any]) -> _Bounds:
    found: _Bounds = {}
    for facet, _, lowest, highest in _FACETS:
        least = [exact(schema[keyword]) for keyword in lowest if keyword in schema]
        greatest = [exact(schema[keyword]) for keyword in highest if keyword in schema]
        if least or greatest:
            found[facet] = max(least, default=_ANY[0]), min(greatest, default=_ANY[1])
    return found


def _member(document: Document, node: Node, step: Step) -> Approximation:
    schema = node.schema
    if isinstance(step, int):
        if step < len(schema.get("prefixItems", ())):
            return approximate(document, [document.child(node, "prefixItems", step)])
        items = [document.child(node, "items")] if "items" in schema else []
        return approximate(document, items)
    if step in schema.get(ABSENT, ()):
        return NOTHING
    found = own_member_nodes(document, node, step)
    if not found and "additionalProperties" in schema:
        found = [document.child(node, "additionalProperties")]
    return approximate(document, found)

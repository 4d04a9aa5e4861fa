"""Expansion of choices between schemas into cases.

A conjunction of schemas is a tuple of schemas that a value must all satisfy. `alternatives` turns
it into a list of cases. A case is a conjunction of plain schemas (without references and choices)
that a value must satisfy, and a list of schemas that it must not satisfy. Cases may overlap. Their
union is exactly the conjunction:

    anyOf [S, T]            S          or  T
    oneOf [S, T]            S, not T   or  T, not S
    not S                   not S
    if S then T else U      S, T       or  U, not S
    dependentSchemas a: S   no member a    or  a member a, S          (dependentRequired likewise)
    enum [{…}, …]           one schema for each object or array; scalars stay a list of constants

The cases of several choices are the product of the cases of each choice. If the product is large,
`cases_of` returns the cases of each choice separately, so that their languages can be intersected.

**`unevaluatedProperties` and `unevaluatedItems`** depend on which sibling schemas a value
satisfies. Beside these keywords, there is a case of `anyOf` for each non-empty set of branches: the
value satisfies these branches, and no others. The cases of `if` are "satisfied" and "not
satisfied". Each case then determines which schemas hold.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Sequence
from dataclasses import replace
from itertools import product
from math import prod
from typing import Any, NamedTuple

from gcd._automata.limits import spend
from gcd._errors import UnsupportedSchemaError
from gcd._languages.json_schema.approximations import (
    Approximation,
    approximate,
    meet,
    possible_overlaps,
)
from gcd._languages.json_schema.constants import CONSTANTS, has_containers, kind_of
from gcd._languages.json_schema.document import Conjunction, Document, Node
from gcd._languages.json_schema.facets import (
    OPENING,
    is_closed,
    list_declared,
    scalar_constants,
    types_of,
)
from gcd._languages.json_schema.keywords import ABSENT, ANCHORS, DEFINITIONS, PLAIN, TYPES

_MAX_CASES = 1_000
# Keywords that a schema may have if it only lists scalars.
_LISTING = frozenset(
    [*CONSTANTS, "type", "$ref", "allOf", "$schema", "$id", *ANCHORS, *DEFINITIONS]
)
_BRANCHING = ("anyOf", "oneOf", "enum")  # keywords with any number of branches
_FEW_CASES = 16  # up to this many cases, the product is formed; more are intersected
_PER_CASE, _PER_EXCLUDED = 4_000, 200  # units of work
_MAX_BRANCHES = 6  # branches of an anyOf with a sibling `unevaluated…`


class Case(NamedTuple):
    """Case of a conjunction: schemas that a value satisfies, and others that it doesn't."""

    nodes: Conjunction  # plain schemas that the value satisfies
    excluded: tuple[Conjunction, ...]  # conjunctions of schemas that the value doesn't satisfy


_Branch = tuple[tuple[Node, ...], tuple[Node, ...]]  # schemas to satisfy, schemas to exclude
_Split = tuple[Conjunction, list[list[_Branch]]]  # plain schemas, and choices


def alternatives(document: Document, nodes: Conjunction, *, wide: bool = False) -> list[Case]:
    """Return cases with the same values; schemas nested too deeply have all values if `wide`."""
    return _multiply_out(document, nodes, _split(document, nodes, wide), wide)


def cases_of(
    document: Document, nodes: Conjunction, *, wide: bool = False, closed: bool
) -> list[list[Case]]:
    """Return lists of cases; the conjunction is the intersection of the lists' unions."""
    split = _split(document, nodes, wide)
    separate = _separate(document, split, wide, closed)
    return [_multiply_out(document, nodes, split, wide)] if separate is None else separate


def _multiply_out(
    document: Document, nodes: Conjunction, split: _Split | None, wide: bool
) -> list[Case]:
    if split is None:
        return []
    plain, choices = split
    if not choices:
        return _cases(document, plain, (), wide)
    combined = _combine(document, plain, choices, _MAX_CASES)
    if combined is None:
        raise _too_many(document, nodes)
    found: dict[Case, None] = {}
    for branches in combined:
        for case in _cases(document, plain, branches, wide):
            found[case] = None
        if len(found) > _MAX_CASES:
            raise _too_many(document, nodes)
    return list(found)


def _separate(
    document: Document, split: _Split | None, wide: bool, closed: bool
) -> list[list[Case]] | None:
    """Return the cases of each choice separately, or None if their product should be formed.

    The intersection of the lists' languages is the language of the conjunction. In separate lists,
    the branches of a choice cannot determine which members of an object are undeclared. So choices
    are only separated if their branches don't affect undeclared members.
    """
    if split is None or prod(map(len, split[1])) <= _FEW_CASES or len(split[1]) < 2:
        return None
    plain, choices = split
    if _combine(document, plain, choices, _FEW_CASES) is not None:
        return None
    if closed:
        inside = document.closure(
            tuple(p for choice in choices for branch in choice for part in branch for p in part)
        )
        names = list_declared(node for node in plain if node.asserted)
        if any(
            ("properties" in node.schema and not is_closed(plain))
            or any(name not in names for name in node.schema.get("properties", ()))
            or any(keyword in node.schema for keyword in OPENING)
            for node in inside
        ):
            return None
    compared_with = [
        [(tuple(replace(p, asserted=False) for p in held), excluded) for held, excluded in choice]
        for choice in choices
    ]
    return [
        [case for branch in choice for case in _cases(document, plain, (branch,), wide)]
        for choice in compared_with
    ]


def overlapping(
    document: Document, nodes: Conjunction, excluded: Sequence[Conjunction], *, closed: bool
) -> list[Conjunction]:
    """Return those of the excluded conjunctions that may share values with `nodes`."""
    if not excluded:
        return []
    own = approximate(document, nodes)
    members = None  # the only members that an object may have
    if closed and is_closed(nodes):
        members = frozenset(list_declared(node for node in nodes if node.asserted))
    return [
        schemas
        for schemas in excluded
        if not meet([own, approximate(document, schemas)]).has_no_value(members)
    ]


def _split(document: Document, nodes: Conjunction, wide: bool) -> _Split | None:
    """Return a conjunction's plain schemas and choices; None if no value satisfies it."""
    flat = document.flatten(nodes, wide=wide)
    if flat is None:
        return None
    plain = tuple(replace(node, plain=True) for node in flat if _says_something(node))
    return plain, [choice for node in flat if not node.plain for choice in _choices(document, node)]


def _cases(
    document: Document, plain: Conjunction, branches: tuple[_Branch, ...], wide: bool
) -> list[Case]:
    """Return the cases of a conjunction of schemas, given one branch of each choice."""
    held = tuple(node for branch in branches for node in branch[0])
    excluded = tuple((node,) for branch in branches for node in branch[1])
    spend(_PER_CASE + _PER_EXCLUDED * len(excluded))
    return [
        Case(
            tuple(dict.fromkeys(plain + case.nodes)), tuple(dict.fromkeys(excluded + case.excluded))
        )
        for case in (alternatives(document, held, wide=wide) if held else [Case((), ())])
    ]


def _combine(
    document: Document, plain: Conjunction, choices: list[list[_Branch]], limit: int
) -> list[tuple[_Branch, ...]] | None:
    """Return the satisfiable combinations of one branch per choice; None if more than `limit`."""
    found: list[tuple[tuple[_Branch, ...], Approximation]] = [((), approximate(document, plain))]
    for choice in choices:
        approximations = [approximate(document, held) for held, _ in choice]
        grown = []
        for branches, known in found:
            for branch, more in zip(choice, approximations, strict=True):
                both = meet([known, more])
                if not both.has_no_value():
                    grown.append(((*branches, branch), both))
            if len(grown) > limit:
                return None
        found = grown
    return [branches for branches, _ in found]


def _too_many(document: Document, nodes: Conjunction) -> UnsupportedSchemaError:
    """Return the error for too many cases of a schema; it names the keyword with most branches."""
    keywords = ("anyOf", "oneOf", *CONSTANTS, "dependentSchemas", "dependentRequired", "if", "not")
    _, keyword, node = max(
        (
            (len(node.schema[keyword]) if keyword in _BRANCHING else 2, keyword, node)
            for node in document.flatten(nodes, wide=True) or nodes
            for keyword in keywords
            if keyword in node.schema
        ),
        key=lambda found: found[0],
    )
    return document.refuse(
        keyword,
        node,
        "it multiplies with its sibling choices (anyOf, oneOf, if, dependent…, constants) to more "
        f"than {_MAX_CASES} alternatives; write fewer, or move them into separate properties",
    )


def _says_something(node: Node) -> bool:
    schema = node.schema
    return node.plain or any(
        k in schema and not (k in CONSTANTS and has_containers(schema, k)) for k in PLAIN
    )


def _choices(document: Document, node: Node) -> list[list[_Branch]]:
    schema = node.schema
    found: list[list[_Branch]] = []
    for keyword in CONSTANTS:
        if has_containers(schema, keyword):
            found.append([((constant,), ()) for constant in document.constants(node, keyword)])
    if "anyOf" in schema:
        branches = [document.beside(node, "anyOf", i) for i in range(len(schema["anyOf"]))]
        constants, branches = _constants_apart(document, branches)
        if constants:
            listed = [value for values in constants for value in values.items()]
            branches = [*branches, _listing(document, node, "anyOf", listed)]
        found.append(_any_of(document, node, branches))
    if "oneOf" in schema:
        branches = [document.beside(node, "oneOf", i) for i in range(len(schema["oneOf"]))]
        constants, branches = _constants_apart(document, branches)
        compared_with = list(branches)
        if constants:
            listed = [value for values in constants for value in values.items()]
            times = Counter(key for key, _ in listed)
            once = [value for value in listed if times[value[0]] == 1]
            branches = [*branches, _listing(document, node, "oneOf", once)]
            compared_with.append(_listing(document, node, "oneOf, all", listed))
        compared_with = [replace(branch, asserted=False) for branch in compared_with]
        overlaps = possible_overlaps([approximate(document, (branch,)) for branch in branches])
        found.append(
            [
                ((branch,), tuple(compared_with[j] for j in others))
                for branch, others in zip(branches, overlaps, strict=True)
            ]
        )
    if "not" in schema:
        found.append([((), (document.beside(node, "not", asserted=False),))])
    if "if" in schema:
        found += _conditional(document, node)
    for name in schema.get("dependentSchemas", ()):
        found.append(
            [
                ((_without(document, node, name),), ()),
                (
                    (
                        _having(document, node, (name,)),
                        document.beside(node, "dependentSchemas", name),
                    ),
                    (),
                ),
            ]
        )
    for name, others in schema.get("dependentRequired", {}).items():
        if any(other != name for other in others):
            both = _having(document, node, (name, *others))
            found.append([((_without(document, node, name),), ()), ((both,), ())])
    return found


def _constants_apart(
    document: Document, branches: list[Node]
) -> tuple[list[dict[Hashable, Any]], list[Node]]:
    """Return the scalars, by `identity`, of branches that only list scalars; and the others.

    Schema generators write an enum as one branch for each value, with a title. Such branches are
    merged, because there may be thousands.
    """
    constants, others = [], []
    for branch in branches:
        flat = document.flatten((branch,)) or ()
        schemas = [node.schema for node in flat]
        listed = None
        if all(schema.keys() <= _LISTING for schema in schemas):
            listed = scalar_constants(schemas)
        if listed is None or any(has_containers(s, k) for s in schemas for k in CONSTANTS):
            others.append(branch)
        else:
            kinds = frozenset(TYPES).intersection(*map(types_of, schemas))
            constants.append({key: v for key, v in listed.items() if kind_of(v) in kinds})
    if len(constants) < 2:
        return [], branches
    return constants, others


def _listing(document: Document, node: Node, name: str, listed: list[tuple[Hashable, Any]]) -> Node:
    """Return a schema of the given scalars; of equal ones, that with a fraction (1.0) is kept."""
    values: dict[Hashable, Any] = {}
    for key, value in listed:
        if not isinstance(values.get(key), float):
            values[key] = value
    return document.make(node, f"constants of {name}", {"enum": list(values.values())})


def _any_of(document: Document, node: Node, branches: list[Node]) -> list[_Branch]:
    if not branches[0].under:
        return [((branch,), ()) for branch in branches]
    if len(branches) > _MAX_BRANCHES:
        raise document.refuse(
            "anyOf",
            node,
            f"expected at most {_MAX_BRANCHES} branches beside unevaluatedProperties or "
            f"unevaluatedItems, got {len(branches)}; remove some",
        )
    compared_with = [replace(branch, asserted=False) for branch in branches]
    return [
        (
            tuple(b for b, holds in zip(branches, chosen, strict=True) if holds),
            tuple(b for b, holds in zip(compared_with, chosen, strict=True) if not holds),
        )
        for chosen in product((True, False), repeat=len(branches))
        if any(chosen)
    ]


def _conditional(document: Document, node: Node) -> list[list[_Branch]]:
    condition = document.beside(node, "if")
    parts = [k for k in ("then", "else") if k in node.schema]
    if not parts and not condition.under:
        return []  # no effect
    then, otherwise = (
        (document.beside(node, k),) if k in node.schema else () for k in ("then", "else")
    )
    return [[((condition, *then), ()), (otherwise, (replace(condition, asserted=False),))]]


def _without(document: Document, node: Node, name: str) -> Node:
    return document.make(node, f"without {name}", {ABSENT: [name]})


def _having(document: Document, node: Node, names: tuple[str, ...]) -> Node:
    names = tuple(dict.fromkeys(names))
    schema = {"type": "object", "required": list(names)}
    return document.make(node, f"having {names}", schema)

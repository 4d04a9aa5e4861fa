"""A JSON schema as a document: what its keywords mean together, before any automaton is built.

A schema is a conjunction of keywords, some of which choose between schemas (`anyOf`), join them
(`allOf`) or stand for another one (`$ref`). `Document.alternatives` multiplies that out into
conjunctions of plain schemas; `gcd.languages.schema_facets` merges each into one description of a
value. Doing this on schemas, not on their languages, is what makes siblings exact: `properties`
beside an `anyOf` of `required` describes one object, whose members have one order.

Every schema that can be reached is checked once, at the start: a keyword that is not honoured is
refused by name, a malformed one is reported with its place and value.

Recursion: a schema that refers to itself is entered at most `max_depth` times on a path from the
root; beyond that it stands for nothing. A cycle of references that never enters an object or an
array says nothing about any value, and is an error.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from itertools import product
from typing import Any
from urllib.parse import unquote

from gcd.errors import ConstraintError, UnsupportedSchemaError
from gcd.languages.schema_keywords import check_keywords

_MAX_NESTING = 64  # of schemas in schemas
_MAX_ALTERNATIVES = 1_000
_MAX_SCHEMAS = 50_000


@dataclass(frozen=True)
class Place:
    """A schema, by its pointer in the document.

    Attributes:
        pointer: JSON pointer from the document's root.
        entered: (pointer, times) of the recursive schemas entered on the way here.
        schema: the schema itself.
    """

    pointer: str
    entered: tuple[tuple[str, int], ...]
    schema: Any = field(compare=False, repr=False)


Conjunction = tuple[Place, ...]


class Document:
    """A schema document in which references are resolved.

    Args:
        root: the schema.
        base: JSON pointer of the schema in what the user handed in, for messages.
        hidden: first step of pointers here that what the user handed in does not have.
        max_depth: how often a schema may be entered on one path.
    """

    def __init__(self, root: Any, *, base: str = "", hidden: str = "", max_depth: int) -> None:
        self._base = base
        self._hidden = hidden
        self._max_depth = max_depth
        self._root = root
        self._below: dict[str, set[str]] = {}  # schemas directly in or referred to by each
        self._scan()
        self._recursive = {p for p in self._below if p in self._reachable(p)}

    def root(self) -> Conjunction:
        """The whole document."""
        return (self._enter("", ()),)

    @property
    def depth_hint(self) -> str:
        """What to say besides if no value satisfies it: recursion may have been cut short."""
        if not self._recursive:
            return ""
        return (
            f" with max_depth={self._max_depth}; it contains itself, so raise max_depth "
            "or give it a way to end"
        )

    def named(self, pointer: str) -> str:
        """A pointer as the user would write it, from the top of what was handed in."""
        return self._base + pointer.removeprefix(self._hidden)

    # -- reading ----------------------------------------------------------------------------

    def child(self, place: Place, *path: str | int) -> Place:
        """The schema at a path below another one."""
        schema = place.schema
        for step in path:
            schema = schema[step]
        pointer = place.pointer + "".join("/" + escape(str(step)) for step in path)
        return Place(pointer, self._kept(pointer, place.entered), schema)

    def alternatives(self, places: Conjunction) -> list[Conjunction]:
        """Conjunctions, one of which a value must satisfy; `$ref`, `allOf`, `anyOf` are used up."""
        found = [
            _without_repeats(sum(choice, ()))
            for choice in self._product([self._expand(place, ()) for place in places])
        ]
        return list(dict.fromkeys(found))

    def _expand(self, place: Place, active: tuple[str, ...]) -> list[Conjunction]:
        schema = place.schema
        if isinstance(schema, bool):
            return [()] if schema else []
        factors: list[list[Conjunction]] = [[(place,)]]
        if "$ref" in schema:
            target = self._target(schema["$ref"], place.pointer)
            if target in active:
                raise ConstraintError(
                    f"the $ref {schema['$ref']!r} at {self.named(place.pointer) or '/'!r} leads "
                    "back to itself without entering an object or array, so it says nothing"
                )
            entered = self._enter(target, place.entered)
            if dict(entered.entered).get(target, 0) > self._max_depth:
                return []
            factors.append(self._expand(entered, (*active, target)))
        for i in range(len(schema.get("allOf", ()))):
            factors.append(self._expand(self.child(place, "allOf", i), active))
        if "anyOf" in schema:
            factors.append(
                [
                    conjunction
                    for i in range(len(schema["anyOf"]))
                    for conjunction in self._expand(self.child(place, "anyOf", i), active)
                ]
            )
        return [sum(choice, ()) for choice in self._product(factors)]

    def _product(self, factors: list[list[Conjunction]]) -> Iterator[tuple[Conjunction, ...]]:
        size = 1
        for factor in factors:
            size *= len(factor)
        if size > _MAX_ALTERNATIVES:
            raise ConstraintError(
                f"anyOf beside anyOf multiplies to more than {_MAX_ALTERNATIVES} alternatives; "
                "write fewer, or nest them in separate properties"
            )
        return product(*factors)

    # -- references -------------------------------------------------------------------------

    def _enter(self, pointer: str, entered: tuple[tuple[str, int], ...]) -> Place:
        if pointer in self._recursive:
            counts = dict(entered)
            counts[pointer] = counts.get(pointer, 0) + 1
            entered = tuple(sorted(counts.items()))
        return Place(pointer, self._kept(pointer, entered), self._lookup(pointer))

    def _kept(
        self, pointer: str, entered: tuple[tuple[str, int], ...]
    ) -> tuple[tuple[str, int], ...]:
        """Only what matters below: schemas that can be entered again from here."""
        if not entered:
            return entered
        return tuple((p, n) for p, n in entered if p == pointer or p in self._reachable(pointer))

    def _reachable(self, pointer: str) -> set[str]:
        if pointer not in self._reached:
            found: set[str] = set()
            stack = list(self._below.get(pointer, ()))
            while stack:
                other = stack.pop()
                if other not in found:
                    found.add(other)
                    stack.extend(self._below.get(other, ()))
            self._reached[pointer] = found
        return self._reached[pointer]

    def _target(self, reference: str, pointer: str) -> str:
        """The pointer a `$ref` stands for, in the form used here."""
        if not reference.startswith("#") or (len(reference) > 1 and reference[1] != "/"):
            raise UnsupportedSchemaError(
                "$ref",
                self.named(pointer),
                f"refers to {reference!r}; only JSON pointers inside the document are resolved, "
                'such as "#/$defs/name"',
            )
        target = unquote(reference[1:])
        try:
            self._lookup(target)
        except (KeyError, IndexError, TypeError, ValueError):
            raise ConstraintError(
                f"the $ref {reference!r} at {self.named(pointer) or '/'!r} points to nothing "
                "in the document"
            ) from None
        return target

    def _lookup(self, pointer: str) -> Any:
        found = self._root
        for step in pointer.split("/")[1:]:
            if isinstance(found, Mapping):
                found = found[step.replace("~1", "/").replace("~0", "~")]
            elif isinstance(found, list):
                found = found[int(step)]
            else:
                raise KeyError(step)
        return found

    def _scan(self) -> None:
        """Check every schema that can be reached, and note which leads to which."""
        self._reached: dict[str, set[str]] = {}
        stack: list[tuple[str, Any, int]] = [("", self._root, 0)]
        while stack:
            pointer, schema, depth = stack.pop()
            if pointer in self._below:
                continue
            if depth > _MAX_NESTING:
                raise ConstraintError(
                    f"the schema nests more than {_MAX_NESTING} levels deep at "
                    f"{self.named(pointer)!r}; write repeated parts once, under $defs"
                )
            if len(self._below) >= _MAX_SCHEMAS:
                raise ConstraintError(
                    f"the document holds more than {_MAX_SCHEMAS} schemas; write repeated parts "
                    "once, under $defs"
                )
            check_keywords(schema, self.named(pointer), is_root=not pointer)
            below = []
            if isinstance(schema, Mapping):
                below = [(pointer + path, sub, depth + 1) for path, sub in subschemas(schema)]
                if "$ref" in schema:
                    target = self._target(schema["$ref"], pointer)
                    below.append((target, self._lookup(target), 0))
            self._below[pointer] = {entry[0] for entry in below}
            stack.extend(below)


def subschemas(schema: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """(pointer from here, schema) of the schemas directly inside one."""
    for keyword in ("items", "additionalProperties"):
        if keyword in schema:
            yield f"/{keyword}", schema[keyword]
    for keyword in ("allOf", "anyOf", "prefixItems"):
        for i, sub in enumerate(schema.get(keyword, ())):
            yield f"/{keyword}/{i}", sub
    for name, sub in schema.get("properties", {}).items():
        yield f"/properties/{escape(name)}", sub


def escape(step: str) -> str:
    """A step of a JSON pointer, escaped."""
    return step.replace("~", "~0").replace("/", "~1")


def _without_repeats(places: Conjunction) -> Conjunction:
    return tuple(dict.fromkeys(places))

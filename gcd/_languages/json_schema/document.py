"""JSON Schema documents, and the links from each schema in them to others.

A schema is a conjunction of keywords. Some keywords stand for another schema of the same value
(`$ref`, `allOf`). Some choose between schemas or exclude them (`anyOf`, `not`, `if`, …). The others
describe the value itself, or the schemas of its elements and members. `Document.flatten` resolves
the first kind. `gcd._languages.json_schema.choices` expands the second kind.
`gcd._languages.json_schema.facets` merges the rest into one description of a value.

Recursion: a schema that refers to itself is entered at most `max_depth` times on a path from the
root. Beyond that depth it has no values. A cycle that never enters an object or an array constrains
no value, and is an error.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Any

from gcd._automata.automaton import Automaton
from gcd._automata.limits import spend
from gcd._errors import ConstraintError, LimitError, StateLimitError, UnsupportedSchemaError
from gcd._languages.cycles import cycles
from gcd._languages.json_schema.constants import CONSTANTS, constant_schemas, has_containers
from gcd._languages.json_schema.keywords import REFERENCES, draft_named
from gcd._languages.json_schema.reader import SAME_VALUE, Reader, Schema
from gcd._languages.text.dialects import is_written, search_language

_PER_SCHEMA = 2_000  # units of work per visit
_MADE = "~ "  # prefix of the names of generated schemas; no JSON pointer contains it
_UNEVALUATED = ("unevaluatedProperties", "unevaluatedItems")


@dataclass(frozen=True)
class Node:
    """Schema of the document, identified by its pointer and the recursion depth."""

    pointer: str  # JSON pointer from the document's root
    # Pairs (pointer, count) of the recursive schemas that were entered on the path to this schema
    entered: tuple[tuple[str, int], ...]
    # The schema itself, in the vocabulary of draft 2020-12
    schema: Any = field(compare=False, repr=False)
    # True if values have to satisfy the schema, rather than only being compared with it (as with
    # `not`). Only asserted schemas determine which members are undeclared.
    asserted: bool = True
    plain: bool = False  # whether `$ref`, `allOf` and the choosing keywords have been resolved
    # Pointers of the schemas that contain this schema, apply to the same value, and have an
    # `unevaluated…` keyword
    under: frozenset[str] = frozenset()

    @property
    def scalar(self) -> str | None:
        """The schema as text if its own keywords describe only scalars; otherwise None."""
        return self.schema.scalar if isinstance(self.schema, Schema) else None


Conjunction = tuple[Node, ...]


class Document:
    """Schema of any draft with its references resolved.

    `base` is the JSON pointer of the schema in the user's input. Other options are those of
    `gcd.json_schema`, and `bounds`, `validators` and `ignored` those of `reader.Reader`.
    """

    def __init__(
        self,
        root: Any,
        *,
        base: str = "",
        max_depth: int,
        assert_formats: bool = True,
        draft: str | None = None,
        refuse_unknown: bool = True,
    ) -> None:
        self._max_depth = max_depth
        chosen = draft_named(draft)
        if isinstance(root, bool) and chosen is not None and "boolean schemas" not in chosen.has:
            raise ConstraintError(
                f"expected the schema to be an object in draft {draft}, got {root}; write an "
                "object, or select a newer draft"
            )
        self._reader = Reader(root, base=base, draft=chosen, assert_formats=assert_formats)
        self._closures: dict[Conjunction, Conjunction] = {}
        self.approximations: dict[Node, Any] = {}  # computed ones
        self.bounds = self._reader.bounds
        self.validators = self._reader.validators
        self.ignored = self._reader.ignored
        if refuse_unknown and self.ignored:
            first = self.ignored[0]
            reason = f'it {first.reason}; correct it, or set unknown="ignore"'
            raise UnsupportedSchemaError(first.keyword, first.pointer, reason)
        self._cycle_of = cycles(self._reader.below)

    def root(self) -> Conjunction:
        """Return the conjunction (tuple of schemas) that consists of the root schema alone."""
        return (self._enter("", ()),)

    @property
    def depth_hint(self) -> str:
        """Hint for errors about documents without values, if a depth limit may be the reason."""
        if not self._cycle_of:
            return ""
        return (
            f" with max_depth={self._max_depth}; the schema contains itself, so give it a way to "
            "end, such as an optional member; if it has one, raise max_depth"
        )

    def is_recursive(self, pointer: str) -> bool:
        """Return whether a schema contains itself, or leads to a schema that does."""
        top = pointer.partition(_MADE)[0]
        return any(each in self._cycle_of for each in (top, *self._below([top])))

    def rebase(self, pointer: str) -> str:
        """Convert a pointer from the document's root to one from the root of the user's input."""
        return self._reader.rebase(pointer.partition(_MADE)[0])

    def refuse(self, keyword: str, node: Node, reason: str) -> UnsupportedSchemaError:
        """Return the error for an unsupported keyword in a schema; "" is its Python type."""
        written = node.schema.name_of(keyword)
        return UnsupportedSchemaError(written, self.rebase(node.pointer), reason)

    def child(self, node: Node, *path: str | int) -> Node:
        """Return the schema of an element or a member, at a path below the value's schema."""
        return self._at(node, path, asserted=node.asserted)

    def beside(self, node: Node, *path: str | int, asserted: bool | None = None) -> Node:
        """Return the schema at a path below another schema; both apply to the same value."""
        asserted = node.asserted if asserted is None else asserted
        return self._at(node, path, asserted=asserted, under=_under(node))

    def make(self, node: Node, name: str, schema: Any) -> Node:
        """Return a generated schema of the same value, which `node` and `name` identify."""
        return replace(
            node, pointer=f"{node.pointer}{_MADE}{name}", plain=False, under=_under(node),
            schema=Schema(schema) if isinstance(schema, Mapping) else schema,
        )  # fmt: skip

    def constants(self, node: Node, keyword: str) -> list[Node]:
        """Return schemas for the constants under a keyword (`const` or `enum`)."""
        schemas = constant_schemas(node.schema, keyword)
        made = [self.make(node, f"{keyword} {i}", schema) for i, schema in enumerate(schemas)]
        return [replace(schema, under=frozenset()) for schema in made]

    def _at(
        self,
        node: Node,
        path: tuple[str | int, ...],
        *,
        asserted: bool,
        under: frozenset[str] = frozenset(),
    ) -> Node:
        pointer = node.pointer + node.schema.path(*path)
        schema = self._reader.schemas.get(pointer)
        if _MADE in pointer:  # generated schemas are already in the vocabulary of draft 2020-12
            schema = node.schema.value(path)
            schema = Schema(schema) if isinstance(schema, Mapping) else schema
        return Node(
            pointer, self._drop_counts(pointer, node.entered), schema, asserted, under=under
        )

    def flatten(self, nodes: Iterable[Node], *, wide: bool = False) -> Conjunction | None:
        """Resolve `true`, `$ref` and `allOf` in a conjunction; return None if it has no values.

        Schemas entered more than `max_depth` times have no values or, if `wide`, all values.
        """
        found: dict[Node, None] = {}
        for node in nodes:
            if not self._flatten_into(found, node, wide):
                return None
        return tuple(found)

    def _flatten_into(self, found: dict[Node, None], node: Node, wide: bool) -> bool:
        if isinstance(node.schema, bool):
            return node.schema
        if node in found:  # its references have also been followed
            return True
        spend(_PER_SCHEMA)
        found[node] = None
        if node.plain:
            return True
        for keyword in REFERENCES:
            if keyword in node.schema:
                entered = self._follow(node, keyword)
                if dict(entered.entered).get(entered.pointer, 0) > self._max_depth:
                    if not wide:
                        return False
                elif not self._flatten_into(found, entered, wide):
                    return False
        return all(
            self._flatten_into(found, self.beside(node, "allOf", i), wide)
            for i in range(len(node.schema.get("allOf", ())))
        )

    def closure(self, nodes: Conjunction) -> Conjunction:
        """Return every schema of the same value, also in choices and under `not`, in order."""
        if nodes not in self._closures:
            found: dict[Node, None] = {}
            stack = [replace(p, asserted=False, plain=False, under=frozenset()) for p in nodes]
            while stack:
                node = stack.pop()
                if isinstance(node.schema, bool) or node in found:
                    continue
                if dict(node.entered).get(node.pointer, 0) > self._max_depth:
                    continue
                spend(_PER_SCHEMA)
                found[node] = None
                stack.extend(self._follow(node, k) for k in REFERENCES if k in node.schema)
                stack.extend(
                    self._at(node, path, asserted=False) for path in node.schema.steps(SAME_VALUE)
                )
                for keyword in CONSTANTS:
                    if has_containers(node.schema, keyword):
                        stack.extend(self.constants(node, keyword))
            self._closures[nodes] = tuple(sorted(found, key=lambda p: (p.pointer, p.entered)))
        return self._closures[nodes]

    def declares_members(self, nodes: Conjunction, inside: bool) -> bool:
        """Return whether a schema of the value, or `inside` of it, has `properties`."""
        if any("properties" in node.schema for node in self.closure(nodes)):
            return True
        below = self._below(node.pointer for node in nodes if inside)
        found = (self._reader.schemas[pointer] for pointer in below)
        return any(isinstance(each, Schema) and "properties" in each for each in found)

    def _below(self, pointers: Iterable[str]) -> Iterator[str]:
        """Yield the pointers of schemas inside the given schemas, at any level."""
        stack = [pointer.partition(_MADE)[0] for pointer in pointers]
        found: set[str] = set()
        while stack:
            below = self._reader.below.get(stack.pop(), set()) - found
            yield from below
            found |= below
            stack += below

    def pattern(self, pattern: str, node: Node, keyword: str) -> Automaton:
        """Return the texts that contain a match of a pattern in this schema."""
        try:
            found = search_language(pattern)
        except LimitError as error:
            if isinstance(error, StateLimitError):  # a work limit may be due to other parts
                written = keyword if is_written(pattern) else None
                error.blame(written, self.rebase(node.pointer))
            raise
        except ConstraintError as error:
            if is_written(pattern):
                reason = f"the pattern {pattern!r} cannot be compiled: {error}"
                raise self.refuse(keyword, node, reason) from error
            raise self.refuse(keyword="", node=node, reason=str(error)) from error
        between_slashes = re.fullmatch("/(.+)/[a-z]*", pattern, re.DOTALL)
        if between_slashes and found.is_empty:
            reason = (
                f"the pattern {pattern!r} never matches, because the slashes are part of the text; "
                f"write {between_slashes[1]!r}"
            )
            raise self.refuse(keyword, node, reason)
        return found

    def _follow(self, node: Node, keyword: str) -> Node:
        target = self._reader.target(keyword, node.pointer)
        return replace(
            self._enter(target, node.entered), asserted=node.asserted, under=_under(node)
        )

    def _enter(self, pointer: str, entered: tuple[tuple[str, int], ...]) -> Node:
        if pointer in self._cycle_of:
            counts = dict(entered)
            counts[pointer] = counts.get(pointer, 0) + 1
            entered = tuple(sorted(counts.items()))
        return Node(pointer, self._drop_counts(pointer, entered), self._reader.schemas[pointer])

    def _drop_counts(
        self, pointer: str, entered: tuple[tuple[str, int], ...]
    ) -> tuple[tuple[str, int], ...]:
        """Drop the counts (`Node.entered`) of schemas that can't be entered again from here."""
        if not entered:
            return entered
        cycle = self._cycle_of.get(pointer)
        return tuple((p, n) for p, n in entered if self._cycle_of[p] == cycle)


@lru_cache(maxsize=4096)
def matches(pattern: str, text: str) -> bool:
    """Return whether a text contains a match of a pattern."""
    return search_language(pattern).accepts(text)


def _under(node: Node) -> frozenset[str]:
    """Return the pointers of `node` and schemas around it with an `unevaluated…` keyword."""
    if isinstance(node.schema, Mapping) and any(k in node.schema for k in _UNEVALUATED):
        return node.under | {node.pointer}
    return node.under

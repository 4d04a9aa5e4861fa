"""This module holds a JSON schema as a document, and knows how one schema in it leads to the next.

A schema is a conjunction of keywords. Some stand for another schema of the same value (`$ref`,
`allOf`), some choose between schemas or exclude them (`anyOf`, `not`, `if`, …); the others describe
the value, or schemas of its elements and members. `Document.flatten` uses the first sort up,
`gcd.languages.json_schema.choices` the second, and `gcd.languages.json_schema.facets` merges what
is left into one description of a value.

Every schema that can be reached is checked once, at the start: what cannot be honoured is refused
by name, what is malformed is reported with its place and value, and what says nothing in the
schema's draft is collected in `Document.ignored`. Schemas are seen in the vocabulary of draft
2020-12, whichever they are written in (`gcd.languages.json_schema.drafts`); pointers are those of
the document as it is written.

Recursion: a schema that refers to itself is entered at most `max_depth` times on a path from the
root; beyond that it stands for nothing. A cycle that never enters an object or an array says
nothing about any value, and is an error.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Any

from gcd.automata.automaton import Automaton
from gcd.automata.horizon import Caveat
from gcd.automata.limits import spend
from gcd.errors import (
    ConstraintError,
    LimitError,
    StateLimitError,
    UnsupportedSchemaError,
    at,
    shown,
)
from gcd.languages.cycles import components, cycles
from gcd.languages.json_schema.constants import CONSTANTS, constant_schemas, has_containers
from gcd.languages.json_schema.drafts import Schema, draft_named, escape
from gcd.languages.json_schema.ignored import IgnoredKeyword
from gcd.languages.json_schema.keywords import VALIDATOR, check_rules
from gcd.languages.json_schema.references import References
from gcd.languages.text.dialects import search_language

# Units of work for a schema that is looked at again, and for one that is found inside another.
_PER_SCHEMA, _PER_PLACE = 2_000, 1_000
_MAX_BESIDE = 64  # schemas of one value inside each other, references followed
_MADE = "~ "  # before the names of schemas made here; a JSON pointer cannot hold it
# Keyword -> count -> bytes of the longest text that cannot have more: a character takes a byte at
# least, an element two with its comma, a member five with its comma, quotes and colon.
HORIZONS: dict[str, Callable[[int], int]] = {
    "maxLength": lambda count: int(count) + 2,
    "maxItems": lambda count: 2 * int(count) + 2,
    "maxContains": lambda count: 2 * int(count) + 2,
    "maxProperties": lambda count: 5 * int(count) + 5,
}
_REFERENCES = ("$ref", "$dynamicRef", "$recursiveRef")
_SAME_VALUE = ("allOf", "anyOf", "oneOf", "not", "if", "then", "else", "dependentSchemas")
_UNEVALUATED = ("unevaluatedProperties", "unevaluatedItems")


@dataclass(frozen=True)
class Place:
    """A place is a schema of the document, identified by its pointer.

    Attributes:
        pointer: JSON pointer from the document's root.
        entered: (pointer, times) of the recursive schemas entered on the way here.
        schema: the schema itself, in the vocabulary of draft 2020-12.
        asserted: whether the schema belongs to what is asked for, rather than to what a value is
            compared with (`not` and the like); it decides which members are undeclared.
        plain: whether `$ref`, `allOf` and the keywords that choose have been dealt with.
        under: the schemas of the same value around this one that have `unevaluated…`.
    """

    pointer: str
    entered: tuple[tuple[str, int], ...]
    schema: Any = field(compare=False, repr=False)
    asserted: bool = True
    plain: bool = False
    under: frozenset[str] = frozenset()


Conjunction = tuple[Place, ...]


class Document:
    """A document is a schema in which references are resolved, whatever draft it is written in.

    Args:
        base: JSON pointer of the schema in what the user handed in, for messages.
        hidden: first step of pointers here that what the user handed in does not have.
        max_depth: how often a schema may be entered on one path.
        assert_formats: whether `format` constrains.
        draft: how the schema is to be read; None: as its `$schema` says, or leniently.
        refuse_unknown: whether a keyword that says nothing is an error.

    Attributes:
        ignored: the keywords that say nothing, of the schemas that can be reached.
        outlines: those that are known (`gcd.languages.json_schema.outlines`).
        upper_bounds: the upper bounds of counts in schemas that can be reached, and how long a
            text may be that cannot come to one.
        validators: Python code that looks at values, too, in schemas that can be reached.
    """

    def __init__(
        self,
        root: Any,
        *,
        base: str = "",
        hidden: str = "",
        max_depth: int,
        assert_formats: bool = True,
        draft: str | None = None,
        refuse_unknown: bool = True,
    ) -> None:
        self._base = base
        self._hidden = hidden
        self._max_depth = max_depth
        chosen = draft_named(draft)
        if isinstance(root, bool) and chosen is not None and not chosen.boolean_schemas:
            raise ConstraintError(f"the schema is {root}; draft {draft} has none but objects")
        self._references = References(root, base, chosen, assert_formats=assert_formats)
        self._below: dict[str, set[str]] = {}  # schemas directly in or referred to by each
        self._declaring: set[str] = set()  # schemas that have `properties`
        self._closures: dict[Conjunction, Conjunction] = {}
        self.outlines: dict[Place, Any] = {}
        self.upper_bounds: list[Caveat] = []
        self.validators: list[Caveat] = []
        self.ignored = tuple(sorted(set(self._scan(root))))
        if refuse_unknown and self.ignored:
            first = self.ignored[0]
            raise UnsupportedSchemaError(first.keyword, first.pointer, first.reason)
        self._cycle_of = cycles(self._below)

    def root(self) -> Conjunction:
        """Return the whole document as a schema."""
        return (self._enter("", ()),)

    @property
    def depth_hint(self) -> str:
        """What to add if no value satisfies the document: recursion may have been cut short."""
        if not self._cycle_of:
            return ""
        return (
            f" with max_depth={self._max_depth}; it contains itself: give it a way to end, such as "
            "a member that is not required, or raise max_depth if it has one"
        )

    def is_recursive(self, pointer: str) -> bool:
        """Return whether a schema leads to one that contains itself."""
        found: set[str] = set()
        stack = [pointer.partition(_MADE)[0]]
        while stack:
            below = stack.pop()
            if below in self._cycle_of:
                return True
            stack += self._below.get(below, set()) - found
            found |= self._below.get(below, set())
        return False

    def named(self, pointer: str) -> str:
        """Return a pointer as the user would write it, from the top of what was handed in."""
        return self._base + pointer.partition(_MADE)[0].removeprefix(self._hidden)

    def refuse(self, keyword: str, place: Place, reason: str) -> UnsupportedSchemaError:
        """Make the error for a keyword that cannot be honoured here."""
        written = place.schema.name_of(keyword)
        return UnsupportedSchemaError(written, self.named(place.pointer), reason)

    # -- from schema to schema --------------------------------------------------------------

    def child(self, place: Place, *path: str | int) -> Place:
        """Return the schema of an element or a member, at a path below that of the whole value."""
        return self._at(place, path, asserted=place.asserted)

    def beside(self, place: Place, *path: str | int, asserted: bool | None = None) -> Place:
        """Return another schema of the same value, at a path below this one."""
        asserted = place.asserted if asserted is None else asserted
        return self._at(place, path, asserted=asserted, under=_under(place))

    def made(self, place: Place, name: str, schema: Any) -> Place:
        """Return a schema of the same value that is nowhere spelled out; named for equality."""
        return replace(
            place, pointer=f"{place.pointer}{_MADE}{name}", plain=False, under=_under(place),
            schema=Schema(schema) if isinstance(schema, Mapping) else schema,
        )  # fmt: skip

    def constants(self, place: Place, keyword: str) -> list[Place]:
        """Return schemas for the constants of this one, objects and arrays spelled out.

        A constant evaluates no element and no member, so no `unevaluated…` looks into its schema.
        """
        schemas = constant_schemas(place.schema, keyword)
        made = [self.made(place, f"{keyword} {i}", schema) for i, schema in enumerate(schemas)]
        return [replace(schema, under=frozenset()) for schema in made]

    def _at(
        self,
        place: Place,
        path: tuple[str | int, ...],
        *,
        asserted: bool,
        under: frozenset[str] = frozenset(),
    ) -> Place:
        found = place.schema
        for step in path:
            found = found[step]
        spend(_PER_PLACE)
        pointer = place.pointer + place.schema.path(*path)
        schema = self._read(pointer, found)
        return Place(pointer, self._kept(pointer, place.entered), schema, asserted, under=under)

    def _read(self, pointer: str, raw: Any) -> Any:
        if _MADE in pointer:  # in the words of draft 2020-12 already
            return Schema(raw) if isinstance(raw, Mapping) else raw
        return self._references.read(pointer, raw)

    def flatten(self, places: Iterable[Place], *, wide: bool = False) -> Conjunction | None:
        """Resolve `true`, `$ref` and `allOf` in a conjunction; None if no value fits.

        Schemas entered too often stand for nothing or, if `wide`, for anything.
        """
        found: dict[Place, None] = {}
        for place in places:
            if not self._flatten_into(found, place, wide):
                return None
        return tuple(found)

    def _flatten_into(self, found: dict[Place, None], place: Place, wide: bool) -> bool:
        if isinstance(place.schema, bool):
            return place.schema
        if place in found:  # what it refers to is there, too
            return True
        spend(_PER_SCHEMA)
        found[place] = None
        if place.plain:
            return True
        for keyword in _REFERENCES:
            if keyword in place.schema:
                entered = self._referred(place, keyword)
                if dict(entered.entered).get(entered.pointer, 0) > self._max_depth:
                    if not wide:
                        return False
                elif not self._flatten_into(found, entered, wide):
                    return False
        return all(
            self._flatten_into(found, self.beside(place, "allOf", i), wide)
            for i in range(len(place.schema.get("allOf", ())))
        )

    def closure(self, places: Conjunction) -> Conjunction:
        """Return every schema that says something about the same value, in whatever sense.

        Order and repetition do not matter here, nor what becomes of the verdicts.
        """
        if places not in self._closures:
            found: dict[Place, None] = {}
            stack = [replace(p, asserted=False, plain=False, under=frozenset()) for p in places]
            while stack:
                place = stack.pop()
                if isinstance(place.schema, bool) or place in found:
                    continue
                if dict(place.entered).get(place.pointer, 0) > self._max_depth:
                    continue
                spend(_PER_SCHEMA)
                found[place] = None
                stack.extend(self._referred(place, k) for k in _REFERENCES if k in place.schema)
                stack.extend(
                    self._at(place, path, asserted=False) for path in _same_value(place.schema)
                )
                for keyword in CONSTANTS:
                    if has_containers(place.schema, keyword):
                        stack.extend(self.constants(place, keyword))
            self._closures[places] = tuple(sorted(found, key=lambda p: (p.pointer, p.entered)))
        return self._closures[places]

    def declares_members(self, places: Conjunction, inside: bool) -> bool:
        """Return whether these schemas of a value have `properties`, or some `inside` have."""
        if any("properties" in place.schema for place in self.closure(places)):
            return True
        stack = [place.pointer.partition(_MADE)[0] for place in places if inside]
        seen: set[str] = set()
        while stack:
            below = self._below.get(stack.pop(), set()) - seen
            if not below.isdisjoint(self._declaring):
                return True
            seen |= below
            stack.extend(below)
        return False

    def pattern(self, pattern: str, place: Place, keyword: str) -> Automaton:
        """Return the texts in which a pattern of this schema is found."""
        try:
            return search_language(pattern)
        except LimitError as error:
            if isinstance(error, StateLimitError):  # the work may be that of other parts
                error.blame(keyword, self.named(place.pointer))
            raise
        except ConstraintError as error:
            raise self.refuse(keyword, place, f"holds {pattern!r}: {error}") from error

    # -- references -------------------------------------------------------------------------

    def _referred(self, place: Place, keyword: str) -> Place:
        target = self._references.target(keyword, place.schema[keyword], place.pointer)
        return replace(
            self._enter(target, place.entered), asserted=place.asserted, under=_under(place)
        )

    def _enter(self, pointer: str, entered: tuple[tuple[str, int], ...]) -> Place:
        if pointer in self._cycle_of:
            counts = dict(entered)
            counts[pointer] = counts.get(pointer, 0) + 1
            entered = tuple(sorted(counts.items()))
        schema = self._read(pointer, self._references.lookup(pointer))
        return Place(pointer, self._kept(pointer, entered), schema)

    def _kept(
        self, pointer: str, entered: tuple[tuple[str, int], ...]
    ) -> tuple[tuple[str, int], ...]:
        """Only what matters below: schemas that can be entered again from here.

        They lead here, so they can be entered again if there is a way back: on a cycle with here.
        """
        if not entered:
            return entered
        cycle = self._cycle_of.get(pointer)
        return tuple((p, n) for p, n in entered if self._cycle_of[p] == cycle)

    # -- the check at the start -------------------------------------------------------------

    def _scan(self, root: Any) -> Iterator[IgnoredKeyword]:
        """Check all schemas that can be reached, note what they lead to; yield what is ignored."""
        stack: list[tuple[str, Any]] = [("", root)]
        same_value: dict[str, list[str]] = {}
        ignored: list[tuple[str, str, str]] = []
        targets: set[str] = set()
        while stack:
            pointer, raw = stack.pop()
            if pointer in self._below:
                continue
            schema = self._read(pointer, raw)
            below, same_value[pointer] = [], []
            if isinstance(schema, Schema):
                self._check(schema, pointer)
                self.upper_bounds += [
                    Caveat(schema.name_of(k), self.named(pointer), schema[k], horizon(schema[k]))
                    for k, horizon in HORIZONS.items()
                    if k in schema
                ]
                if VALIDATOR in schema:
                    name, where = schema[VALIDATOR], self.named(pointer)
                    self.validators.append(Caveat("validator", where, name, None))
                if "properties" in schema:
                    self._declaring.add(pointer)
                ignored += [(pointer, *entry) for entry in schema.ignored]
                below = [(pointer + path, sub) for path, sub in schema.schemas_inside()]
                same_value[pointer] = [pointer + schema.path(*path) for path in _same_value(schema)]
                for keyword in _REFERENCES:
                    if keyword in schema:
                        target = self._references.target(keyword, schema[keyword], pointer)
                        targets.add(target)
                        below.append((target, self._references.lookup(target)))
                        same_value[pointer].append(target)
            elif not isinstance(schema, bool):
                raise ConstraintError(
                    f"the schema {at(self.named(pointer))} must be an object or a boolean, "
                    f"got {shown(schema)}"
                )
            self._below[pointer] = {entry[0] for entry in below}
            stack.extend(below)
        self._refuse_empty_cycles(same_value)
        for pointer, keyword, reason in ignored:
            inside = f"{pointer}/{escape(keyword)}/"  # a place of schemas if references lead there
            if not any(target.startswith(inside) for target in targets):
                yield IgnoredKeyword(self.named(pointer), keyword, reason)

    def _check(self, schema: Schema, pointer: str) -> None:
        """Raise if something in this schema (not in those inside it) is an error."""
        for fault in schema.faults:
            if fault.refused:
                raise UnsupportedSchemaError(fault.keyword, self.named(pointer), fault.reason)
        malformed = [(fault.keyword, fault.reason) for fault in schema.faults]
        for keyword, reason in [*malformed, *check_rules(schema)]:
            raise ConstraintError(
                f"keyword {schema.name_of(keyword)!r} {at(self.named(pointer))} {reason}"
            )

    def _refuse_empty_cycles(self, same_value: dict[str, list[str]]) -> None:
        """A schema that leads back to itself without entering an object or array is an error.

        So is one that leads to too many others before it enters one.
        """
        done: dict[str, int] = {}  # how many schemas there are inside each other
        for group in components(same_value):  # what it leads to comes before a schema
            pointer = group[0]
            if len(group) > 1 or pointer in same_value[pointer]:
                first = next(each for each in same_value if each in group)
                raise ConstraintError(
                    f"the schema {at(self.named(first))} leads back to itself "
                    "without entering an object or array, so it says nothing"
                )
            done[pointer] = 1 + max((done[p] for p in same_value[pointer]), default=0)
            if done[pointer] > _MAX_BESIDE:
                raise ConstraintError(
                    f"the schema {at(self.named(pointer))} nests more than "
                    f"{_MAX_BESIDE} schemas of one value, references followed"
                )


@lru_cache(maxsize=4096)
def matches(pattern: str, text: str) -> bool:
    """Return whether a pattern is found in a text."""
    return search_language(pattern).accepts(text)


def _same_value(schema: Mapping[str, Any]) -> Iterable[tuple[str | int, ...]]:
    """Paths to the schemas inside this one that speak about the same value."""
    for keyword in _SAME_VALUE:
        if keyword in schema:
            inside = schema[keyword]
            if isinstance(inside, list):
                yield from ((keyword, i) for i in range(len(inside)))
            elif keyword == "dependentSchemas":
                yield from ((keyword, name) for name in inside)
            else:
                yield (keyword,)


def _under(place: Place) -> frozenset[str]:
    """What is around the schemas of the same value inside this one."""
    if isinstance(place.schema, Mapping) and any(k in place.schema for k in _UNEVALUATED):
        return place.under | {place.pointer}
    return place.under

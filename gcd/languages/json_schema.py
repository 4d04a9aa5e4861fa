"""JSON schemas (draft 2020-12) as byte languages: every text of every valid value, in one notation.

A schema is multiplied out into alternatives, each merged into one description of a value
(`gcd.languages.schema_document`, `schema_facets`); a description becomes a union over the kinds of
value, and arrays and objects are wired from the languages of their elements and members
(`gcd.languages.notation`). Each place of the schema is compiled once, however often it is used.

What is narrower than the standard, and stated here because nothing may be narrowed in silence:

* **Order.** Members come in the order in which they are declared: a schema's own `properties`,
  then those of its `$ref`, `allOf` and `anyOf`, then names that only `required` has, then
  undeclared ones. No declared name comes twice; an undeclared one may, which RFC 8259 permits.
* **Undeclared members** are left out where a schema has `properties` but no
  `additionalProperties`, as structured generation is commonly understood; write
  `additionalProperties`, or pass `additional_properties="open"`, for the standard's reading.
* **Numbers.** Integers have no fraction or exponent; numbers with a bound have no exponent;
  constants are written as `json.dumps` writes them, or as an integer if they are whole.
* **Keys and constants** have one spelling (`escapes="all"` for every one); the members of
  constant objects keep the order they have in the schema.
* **Depth.** Where the schema no longer says what a value is, arrays and objects nest at most
  `max_depth` deep; a schema that contains itself is entered at most `max_depth` times on a path.

By the standard, keywords for one kind of value say nothing about others, so
`{"properties": ...}` without `"type": "object"` also admits every number.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from functools import cached_property
from typing import Any

from gcd.automaton import Automaton
from gcd.errors import ConstraintError, EmptyLanguageError
from gcd.languages.json_values import json_notation
from gcd.languages.notation import (
    Member,
    Notation,
    any_object,
    any_value,
    array,
    mapping,
)
from gcd.languages.numbers import integers, numbers
from gcd.languages.schema_document import Conjunction, Document
from gcd.languages.schema_facets import Facets, admission, kind_of, merge

_MAX_DEPTH = 32


def json_schema(
    schema: Any,
    *,
    whitespace: str = "compact",
    max_depth: int = 3,
    escapes: str = "canonical",
    additional_properties: str = "closed",
) -> Automaton:
    """All JSON texts that satisfy a schema, within the limits that the module's docstring states.

    Args:
        schema: a JSON schema, draft 2020-12, as parsed JSON: a mapping or a boolean.
        whitespace: "compact" `{"a":1}`, "spaced" `{"a": 1}` as `json.dumps` writes it, or
            "flexible", any whitespace that RFC 8259 permits.
        max_depth: nesting of values the schema leaves free, and of recursive schemas.
        escapes: spelling of keys and constants, "canonical" (as `json.dumps`) or "all".
        additional_properties: whether undeclared members are left out ("closed") where a schema
            has `properties` and no `additionalProperties`.

    Raises:
        UnsupportedSchemaError: for a keyword that is not honoured, with its JSON pointer.
        ConstraintError: for a malformed schema or option, or a `$ref` that cannot be followed.
        EmptyLanguageError: if no value satisfies the schema.
        StateLimitError: if the automaton has more states than `gcd.state_limit` allows.
    """
    notation = json_notation(whitespace, escapes)
    check_depth(max_depth)
    if additional_properties not in ("closed", "open"):
        raise ConstraintError(
            f'additional_properties must be "closed" or "open", got {additional_properties!r}'
        )
    document = Document(schema, max_depth=max_depth)
    values = SchemaLanguages(
        document, notation, max_depth=max_depth, closed=additional_properties == "closed"
    )
    language = values.language(document.root())
    if language.is_empty:
        raise EmptyLanguageError(f"no value satisfies the schema{document.depth_hint}")
    return Automaton.concatenate([notation.gap, language, notation.gap])


def check_depth(max_depth: object) -> None:
    """`ConstraintError` unless `max_depth` is usable."""
    whole = isinstance(max_depth, int) and not isinstance(max_depth, bool)
    if not whole or max_depth not in range(_MAX_DEPTH + 1):
        raise ConstraintError(
            f"max_depth must be a whole number in 0..{_MAX_DEPTH}, got {max_depth!r}"
        )


class SchemaLanguages:
    """The languages of a document's schemas in one notation, each built once.

    Args:
        document: the schemas.
        notation: how values are written.
        max_depth: nesting of values that the schema leaves free.
        closed: whether undeclared members are left out by default.
    """

    def __init__(
        self, document: Document, notation: Notation, *, max_depth: int, closed: bool
    ) -> None:
        self.document = document
        self.notation = notation
        self._max_depth = max_depth
        self._closed = closed
        self._known: dict[Conjunction, Automaton] = {}

    def language(self, places: Conjunction) -> Automaton:
        """Texts of the values that satisfy all these schemas."""
        if places not in self._known:
            parts = [p for a in self.document.alternatives(places) for p in self._parts(a)]
            # Alternatives often agree on most kinds of value; each language counts once.
            self._known[places] = Automaton.union(list(dict.fromkeys(parts)))
        return self._known[places]

    def alternatives(self, places: Conjunction) -> list[Facets]:
        """What a value that satisfies all these schemas may look like, one by one."""
        return [
            merge(self.document, choice, closed=self._closed)
            for choice in self.document.alternatives(places)
        ]

    @cached_property
    def _hashable(self) -> SchemaLanguages:
        """The same schemas, as far as their values may be elements of a set."""
        assert self.notation.hashable is not None
        return SchemaLanguages(
            self.document, self.notation.hashable, max_depth=self._max_depth, closed=self._closed
        )

    def _parts(self, places: Conjunction) -> list[Automaton]:
        """Languages whose union is that of one alternative."""
        if not places:
            return [any_value(self.notation, self._max_depth)]
        facets = merge(self.document, places, closed=self._closed)
        if facets.constants is not None:
            is_valid = admission(self.document, places)
            return [constants(self.notation, filter(is_valid, facets.constants.values()))]
        return [self._of_kind(kind, facets) for kind in sorted(_distinct(facets.kinds))]

    def _of_kind(self, kind: str, facets: Facets) -> Automaton:
        notation = self.notation
        match kind:
            case "null":
                return notation.null
            case "boolean":
                return notation.true | notation.false
            case "integer":
                return integers(facets.lower, facets.upper)
            case "number":
                return numbers(facets.lower, facets.upper)
            case "string":
                shortest, longest = facets.length
                if longest is not None and longest < shortest:
                    return Automaton.empty()
                return notation.string(shortest, longest)
            case "array":
                return self._array(facets)
            case _:
                return self._object(facets)

    def _array(self, facets: Facets) -> Automaton:
        fewest, most = facets.size
        head = facets.head if most is None else facets.head[:most]
        parts = []
        for brackets in self.notation.containers[facets.container]:
            values = self._hashable if brackets.of_hashable else self
            parts.append(
                array(
                    self.notation,
                    values.language(facets.items),
                    head=[values.language(places) for places in head],
                    minimum=fewest,
                    maximum=most,
                    brackets=[brackets],
                )
            )
        return Automaton.union(parts)

    def _object(self, facets: Facets) -> Automaton:
        notation = self.notation
        members = [
            Member(notation.spell(p.name), self.language(p.places), p.required)
            for p in facets.properties
        ]
        if facets.extra is None:
            return mapping(notation, members)
        value = self.language(facets.extra)
        if not members:
            return any_object(notation, value)
        declared = Automaton.union([notation.spell_all(p.name) for p in facets.properties])
        other = notation.string(0, None) - declared
        return mapping(notation, members, Member(other, value, False))


def constants(notation: Notation, values: Iterable[Any]) -> Automaton:
    """The texts of these values; strings and numbers all at once, as there may be thousands."""
    parts: list[Automaton] = []
    texts: list[str] = []
    numerals: set[str] = set()
    for value in values:
        match kind_of(value):
            case "null":
                parts.append(notation.null)
            case "boolean":
                parts.append(notation.true if value else notation.false)
            case "integer":
                numerals |= {json.dumps(value), str(int(value))}
            case "number":
                numerals.add(json.dumps(value))
            case "string":
                texts.append(value)
            case "array":
                items = [constants(notation, [item]) for item in value]
                parts.append(array(notation, Automaton.empty(), head=items, minimum=len(items)))
            case _:
                members = [
                    Member(notation.spell(name), constants(notation, [item]), True)
                    for name, item in value.items()
                ]
                parts.append(mapping(notation, members))
    return Automaton.union([Automaton.from_strings(numerals), notation.choice(texts), *parts])


def _distinct(kinds: frozenset[str]) -> frozenset[str]:
    """Numbers include the integers."""
    return kinds - {"integer"} if "number" in kinds else kinds

"""Undeclared members of objects: disjoint languages of their keys, and their values."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any

from gcd._automata.automaton import Automaton
from gcd._errors import StateLimitError, UnsupportedSchemaError
from gcd._languages.json_schema.document import Conjunction, Document, Place
from gcd._languages.json_schema.facets import Facets
from gcd._languages.json_schema.scalars import IN_PYTHON_STYLE
from gcd._languages.values.names import can_tell, checksums, enough_names
from gcd._languages.values.notation import Notation
from gcd._languages.values.objects import Frame, Member


def undeclared_members(
    document: Document,
    notation: Notation,
    facets: Facets,
    names: Automaton | None,
    values: Callable[[Conjunction], Automaton],
    frame: Frame,
) -> list[Member]:
    """Return the undeclared members that the description of an object allows.

    Args:
        document, notation, facets: the schemas, the notation of values, and the object.
        names: possible keys, quotes included; None for any.
        values: function from schemas to the language of values that satisfy them.
        frame: delimiters around the members.
    """
    found = []
    for matched, places in facets.others:
        value = values(places)
        if value.is_empty:
            continue
        key = _undeclared(notation, facets)
        for pattern, place in facets.patterns_of_names:
            quoted = _quoted(document, notation, pattern, place)
            key = key & quoted if pattern in matched else key - quoted
        if names is not None:
            key = key & names
        if key.is_empty:
            continue
        if frame.is_bare is not None:
            raise UnsupportedSchemaError(
                "additionalProperties",
                document.named(""),
                "leaves the names of arguments open, which is not supported in Python style; "
                'declare them in "properties", or use style="json"',
            )
        found.append(Member(key, value, False))
    return found


def with_enough_names(
    found: Automaton,
    notation: Notation,
    facets: Facets,
    members: Sequence[Member],
    extras: Sequence[Member],
    names: Sequence[Any] | None,
) -> Automaton | None:
    """Return the objects of a language with enough different names; None if too many are required.

    Args:
        found: the objects with enough members, in which undeclared ones may occur twice.
        notation, facets: the notation of values, and the object.
        members, extras: the declared and undeclared members.
        names: the names that all members have, if these are few; None otherwise.
    """
    fewest = facets.count[0]
    if fewest < 2 or fewest <= sum(member.required for member in members) or not extras:
        return found
    if names is not None and can_tell(fewest, len(names)):
        classes = [notation.spell_all(name) for name in names]
    # Higher counts take tens of thousands of states.
    elif notation.quoted is not None and fewest == 2:
        classes = [notation.quoted(each) for each in checksums()]
    else:
        return None
    with suppress(StateLimitError):
        return found & enough_names(notation, members, extras, fewest, classes)
    return None


def _undeclared(notation: Notation, facets: Facets) -> Automaton:
    every = notation.string(0, None)
    if not facets.properties:
        return every
    return every - notation.every_spelling([p.name for p in facets.properties])


def _quoted(document: Document, notation: Notation, pattern: str, place: Place) -> Automaton:
    if notation.quoted is None:
        raise document.refuse("patternProperties", place, f"is not {IN_PYTHON_STYLE}")
    return notation.quoted(document.pattern(pattern, place, "patternProperties"))

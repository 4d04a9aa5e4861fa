"""Undeclared members of objects: languages of their keys, which do not overlap, and of values."""

from __future__ import annotations

from collections.abc import Callable

from gcd.automata.automaton import Automaton
from gcd.errors import UnsupportedSchemaError
from gcd.languages.json_schema.document import Conjunction, Document, Place
from gcd.languages.json_schema.facets import Facets
from gcd.languages.json_schema.scalars import IN_PYTHON_STYLE
from gcd.languages.values.notation import Notation
from gcd.languages.values.objects import Frame, Member


def undeclared_members(
    document: Document,
    notation: Notation,
    facets: Facets,
    names: Automaton | None,
    values: Callable[[Conjunction], Automaton],
    frame: Frame,
) -> list[Member]:
    """Return the undeclared members that the description of an object lets in.

    Args:
        names: what keys may be, quotes included; None for anything.
        values: schemas -> the language of values that satisfy them.
        frame: what stands around the members.
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


def _undeclared(notation: Notation, facets: Facets) -> Automaton:
    every = notation.string(0, None)
    if not facets.properties:
        return every
    return every - notation.every_spelling([p.name for p in facets.properties])


def _quoted(document: Document, notation: Notation, pattern: str, place: Place) -> Automaton:
    if notation.quoted is None:
        raise document.refuse("patternProperties", place, f"is not {IN_PYTHON_STYLE}")
    return notation.quoted(document.pattern(pattern, place, "patternProperties"))

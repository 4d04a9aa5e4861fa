"""Undeclared members of objects: languages of their names and of their values."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any

from gcd._automata.automaton import Automaton
from gcd._errors import StateLimitError, UnsupportedSchemaError
from gcd._languages.json_schema.document import Conjunction, Document, Node
from gcd._languages.json_schema.facets import Facets
from gcd._languages.values.names import can_tell, checksums, enough_names
from gcd._languages.values.notation import Notation
from gcd._languages.values.objects import Frame, Member


def build_undeclared(
    document: Document,
    notation: Notation,
    facets: Facets,
    names: Automaton | None,
    values: Callable[[Conjunction], Automaton],
    frame: Frame,
    *,
    wide: bool,
) -> list[Member]:
    """Return the undeclared members that the description of an object allows.

    The languages of their names are disjoint.

    Args:
        document: the document of the schemas.
        notation: the notation of values.
        facets: the description of the object.
        names: the language of possible names, including quotes; None if any name is possible.
        values: function from schemas to the language of the values that satisfy them.
        frame: delimiters around the members.
        wide: whether names that match a pattern have every spelling.
    """
    found = []
    for matched, nodes in facets.others:
        value = values(nodes)
        if value.is_empty:
            continue
        key = _exclude_declared(notation, facets)
        for pattern, node in facets.patterns_of_names:
            is_in = pattern in matched
            every = wide or not is_in
            quoted = _quote_pattern(document, notation, pattern, node, every=every)
            key = key & quoted if is_in else key - quoted
        if names is not None:
            key = key & names
        if key.is_empty:
            continue
        if frame.is_bare is not None:
            raise UnsupportedSchemaError(
                "additionalProperties",
                document.rebase(""),
                "in Python style, all arguments must be declared; declare them in "
                '"properties", or use style="json"',
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
    """Restrict a language to objects with enough different names.

    Return None if this takes too many states.

    Args:
        found: objects with enough members, in which an undeclared name may occur twice.
        notation: the notation of values.
        facets: the description of the object.
        members, extras: the declared and the undeclared members.
        names: the only possible names, if there are few; otherwise None.
    """
    fewest = facets.count[0]
    if fewest < 2 or fewest <= sum(member.required for member in members) or not extras:
        return found
    if names is not None and can_tell(fewest, len(names)):
        classes = [notation.spell_all(name) for name in names]
    # Higher counts take tens of thousands of states.
    elif notation.quoted_all is not None and fewest == 2:
        classes = [notation.quoted_all(each) for each in checksums()]
    else:
        return None
    with suppress(StateLimitError):
        return found & enough_names(notation, members, extras, fewest, classes)
    return None


def _exclude_declared(notation: Notation, facets: Facets) -> Automaton:
    every = notation.string(0, None)
    if not facets.properties:
        return every
    return every - notation.every_spelling([p.name for p in facets.properties])


def _quote_pattern(
    document: Document, notation: Notation, pattern: str, node: Node, *, every: bool
) -> Automaton:
    quote = notation.quoted_all if every else notation.quoted
    if quote is None:
        raise document.refuse(
            "patternProperties",
            node,
            'style="python" has no patterns of names; declare the names, or use style="json"',
        )
    return quote(document.pattern(pattern, node, "patternProperties"))

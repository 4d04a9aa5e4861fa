"""Scalars of a schema's `const` and `enum`, as they are written."""

from __future__ import annotations

import json
from collections.abc import Iterable
from decimal import Decimal
from fractions import Fraction

from gcd.automaton import Automaton
from gcd.languages.notation import Notation
from gcd.languages.numbers import Bound, with_exponent
from gcd.languages.schema_constants import exact, kind_of
from gcd.languages.schema_facets import Facets


def constants(notation: Notation, values: Iterable[object], *, wide: bool) -> Automaton:
    """The texts of these scalars, built all at once, as there may be thousands.

    If `wide`, in every spelling, and every number with an exponent beside the numbers.
    """
    parts: list[Automaton] = []
    texts: list[str] = []
    numerals: set[str] = set()
    for value in values:
        match value:
            case None:
                parts.append(notation.null)
            case bool():
                parts.append(notation.true if value else notation.false)
            case str():
                texts.append(value)
            case int() | float() if wide:
                numerals.add(_digits(exact(value)))
            case int() | float():
                numerals.add(json.dumps(value))
                if kind_of(value) == "integer":
                    numerals.add(_digits(exact(value)))
    strings = notation.every_spelling(texts) if wide else notation.choice(texts)
    written = Automaton.from_strings(numerals)
    if wide and numerals:
        whole = Automaton.from_strings(text for text in numerals if "." not in text)
        broken = Automaton.from_strings(text for text in numerals if "." in text)
        zeros = Automaton.literal("0")
        more = (Automaton.literal(".") + zeros.repeat(1)).optional()
        written = (whole + more) | (broken + zeros.star()) | with_exponent()
        if "0" in numerals:
            written |= Automaton.literal("-0") + more
    return Automaton.union([written, strings, *parts])


def _digits(number: Decimal) -> str:
    """A number without an exponent and without zeros at the end of its fraction."""
    text = format(number, "f")
    text = text.rstrip("0").rstrip(".") if "." in text else text
    return "0" if text == "-0" else text


def fitting(value: object, facets: Facets, content: Automaton | None) -> bool:
    """Whether a scalar is as described, by the standard's own definition.

    `content` is what may stand in a string, if a pattern or a format says so.
    """
    kind = kind_of(value)
    if kind not in facets.kinds:
        return False
    if isinstance(value, str):
        shortest, longest = facets.length
        within = shortest <= len(value) and (longest is None or len(value) <= longest)
        return within and (content is None or content.accepts(value))
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        number = exact(value)
        return (
            (facets.lower is None or _above(number, facets.lower))
            and (facets.upper is None or _below(number, facets.upper))
            and all((Fraction(number) / Fraction(d)).denominator == 1 for d in facets.divisors)
        )
    return True


def _above(number: Decimal, bound: Bound) -> bool:
    return number > bound.value or (number == bound.value and not bound.strict)


def _below(number: Decimal, bound: Bound) -> bool:
    return number < bound.value or (number == bound.value and not bound.strict)

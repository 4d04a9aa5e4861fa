"""Languages of numbers, strings and constants, from the description of a value.

The argument `wide` selects the wide language (`gcd._languages.json_schema.languages`), which has
every spelling of a value, and all numbers with an exponent.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from decimal import Decimal
from fractions import Fraction
from functools import reduce
from operator import and_

from gcd._automata.automaton import Automaton
from gcd._languages.json_schema.constants import exact, kind_of
from gcd._languages.json_schema.document import Document
from gcd._languages.json_schema.facets import Facets
from gcd._languages.text.code_points import texts
from gcd._languages.text.dialects import is_written
from gcd._languages.text.formats import text_format
from gcd._languages.values.notation import Notation
from gcd._languages.values.numbers import (
    Bound,
    decimals,
    integers,
    multiples,
    numbers,
    whole_numbers,
    with_exponent,
)


def numerals(kind: str, facets: Facets, *, wide: bool) -> Automaton:
    """Return the numbers of a JSON type, "number" or "integer", that `facets` describes."""
    lower, upper = facets.lower, facets.upper
    if kind == "number" and not facets.divisors:
        return numbers(lower, upper, wide=wide)
    if kind == "integer" and not wide:
        found = integers(lower, upper)
    else:
        found = decimals(lower, upper, wide=wide)
    for divisor in facets.divisors:
        found &= multiples(divisor)
    if not wide:
        return found
    if kind == "integer":
        found &= whole_numbers()
    return found | with_exponent()


def strings(document: Document, notation: Notation, facets: Facets, *, wide: bool) -> Automaton:
    """Return the JSON strings, with their quotes, that `facets` describes."""
    shortest, longest = facets.length
    if longest is not None and longest < shortest:
        return Automaton.empty()
    if not facets.patterns and not facets.formats:
        return notation.string(shortest, longest)
    quote = notation.quoted_all if wide else notation.quoted
    if quote is None:
        said = facets.patterns or facets.formats
        keyword, (value, node) = "pattern" if facets.patterns else "format", said[0]
        option = "" if facets.patterns else ', or formats="ignore"'
        style = f'Python style cannot express it; remove it, or use style="json"{option}'
        raise document.refuse(keyword if is_written(value) else "", node, style)
    language = content(document, facets, wide=wide)
    return quote(language)


def content(document: Document, facets: Facets, *, wide: bool) -> Automaton:
    """Return the texts of the strings that `facets` describes, without quotes and escapes."""
    parts = [texts(*facets.length)]
    for name, _ in facets.formats:
        language = text_format(name, widest=wide)
        assert language is not None, "formats are checked with the document"
        parts.append(language)
    parts += [document.pattern(pattern, node, "pattern") for pattern, node in facets.patterns]
    return reduce(and_, parts)


def constants(notation: Notation, values: Iterable[object], *, wide: bool) -> Automaton:
    """Return the texts of scalars; if `wide`, in every spelling, with all exponents."""
    parts: list[Automaton] = []
    strings: list[str] = []
    digits: set[str] = set()
    for value in values:
        match value:
            case None:
                parts.append(notation.null)
            case bool():
                parts.append(notation.true if value else notation.false)
            case str():
                strings.append(value)
            case int() | float() if wide:
                digits.add(_digits(exact(value)))
            case int() | float():
                digits.add(json.dumps(value))
                if kind_of(value) == "integer":
                    digits.add(_digits(exact(value)))
    spelled = notation.every_spelling(strings) if wide else notation.choice(strings)
    written = Automaton.from_strings(digits)
    if wide and digits:
        whole = Automaton.from_strings(text for text in digits if "." not in text)
        broken = Automaton.from_strings(text for text in digits if "." in text)
        zeros = Automaton.literal("0")
        more = (Automaton.literal(".") + zeros.repeat(1)).optional()
        written = (whole + more) | (broken + zeros.star()) | with_exponent()
        if "0" in digits:
            written |= Automaton.literal("-0") + more
    return Automaton.union([written, spelled, *parts])


def _digits(number: Decimal) -> str:
    """Format a number without an exponent, and without trailing zeros in its fraction."""
    text = format(number, "f")
    text = text.rstrip("0").rstrip(".") if "." in text else text
    return "0" if text == "-0" else text


def fitting_constants(document: Document, facets: Facets) -> list[object]:
    """Return the constants in `facets` that fit all other attributes of `facets`."""
    values = list((facets.constants or {}).values())
    said = facets.patterns or facets.formats
    language = content(document, facets, wide=False) if said else None
    return [value for value in values if fitting(value, facets, language)]


def fitting(value: object, facets: Facets, said: Automaton | None) -> bool:
    """Return whether a scalar fits; strings must be in `said`, if it is given."""
    kind = kind_of(value)
    if kind not in facets.kinds:
        return False
    if isinstance(value, str):
        shortest, longest = facets.length
        within = shortest <= len(value) and (longest is None or len(value) <= longest)
        return within and (said is None or said.accepts(value))
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

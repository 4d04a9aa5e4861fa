"""JSON schemas of the strings, dates and numbers that pydantic parses into Python values."""

from __future__ import annotations

import datetime
from collections.abc import Callable, Mapping, Sequence
from decimal import Decimal
from enum import Enum
from functools import partial
from typing import Any

from gcd._automata.automaton import Automaton
from gcd._languages.text import class_texts
from gcd._languages.text.dialects import TextPattern, refuse
from gcd._languages.values.multiples import multiples
from gcd._languages.values.numbers import Bound, decimals, integers

# pydantic's name of each bound -> JSON Schema's name.
FACETS = {
    "gt": "exclusiveMinimum",
    "ge": "minimum",
    "lt": "exclusiveMaximum",
    "le": "maximum",
    "multiple_of": "multipleOf",
}
BOUNDS = ("gt", "ge", "lt", "le")
NO_FILES = "depends on the file system; use str or Path"
_LARGEST = 10**300  # about the largest float; larger numbers become infinite
_EXACT_DIGITS = 15  # decimal digits that a float represents exactly


def texts(name: str, build: Callable[..., Automaton], *args: Any, **options: Any) -> dict[str, Any]:
    """Return a JSON schema of the strings in the language `build(*args, **options)`.

    Messages describe these strings by `name` and the arguments.
    """
    shown = ", ".join([*map(str, args), *(f"{k}={v}" for k, v in options.items())])
    label = f"{name}({shown})" if shown else name
    return {
        "type": "string",
        "pattern": TextPattern(label, "texts", partial(build, *args, **options)),
    }


def refusal(name: str, reason: str) -> dict[str, Any]:
    """Return a schema that raises an error with its JSON pointer wherever it is used.

    Args:
        name: what is refused, such as "a time".
        reason: the rest of the sentence, such as "with bounds is not supported; remove the bounds".
    """
    return {"type": "string", "pattern": refuse(name, reason)}


def refuse_constants(values: Sequence[Any], *, of_enum: bool) -> dict[str, Any] | None:
    """Return a refusal of constants that pydantic doesn't parse from JSON; None for all others.

    pydantic parses members of a plain `Enum` class from their values, but not the members that a
    `Literal` lists.
    """
    for value in values:
        is_plain = isinstance(value, Enum) and not isinstance(value, str | int | float)
        plain = value.value if is_plain and of_enum else value
        if not isinstance(plain, str | int | float | None):
            kind = type(plain).__name__
            return refusal(
                f"constants of type {kind}", "cannot be parsed from JSON; use str or int"
            )
    return None


def timezone(schema: Mapping[str, Any]) -> str:
    """Return whether times have a UTC offset: "none", "free" (may have one) or "needed"."""
    constraint = schema.get("tz_constraint")
    return {"naive": "none", None: "free"}.get(constraint, "needed")


def dates(schema: Mapping[str, Any]) -> dict[str, Any]:
    """Return the JSON schema for pydantic's core schema of a date."""
    if schema.get("now_op") == "future":
        return refusal("a date in the future", "depends on the clock; use a plain date")
    first, last = None, None
    if schema.get("now_op") == "past":  # two days ago is in the past in every time zone
        last = datetime.date.today() - datetime.timedelta(days=2)
    day = datetime.timedelta(days=1)
    lows = [b for b in (schema.get("ge"), schema.get("gt") and schema["gt"] + day) if b]
    highs = [b for b in (schema.get("le"), schema.get("lt") and schema["lt"] - day, last) if b]
    first, last = max(lows, default=None), min(highs, default=None)
    return texts("date", class_texts.dates, first, last)


def datetimes(schema: Mapping[str, Any]) -> dict[str, Any]:
    """Return the JSON schema for pydantic's core schema of a datetime."""
    if any(schema.get(bound) is not None for bound in BOUNDS):
        return refusal("a datetime", "with bounds is not supported; remove the bounds")
    if schema.get("now_op") == "future":
        return refusal("a datetime in the future", "depends on the clock; use AwareDatetime")
    if isinstance(schema.get("tz_constraint"), int):
        return refusal("a datetime", "with a single offset is not supported; use AwareDatetime")
    last = None
    if schema.get("now_op") == "past":
        last = datetime.date.today() - datetime.timedelta(days=2)
    return texts("datetime", class_texts.datetimes, timezone(schema), last)


def finite(found: dict[str, Any]) -> dict[str, Any]:
    """Add bounds to a schema of numbers, so that the numbers are finite as floats; return it."""
    if not found.keys() & {"minimum", "exclusiveMinimum"}:
        found["minimum"] = -_LARGEST
    if not found.keys() & {"maximum", "exclusiveMaximum"}:
        found["maximum"] = _LARGEST
    return found


def facets(schema: Mapping[str, Any]) -> dict[str, Any]:
    """Return the bounds in a core schema under JSON Schema's names."""
    return {FACETS[k]: _number(schema[k]) for k in FACETS if schema.get(k) is not None}


def decimal_numbers(schema: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return JSON schemas whose union is the numbers that a `Decimal` accepts."""
    plain: dict[str, Any] = {"type": "number", **facets(schema)}
    digits, places = schema.get("max_digits"), schema.get("decimal_places")
    if digits is None and places is None:
        return [finite(plain)]
    most = min(_EXACT_DIGITS if digits is None else digits, _EXACT_DIGITS)
    found = []
    for behind in range(min(most, most if places is None else places) + 1):
        whole = min(most - behind, most if digits is None or places is None else digits - places)
        step = {"multipleOf": _number(f"1e-{behind}"), "type": "number"}
        limit = 10 ** max(whole, 0)
        found.append({"allOf": [finite(dict(plain)), step], "type": "number",
                      "exclusiveMinimum": -limit, "exclusiveMaximum": limit})  # fmt: skip
    return found


def _number(value: Any) -> int | float:
    number = float(value)
    return int(number) if number.is_integer() else number


def decimal_text(schema: Mapping[str, Any]) -> dict[str, Any]:
    """Return the JSON schema of the strings that a `Decimal` accepts."""
    options = {k: schema[k] for k in FACETS if schema.get(k) is not None}
    digits, places = schema.get("max_digits"), schema.get("decimal_places")
    return texts("decimal", _decimals_between, digits=digits, places=places, **options)


def _decimals_between(
    digits: int | None, places: int | None, multiple_of: Any = None, **bounds: Any
) -> Automaton:
    whole = None if digits is None or places is None else max(digits - places, 0)
    found = class_texts.decimals(whole, places, digits)
    found &= decimals(*_bounds(bounds), wide=True)
    return found if multiple_of is None else found & multiples(_exact(multiple_of))


def _exact(value: Any) -> Decimal:
    return value if isinstance(value, Decimal) else Decimal(str(value))


def _bounds(given: Mapping[str, Any]) -> tuple[Bound | None, Bound | None]:
    lows = [Bound(_exact(given[k]), k == "gt") for k in ("gt", "ge") if given.get(k) is not None]
    highs = [Bound(_exact(given[k]), k == "lt") for k in ("lt", "le") if given.get(k) is not None]
    return (
        max(lows, key=lambda b: (b.value, b.strict), default=None),
        min(highs, key=lambda b: (b.value, not b.strict), default=None),
    )


def number_bounds(schema: Mapping[str, Any]) -> dict[str, Any]:
    """Return the bounds in a JSON schema under pydantic's names."""
    return {short: schema[name] for short, name in FACETS.items() if name in schema}


def numerals(kind: str, multiple_of: Any = None, **bounds: Any) -> Automaton:
    """Return the language of numbers of a JSON type, "integer" or "number", within bounds."""
    found = (integers if kind == "integer" else decimals)(*_bounds(bounds))
    return found if multiple_of is None else found & multiples(_exact(multiple_of))

"""Enumeration of the values of elements or names that must be distinct, if there are few."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from math import comb
from typing import Any, NamedTuple

from gcd._automata.automaton import Automaton
from gcd._automata.limits import max_states
from gcd._languages.json_schema.constants import few_values

# For each keyword that requires distinct elements or names, why it may not be enforceable, for the
# error message.
UNENFORCEABLE = {
    "uniqueItems": (
        "it can only be enforced for elements with few possible values, such as an enum of a dozen "
        "values, or with a small `maxItems`; remove it (for a pydantic set, use a list) and "
        "validate the finished text; outside of `not`, `oneOf` and `if`, "
        'unsupported="warn" skips it with a warning'
    ),
    "minProperties": (
        "it requires more undeclared names than an automaton can count; declare the names, or "
        'lower the minimum; outside of `not`, `oneOf` and `if`, unsupported="warn" skips it with a '
        "warning"
    ),
}
_MAX_VALUES = 1_000  # maximum number of values of an element


class Choices(NamedTuple):
    """Possible values of array elements that must be distinct.

    Attributes:
        elements: a mapping from JSON texts to values for each of the first elements; the last
            mapping is for all further elements.
        number: a number for each JSON text.
        length: maximum number of elements of an array.
        steps: number of transitions of the automaton whose states are the sets of used values.
    """

    elements: list[dict[str, Any]]
    number: dict[str, int]
    length: int
    steps: int


def choices_of(languages: Sequence[Callable[[], Automaton]], longest: int | None) -> Choices | None:
    """Return the possible values of elements; None if there are too many to track used values.

    Args:
        languages: functions that build the language of JSON texts of each of the first elements,
            and one for all further elements. A language is built only if all languages before it
            were small.
        longest: maximum number of elements of an array; None if there is no limit.
    """
    found = []
    number: dict[str, int] = {}
    length, steps = 0, 0
    for language in languages:
        values = few_values(language(), _MAX_VALUES)
        if values is None:
            return None
        found.append({json.dumps(value, sort_keys=True): value for value in values})
        for text in found[-1]:
            number.setdefault(text, len(number))
        length = len(number) if longest is None else min(longest, len(number))
        steps = 0
        for taken in range(length):  # after the last element, no value needs to be tracked
            ways = comb(len(number), taken)
            steps += ways if taken == length - 1 else ways * (len(number) - taken)
            if steps > max_states():
                return None
    return Choices(found, number, length, steps)

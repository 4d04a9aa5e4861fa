"""Arrays with distinct elements, enumerated over the elements' values if these are few."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from math import comb
from typing import Any, NamedTuple

from gcd._automata.automaton import Automaton
from gcd._automata.limits import max_states
from gcd._languages.json_schema.constants import few_values

# Reasons why a keyword that requires distinct elements or names cannot be enforced.
NOT_HELD = {
    "uniqueItems": (
        "needs elements of few different values, such as those of an enum of a dozen, or a small "
        "`maxItems`; remove it (for a pydantic set, use a list) and validate afterwards; "
        "outside of "
        '`not`, `oneOf` and `if`, unsupported="warn" skips it with a warning'
    ),
    "minProperties": (
        "asks for more different undeclared names than can be told apart; declare them, or lower "
        'it; outside of `not`, `oneOf` and `if`, unsupported="warn" skips it with a warning'
    ),
}
_MAX_VALUES = 1_000  # enumerated at most


class Choices(NamedTuple):
    """Values of elements that must be distinct.

    Attributes:
        elements: for each of the first elements, and for every further one, the JSON texts of its
            possible values.
        number: number of each text.
        length: most elements of an array.
        steps: total number of transitions out of all sets of used values.
    """

    elements: list[dict[str, Any]]
    number: dict[str, int]
    length: int
    steps: int


def choices_of(languages: Sequence[Callable[[], Automaton]], longest: int | None) -> Choices | None:
    """Return the values of elements, or None if there are too many to track which were used.

    Args:
        languages: JSON texts of each of the first elements, and of every further one. A language is
            built only after all languages before it turned out to be small.
        longest: most elements of an array; None for any number.
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
        for taken in range(length):  # all values of the last element lead to the same state
            ways = comb(len(number), taken)
            steps += ways if taken == length - 1 else ways * (len(number) - taken)
            if steps > max_states():
                return None
    return Choices(found, number, length, steps)

"""Elements that must differ: the few values that they have, as far as these can be counted out."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from math import comb
from typing import Any, NamedTuple

from gcd.automata.automaton import Automaton
from gcd.automata.limits import max_states
from gcd.languages.json_schema.constants import few_values

# Why a keyword that asks for different elements or names cannot be held.
NOT_HELD = {
    "uniqueItems": (
        "needs elements of few different values, such as those of an enum of a dozen, or a small "
        "`maxItems`; remove it (of a pydantic set, make a list), and check afterwards; outside of "
        '`not`, `oneOf` and `if`, unsupported="warn" leaves it to a check'
    ),
    "minProperties": (
        "asks for more different undeclared names than can be told apart; declare them, or lower "
        'it; outside of `not`, `oneOf` and `if`, unsupported="warn" leaves it to a check'
    ),
}
_MAX_VALUES = 1_000  # that are listed


class Choices(NamedTuple):
    """The values of elements that must differ.

    Attributes:
        elements: for each of the first elements, and for every further one, the values that it may
            have, by their JSON texts.
        number: number of each text.
        length: most elements of an array.
        steps: how many ways there are to go on from a set of values, sets taken together.
    """

    elements: list[dict[str, Any]]
    number: dict[str, int]
    length: int
    steps: int


def choices_of(languages: Sequence[Callable[[], Automaton]], longest: int | None) -> Choices | None:
    """Return the values of elements, None if there are too many to remember which were taken.

    Args:
        languages: JSON texts of each of the first elements, and of every further one; nothing is
            built until all before it are known to be few.
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
        for taken in range(length):  # the last element leads to one place, whichever it is
            ways = comb(len(number), taken)
            steps += ways if taken == length - 1 else ways * (len(number) - taken)
            if steps > max_states():
                return None
    return Choices(found, number, length, steps)

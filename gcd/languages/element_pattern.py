"""This module compiles patterns that are lists of elements, a small notation for first examples.

    pattern([("UPPER", "+"), (":", 1), (" ", 1), ("LOWER", "+"), ("\\n", 1)])

is the language of the regular expression `[A-Z]+: [a-z]+\\n`. An element is the name of a class of
characters, or one character, with how often it occurs: `1` is exactly once, `"+"` once or more
often. Whatever needs more than that needs `gcd.regex`. (The keyword `pattern` of JSON Schema is
something else: `gcd.languages.text.ecma_syntax`.)
"""

from __future__ import annotations

import string
from collections.abc import Mapping, Sequence
from typing import Any

from gcd.automata.automaton import Automaton
from gcd.errors import ConstraintError, check_kind
from gcd.languages.literal import choice

ASCII_CLASSES: Mapping[str, str] = {
    "UPPER": string.ascii_uppercase,
    "LOWER": string.ascii_lowercase,
    "LETTER": string.ascii_letters,
    "DIGIT": string.digits,
    "ALNUM": string.ascii_letters + string.digits,
}

_COUNTS = (1, "1", "+")


def pattern(
    elements: Sequence[Any],
    classes: Mapping[str, Any] = ASCII_CLASSES,
) -> Automaton:
    """Return the language of the texts that consist of these elements in this order.

    Args:
        elements: pairs (name of a class or one character, `1` or `"+"`). A name of one letter that
            is in `classes` means the class, not the letter.
        classes: name of each class -> its characters, as a string or a list; by default the ASCII
            ones, `UPPER`, `LOWER`, `LETTER`, `DIGIT` and `ALNUM`.

    Raises:
        ConstraintError: for an element that is no such pair, for another count, or for a class
            that is empty or holds something that is not one character.
    """
    check_kind(elements, Sequence, "a pattern is a list of pairs", "give [('UPPER', '+'), ...]")
    check_kind(classes, Mapping, "classes map names to characters", "give a dict")
    parts = []
    for position, element in enumerate(elements):
        if not (isinstance(element, (tuple, list)) and len(element) == 2):
            raise ConstraintError(
                f"element {position} is {element!r}; give a pair such as ('UPPER', '+')"
            )
        name, count = element
        if isinstance(count, bool) or count not in _COUNTS:
            raise ConstraintError(f"element {position}, {name!r}: count {count!r} is not 1 or '+'")
        one = choice(_characters(name, position, classes))
        parts.append(one.repeat(1) if count == "+" else one)
    return Automaton.concatenate(parts)


def _characters(name: Any, position: int, classes: Mapping[str, Any]) -> list[str]:
    if isinstance(name, str) and name in classes:
        members = list(classes[name])
        strange = [m for m in members if not (isinstance(m, str) and len(m) == 1)]
        if strange or not members:
            raise ConstraintError(
                f"class {name!r} "
                + (f"holds {strange[0]!r}, which is not one character" if strange else "is empty")
            )
        return members
    if isinstance(name, str) and len(name) == 1:
        return [name]
    raise ConstraintError(
        f"element {position} is {name!r}, neither one character nor a class; "
        f"the classes are {', '.join(classes)}"
    )

"""Patterns, against Python's own regular expressions and by enumeration."""

from __future__ import annotations

import itertools
import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import gcd
from gcd.errors import ConstraintError

CLASSES = {"VOWEL": "ae", "é or b": ["é", "b"], "a": "xy"}
ELEMENTS = st.lists(
    st.tuples(st.sampled_from(["VOWEL", "é or b", "b", "-", "e"]), st.sampled_from([1, "+"])),
    max_size=4,
)


def _python(elements: list[tuple[str, int | str]]) -> re.Pattern[str]:
    """The same pattern for the `re` module."""
    return re.compile(
        "".join(
            ("[" + "".join(CLASSES[name]) + "]" if name in CLASSES else re.escape(name))
            + ("+" if count == "+" else "")
            for name, count in elements
        )
    )


@settings(max_examples=60)
@given(ELEMENTS)
def test_is_the_language_of_the_regular_expression(elements: list[tuple[str, int | str]]) -> None:
    automaton, expected = gcd.pattern(elements, CLASSES), _python(elements)
    for length in range(6):
        for characters in itertools.product("aeé-b", repeat=length):
            text = "".join(characters)
            assert automaton.accepts(text) == (expected.fullmatch(text) is not None)


def test_a_line_of_a_play() -> None:
    line = gcd.pattern([("UPPER", "+"), (":", 1), (" ", 1), ("LOWER", "+"), ("\n", 1)])
    assert line == gcd.regex("[A-Z]+: [a-z]+\n")
    assert gcd.pattern([]) == gcd.literal("")
    assert gcd.pattern([("DIGIT", "1")]) == gcd.regex("[0-9]")


def test_a_class_goes_before_the_character_of_its_name() -> None:
    assert gcd.pattern([("a", 1)], CLASSES) == gcd.choice(["x", "y"])


@pytest.mark.parametrize(
    ("elements", "classes", "message"),
    [
        ([("UPER", "+")], gcd.ASCII_CLASSES, "'UPER', neither one character nor a class.*UPPER"),
        ([("UPPER", "*")], gcd.ASCII_CLASSES, r"count '\*' is not 1 or '\+'"),
        ([("UPPER", True)], gcd.ASCII_CLASSES, "count True"),
        ([("UPPER", 2)], gcd.ASCII_CLASSES, "count 2"),
        (["UPPER+"], gcd.ASCII_CLASSES, "give a pair"),
        ([("C", 1)], {"C": ["ab"]}, "'ab', which is not one character"),
        ([("C", 1)], {"C": ""}, "class 'C' is empty"),
        ([("", 1)], {}, "neither one character"),
    ],
)
def test_bad_input_is_named(elements: list, classes: dict, message: str) -> None:
    with pytest.raises(ConstraintError, match=message):
        gcd.pattern(elements, classes)

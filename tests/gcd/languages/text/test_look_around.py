"""Look-around, boundaries and anchors in both dialects, against `re` on all short texts."""

from __future__ import annotations

import itertools
import re

import pytest
from hypothesis import given, settings

from gcd import Automaton, ConstraintError, WorkLimitError, regex
from gcd._languages.text.dialects import search_language as ecma_pattern
from tests.gcd.languages.text.patterns import patterns

STRINGS = ["".join(s) for n in range(5) for s in itertools.product("a-\n", repeat=n)]
ATOMS = ["a", "-", ".", "[^a]", r"\b", r"\B", "^", "$", r"\w", "", "(?m:^)", "(?m:$)", r"\n"]
SIGNS = ["*", "+", "?", "*?", "{2}", "{0,2}", "{1,2}", "{2,}"]
BEHIND = ["a", "-", "[^a]", r"\b", "^", "a-", ".a", "(?=a)-", "(?!a).", r"\n"]  # of fixed width


def compiled(pattern: str) -> re.Pattern[str]:
    """Compile with Python, with `$` for the very end, as in the dialects here."""
    plain = pattern.replace("(?m:$)", "@").replace("$", r"\Z").replace("@", "(?m:$)")
    return re.compile(plain)


def assert_agrees(pattern: str) -> None:
    oracle = compiled(pattern)
    for build, match in ((ecma_pattern, oracle.search), (regex, oracle.fullmatch)):
        automaton = build(pattern)
        for string in STRINGS:
            # Older versions of `re` don't match \B in an empty text.
            if string or r"\B" not in pattern:
                assert automaton.accepts(string) == (match(string) is not None), string


ATOMS += [f"({sign}{text})" for sign in ("?<=", "?<!") for text in BEHIND]


@settings(max_examples=60)
@given(patterns(ATOMS, SIGNS, ("(?={})", "(?!{})"), max_leaves=8))
def test_random_patterns(pattern: str) -> None:
    assert_agrees(pattern)


@pytest.mark.parametrize(
    "pattern",
    [
        "(?=.*a)(?=.*-)[-a]{3,4}", "(?!.*aa)[-a]*", "^(?!a).", "a(?!.)", "(?<=a)-(?=a)", "(?<!^)a",
        "(?:a(?!-))+", "(?:(?<=-)a|-)*", "(?=(?=a).)a", "(?!(?!a)).", r"(?:\ba\b|-)+", "(?=a$)a",
        "(?:(?=a)|(?=-)).", "(?:a|(?=a-)){2}-", r"(?<=\n)a|a(?=\n)", "(?=.{2,3}$)a*",
        "(?:(?!--).)*",
        # Anchors between alternatives and repetitions.
        "^a|-$", "(^|,)a(-|$)", "(^|-)a(-|$)", "^^a$$", "$^", "a$-|-^a|", "(a|^)-", "(?:^a|-)*$",
        "(?:(?:^|a)(?:$|-)){2}", "a(?:$)+", "(?:^){3}a", "(?:^|$){0,2}", "a*?$", "a|a-|-^",
    ],
)  # fmt: skip
def test_usual_patterns(pattern: str) -> None:
    assert_agrees(pattern)


def test_conditions_that_always_hold_or_count() -> None:
    found = ecma_pattern("^.*(?<=a-*)b$")  # of any width
    assert [s for s in ("ab", "a--b", "b", "-b", "a-cb") if found.accepts(s)] == ["ab", "a--b"]
    assert regex("(?=)a(?!b(?!b|))") == regex("a")
    assert regex("(?!)a") == Automaton.empty()
    assert ecma_pattern(r"(?<=a|[^a]|^)x") == ecma_pattern("x")
    assert regex("(?=.{8,64}$)(?=.*[0-9])[a-z0-9]*").num_states < 200


def test_explosions_are_refused() -> None:
    with pytest.raises(ConstraintError, match="at most 13 different look-arounds"):
        regex("".join(f"(?={letter})" for letter in "abcdefghijklmn"))
    with pytest.raises((WorkLimitError, ConstraintError)):
        regex("(?:(?=.*a.{30}b).)*")

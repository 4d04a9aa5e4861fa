"""Look-around, word boundaries and line anchors, compared with Python's `re` on all short texts."""

from __future__ import annotations

import itertools
import random
import re

import pytest

from gcd import Automaton, ConstraintError, WorkLimitError, regex
from gcd._languages.text.dialects import search_language as ecma_pattern

STRINGS = ["".join(s) for n in range(5) for s in itertools.product("a-\n", repeat=n)]
ATOMS = ["a", "-", ".", "[^a]", r"\b", r"\B", "^", "$", r"\w", "", "(?m:^)", "(?m:$)", r"\n"]
BEHIND = ["a", "-", "[^a]", r"\b", "^", "a-", ".a", "(?=a)-", "(?!a).", r"\n"]  # of fixed width


def random_pattern(rng: random.Random, depth: int = 4) -> str:
    kind = rng.random()

    def inner() -> str:
        return random_pattern(rng, depth - 1)

    if depth == 0 or kind < 0.25:
        return rng.choice(ATOMS)
    if kind < 0.5:
        return inner() + inner()
    if kind < 0.6:
        return f"(?:{inner()}|{inner()})"
    if kind < 0.75:
        return f"(?:{inner()})" + rng.choice(["*", "+", "?", "{2}", "{0,2}"])
    if kind < 0.9:
        return f"({rng.choice(['?=', '?!'])}{inner()})"
    return f"({rng.choice(['?<=', '?<!'])}{rng.choice(BEHIND)})"


def compiled(pattern: str) -> re.Pattern[str]:
    """Compile with Python, with `$` for the very end, as in the dialects here."""
    plain = pattern.replace("(?m:$)", "@").replace("$", r"\Z").replace("@", "(?m:$)")
    return re.compile(plain)


def assert_agrees(pattern: str) -> None:
    oracle = compiled(pattern)
    for build, match in ((ecma_pattern, oracle.search), (regex, oracle.fullmatch)):
        automaton = build(pattern)
        for string in STRINGS:
            if (
                string or r"\B" not in pattern
            ):  # older versions of `re` don't match \B in an empty text
                assert automaton.accepts(string) == (match(string) is not None), string


@pytest.mark.parametrize("seed", range(80))
def test_random_patterns(seed: int) -> None:
    assert_agrees(random_pattern(random.Random(seed)))


@pytest.mark.parametrize(
    "pattern",
    [
        "(?=.*a)(?=.*-)[-a]{3,4}", "(?!.*aa)[-a]*", "^(?!a).", "a(?!.)", "(?<=a)-(?=a)", "(?<!^)a",
        "(?:a(?!-))+", "(?:(?<=-)a|-)*", "(?=(?=a).)a", "(?!(?!a)).", r"(?:\ba\b|-)+", "(?=a$)a",
        "(?:(?=a)|(?=-)).", "(?:a|(?=a-)){2}-", r"(?<=\n)a|a(?=\n)", "(?=.{2,3}$)a*",
        "(?:(?!--).)*",
    ],
)  # fmt: skip
def test_usual_patterns(pattern: str) -> None:
    assert_agrees(pattern)


def test_look_behind_may_have_any_width() -> None:
    found = ecma_pattern("^.*(?<=a-*)b$")
    assert [s for s in ("ab", "a--b", "b", "-b", "a-cb") if found.accepts(s)] == ["ab", "a--b"]


def test_a_condition_that_always_holds_changes_nothing() -> None:
    assert regex("(?=)a(?!b(?!b|))") == regex("a")
    assert regex("(?!)a") == Automaton.empty()
    assert ecma_pattern(r"(?<=a|[^a]|^)x") == ecma_pattern("x")


def test_long_counts_in_look_ahead_cost_their_states_alone() -> None:
    assert regex("(?=.{8,64}$)(?=.*[0-9])[a-z0-9]*").num_states < 200


def test_too_many_conditions_are_refused() -> None:
    pattern = "".join(f"(?={letter})" for letter in "abcdefghijklmn")
    with pytest.raises(ConstraintError, match="at most 13 different look-arounds"):
        regex(pattern)


def test_explosions_are_refused() -> None:
    with pytest.raises((WorkLimitError, ConstraintError)):
        regex("(?:(?=.*a.{30}b).)*")

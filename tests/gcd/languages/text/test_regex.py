"""Regular expressions against Python's `re` on random patterns, and at the engine's known traps."""

from __future__ import annotations

import inspect
import itertools
import re

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from gcd import ConstraintError, EmptyLanguageError, StateLimitError, choice, literal, regex
from gcd.automata.limits import state_limit

STRINGS = ["".join(s) for n in range(5) for s in itertools.product("ab\n", repeat=n)]


def patterns() -> st.SearchStrategy[str]:
    atoms = st.sampled_from(["a", "b", ".", "[ab]", "[^a]", r"\n", "", r"\w", r"\S"])
    quantifiers = st.sampled_from(["*", "+", "?", "*?", "+?", "??", "{2}", "{1,2}", "{0,3}", "{0}"])

    def extend(inner: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
        return st.one_of(
            st.tuples(inner, inner).map("".join),
            st.tuples(inner, inner).map(lambda p: f"({p[0]}|{p[1]})"),
            st.tuples(inner, quantifiers).map(lambda p: f"(?:{p[0]}){p[1]}"),
        )

    return st.recursive(atoms, extend, max_leaves=6)


@settings(deadline=None, max_examples=120)
@given(patterns())
@example("a|ab")  # leftmost-first search would lose "ab"
@example("a*?")
@example("(|a)b?")
@example("(a|ab)(c|bcd)")
def test_full_match_as_in_python(pattern):
    automaton = regex(pattern)
    compiled = re.compile(pattern)
    for string in STRINGS:
        assert automaton.accepts(string) == bool(compiled.fullmatch(string)), string


@pytest.mark.parametrize("text", ["é", "ß", "漢", "😀", "\x00", "\x7f", "\u07ff", "\U0010ffff"])
def test_one_character_is_one_dot(text):
    assert regex(".").accepts(text)
    assert not regex("..").accepts(text)
    assert regex("[^a]{3}").accepts(text * 3)
    assert regex(re.escape(text)) == literal(text)


def test_only_utf8_is_matched():
    everything = regex(r"(?s).*")
    for bad in [b"\xff", b"\xc0\x80", b"\xed\xa0\x80", b"\xe2\x82", b"\xf4\x90\x80\x80"]:
        assert not everything.accepts(bad)


@pytest.mark.parametrize("pattern", ["^a|b$", "^(?:a|b)$", "^a|b", "a|b$"])
def test_outer_anchors_are_implied(pattern):
    assert regex(pattern) == choice(["a", "b"])


def test_an_escaped_dollar_is_a_dollar():
    assert regex(r"a\$") == literal("a$")
    assert regex(r"a\\$") == literal("a\\")


@pytest.mark.parametrize(
    ("pattern", "text"),
    [
        ("(?x)a # c", "a"),
        ("(?x) a # one\n b # two (", "ab"),
        ("(?x:a # c\n)b#", "ab#"),
        ("(?x)a(?-x) #", "a #"),
        (r"(?x)a [\#]", "a#"),
        (r"(?x)a \#", "a#"),
        ("a # c", "a # c"),
    ],
)
def test_comments_end_with_the_pattern(pattern, text):
    assert regex(pattern) == literal(text)


@pytest.mark.parametrize(
    ("pattern", "reason"),
    [
        ("a(?=b)", "look-around"),
        ("(?<!a)b", "look-around"),
        (r"(a)\1", "back-references"),
        ("a)(b", "not valid"),
        ("[", "not valid"),
        ("*", "not valid"),
        ("(^a)|b", "anchor"),
    ],
)
def test_refusals_name_the_pattern_and_the_reason(pattern, reason):
    with pytest.raises(ConstraintError, match=reason) as caught:
        regex(pattern)
    assert repr(pattern) in str(caught.value)


def test_too_large_a_pattern_is_refused():
    with (
        state_limit(50),
        pytest.raises(StateLimitError, match=r"more than 50 states.*gcd\.state_limit"),
    ):
        regex("a{100}")


def test_choice_and_literal():
    assert choice(["b", "a", "ab", "a"]).enumerate(9) == [b"a", b"b", b"ab"]
    assert choice([b"\xff"]).accepts(b"\xff")
    assert literal("").accepts("")
    with pytest.raises(EmptyLanguageError, match="at least one text"):
        choice([])


@pytest.mark.parametrize(
    ("make", "argument", "message"),
    [
        (choice, [1, 2], "must be str or bytes, got 1"),
        (choice, "abc", "give a list of texts"),
        (choice, 3, "give a list of texts"),
        (choice, ["a", "\ud800"], "lone surrogate"),
        (literal, 3, "must be str or bytes, got 3"),
        (literal, "\ud800", "lone surrogate"),
    ],
)
def test_what_is_no_text_is_refused(make, argument, message):
    with pytest.raises(ConstraintError, match=message):
        inspect.unwrap(make)(argument)  # as users call it, without the tests' type checks


def test_a_lone_surrogate_is_in_no_language():
    assert not regex("(?s).*").accepts("\ud800")
    assert not (~literal("a")).accepts("\ud800")

"""Matches of terminals, compared with Python's `re` and with lark's own parser."""

from __future__ import annotations

import itertools
import re

import pytest
from hypothesis import given, settings

import gcd
from gcd._languages.text.matches import matches
from tests.gcd.languages.grammar.oracles import is_parsed, parser_of
from tests.gcd.languages.text.patterns import patterns
from tests.gcd.oracles import checked_inside_strategies

LETTERS = "abc"
TEXTS = ["".join(text) for n in range(6) for text in itertools.product(LETTERS, repeat=n)]
SIGNS = ["*", "+", "?", "*?", "+?", "??", "{2}", "{1,2}", "{0,2}?", "{2,3}", "{2,}?"]


@checked_inside_strategies
@settings(max_examples=60)
@given(patterns(["a", "b", "[ab]", "[^a]", ""], SIGNS, max_leaves=6))
def test_matches_are_those_of_python(pattern):
    check(pattern)


@pytest.mark.parametrize(
    "pattern",
    ["a|ab", "a?(ab)?", "(|a)*b", "(a|)+b", "(a{2,3}){1,2}", "((?:a?b?)|c)*", "(b|a*?)*c", "a+?"],
)
def test_the_first_alternative_and_empty_rounds_are_those_of_python(pattern):
    check(pattern)


def check(pattern: str) -> None:
    found, compiled = matches(pattern), re.compile(pattern)
    for text in TEXTS:
        match = compiled.match(text)
        assert found.accepts(text) == (match is not None and match.end() == len(text)), text


@pytest.mark.parametrize(
    ("terminal", "letters"),
    [
        (r"/\/\*(.|\n)*?\*\//", "/*a\n"),
        (r'/".*?"/', '"a\n'),
        (r'/"(?!"").*?(?<!\\)(\\\\)*?"/', '"\\a'),
        (r"/(?!\r|\n|\\|\")./", '\n\\"a'),
        (r"/a(?!a)/", "ab"),
        (r"/(?<!a)b/", "ab"),
        (r"/a\b/", "ab "),
        (r"/\ba/", "ab "),
        (r"/^a/", "ab"),
        (r"/^a/m", "a\n"),
        (r"/a$/", "a\n"),
        (r"/a\Z/", "a\n"),
        (r"/a|ab/", "ab"),
    ],
)
def test_lark_reads_the_same_terminals(terminal, letters):
    text = f"start: (A | OTHER)* \nA: {terminal}\nOTHER: /[b ]|\\n/\n"
    language, parser = gcd.grammar(text), parser_of(text)
    for size in range(6 if len(letters) > 3 else 5):
        for written in map("".join, itertools.product(letters, repeat=size)):
            assert language.accepts(written) == is_parsed(parser, written), written

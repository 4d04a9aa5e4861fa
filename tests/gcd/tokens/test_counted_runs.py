"""Lifting of counted runs: the result equals the definition, whatever is shared internally."""

from __future__ import annotations

import functools

import numpy as np
import pytest
from hypothesis import assume, example, given, settings
from hypothesis import strategies as st

from gcd import Automaton, Vocabulary, regex
from gcd._languages.values.json_values import json_string
from gcd._tokens.kernels.counted_runs import Cells, find_cells
from gcd._tokens.kernels.lifting import references
from tests.gcd.oracles import check_lift, checked_inside_strategies

pytestmark = checked_inside_strategies

# Parts of characters and escapes, quotes, long repetitions, unusable and equal tokens.
_PIECES = [
    *(bytes([byte]) for byte in b'abz"\\un01dD8,-{}/'),
    *(b"\xc3", b"\xa9", b"\xe2\x82", b"\xac", b"\xf0\x9f", b"\x99\x82", b"\x80\x80"),
    *("é".encode(), "€".encode(), "🙂".encode(), "🙂🙂a".encode(), "aé€".encode()),
    *(b"ab", b"aaaa", b"abab", b"a" * 17, b'a"', b'ab","', b'","', b'"}', b'aa"}', b"--", b"a-b"),
    *(rb"\u", rb"\u00", b"e9", rb"\ud83d", rb"\ude42", rb"\n", rb"\\", rb"\"", b'\\"a', b"d83d\\u"),
    *(b"\n", b"\t\t", b"", b"ab", b"\xff"),
]

_UNITS = ["[a-z]", "[^-]", r"[^\"\\\\]", "[0-9a-f]", "(?:[a-z]|\\\\[a-z])", "(?:[0-z]|é|€)", "."]


@functools.cache
def _tokens() -> list[bytes]:
    rng = np.random.default_rng(0)
    joined = [b"".join(_PIECES[i] for i in rng.integers(0, len(_PIECES), 2)) for _ in range(60)]
    return [*_PIECES, *joined]


@functools.cache
def _every_byte() -> Vocabulary:
    letters = [bytes([byte]) for byte in range(256)]
    return Vocabulary.from_bytes([*_tokens(), *letters, b""], [len(_tokens()) + 256])


@st.composite
def _vocabularies(draw: st.DrawFn) -> Vocabulary:
    """Draw some of the tokens, with or without all single bytes, in any order."""
    tokens = draw(st.lists(st.sampled_from(_tokens()), min_size=1, max_size=60))
    if draw(st.booleans()):
        tokens += [bytes([byte]) for byte in range(256)]
    return Vocabulary.from_bytes([*tokens, b""], [len(tokens)])


@st.composite
def _runs(draw: st.DrawFn) -> Automaton:
    """Draw a repeated unit or a JSON string, with its surroundings."""
    fewest = draw(st.integers(0, 8))
    most = draw(st.one_of(st.none(), st.integers(max(fewest, 1), 24)))
    if draw(st.booleans()):
        return json_string(fewest, most)
    unit = _unit(draw(st.sampled_from(_UNITS)))
    before, after = (
        draw(st.sampled_from(["", '"', "a", "--"])),
        draw(st.sampled_from(["", '"', "b"])),
    )
    return Automaton.literal(before) + unit.repeat(fewest, most) + Automaton.literal(after)


@functools.cache
def _unit(pattern: str) -> Automaton:
    return regex(pattern)


@st.composite
def _languages(draw: st.DrawFn) -> Automaton:
    """Draw runs that are combined, intersected with another language, or without a few words."""
    language, other = draw(_runs()), draw(_runs())
    in_two = Automaton.byte_set(range(256)).repeat(2).star()
    words = Automaton.from_strings(['"ab"', '"aba"', '"é"', "aab", ""])
    spelled = _unit(r"(?s:.*)(?:abz|a\{|/u01)(?s:.*)")
    ways = [
        *(language, json_string(0, 7) + language, language & other, language - words),
        *(language - spelled, language & in_two, language & _unit("[^b]*b?[^b]*")),
    ]
    return draw(st.sampled_from(ways))


@settings(max_examples=40)
@given(_languages(), _vocabularies())
@example(json_string(0, None), _every_byte())
@example(json_string(3, None), _every_byte())
@example(json_string(0, 1), _every_byte())
@example(json_string(5, 40), _every_byte())
@example(regex('a[a-z]{0,9}","[a-z]{3,12}-[a-z]*"|b[a-z]{6}"'), _every_byte())
def test_is_the_lift_by_definition(automaton: Automaton, vocabulary: Vocabulary) -> None:
    assume(not automaton.is_empty)
    check_lift(automaton, vocabulary)


# -- detection ------------------------------------------------------------------------------


def _cells(automaton: Automaton) -> Cells:
    width = np.bincount(automaton.class_of_byte, minlength=automaton.delta.shape[1])
    return Cells(*find_cells(np.ascontiguousarray(automaton.delta), width))


@pytest.mark.parametrize(
    ("language", "cells", "units", "nexts"),
    [
        (json_string(0, 50), 50, 1, 50),
        (json_string(0, None), 1, 1, 1),
        (json_string(0, 9) + json_string(4, 30) + json_string(0, None), 40, 1, 40),
        (regex("[a-z]{9}[0-9a-z]{9}!"), 9, 2, 18),
        # The ends of the words, too, where the string continues but the quote is not allowed.
        (json_string(0, None) - Automaton.from_strings(['"name"', '"number"']), 2, 1, 1),
        # Also where the word no longer fits.
        (json_string(0, 50) - regex("(?s:.*)word(?s:.*)"), 50, 1, 50),
    ],
    ids=["bounded", "unbounded", "three strings", "one run into another", "words", "a word"],
)
def test_each_character_of_a_string_is_a_cell(
    language: Automaton, cells: int, units: int, nexts: int
) -> None:
    """Strings with different bounds share a unit, and one without bound is its own next cell."""
    found = _cells(language)
    assert (found.cell_at >= 0).sum() == cells
    assert found.unit_start.size == units + 1
    assert np.unique(found.after).size == nexts


def test_states_are_compared_with_phases_of_runs_that_are_alike() -> None:
    """Escapes such as `\\u0066` may spell a letter of an excluded word, or another one."""
    spelled = [f'"{first}oo"' for first in ("f", "F", r"\u0066", r"\u0046")]
    language = json_string(0, None) - Automaton.from_strings(spelled)
    trie, cells = _every_byte().trie, _cells(language)
    width = np.bincount(language.class_of_byte, minlength=language.delta.shape[1])
    tree = (trie.byte, trie.depth, trie.skip, trie.entry, language.class_of_byte)
    found = references(np.ascontiguousarray(language.delta), width, cells, tree)
    compared = np.flatnonzero(found >= 0)
    assert (cells.cell[compared] < 0).all()
    assert (cells.cell[found[compared]] >= 0).all()
    boundaries = cells.states[cells.start[cells.cell[found[compared]]]]
    assert 0 < (boundaries == found[compared]).mean() < 1, "inner phases, too"
    check_lift(language, _every_byte())

"""JSON strings with given contents, compared with definitions and with `json`."""

from __future__ import annotations

import json
import re
import unicodedata
from itertools import pairwise

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from gcd import Automaton, StateLimitError, regex, state_limit
from gcd._languages.text.code_points import (
    SCALARS,
    Ranges,
    characters,
    complement,
    one_of,
    ranges,
    texts,
)
from gcd._languages.values.json_values import json_string, quote
from tests.gcd.random_strings import random_strings

TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=6)
EDGES = [0, 0x1F, 0x20, 0x22, 0x5C, 0x7F, 0x80, 0x7FF, 0x800, 0xD7FF, 0xE000, 0xFFFF, 0x10000]
EDGES += [0x103FF, 0x10400, 0x1F600, 0xFFFFF, 0x100000, 0x10FFFF]
CODE_POINTS = st.one_of(
    st.integers(0, 0x10FFFF),
    st.integers(0, 0x100),
    st.sampled_from(EDGES),
    st.tuples(st.sampled_from(EDGES), st.integers(-1, 1)).map(lambda p: p[0] + p[1]),
).map(lambda c: min(max(c, 0), 0x10FFFF))
RANGES = st.lists(st.tuples(CODE_POINTS, CODE_POINTS).map(lambda p: (min(p), max(p))), max_size=4)


def _has(inside: Ranges, code_point: int) -> bool:
    return any(a <= code_point <= b for a, b in inside)


def _escape(inside: Ranges) -> str:
    """Write the ranges as a class of Rust's regular expressions."""
    return "[" + "".join(rf"\x{{{a:x}}}-\x{{{b:x}}}" for a, b in inside) + "]"


# -- sets of code points -----------------------------------------------------------------------


@settings(max_examples=80)
@given(RANGES)
@example([(0, 0x10FFFF)])
@example([(0xD800, 0xDFFF)])
@example([(0x7F, 0x80), (0x81, 0x81)])
def test_ranges_are_sets_without_surrogates(pairs: list[tuple[int, int]]) -> None:
    inside = ranges(pairs)
    outside = complement(inside)
    for code_point in {*EDGES, *(e + d for pair in pairs for e in pair for d in (-1, 0, 1))}:
        scalar = _has(SCALARS, code_point)
        wanted = scalar and any(a <= code_point <= b for a, b in pairs)
        assert _has(inside, code_point) == wanted
        assert _has(outside, code_point) == (scalar and not wanted)
    assert all(b + 1 < c for (_, b), (c, _) in pairwise(inside) if c != 0xE000)
    assert complement(outside) == inside


@settings(max_examples=35)
@given(RANGES)
@example([(0, 0x10FFFF)])
def test_code_points_in_utf8_as_the_regex_engine_has_them(pairs: list[tuple[int, int]]) -> None:
    inside = ranges(pairs)
    assert one_of(inside) == (regex(_escape(inside)) if inside else Automaton.empty())


@pytest.mark.parametrize("category", ["L", "Nd", "Zs"])
def test_properties_are_those_of_unicodedata(category: str) -> None:
    """The engine's tables are of another Unicode version: assigned characters agree."""
    language = regex(rf"\p{{{category}}}")
    for code_point in range(0x3000):
        known = unicodedata.category(chr(code_point))
        assert known == "Cn" or language.accepts(chr(code_point)) == known.startswith(category)


# -- texts ---------------------------------------------------------------------------------------


def json_spellings(text: str) -> Automaton:
    """Return every spelling of one text as a regular expression, character by character."""

    def ways(character: str) -> str:
        units = character.encode("utf-16-be")
        digits = [units[i : i + 2].hex() for i in range(0, len(units), 2)]
        found = ["".join(rf"\\u(?i-u:{each})" for each in digits)]
        if character in '"\\/\b\f\n\r\t':
            letter = '"\\/bfnrt'['"\\/\b\f\n\r\t'.index(character)]
            found.append(r"\\" + re.escape(letter))
        if character >= " " and character not in '"\\':
            found.append(rf"\x{{{ord(character):x}}}")
        return f"(?:{'|'.join(found)})"

    return regex(f'"{"".join(map(ways, text))}"')


# -- spellings -----------------------------------------------------------------------------------


@pytest.mark.parametrize(("low", "high"), [(0, None), (0, 0), (1, 1), (0, 3), (2, 5), (3, None)])
def test_texts_of_some_length_are_json_strings_of_that_length(low: int, high: int | None) -> None:
    assert characters() == regex("(?s:.)")
    assert texts(low, high) == regex(f"(?s:.){{{low},{'' if high is None else high}}}")
    assert quote(texts(low, high), every=True) == json_string(low, high)


@settings(max_examples=20)
@given(st.lists(TEXT, max_size=4))
@example([""])
@example(['"\\/\b\f\n\r\t\x00\x1f\x7f'])
@example(["é\u2028\uffff\U00010000😀\U0010ffff"])
def test_spellings_of_a_union_are_the_union(several: list[str]) -> None:
    spelled = Automaton.union([json_spellings(text) for text in several])
    assert quote(Automaton.from_strings(several), every=True) == spelled


@settings(max_examples=40)
@given(RANGES, RANGES, TEXT)
@example([(0xFFF0, 0x1000F)], [(0x1F600, 0x1F64F)], "")
def test_a_json_string_is_accepted_if_its_value_is(
    one: list[tuple[int, int]], other: list[tuple[int, int]], text: str
) -> None:
    """Two consecutive classes and a text, in every spelling."""
    parts = [one_of(ranges(one)), one_of(ranges(other)).repeat(0, 2), Automaton.literal(text)]
    content = Automaton.concatenate(parts)
    spelled = quote(content, every=True)
    for string in random_strings(spelled, 20) if not spelled.is_empty else []:
        assert content.accepts(json.loads(string))
    for plain in random_strings(content, 20) if not content.is_empty else []:
        value = plain.decode()
        for ensure_ascii in (True, False):
            assert spelled.accepts(json.dumps(value, ensure_ascii=ensure_ascii))
        assert spelled.accepts(f'"{_all_escaped(value)}"')
    # Of all strings, those with another content are excluded, however they are spelled.
    others = json_string(0, 5) - spelled
    for string in random_strings(others, 20) if not others.is_empty else []:
        assert not content.accepts(json.loads(string))


def _all_escaped(text: str) -> str:
    units = text.encode("utf-16-be").hex().upper()
    return "".join(f"\\u{units[i : i + 4]}" for i in range(0, len(units), 4))


@pytest.mark.parametrize(
    "pattern",
    [r"\w+", r"\d{4}-\d\d", r"[^\x00-\x{ffff}]{2}", r'"|\\|/+', "(?s:.){0,2}", r"[é😀\x7f]"],
)
def test_escapes_of_plain_characters_are_left_out(pattern: str) -> None:
    """Of all spellings, those without an escape of printable ASCII that needs none are left."""
    needless = r"\\(/|u00([346][0-9a-fA-F]|2[013-9a-fA-F]|5[0-9abd-fABD-F]|7[0-9a-eA-E]))"
    without = Automaton.any_bytes() - regex(rf'"([^\\]|\\[^u]|\\u....)*{needless}(?s:.)*')
    content = regex(pattern)
    assert quote(content, every=False) == quote(content, every=True) & without


def test_what_is_no_text_has_no_spelling() -> None:
    assert quote(Automaton.empty(), every=True).is_empty
    assert quote(Automaton.byte_set(range(0x80, 0x100)), every=True).is_empty
    for wrong in (b"a\xff", b"\xc0\x80", b"\xed\xa0\x80", b"\xf4\x90\x80\x80", b"\xe2\x82"):
        assert quote(Automaton.from_strings([b"b", wrong]), every=True) == json_spellings("b")
    assert quote(Automaton.any_bytes(), every=True) == json_string(0, None)


def test_growth_is_refused_by_name() -> None:
    content = regex(r"[a-z]{30}")
    with state_limit(100), pytest.raises(StateLimitError, match="a JSON string needs more than"):
        quote(content, every=True)

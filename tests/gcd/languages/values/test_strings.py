"""Texts, strings and free values of JSON and Python, against definitions and their parsers."""

from __future__ import annotations

import ast
import json
import re
import unicodedata
from itertools import pairwise

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from gcd import Automaton, StateLimitError, regex, state_limit
from gcd._languages.json_schema.languages import any_value
from gcd._languages.text import code_points
from gcd._languages.text.code_points import Ranges, complement, one_of, ranges, texts
from gcd._languages.values import json_values, python_values
from gcd._languages.values.json_values import json_notation, json_string, quote
from gcd._languages.values.python_values import python_notation, python_string
from tests.gcd.languages.json_schema.strategies import depth_of
from tests.gcd.random_strings import random_strings

TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=8)
EDGES = [0, 0x1F, 0x20, 0x22, 0x5C, 0x7F, 0x80, 0x7FF, 0x800, 0xD7FF, 0xE000, 0xFFFF, 0x10000]
EDGES += [0x103FF, 0x10400, 0x1F600, 0xFFFFF, 0x100000, 0x10FFFF]
CODE_POINTS = st.one_of(
    st.integers(0, 0x10FFFF),
    st.integers(0, 0x100),
    st.sampled_from(EDGES),
    st.tuples(st.sampled_from(EDGES), st.integers(-1, 1)).map(lambda p: p[0] + p[1]),
).map(lambda c: min(max(c, 0), 0x10FFFF))
RANGES = st.lists(st.tuples(CODE_POINTS, CODE_POINTS).map(lambda p: (min(p), max(p))), max_size=4)


def _escape(inside: Ranges) -> str:
    """Write the ranges as a class of Rust's regular expressions."""
    return "[" + "".join(rf"\x{{{a:x}}}-\x{{{b:x}}}" for a, b in inside) + "]"


# -- sets of code points -----------------------------------------------------------------------


@settings(max_examples=35)
@given(RANGES)
@example([(0, 0x10FFFF)])
@example([(0xD800, 0xDFFF)])
@example([(0x7F, 0x80), (0x81, 0x81)])
def test_code_points_in_utf8_as_the_regex_engine_has_them(pairs: list[tuple[int, int]]) -> None:
    inside, outside = ranges(pairs), complement(ranges(pairs))
    assert one_of(inside) == (regex(_escape(inside)) if inside else Automaton.empty())
    # The ranges are those of the pairs without surrogates, and those outside are all others.
    for point in {*EDGES, *(end + d for pair in pairs for end in pair for d in (-1, 0, 1))}:
        is_scalar = 0 <= point < 0xD800 or 0xE000 <= point < 0x110000
        wanted = is_scalar and any(a <= point <= b for a, b in pairs)
        found = [any(a <= point <= b for a, b in part) for part in (inside, outside)]
        assert found == [wanted, is_scalar and not wanted]
    assert all(b + 1 < c for (_, b), (c, _) in pairwise(inside) if c != 0xE000)


@pytest.mark.parametrize("category", ["L", "Nd", "Zs"])
def test_properties_are_those_of_unicodedata(category: str) -> None:
    """The engine's tables are of another Unicode version: assigned characters agree."""
    language = regex(rf"\p{{{category}}}")
    for code_point in range(0x3000):
        known = unicodedata.category(chr(code_point))
        assert known == "Cn" or language.accepts(chr(code_point)) == known.startswith(category)


# -- texts ---------------------------------------------------------------------------------------


def spellings_by_hand(text: str) -> Automaton:
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
    assert code_points.characters() == regex("(?s:.)")
    assert texts(low, high) == regex(f"(?s:.){{{low},{'' if high is None else high}}}")
    assert quote(texts(low, high), every=True) == json_string(low, high)


@settings(max_examples=20)
@given(st.lists(TEXT, max_size=4))
@example([""])
@example(['"\\/\b\f\n\r\t\x00\x1f\x7f'])
@example(["é\u2028\uffff\U00010000😀\U0010ffff"])
def test_spellings_of_a_union_are_the_union(several: list[str]) -> None:
    spelled = Automaton.union([spellings_by_hand(text) for text in several])
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
        assert quote(Automaton.from_strings([b"b", wrong]), every=True) == spellings_by_hand("b")
    assert quote(Automaton.any_bytes(), every=True) == json_string(0, None)


def test_growth_is_refused_by_name() -> None:
    content = regex(r"[a-z]{30}")
    with state_limit(100), pytest.raises(StateLimitError, match="a JSON string needs more than"):
        quote(content, every=True)


# -- against parsers ---------------------------------------------------------------------------

FRAGMENTS = st.lists(
    st.sampled_from(
        [
            *(b"\\", b"u", b"U", b"x", b'"', b"'", b"/", b"a", b"n", b"0", b"e9", b"\n", b"\x1f"),
            *(b"d83d", b"\\ud83d", b"\\ude00", b"0041", b"0001", b"F600", b"00110000", b"N{DEL}"),
            *("é".encode(), "😀".encode(), b"\xff", b"\xc0\xaf", b"\xed\xa0\x80", b"\x7f"),
        ]
    ),
    max_size=6,
).map(b"".join)


def _string_of_json(text: bytes) -> str | None:
    """Return the content of a JSON string; None if invalid, or if it has a lone surrogate."""
    if not (text.startswith(b'"') and text.endswith(b'"')):
        return None
    try:
        value = json.loads(text.decode())
    except ValueError:
        return None
    lone = isinstance(value, str) and any("\ud800" <= c <= "\udfff" for c in value)
    return None if lone or not isinstance(value, str) else value


@settings(max_examples=200)
@given(FRAGMENTS)
@example(b"\\ud83d\\ude00")
@example(b"\\ud83d")
@example(b"\\ude00\\ud83d")
@example(b"\\")
def test_json_strings_are_what_a_strict_parser_reads(body: bytes) -> None:
    text = b'"' + body + b'"'
    value = _string_of_json(text)
    assert json_string(0, None).accepts(text) == (value is not None)
    for minimum, maximum in ((0, 2), (1, 1), (2, None), (3, 5)):
        wanted = value is not None and minimum <= len(value) <= (maximum or len(value))
        assert json_string(minimum, maximum).accepts(text) == wanted


@settings(max_examples=40)
@given(TEXT, TEXT)
@example('it\'s "quoted"\\ \u200b\x7f\x85\u2028', "")
def test_every_text_has_its_spellings(text: str, other: str) -> None:
    escaped = _all_escaped(text)
    dumped = [json.dumps(text, ensure_ascii=ensure_ascii) for ensure_ascii in (True, False)]
    for strings, constants, spellings, parse, written in (
        (
            json_string,
            json_values.json_constants,
            json_values.json_spellings,
            json.loads,
            [*dumped, f'"{escaped}"'],
        ),
        (
            python_string,
            python_values.python_constants,
            python_values.python_spellings,
            ast.literal_eval,
            [repr(text), dumped[1]],
        ),
    ):
        assert constants([text]).accepts(written[0])
        for spelling in written:
            assert strings(len(text), len(text)).accepts(spelling)
            assert not strings(len(text) + 1, None).accepts(spelling)
            assert spellings(text).accepts(spelling)
            assert spellings(other).accepts(spelling) == (text == other)
        for language in (constants([text]), spellings(text)):
            for spelling in random_strings(language, 3):
                assert parse(spelling.decode()) == text


@settings(max_examples=200)
@given(FRAGMENTS, st.sampled_from("'\""))
def test_python_strings_mean_the_same_as_in_python(body: bytes, quote: str) -> None:
    text = quote.encode() + body + quote.encode()
    if python_string(0, None).accepts(text):
        value = ast.literal_eval(text.decode())
        assert isinstance(value, str)
        assert not any("\ud800" <= c <= "\udfff" for c in value)
        assert python_string(len(value), len(value)).accepts(text)
        assert not python_string(0, len(value) - 1 if value else 0).accepts(text) or not value


def test_python_spellings_that_are_left_out() -> None:
    octal, named, lines = r"'\1'", r"'\N{DIGIT ONE}'", "'a\nb'"
    for text in (r"'\ud83d\ude00'", octal, named, lines, "'a' 'b'", r"'\U00110000'"):
        assert not python_string(0, None).accepts(text), text


# -- free values -----------------------------------------------------------------------------


LEAVES = [st.none(), st.booleans(), st.integers(), TEXT]
VALUES = st.recursive(
    st.one_of(*LEAVES, st.floats(allow_nan=False, allow_infinity=False)),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXT, inner, max_size=3),
    max_leaves=6,
)


@settings(max_examples=100)
@given(VALUES)
def test_free_values_up_to_a_depth(value: object) -> None:
    written = {
        "compact": json.dumps(value, separators=(",", ":")),
        "spaced": json.dumps(value),
        "flexible": json.dumps(value, indent=1),
    }
    for depth in range(4):
        for style, text in written.items():
            accepted = any_value(json_notation(style), depth).accepts(text)
            assert accepted == (depth_of(value) <= depth)
        accepted = any_value(python_notation("spaced"), depth).accepts(repr(value))
        assert accepted == (depth_of(value) <= depth)


@pytest.mark.parametrize("style", ["compact", "spaced", "flexible"])
def test_random_free_values_parse(style: str) -> None:
    for text in random_strings(any_value(json_notation(style), 3), 60):
        assert depth_of(json.loads(text)) <= 3
    for text in random_strings(any_value(python_notation(style), 3), 60):
        assert depth_of(ast.literal_eval(text.decode())) <= 3

"""Strings, numbers and free values, against `json`, `ast.literal_eval` and `decimal`."""

from __future__ import annotations

import ast
import itertools
import json
from decimal import Decimal

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from gcd._languages.json_schema.languages import any_value
from gcd._languages.values.json_values import (
    json_constants,
    json_notation,
    json_spellings,
    json_string,
)
from gcd._languages.values.numbers import Bound, decimals, integers, numbers
from gcd._languages.values.python_values import (
    python_constants,
    python_notation,
    python_spellings,
    python_string,
)
from tests.gcd.languages.json_schema.strategies import depth_of
from tests.gcd.random_strings import random_strings

TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=8)
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
    escaped = "".join(f"\\u{int.from_bytes(u, 'big'):04X}" for u in _utf16_units(text))
    dumped = [json.dumps(text, ensure_ascii=ensure_ascii) for ensure_ascii in (True, False)]
    for strings, constants, spellings, parse, written in (
        (json_string, json_constants, json_spellings, json.loads, [*dumped, f'"{escaped}"']),
        (
            python_string,
            python_constants,
            python_spellings,
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


def _utf16_units(text: str) -> list[bytes]:
    units = text.encode("utf-16-be")
    return [units[i : i + 2] for i in range(0, len(units), 2)]


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


# -- numbers ---------------------------------------------------------------------------------


def _plain_number(text: str) -> Decimal | None:
    """Return the value of a number without exponent; None if the text isn't one."""
    try:
        json.loads(text)
    except ValueError:
        return None
    return Decimal(text)


SPELLINGS = {
    text: _plain_number(text)
    for size in range(1, 6)
    for text in map("".join, itertools.product("-01.9", repeat=size))
    if size <= 3 or _plain_number(text) is not None
}


BOUNDS = st.one_of(
    st.none(),
    st.builds(
        Bound,
        st.one_of(
            st.integers(-1200, 1200).map(Decimal),
            st.sampled_from(["-10.01", "0.1", "9.9", "-0.9", "0.09", "99.10", "1E+2"]).map(Decimal),
        ),
        st.booleans(),
    ),
)


@settings(max_examples=30)
@given(BOUNDS, BOUNDS)
@example(Bound(Decimal(0), True), None)
@example(None, Bound(Decimal(0), True))
@example(Bound(Decimal("-0"), False), Bound(Decimal(0), False))
def test_numbers_between_bounds_are_exact(lower: Bound | None, upper: Bound | None) -> None:
    between, whole = numbers(lower, upper), integers(lower, upper)
    every, plain = numbers(lower, upper, wide=True), decimals(lower, upper, wide=True)
    none_below_zero = lower is not None and lower.value >= 0
    for text, value in SPELLINGS.items():
        inside = value is not None and _above(value, lower) and _below(value, upper)
        assert every.accepts(text) == plain.accepts(text) == inside, text
        bare = text != "-0" and not (text.startswith("-") and value == 0 and none_below_zero)
        assert decimals(lower, upper).accepts(text) == (inside and bare), text
        is_free = lower is None and upper is None
        assert between.accepts(text) == (inside and (bare or is_free)), text
        assert whole.accepts(text) == (inside and bare and "." not in text), text
        if inside and not bare:  # the value still has a spelling
            assert whole.accepts("0")


def _above(value: Decimal, bound: Bound | None) -> bool:
    return bound is None or value > bound.value or (value == bound.value and not bound.strict)


def _below(value: Decimal, bound: Bound | None) -> bool:
    return bound is None or value < bound.value or (value == bound.value and not bound.strict)


@settings(max_examples=100)
@given(st.integers(-(10**40), 10**40), st.integers(-(10**40), 10**40), st.integers(-2, 2))
def test_long_integers_are_compared_digit_by_digit(low: int, high: int, near: int) -> None:
    language = integers(Bound(Decimal(low), False), Bound(Decimal(high), True))
    for value in (low + near, high + near, (low + high) // 2):
        assert language.accepts(str(value)) == (low <= value < high)


def test_numbers_without_bounds_have_the_whole_grammar() -> None:
    for text in ("1e5", "-1.50E+07", "0.5", "-0", "-0e2", "12345678901234567890"):
        assert numbers().accepts(text), text
    for text in ("01", "+1", "1.", ".5", "1e", "--1", "NaN", "Infinity", ""):
        assert not numbers().accepts(text), text


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

"""Characters and texts of the patterns of JSON Schema; test_regex.py has the rest."""

from __future__ import annotations

import unicodedata

import pytest

from gcd import Automaton, literal, regex
from gcd._languages.text.code_points import complement, one_of, ranges, texts
from gcd._languages.text.dialects import search_language as ecma_pattern
from gcd._languages.text.regex import MAX_NESTING
from gcd._languages.text.unicode_tables import BINARY, GENERAL_CATEGORIES, ecma_property


def test_only_texts_match_and_noncharacters_are_characters() -> None:
    for text in ("\U0010fffe", "\U0010ffff", "\ufffe"):
        assert ecma_pattern("(^|,).(,|$)").accepts(text)
        assert ecma_pattern("^[^a]($|b)").accepts(text)
        assert not ecma_pattern("a").accepts(text)
    assert ecma_pattern("") == texts()
    assert ecma_pattern("a") == texts() - regex("(?s:[^a]*)")
    assert ecma_pattern("^$") == Automaton.epsilon()
    for bad in (b"a\xff", b"\xc0\x80a", b"a\xed\xa0\x80", b"\xe2\x82", "a\ud800"):
        assert not ecma_pattern("a|$").accepts(bad)
        assert not regex("(?s:.*)").accepts(bad)
    assert not (~literal("a")).accepts("\ud800")


# -- characters ---------------------------------------------------------------------------------

SPACES = {9, 10, 11, 12, 13, 0x2028, 0x2029, 0xFEFF}
SPACES |= {c for c in range(0x10000) if unicodedata.category(chr(c)) == "Zs"}
WORDS = set(b"abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_")


def _set(code_points: set[int]) -> Automaton:
    return one_of(ranges((c, c) for c in code_points))


def _others(code_points: set[int]) -> Automaton:
    return one_of(complement(ranges((c, c) for c in code_points)))


@pytest.mark.parametrize(
    ("pattern", "wanted"),
    [
        (r"\d", _set(set(b"0123456789"))),
        (r"\D", _others(set(b"0123456789"))),
        (r"\w", _set(WORDS)),
        (r"\W", _others(WORDS)),
        (r"\s", _set(SPACES)),
        (r"\S", _others(SPACES)),
        (r".", _others({10, 13, 0x2028, 0x2029})),
        (r"[\d\w]", _set(WORDS)),
        (r"[^\D]", _set(set(b"0123456789"))),
        (r"[\s\S]", regex("(?s:.)")),
        (r"[^]", regex("(?s:.)")),
        (r"[]", Automaton.empty()),
        (r"[^\W\d]", _set(WORDS - set(b"0123456789"))),
        (r"[\w-.]", _set(WORDS | set(b"-."))),
        (r"[.-\w]", _set(WORDS | set(b"-."))),
        (r"[\w\-.]", _set(WORDS | set(b"-."))),
        (r"[a-c-e]", _set(set(b"abc-e"))),
        (r"[-a]", _set(set(b"-a"))),
        (r"[a-]", _set(set(b"-a"))),
        (r"[--/]", _set(set(b"-./"))),
        (r"[a^]", _set(set(b"a^"))),
        (r"[[&&~~]", _set(set(b"[&~"))),
        (r"[a&&b]", _set(set(b"a&b"))),
        (r"[\]\\\[]", _set(set(b"[]\\"))),
        (r"[\b]", _set({8})),
        (r"[$.|(){}*+?/]", _set(set(b"$.|(){}*+?/"))),
        (r"[\u{1F600}-\u{1F64F}]", one_of(((0x1F600, 0x1F64F),))),
        (r"[\uD83D\uDE00-\uD83D\uDE4F]", one_of(((0x1F600, 0x1F64F),))),
        ("[😀-😏]", one_of(((0x1F600, 0x1F60F),))),
        (r"[\x00-\x1F]", _set(set(range(32)))),
        (r"[^\x00-\u{10FFFF}]", Automaton.empty()),
        (r"\p{L}", regex(r"\p{L}")),
        (r"\P{Letter}", regex(r"\P{L}")),
        (r"[^\p{Lu}\d]", regex(r"[^\p{Lu}0-9]")),
        (r"\p{Script=Greek}", regex(r"\p{Greek}")),
        (r"\p{sc=Grek}", regex(r"\p{Greek}")),
        (r"\p{scx=Deva}", regex(r"\p{scx=Deva}")),
        (r"\p{gc=Nd}", regex(r"\p{Nd}")),
        (r"\p{General_Category=Decimal_Number}", regex(r"\p{Nd}")),
        (r"\p{Alphabetic}", regex(r"\p{Alphabetic}")),
        (r"\p{Any}", regex("(?s:.)")),
        (r"\t\n\v\f\r", literal("\t\n\v\f\r")),
        (r"\0\x41\u0042\u{43}\u{1F600}\uD83D\uDE00", literal("\0ABC😀😀")),
        (r"\cA\cz\cJ", literal("\x01\x1a\n")),
        (r"\/\-\.\^\$\*\+\?\(\)\[\]\{\}\|\\\"", literal('/-.^$*+?()[]{}|\\"')),
        (r"\'\@\#\ \~\&\é", literal("'@# ~&é")),
        ("]}{a{b}{x", literal("]}{a{b}{x")),
        (r"\${x}", literal("${x}")),
        ("# no comment", literal("# no comment")),
        ("(?<name>a)(?<$é1>b)(c)(?:d)", literal("abcd")),
        ("(?:)", literal("")),
        ("a{0}b{1}c{0,0}", literal("b")),
        ("a{003}", literal("aaa")),
        ("(" * MAX_NESTING + "a" + ")" * MAX_NESTING, literal("a")),
        # Empty repetitions cost nothing.
        ("(?:){1000000000}(?:(?:^)+){1000000000}a", literal("a")),
        ("(?:$|){5,1000000000}a", literal("a")),
    ],
)
def test_one_character_or_text(pattern: str, wanted: Automaton) -> None:
    assert ecma_pattern(f"^{pattern}$") == wanted


def test_every_named_property_is_known() -> None:
    names = sorted(GENERAL_CATEGORIES - {"cntrl", "punct"})[::16] + sorted(BINARY)[::14]
    for name in [*names, "cntrl", "digit", "punct", "Assigned", "ASCII", "Emoji", "Cn"]:
        assert ecma_property(name), name

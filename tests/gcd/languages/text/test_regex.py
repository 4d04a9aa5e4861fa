"""Patterns of all dialects, against Python's `re` and lark, on random patterns and pitfalls."""

from __future__ import annotations

import contextlib
import itertools
import re
import resource
from collections.abc import Sequence
from functools import cache

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

import gcd
from gcd import choice, literal, regex
from gcd._languages.text.code_points import one_of, ranges
from gcd._languages.text.dialects import search_language as ecma_pattern
from gcd._languages.text.matches import matches
from gcd._languages.text.regex import parse
from gcd._languages.text.syntax import literal_text
from tests.gcd.languages.grammar.oracles import is_parsed, parser_of
from tests.gcd.oracles import checked_inside_strategies


def patterns(
    atoms: Sequence[str], signs: Sequence[str], groups: Sequence[str] = (), max_leaves: int = 7
) -> st.SearchStrategy[str]:
    """Patterns of these atoms, with alternatives in any order, quantifiers, and further groups."""

    def grown(inner: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
        parts = st.lists(inner, max_size=3)
        return st.one_of(
            parts.map("".join),
            parts.map("|".join),
            parts.map(lambda ways: f"({'|'.join(ways)})"),
            st.tuples(inner, st.sampled_from(signs)).map(lambda p: f"(?:{p[0]}){p[1]}"),
            *(inner.map(group.format) for group in groups),
        )

    return st.recursive(st.sampled_from(atoms), grown, max_leaves=max_leaves)


STRINGS = ["".join(s) for n in range(5) for s in itertools.product("ab\n", repeat=n)]


ATOMS = [
    *("a", "b", ".", "[ab]", "[^a]", r"\n", "", r"\w", r"\S", r"\s", r"\W", r"[^\S]", r"[^\n-a]"),
    *("(?i:A)", "(?i:[^A])", "(?s:.)", "(?x: a # b\n)", r"\x61", r"\u0062", "(?P<n>)", "(?#b)"),
    *(r"[\n-a]", "[]a]", "[a-]", r"\A", r"\Z", "^", "(?:)"),
]
SIGNS = "* + ? *? +? ?? {2} {1,2} {0,3} {0} {,2} {,} {2,} {1,}?".split()  # noqa: SIM905


@settings(max_examples=250)
@given(patterns(ATOMS, SIGNS).filter(lambda p: p.count("?P<n>") < 2))
@example("a|ab")  # leftmost-first search would lose "ab"
@example("a*?")
@example("(|a)b?")
@example("(a|ab)(c|bcd)")
@example(r"(?:a|\A)b|\Z|a\Zb")
@example(r"(?:^a|b)*\Z")
@example(r"(?:(?:^|a)(?:\Z|b)){2}")
@example("(?:(?:a{2,3}){2,3}b?){0,2}")
@example("(?:(?:a{2}){1,2}){2}")
@example("(?:a{2,3}){0,2}")
@example("(?:(?:ab|a){2}){2,}")
@example("(?:a|bb|){3}")
@example("(?:a*b){2,3}")
def test_full_match_as_in_python(pattern):
    automaton = regex(pattern)
    compiled = re.compile(pattern)
    for string in STRINGS:
        assert automaton.accepts(string) == bool(compiled.fullmatch(string)), string


def test_nested_counts_are_one_count():
    for a, b, c, d in itertools.product(range(4), [0, 1, 2, 4, None], range(4), [0, 1, 3, None]):
        if (b is not None and b < a) or (d is not None and d < c):
            continue
        outer, inner = (
            f"{{{low},{'' if high is None else high}}}" for low, high in ((c, d), (a, b))
        )
        compiled = re.compile(f"(?:a{inner}){outer}")
        counted = regex(f"(?:a{inner}){outer}")
        for count in range(20):
            assert counted.accepts("a" * count) == bool(compiled.fullmatch("a" * count))


@cache
def all_characters() -> str:
    return "".join(chr(c) for c in range(0x110000) if not 0xD800 <= c < 0xE000)


@pytest.mark.parametrize(
    "pattern",
    [
        *("[^a-c]", r"[]\-^]", r"(?a:\w)", r"(?a:\W)", r"(?a:\s)", r"(?a:\d)", "(?ai:[k-s])"),
        *(r"(?s:.)", "."),
    ],
)
def test_one_character_as_in_python(pattern):
    runs = (match.group() for match in re.finditer(f"(?:{pattern})+", all_characters()))
    assert regex(pattern) == one_of(ranges((ord(run[0]), ord(run[-1])) for run in runs))


@pytest.mark.parametrize(
    ("pattern", "inside"),
    [
        ("[[:alpha:]_]", "[A-Za-z_]"),
        ("[[:^alnum:]]", "[^A-Za-z0-9]"),
        ("[[:punct:]]", r"[!-/:-@\[-`{-~]"),
        ("[a-z&&[^aeiou]]", "[b-df-hj-np-tv-z]"),
        ("[a-z--[b-y]--z]", "a"),
        ("[a-c~~b-d]", "[ad]"),
        ("[^a-z&&b]", "[^b]"),
        (r"[\s\S]", "(?s:.)"),
        (r"\pL", r"\p{Letter}"),
        (r"\P{Lu}", r"[^\p{gc=Lu}]"),
        (r"[\D\d]", "(?s:.)"),
        (r"(?-u:\w)", "[0-9A-Za-z_]"),
        (r"(?i)[\p{Lu}&&\p{ASCII}]", "[A-Za-zſ\u212a]"),
        ("(?i)k", "[kK\u212a]"),
        ("(?i)[^k]", "[^kK\u212a]"),
        ("(?ia)k", "[kK]"),
        ("(?i)å", "[åÅ\u212b]"),
        ("(?i)σ", "[σςΣ]"),
        ("(?i)i", "[iI]"),
        ("(?i)\u0130", "\u0130"),
        (r"[\b]", r"\x08"),
        (r"\a\f\v\t\r\0", r"\x07\x0c\x0b\x09\x0d\x00"),
        (r"\x{1F600}|\u{1F600}|\U{1F600}|\U0001F600", "😀"),
        ("a{x}{,", r"a\{x\}\{,"),
        ("a(?i)b|c", "a[bB]|[cC]"),
        ("(a(?i)b)c", "a[bB]c"),
        ("a**", "a*"),
        ("a{2}{3}", "a{6}"),
        (r"[^\s\S]|a", "a"),
        (r"\é\ \-\#", "é -#"),
        ("(^a)|b$|c(?:^)", "a|b"),
        *((pattern, "a|b") for pattern in ("^a|b$", "^(?:a|b)$", "^a|b", "a|b$")),
        (r"a\$", "a[$]"),
        (r"a\\$", r"a[\\]"),
        ("(?x)a # c", "a"),
        ("(?x) a # one\n b # two (", "ab"),
        ("(?x:a # c\n)b#", "ab[#]"),
        ("(?x)a(?-x) #", "a [#]"),
        (r"(?x)a [\#]", "a[#]"),
        (r"(?x)a \#", "a[#]"),
        ("a # c", "a [#] c"),
    ],
)
def test_spellings_of_one_language(pattern, inside):
    assert regex(pattern) == regex(inside)


def test_unicode_classes_are_those_of_the_standard():
    space = [c for c in all_characters() if c.isspace() and not "\x1c" <= c <= "\x1f"]
    assert regex(r"\s") == one_of(ranges((ord(c), ord(c)) for c in space))
    for text in ("é", "漢", "٣", "\u200d", "_", "\u0300"):
        assert regex(r"\w").accepts(text)
    assert regex(r"\d").accepts("٣")
    assert not regex(r"\d").accepts("²")


# -- work ---------------------------------------------------------------------------------------

WORDS = ["".join(w) for w in itertools.product("abcdefghij", repeat=3)]
HOSTILE = [
    ".*a.{20}",
    "((a{0,100}){0,100}){0,100}",
    "((a{0,100}b?){0,100}c?){0,100}",
    "(a|b)*a(a|b){22}",
    r"[\w ]{0,5000}",
    r"(\w{0,300}x){0,300}",
    "(.{0,50}a){50}",
    "(a?){5000}a{5000}",
    "a{1000000000}",
    "(^a|b){900000000}",
]
HARMLESS = [
    (r"(?a)[\w ]{0,5000}", 5001),
    ("(.*a){25}", 201),
    ("[a-z]{5000}", 5001),
    ("(a{0,100}){0,100}", 10_001),
    ("|".join(WORDS), 4),
    ("(?:" * 50 + "a" + ")?" * 50, 2),
    ("(?:(?:){1000000000}a){3}", 4),
]


@pytest.mark.parametrize(
    ("pattern", "build"),
    [
        *((pattern, regex) for pattern in HOSTILE),
        # There `\w` is ASCII, and nothing grows.
        *((pattern, ecma_pattern) for pattern in HOSTILE if pattern != r"[\w ]{0,5000}"),
    ],
)
def test_hostile_patterns_are_refused_while_they_grow(pattern, build):
    with (
        gcd.work_limit(20_000_000),
        pytest.raises(gcd.ConstraintError, match=r"units of work|states") as e,
    ):
        build(pattern)
    assert pattern in str(e.value).replace("\\\\", "\\")


@pytest.mark.slow("up to the default limits, as an attacker would go")
@pytest.mark.parametrize("pattern", [HOSTILE[i] for i in (0, 3, 6)])
def test_hostile_patterns_end_under_the_default_limits(pattern):
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with contextlib.suppress(gcd.StateLimitError, gcd.WorkLimitError):
        assert regex(pattern).num_states <= 250_000
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 2**20  # KiB


def test_a_brace_that_opens_no_count_is_read_at_once():
    tree = parse("a{" + " " * 30_000 + "1")  # would take 4 seconds if it were quadratic
    assert len(literal_text(tree) or "") == 30_003


@pytest.mark.parametrize(("pattern", "num_states"), HARMLESS)
def test_harmless_patterns_compile(pattern, num_states):
    with gcd.work_limit(500_000_000):
        assert regex(pattern).num_states == num_states


@pytest.mark.parametrize("pattern", ["|".join(WORDS), "[a-z]{500}", r"[\w ]{0,5000}", "(.*a){25}"])
def test_harmless_searches_compile(pattern):
    with gcd.work_limit(500_000_000):
        assert ecma_pattern(pattern).accepts("." + "abcd" * 125 + "a" * 25)


def test_the_part_that_is_too_much_is_named():
    with (
        gcd.state_limit(100),
        pytest.raises(gcd.StateLimitError, match=r"'\[ab\]\{200\}' at position 3 "),
    ):
        regex("(x|[ab]{200})y{50}")
    with gcd.state_limit(100), pytest.raises(gcd.StateLimitError, match=r"^the pattern '\(ab\|a"):
        regex("(ab|a)*b(a|b)*a(a|b){9}")
    with (
        gcd.work_limit(200_000),
        pytest.raises(gcd.WorkLimitError, match=r"'\(a\|ab\)\{900\}' at position 1 "),
    ):
        regex("c(a|ab){900}")


def test_choice_and_literal():
    assert choice(["b", "a", "ab", "a"]).enumerate(9) == [b"a", b"b", b"ab"]
    assert choice([b"\xff"]).accepts(b"\xff")
    assert literal("").accepts("")
    with pytest.raises(gcd.EmptyLanguageError, match="at least one text"):
        choice([])


# -- look-around, boundaries and anchors ----------------------------------------------------------

AROUND = ["".join(s) for n in range(5) for s in itertools.product("a-\n", repeat=n)]
CONDITIONS = ["a", "-", ".", "[^a]", r"\b", r"\B", "^", "$", r"\w", "", "(?m:^)", "(?m:$)", r"\n"]
TWICE = ["*", "+", "?", "*?", "{2}", "{0,2}", "{1,2}", "{2,}"]
BEHIND = ["a", "-", "[^a]", r"\b", "^", "a-", ".a", "(?=a)-", "(?!a).", r"\n"]  # of fixed width


def compiled(pattern: str) -> re.Pattern[str]:
    """Compile with Python, with `$` for the very end, as in the dialects here."""
    plain = pattern.replace("(?m:$)", "@").replace("$", r"\Z").replace("@", "(?m:$)")
    return re.compile(plain)


def assert_agrees(pattern: str) -> None:
    oracle = compiled(pattern)
    for build, match in ((ecma_pattern, oracle.search), (regex, oracle.fullmatch)):
        automaton = build(pattern)
        for string in AROUND:
            # Older versions of `re` don't match \B in an empty text.
            if string or r"\B" not in pattern:
                assert automaton.accepts(string) == (match(string) is not None), string


CONDITIONS += [f"({sign}{text})" for sign in ("?<=", "?<!") for text in BEHIND]


@settings(max_examples=60)
@given(patterns(CONDITIONS, TWICE, ("(?={})", "(?!{})"), max_leaves=8))
def test_random_patterns_with_look_around_and_anchors(pattern: str) -> None:
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
def test_usual_patterns_with_look_around_and_anchors(pattern: str) -> None:
    assert_agrees(pattern)


def test_conditions_that_always_hold_or_count() -> None:
    found = ecma_pattern("^.*(?<=a-*)b$")  # of any width
    assert [s for s in ("ab", "a--b", "b", "-b", "a-cb") if found.accepts(s)] == ["ab", "a--b"]
    assert regex("(?=)a(?!b(?!b|))") == regex("a")
    assert regex("(?!)a") == gcd.Automaton.empty()
    assert ecma_pattern(r"(?<=a|[^a]|^)x") == ecma_pattern("x")
    assert regex("(?=.{8,64}$)(?=.*[0-9])[a-z0-9]*").num_states < 200


def test_explosions_are_refused() -> None:
    with pytest.raises(gcd.ConstraintError, match="at most 13 different look-arounds"):
        regex("".join(f"(?={letter})" for letter in "abcdefghijklmn"))
    with pytest.raises((gcd.WorkLimitError, gcd.ConstraintError)):
        regex("(?:(?=.*a.{30}b).)*")


# -- terminals ------------------------------------------------------------------------------------

TEXTS = ["".join(text) for n in range(6) for text in itertools.product("abc", repeat=n)]
LAZY = ["*", "+", "?", "*?", "+?", "??", "{2}", "{1,2}", "{0,2}?", "{2,3}", "{2,}?"]


@checked_inside_strategies
@settings(max_examples=60)
@given(patterns(["a", "b", "[ab]", "[^a]", ""], LAZY, max_leaves=6))
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


def test_the_look_around_of_many_words_is_one_condition():
    words = "and|break|do|else|elseif|end|false|for|function|if|in|local|nil|not|or|return|then"
    language = gcd.grammar(f"start: NAME+\nNAME: /(?!({words})\\b)[a-z]+\\b/\n%ignore / +/\n")
    texts = ["a", "andy ina", "ends nota", "and", "a end", "in", "x nil y"]
    assert [text for text in texts if language.accepts(text)] == texts[:3]

"""Languages of grammars, compared with their equations and with lark's own parser."""

from __future__ import annotations

import itertools

import lark
import pytest
from hypothesis import assume, example, given, settings
from hypothesis import strategies as st

import gcd
from gcd._languages.grammar.lark_dialect import read_lark
from gcd._languages.grammar.productions import Rules
from tests.gcd.languages.grammar.oracles import (
    LETTERS,
    is_parsed,
    lark_grammars,
    parser_of,
    texts_below,
    texts_of,
    texts_to_depth,
)
from tests.gcd.oracles import checked_inside_strategies

MOST = 4
ALL = ["".join(text) for n in range(MOST + 1) for text in itertools.product(LETTERS, repeat=n)]
IGNORED = [
    "",
    '%ignore "("\n',
    '%ignore "x"\n%ignore "xx"\n',
    '%ignore "x"\n%ignore "x("\n',
    "%ignore /x\\(|[)]/\n",
    "%ignore /x[^)]*/\n",
    "%ignore /x[^)]*/\n%ignore /[)]+/\n",
    "%ignore /x(.)*?\\)/\n",
    "%ignore /x?\\(x?/\n%ignore /[(]+/\n",
]
PRECEDENCE = """
start: product | start ("+" | "-") product
product: atom | product ("*" | "/") atom
atom: /[0-9]+/ | "-" atom | "(" start ")"
"""


def compiled(text: str, **options: int) -> gcd.GrammarLanguage:
    """Compile the language; skip examples without texts, or that exceed a limit."""
    try:
        with gcd.state_limit(20_000), gcd.work_limit(200_000_000):
            return gcd.grammar(text, **options)
    except (gcd.EmptyLanguageError, gcd.StateLimitError, gcd.WorkLimitError):
        assume(False)
        raise


@checked_inside_strategies
@settings(max_examples=20)
@given(lark_grammars())
@example('start: a "x" | "y"\na: start "(" | b\nb: a ")" | "x"\n')  # indirect left recursion
@example('start: start start | start "x" start | "(" start ")" | "y"\n')
@example('start: "x" ("y" start)*\n')
@example('start: "(" start ")" | a\na: "x" b "y"\nb: start | "x"\n')  # cycles beside a counted rule
@example('start: start? "x" start? a*\na: start | \n')
def test_up_to_a_length_every_text_is_there_and_no_other(text):
    language = compiled(text, max_depth=30, max_bytes=MOST)
    assert texts_below(language, MOST) == texts_of(read_lark(text, "start"), MOST)


@checked_inside_strategies
@settings(max_examples=10)
@given(lark_grammars(), st.integers(0, 2))
def test_a_depth_has_all_promised_texts_and_only_texts_of_the_grammar(text, depth):
    read = read_lark(text, "start")
    whole = texts_of(read, MOST)
    language = compiled(text, max_depth=depth)
    rules = Rules(read)
    found = texts_below(language, MOST)
    assert found <= whole
    if language.is_whole:
        assert found == whole
    else:
        promised = {each for each in whole if len(each) <= language.whole_bytes}
        assert promised | texts_to_depth(rules, depth, MOST) <= found
        deeper = compiled(text, max_depth=depth + 1)
        assert (language - deeper).is_empty


@checked_inside_strategies
@settings(max_examples=20)
@given(lark_grammars(max_rules=3), st.sampled_from(IGNORED))
@example('start: /x[x(]?/\nT: "x" | "(x"\n', '%ignore "x"\n%ignore "xx"\n')
def test_lark_reads_the_same_texts(text, ignored):
    text += ignored
    language = compiled(text, max_depth=30, max_bytes=MOST)
    try:
        parser = parser_of(text)
        expected = {each for each in ALL if is_parsed(parser, each)}
    except (lark.exceptions.LarkError, RuntimeError):  # refused, or a bug in lark
        assume(False)
        raise
    assert {each for each in ALL if language.accepts(each)} == expected


SLASHES = """
start: s+
s: NAME "=" e ";" | "{" s* "}"
e: NAME | e ("/" | "*") e | "(" e ")"
NAME: /[a-z]+/
%import common (WS, CPP_COMMENT, C_COMMENT)
%ignore WS
%ignore CPP_COMMENT
%ignore C_COMMENT
"""


def test_texts_whose_language_would_be_too_large_are_left_out():
    with gcd.state_limit(5_000):
        language = gcd.grammar(SLASHES, max_depth=2)
    parser = parser_of(SLASHES)
    assert language.narrow
    assert not gcd.grammar(SLASHES, max_depth=1).narrow
    assert language.whole_bytes == 1
    assert "no terminal begins where longer ignored text does" in language.extent
    for sample in ("a=b/c;", "a=b / c; // d\n", "/* x */ a=b//c;\n/d;"):
        assert language.accepts(sample), sample
        assert is_parsed(parser, sample), sample
    hidden = "a=b///c\nd;"  # as a lexer has it, all of the line is a comment
    assert not language.accepts(hidden)
    assert is_parsed(parser, hidden)


@pytest.mark.parametrize(("comment", "begin"), [("SH", "#"), ("CPP", "//"), ("SQL", "--")])
def test_line_comments_between_words_cost_few_states(comment, begin):
    count = 6
    words = " ".join(f'"w{number}"' for number in range(count))
    text = f"start: {words}\n%import common.{comment}_COMMENT\n%ignore {comment}_COMMENT\n"
    language = gcd.grammar(text + "%ignore /[ \\n]+/\n")
    assert language.is_whole
    assert language.num_states < 30 * count
    spaced = f" {begin} w1\n".join(f"w{number}" for number in range(count))
    assert language.accepts(spaced)
    assert language.accepts(f"{spaced}{begin} no line end")
    assert not language.accepts(spaced.replace("\n", " "))


@pytest.mark.parametrize(
    ("text", "pattern"),
    [
        ('start: "a" start | "b"', "a*b"),
        ('start: start "a" | "b"', "ba*"),
        ('start: a "x" | "y"\na: start "z" | "w"', "(w|yz)x(zx)*|y"),
        ('start: start ("+" | "*") start | "-" start | "n"', r"-*n([+*]-*n)*"),
        ('start: "n" ("," start)*', "n(,n)*"),
        ('start: "n" ("," start)?', "n(,n)*"),
        ('start: a{"x"} ~ 2..3\na{t}: t | a{t} "," t', r"(x(,x)*){2,3}"),
        ('start: "a" b\nb: "b" c | "."\nc: "c" start | "d" b', r"a(b(ca|d))*\."),
        # Operators in several rules.
        ('start: e\ne: /[0-9]/ | a\na: e b\nb: c+\nc: "/" e', "[0-9](/[0-9])*"),
        ('start: e\ne: /[0-9]/ | a\na: e b\nb: | b "/" e', "[0-9](/[0-9])*"),
        ('start: e\ne: /[0-9]/ | a\na: e b\nb: c | c c\nc: "<" e | ">" e', "[0-9]([<>][0-9])*"),
        # Recursion at both ends, by way of other rules.
        ('start: N | start "+" f\nf: N | start "+" f\nN: "n"', r"n(\+n)*"),  # two names for one
        ('start: t r\nt: "n" | "-" start\nr: | "+" t r', r"-*n(\+-*n)*"),
        ('start: b | "n"\nb: start ("+" start)*', r"n(\+n)*"),  # each derives the other alone
        ('start: a | "n"\na: b "+" b\nb: start | a', r"n(\+n)*"),
        ('start: p | s | "n"\np: start "+" start\ns: "(" q ")" | "-" start\nq: "n" ("," "n")*',
         r"(-*(n|\(n(,n)*\)))(\+-*(n|\(n(,n)*\)))*"),
    ],
)  # fmt: skip
def test_regular_grammars_are_whole_at_any_depth(text, pattern):
    language = gcd.grammar(text, max_depth=0)
    assert language.is_whole
    assert language.extent == "whole"
    assert language == gcd.regex(pattern)


WAYS = {  # for an operand n, the texts that a chain has before, after and between operands
    'e "+" e': ("", "", "+"),
    'e "-" e': ("", "", "-"),
    'e ("*" e)*': ("", "", "*"),
    'e ("/" e)+': ("", "", "/"),
    "e e": ("", "", ""),
    '"~" e': ("~", "", None),
    'e "!"': ("", "!", None),
    'e "."+': ("", "\\.", None),
}


BRACKETS = ['"(" e ")"', '"[" e e "]"', 'e "?" e ":" e']


def operators(ways: list[str], *, in_rules: bool) -> str:
    """Return a grammar of operands with such operators, inline or in separate rules."""
    moved = [way for way in ways if in_rules and way in WAYS]
    names = [f"r{moved.index(way)}" if way in moved else way for way in ways]
    rules = [f"r{number}: {way}" for number, way in enumerate(moved)]
    return "\n".join(["start: e", f"e: {' | '.join(['/[0-9]/', *names])}", *rules])


@settings(max_examples=15)
@given(st.lists(st.sampled_from(list(WAYS)), min_size=1, max_size=5, unique=True))
def test_chains_of_operators_are_whole_wherever_they_are_written(ways):
    before = "|".join(WAYS[way][0] for way in ways if WAYS[way][0])
    behind = "|".join(WAYS[way][1] for way in ways if WAYS[way][1])
    signs = [WAYS[way][2] for way in ways if WAYS[way][2] is not None]
    between = [f"[{sign}]" if sign else "" for sign in signs]
    operand = f"({before})*[0-9]({behind})*"
    pattern = f"{operand}(({'|'.join(between)}){operand})*" if between else operand
    for in_rules in (False, True):
        language = gcd.grammar(operators(ways, in_rules=in_rules), max_depth=0)
        assert language.is_whole
        assert language == gcd.regex(pattern)


@settings(max_examples=15)
@given(st.lists(st.sampled_from([*BRACKETS, *WAYS]), min_size=1, max_size=4, unique=True),
       st.integers(1, 3))  # fmt: skip
@example(['e "+" e', '"(" e ")"'], 3)
@example(['"(" e ")"', '"[" e e "]"', 'e ("/" e)+'], 1)
def test_brackets_nest_as_deep_around_operators_in_rules_of_their_own(ways, depth):
    inside = gcd.grammar(operators(ways, in_rules=False), max_depth=depth)
    outside = gcd.grammar(operators(ways, in_rules=True), max_depth=depth)
    assert inside.is_whole == outside.is_whole
    assert inside == outside
    if '"(" e ")"' in ways:
        assert inside.accepts("(" * (depth - 1) + "1" + ")" * (depth - 1))
        assert not inside.accepts("(" * depth + "1" + ")" * depth)


@pytest.mark.parametrize(
    "text",
    [
        'start: "n" | b | b "!"\nb: start "+" start',  # as many "!" as sums, at most
        'start: "n" | "(" s\ns: start ")"',
        'start: "n" | start "?" start ":" start',
        'start: "x" start "y" | ',
    ],
)
def test_what_counts_is_not_whole(text):
    language = gcd.grammar(text)
    assert not language.is_whole
    whole, found = texts_of(read_lark(text, "start"), 9), texts_below(language, 9)
    assert {each for each in whole if len(each) <= language.whole_bytes} <= found <= whole


def test_what_a_depth_of_brackets_holds():
    for depth in (1, 2, 3):
        language = gcd.grammar(PRECEDENCE, max_depth=depth)
        assert language.accepts("1+-2*3-" + "(" * (depth - 1) + "4" + ")" * (depth - 1))
        assert not language.accepts("(" * depth + "4" + ")" * depth)
        assert language.whole_bytes == 2 * depth
        assert not language.is_whole
        assert "start" in language.extent
    language = gcd.grammar(PRECEDENCE, max_depth=20, max_bytes=9)
    assert language.extent == "whole up to 9 bytes"
    assert language.accepts("((((4))))")
    assert not language.accepts("((((4+5))))")


JSON = r"""
start: value
value: object | array | STRING | NUMBER | "true" | "false" | "null"
object: "{" [pair ("," pair)*] "}"
pair: STRING ":" value
array: "[" [value ("," value)*] "]"
STRING: "\"" (/[^"\\\x00-\x1f]/ | "\\" (/["\\\/bfnrt]/ | LONE | PAIR))* "\""
LONE: /u([0-9a-ce-fA-CE-F][0-9a-fA-F]{3}|[dD][0-7][0-9a-fA-F]{2})/
PAIR: /u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2}/
NUMBER: /-?(0|[1-9][0-9]*)(\.[0-9]+)?([eE][+-]?[0-9]+)?/
"""


@pytest.mark.parametrize("depth", [0, 1, 2, 4])
def test_the_grammar_of_json_is_the_language_of_any_value(depth):
    assert gcd.grammar(JSON, max_depth=depth) == gcd.json_schema(True, max_depth=depth)

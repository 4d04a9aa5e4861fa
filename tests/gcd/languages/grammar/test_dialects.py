"""Supported syntax of each dialect, and hostile grammars."""

from __future__ import annotations

import random
from contextlib import suppress

import pytest

import gcd
from tests.gcd.languages.grammar.oracles import is_parsed, parser_of

LIST = r"""
root ::= item+
item ::= "- " [^\r\n\x0b\x0c\x85\u2028\u2029]+ "\n"
"""
CALCULATION = r"""
root  ::= (expr "=" ws term "\n"){1,2}
expr  ::= term ([-+*/] term)*
term  ::= ident | num | "(" ws expr ")" ws
ident ::= [a-z] [a-z0-9_]* ws
num   ::= [0-9]{1,3} ws
ws    ::= [ \t\n]*
"""
JSON = r"""
root   ::= object
value  ::= object | array | string | number | ("true" | "false" | "null") ws
object ::= "{" ws (string ":" ws value ("," ws string ":" ws value)*)? "}" ws
array  ::= "[" ws (
    value ("," ws value)*   # any number of them
  )? "]" ws
string ::= "\"" ([^"\\\x7F\x00-\x1F] | "\\" (["\\bfnrt] | "u" [0-9a-fA-F]{4}))* "\"" ws
number ::= ("-"? ([0-9] | [1-9] [0-9]{0,15})) ("." [0-9]+)? ([eE] [-+]? [0-9]+)? ws
ws     ::= "" | " " | "\n" [ \t]{0,20}
"""
EBNF = r"""
root ::= main.rule | "\u0041" [\u00e9-\u00ff]{2}
main.rule ::= "<" name ">" (main.rule | [^<>])* "</" name ">"
name ::= [a-z]+
"""


@pytest.mark.parametrize(
    ("text", "dialect", "good", "bad"),
    [
        (LIST, "gbnf", ["- a\n- é \n"], ["- \n", "- a"]),
        (CALCULATION, "gbnf", ["(a +12)*b= 7\n", "((1))=x\n1=1\n"], ["1234=1\n", "(1=1\n"]),
        (JSON, "gbnf", ['{"a": [1, {"b":\n  null}], "c": "\\u00e9"}'], ["[]", '{"a":}', "{1:1}"]),
        ('root ::= . "."', "gbnf", ["\n.", "é."], [".", "ab."]),
        (EBNF, "ebnf", ["Aéé", "<a><b>x</b>yz</c>", "<a></a>"], ["A", "<a>", "<A></A>"]),
        (
            'root ::= "a" r{0, -1} (=(","))\nr ::= "b" (="c" | [d])',
            "ebnf",
            ["a", "abb"],
            ["ac", ""],
        ),
        ('root ::= "" | "a" {2, 3}\n  | "b" # or', "ebnf", ["", "aa", "aaa", "b"], ["a", "aaaa"]),
    ],
)
def test_grammars_in_the_style_of_engines(text, dialect, good, bad):
    language = gcd.grammar(text, dialect)
    assert [each for each in good if not language.accepts(each)] == []
    assert [each for each in bad if language.accepts(each)] == []
    assert gcd.grammar(f"\ufeff{text}", dialect) == language


FEATURES = r"""
start: pair{"k"i, value} ~ 1..2 _tail?
pair{key, other}: key "=" other -> named
?value: NUMBER | ESCAPED_STRING | [value] "!" | LETTER+
!_tail.2: "."
LETTER: "a".."c" | /[x-z]/i
%import common (NUMBER, ESCAPED_STRING)
%import common.C_COMMENT -> NOTE
%ignore / +/
%ignore NOTE
"""


def test_lark_reads_its_features_alike():
    parser, language = parser_of(FEATURES), gcd.grammar(FEATURES, max_depth=4)
    texts = [
        *(
            "k=1",
            'K = "a\\"b"',
            "k=abX y",
            "k=1!!",
            "k=!",
            " k/* x **/=1.",
            "k=1k=2 .",
            "k=",
            "k=q",
        ),
        *('k="a"b"', "k=1 k=2 k=3", "k=1.5 /* end */ ", "k=/* * / */1", "k=1/*", "", ".", 'k="\\"'),
    ]
    accepted = {each for each in texts if language.accepts(each)}
    assert accepted == {each for each in texts if is_parsed(parser, each)}
    assert 5 < len(accepted) < len(texts)
    assert gcd.grammar(f"\ufeff{FEATURES}", max_depth=4) == language


def test_a_limit_of_nested_rules_names_the_depth():
    text = 'start: "(" start start start ")" | /(a|b)*a(a|b){5}/'
    with gcd.state_limit(300), pytest.raises(gcd.StateLimitError, match="lower max_depth=3"):
        gcd.grammar(text)


def test_junk_is_refused_by_the_error_of_constraints():
    rng = random.Random(0)
    bits = [
        *("()[]{}|*+?~:./\\'%!-> \n#=^"),
        *("start", "root", "::=", "A", '"x"', "/x/", "%ignore", "~ 3", "\ud800", "\x00", "9" * 30),
        *("{,}", "{2,1}", "->", "%declare", "(?=", '"b".."aa"', "/[", "x" * 99),
    ]
    whole = [FEATURES, EBNF, CALCULATION]
    for _ in range(90):
        text = "".join(rng.choices(bits, k=rng.randrange(20)))
        cut = rng.choice(whole)
        at = rng.randrange(len(cut))
        for junk in (text, cut[:at], cut[:at] + rng.choice(bits) + cut[at:]):
            for dialect in ("lark", "gbnf", "ebnf"):
                with (
                    suppress(gcd.ConstraintError),
                    gcd.state_limit(2_000),
                    gcd.work_limit(20_000_000),
                ):
                    gcd.grammar(junk, dialect, max_depth=1)


def _doubled(count: int) -> str:
    rules = [f'a{i}: a{i + 1} a{i + 1} | "x" start | "w"' for i in range(count)]
    return "\n".join(["start: a0", *rules, f'a{count}: "y" | "(" start ")"'])


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("start: A\nA: /(a|b)*a(a|b){30}/", "the terminal 'A'"),
        ("start: " + " ".join(["/(a|b)*a/"] * 8) + " /(a|b)/ ~ 30", "the rule 'start'"),
        (_doubled(30), "the rule '"),
        ('start: a ~ 90000\na: "(" a ")" | "x"', "the rule 'start'"),
        ("start: " + "".join(f'"{i}" (start "z" | ' for i in range(150)) + '"q"' + ")" * 150, None),
        ("start: T9\nT0: /[a-z]*q/\n"
         + "\n".join(f"T{i + 1}: T{i} T{i} T{i}" for i in range(9)), "the terminal 'T"),
        ("start: t{start}\nt{x}: t{u{x}} | \"a\"\nu{x}: x \"b\"", "the rule 't'"),
        ("start: " + "[" * 1000 + '"x"' + "]" * 1000, None),
    ],
)  # fmt: skip
def test_hostile_grammars_end_in_an_error_that_names_the_rule(text, named):
    with (
        gcd.state_limit(2_000),
        gcd.work_limit(15_000_000),
        pytest.raises(gcd.ConstraintError) as e,
    ):
        gcd.grammar(text, max_depth=3)
    assert named is None or named in str(e.value)


@pytest.mark.parametrize(
    ("text", "sample"),
    [
        ("start: a | \na: start? | a a | b\nb: a b a | start", ""),  # empty loops everywhere
        ("start: " + " ".join(['("a" | start "z")?'] * 18), "aaaa"),  # 2^18 if multiplied out
        ('start: start start start | start? "x" | "y" start*', "xyxy"),
        ('start: b "x"\nb: c "y" | start\nc: b | start "z" | "w"', "wyx"),
        ("start: r0\n" + "\n".join(f'r{i}: "(" r{(7 * i) % 40} r{(i + 1) % 40} ")" | "x"'
                                    for i in range(40)), "(xx)"),
    ],
)  # fmt: skip
def test_strange_grammars_end_in_a_result_within_small_limits(text, sample):
    with gcd.work_limit(200_000_000):
        assert gcd.grammar(text, max_depth=2).accepts(sample)


def test_a_grammar_is_an_automaton_like_any_other():
    language = gcd.grammar('start: "(" start ")" | "x"', max_depth=3)
    both = language & gcd.regex(r"\(\(.*")
    assert type(both) is gcd.Automaton
    assert both.enumerate(9) == [b"((x))"]
    vocabulary = gcd.Vocabulary.from_bytes([b"(", b")", b"x", b"((", b"x)", b"-", b""], [6])
    limited = gcd.lift(gcd.grammar('start: "(" start ")" | "x"', max_bytes=6), vocabulary)
    with pytest.raises(gcd.OverlongBudgetError):
        gcd.Matcher(limited, budget=20)

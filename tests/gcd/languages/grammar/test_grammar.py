"""Languages of grammars against their equations and lark, their dialects, and hostile grammars."""

from __future__ import annotations

import itertools
import random
from contextlib import suppress

import lark
import pytest
from hypothesis import assume, example, given, settings
from hypothesis import strategies as st

import gcd
from gcd._languages.grammar.lark_dialect import read_lark
from gcd._languages.grammar.productions import Rules
from tests.gcd.languages.grammar import oracles
from tests.gcd.languages.grammar.oracles import is_parsed, lark_grammars, parser_of, texts_below
from tests.gcd.oracles import checked_inside_strategies

MOST = 4
ALL = [
    "".join(text) for n in range(MOST + 1) for text in itertools.product(oracles.LETTERS, repeat=n)
]
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
    assert texts_below(language, MOST) == oracles.texts_of(read_lark(text, "start"), MOST)


@checked_inside_strategies
@settings(max_examples=10)
@given(lark_grammars(), st.integers(0, 2))
def test_a_depth_has_all_promised_texts_and_only_texts_of_the_grammar(text, depth):
    read = read_lark(text, "start")
    whole = oracles.texts_of(read, MOST)
    language = compiled(text, max_depth=depth)
    rules = Rules(read)
    found = texts_below(language, MOST)
    assert found <= whole
    if language.is_whole:
        assert found == whole
    else:
        promised = {each for each in whole if len(each) <= language.whole_bytes}
        assert promised | oracles.texts_to_depth(rules, depth, MOST) <= found
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


LINES = """
start: (line _NL)*
line: NAME "=" value
value: NAME | "(" value ")"
NAME: /[a-z]+/
_NL: ( /\\n[ \\t]*/ | COMMENT )+
COMMENT: /#[^\\n]*/
%ignore /[ \\t]+/
%ignore COMMENT
"""


def test_a_comment_hides_text_where_line_ends_are_terminals():
    language, parser = gcd.grammar(LINES, max_depth=2), parser_of(LINES)
    texts = ["a=b\n", "a=b # c\n", "a=(b # )\n", "a=(b) # c\n# d\n", "a=#b\n", "a=b#\n#"]
    accepted = [text for text in texts if language.accepts(text)]
    assert accepted == [text for text in texts if is_parsed(parser, text)]
    assert 2 < len(accepted) < len(texts)


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
    whole, found = oracles.texts_of(read_lark(text, "start"), 9), texts_below(language, 9)
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


# -- dialects ----------------------------------------------------------------------------------

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
JSON_OF_GBNF = r"""
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
        (
            JSON_OF_GBNF,
            "gbnf",
            ['{"a": [1, {"b":\n  null}], "c": "\\u00e9"}'],
            ["[]", '{"a":}', "{1:1}"],
        ),
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
    testing = pytest.importorskip("xgrammar.testing")
    is_read_alike = "::= ." not in text and "(=" not in text  # by both engines
    for each in [*good, *bad] if is_read_alike else []:
        assert testing._is_grammar_accept_string(text, each) == (each in good), each


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

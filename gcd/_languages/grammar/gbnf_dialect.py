"""Parser of GBNF (the grammars of llama.cpp) and of the similar EBNF of xgrammar.

Rules have the form `name ::= alternatives`. There is no lexer, and no text is ignored: grammars
describe characters. The two dialects differ in the meaning of `.`, which is any character in GBNF,
and may be part of a name in EBNF. Only EBNF has `{m, -1}` for a repetition without an upper bound,
and hints `(= ...)` at the ends of rules, which xgrammar doesn't check, and which are ignored. Some
syntax doesn't describe texts, and is refused with an error that names it: tokens by their ids
(`<[1]>`, `<think>`, `Token(...)`), and rules that depend on tokens (`TagDispatch`).
"""

from __future__ import annotations

import re
from functools import lru_cache, reduce
from typing import Any

from gcd._automata.automaton import Automaton
from gcd._errors import ConstraintError
from gcd._languages.grammar.expressions import Grammar
from gcd._languages.literal import literal
from gcd._languages.text.code_points import SCALARS, Ranges, complement, one_of, ranges
from gcd._languages.text.regex import count
from gcd._languages.text.syntax import Choice, Node, Reference, Repeat, Sequence

# A rule ends where the next rule's name and `::=` begin, so line ends have no meaning.
_SYNTAX = r"""
start: rule+
rule: HEAD choice HINT
choice: sequence ("|" sequence)*
sequence: item*
item: atom QUANTIFIER*
?atom: STRING | CLASS | ANY | NAME | REFUSED | "(" choice ")"
HEAD.3: /NAMED\s*::=/
NAME: /NAMED/
STRING: /"(?:[^"\\]|\\.)*"/s
CLASS: /\[(?:[^\]\\]|\\.)*\]/s
ANY: /NEVER/
QUANTIFIER: /[*+?]|\{\s*[0-9]*\s*(?:,\s*UPPER\s*)?\}/
REFUSED.2: /!?<[^>\n]*>|(?:TagDispatch|TokenTagDispatch|Token|ExcludeToken)\s*\([^\n]*/
%ignore /\s+/
%ignore /#[^\n]*/
"""
_DIALECTS = {
    "gbnf": {"NAMED": "[a-zA-Z0-9_-]+", "NEVER": r"\.", "UPPER": "[0-9]*", "HINT": ""},
    "ebnf": {
        "NAMED": "[a-zA-Z0-9_.-]+",
        "NEVER": "(?!)x",
        "UPPER": "(?:-1|[0-9]*)",
        "HINT": '("(=" choice ")")?',
    },
}
_UNIT = re.compile(
    r"\\x([0-9a-fA-F]{2})|\\u([0-9a-fA-F]{4})|\\U([0-9a-fA-F]{8})|\\(.)|(.)", re.DOTALL
)
_CONTROLS = {"n": 10, "r": 13, "t": 9, "0": 0, "a": 7, "b": 8, "f": 12, "v": 11, "e": 27}


def read_gbnf(text: str, start: str, dialect: str) -> Grammar:
    """Parse a grammar in the dialect "gbnf" or "ebnf"."""
    from lark.exceptions import UnexpectedInput

    try:
        tree = _parser(dialect).parse(text)
    except UnexpectedInput as error:
        raise ConstraintError(
            f"expected {dialect.upper()} at line {error.line}, column {error.column} of the "
            f"grammar, got the text below; correct it\n{error.get_context(text)}"
        ) from error
    rules: dict[str, Node] = {}
    for head, choice, *_ in (rule.children for rule in tree.children):
        name = str(head.value)[:-3].rstrip()
        if name in rules:
            raise ConstraintError(
                f"expected one definition of the rule {name!r}, got another at line {head.line}; "
                "rename it"
            )
        rules[name] = _expression(choice)
    return Grammar(rules, start)


@lru_cache(2)
def _parser(dialect: str) -> Any:
    from lark import Lark

    syntax = reduce(lambda syntax, part: syntax.replace(*part), _DIALECTS[dialect].items(), _SYNTAX)
    return Lark(syntax, parser="lalr", propagate_positions=False, maybe_placeholders=False)


def _expression(tree: Any) -> Node:
    kind = getattr(tree, "data", None)
    if kind is None:
        return _atom(tree)
    if kind == "item":
        body, *signs = tree.children
        expression = _expression(body)
        for sign in signs:
            expression = Repeat(expression, *_counts(sign))
        return expression
    parts = tuple(map(_expression, tree.children))
    if len(parts) == 1:
        return parts[0]
    return Choice(parts) if kind == "choice" else Sequence(parts)


def _atom(token: Any) -> Node:
    match token.type:
        case "NAME":
            return Reference(str(token.value))
        case "ANY":
            return one_of(SCALARS)
        case "STRING":
            units = _units(token, token.value[1:-1])
            return literal("".join(chr(point) for point, _ in units))
        case "CLASS":
            return _class(token)
    raise ConstraintError(
        f"a reference to tokens ({token.value}) at line {token.line}, column {token.column}, is "
        "not supported, because a grammar describes texts; use gcd.segments for special tokens "
        "between texts"
    )


def _class(token: Any) -> Automaton:
    inside = token.value[1:-1]
    negated = inside.startswith("^")
    units = _units(token, inside[negated:])
    found: list[tuple[int, int]] = []
    while units:
        low, _ = units.pop(0)
        high = low
        if len(units) > 1 and units[0] == (ord("-"), False):
            high = units[1][0]
            del units[:2]
        if high < low:
            raise _error(token, "expected ranges from a smaller to a larger character")
        found.append((low, high))
    allowed: Ranges = complement(ranges(found)) if negated else ranges(found)
    if not allowed:
        raise _error(token, "expected a class with at least one character")
    return one_of(allowed)


def _units(token: Any, text: str) -> list[tuple[int, bool]]:
    """Return the code points of a text, each with whether it was written as an escape."""
    found: list[tuple[int, bool]] = []
    for unit in _UNIT.finditer(text):
        digits, letter = unit[1] or unit[2] or unit[3], unit[4]
        if letter and letter not in _CONTROLS and letter.isalnum():
            raise _error(token, f"the escape \\{letter} is unknown; remove the backslash")
        escaped = int(digits, 16) if digits else _CONTROLS.get(letter or "", ord(unit[0][-1]))
        if escaped > 0x10FFFF:
            raise _error(token, "expected escapes up to the last code point U+10FFFF")
        found.append((escaped, unit[5] is None))
    return found


def _counts(token: Any) -> tuple[int, int | None]:
    sign = token.value
    if sign in "*+?":
        return int(sign == "+"), 1 if sign == "?" else None
    low, comma, high = sign.strip("{}").partition(",")
    minimum = count(low)
    is_open = high.strip() in ("", "-1")
    maximum = (None if is_open else count(high)) if comma else minimum
    if (not comma and not low.strip()) or (maximum is not None and maximum < minimum):
        raise _error(token, "expected a repetition from a smaller to a larger number")
    return minimum, maximum


def _error(token: Any, message: str) -> ConstraintError:
    return ConstraintError(
        f"{message} (in {token.value[:80]} at line {token.line}, column {token.column})"
    )

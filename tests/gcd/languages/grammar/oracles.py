"""Oracles for grammars: languages as sets of strings, from their equations, up to a length."""

from __future__ import annotations

from functools import lru_cache, reduce

import lark
from hypothesis import strategies as st

from gcd import Automaton
from gcd._languages.grammar.expressions import Grammar, references
from gcd._languages.grammar.productions import Rules
from gcd._languages.text.syntax import Choice, Node, Reference, Repeat

Texts = frozenset[bytes]
LETTERS = "x()"


@lru_cache(100_000)
def _product(left: Texts, right: Texts, most: int) -> Texts:
    if min(len(left), len(right)) == 1 and b"" in left & right:
        return left | right
    return frozenset(a + b for a in left for b in right if len(a) + len(b) <= most)


@lru_cache(4096)
def texts_below(automaton: Automaton, most: int) -> Texts:
    """Return the strings of at most `most` bytes."""
    found = set()
    for text in automaton:
        if len(text) > most:
            break
        found.add(text)
    return frozenset(found)


def texts_of(grammar: Grammar, most: int) -> Texts:
    """Return all texts of at most `most` bytes: the least fixed point, from empty sets."""
    known: dict[str, Texts] = {}
    pending = [grammar.start]
    while pending:
        name = pending.pop()
        if name not in known:
            known[name] = frozenset()
            pending += references(grammar.rules[name])

    def value(expression: Node) -> Texts:
        if isinstance(expression, Automaton):
            return texts_below(expression, most)
        if isinstance(expression, Reference):
            return known[expression.name]
        if isinstance(expression, Choice):
            return frozenset().union(*map(value, expression.options))
        if isinstance(expression, Repeat):
            once, found, power = value(expression.body), frozenset(), frozenset([b""])
            for count in range((most if expression.maximum is None else expression.maximum) + 1):
                if count >= expression.minimum:
                    found |= power
                power = _product(power, once, most)
            return found | (power if expression.maximum is None else frozenset())
        return reduce(
            lambda a, b: _product(a, b, most), map(value, expression.parts), frozenset([b""])
        )

    while True:
        before = dict(known)
        for name in before:
            known[name] = value(grammar.rules[name])
        if known == before:
            return known[grammar.start]


def texts_to_depth(rules: Rules, depth: int, most: int) -> Texts:
    """Return all texts of derivations with at most `depth` counted rules on any path."""
    known: dict[tuple[str, int], Texts] = {}
    while True:
        before = dict(known)
        for name, ways in rules.productions.items():
            for left in range(depth + 1):
                inside = left - (name in rules.counted)
                found: Texts = frozenset()
                for way in ways if inside >= 0 else ():
                    parts = [
                        texts_below(s, most)
                        if isinstance(s, Automaton)
                        else before.get((s, inside), frozenset())
                        for s in way
                    ]
                    found |= reduce(lambda a, b: _product(a, b, most), parts, frozenset([b""]))
                known[name, left] = found
        if known == before:
            return known[rules.start, depth]


@st.composite
def lark_grammars(draw: st.DrawFn, max_rules: int = 4) -> str:
    """Small grammars over a few letters, with all kinds of recursion and empty productions."""
    names = ["start", *"abcdef"[: draw(st.integers(0, max_rules - 1))]]
    leaf = st.sampled_from([*(f'"{c}"' for c in LETTERS), "/x[x(]?/", "T", *(2 * names)])

    def grown(inner: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
        sequence = st.lists(inner, max_size=3).map(" ".join)
        group = st.lists(sequence, min_size=1, max_size=2).map(lambda s: f"({' | '.join(s)})")
        sign = st.sampled_from(["?", "*", "+", "~2", "~0..2"])
        return st.one_of(
            inner, group, st.tuples(inner, sign).map(lambda pair: f"({pair[0]}){pair[1]}")
        )

    item = st.recursive(leaf, grown, max_leaves=3)
    lines = []
    for name in names:
        ways = draw(st.lists(st.lists(item, max_size=3).map(" ".join), min_size=1, max_size=3))
        lines.append(f"{name}: {' | '.join(ways)}")
    lines.append('T: "x" | "(x"')
    return "\n".join(lines) + "\n"


def parser_of(text: str) -> lark.Lark:
    """The reference: lark's Earley parser, which splits texts in all ways."""
    return lark.Lark(text, parser="earley", lexer="dynamic_complete", ambiguity="forest")


def is_parsed(parser: lark.Lark, text: str) -> bool:
    try:
        parser.parse(text)
    except lark.exceptions.UnexpectedInput:
        return False
    return True

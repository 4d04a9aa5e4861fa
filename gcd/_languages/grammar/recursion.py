r"""Choice of the rules whose nested uses count toward a grammar's depth.

A rule that refers to itself at the right end of its productions is a loop, and therefore regular. A
rule that refers to itself elsewhere, as brackets do, is not. (No rule refers to itself at the left
end, because `gcd._languages.grammar.chains` has rewritten such rules.) In a production `X -> Y_1
... Y_n`, references to rules that lead back to X are of two kinds:

* *tail*: Y_n, because the text after X is also the text after Y_n;
* *embedding*: all others.

Unrolling terminates if every cycle that contains an embedding reference contains one in a *counted*
rule. The counted rules are chosen greedily: each choice leaves as few references as possible on
cycles that don't satisfy this condition. If no counted rule is needed, the rules are regular. Cf.
Nederhof, "Practical experiments with regular approximation of context-free languages",
Computational Linguistics 26 (2000), on strongly regular grammars and their automata.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from typing import NamedTuple

from gcd._automata.automaton import Automaton
from gcd._automata.limits import spend
from gcd._languages.cycles import components

Symbol = Automaton | str
Production = tuple[Symbol, ...]
Productions = dict[str, list[Production]]

_MOST_TRIED = 12  # with more candidates, choose the rule with most references, without trying each
_PER_REFERENCE = 1000  # units of work per reference and round


class _Edge(NamedTuple):
    source: str
    target: str
    is_tail: bool


def find_counted(productions: Productions, whole: Mapping[str, str]) -> set[str]:
    """Return the symbols whose nested uses have to be counted; none if all rules are regular.

    Args:
        productions: productions of some rules. Other rules to which they refer must not lead back
            to them.
        whole: the rewritten symbol, for each symbol that was made to rewrite recursion as loops.
    """
    edges = [edge for name in productions for edge in _edges(name, productions, whole)]
    names = [name for name in productions if name not in whole]
    counted: set[str] = set()
    while blamed := _not_regular(names, edges, counted):
        candidates = [name for name in names if name in blamed]
        if len(candidates) > _MOST_TRIED:
            uses = [edge.target for edge in edges]
            scores = [-uses.count(name) for name in candidates]
        else:
            scores = [len(_not_regular(names, edges, counted | {name})) for name in candidates]
        counted.add(candidates[scores.index(min(scores))])
    return counted


def _edges(name: str, productions: Productions, whole: Mapping[str, str]) -> Iterator[_Edge]:
    for production in productions[name]:
        for i, symbol in enumerate(production):
            if isinstance(symbol, str) and symbol in productions and symbol not in whole:
                yield _Edge(whole.get(name, name), symbol, i == len(production) - 1)


def _not_regular(names: list[str], edges: list[_Edge], counted: Collection[str]) -> set[str]:
    """Return the symbols whose recursion is neither a loop nor limited by counted rules.

    They contain an embedding reference (not at the right end of a production) on a cycle that
    remains after the embedding references of counted rules are removed.
    """
    spend(_PER_REFERENCE * (len(edges) + len(names)))
    below: dict[str, set[str]] = {name: set() for name in names}
    edges = [edge for edge in edges if edge.source not in counted or edge.is_tail]
    for edge in edges:
        below[edge.source].add(edge.target)
    number = {name: i for i, group in enumerate(components(below)) for name in group}
    return {e.source for e in edges if not e.is_tail and number[e.source] == number[e.target]}

r"""This module finds where rules contain themselves, and which of them depth has to count.

A rule that refers to itself at the right end of its productions, or at the left end, is as
regular as a loop; one that refers to itself in the middle, as brackets do, is not. So references
among rules that reach each other are told apart, in productions `X -> Y_1 ... Y_n`:

* *left*: Y_1, if X and Y_1 are left corners of each other (left recursion, direct or not);
* *tail*: Y_n, if X is not left-recursive: what follows X follows Y_n;
* *own tail*: Y_n, if X is its own only left corner: the tail is then followed by what X's left
  recursion may add, which is no more than X itself may read, so `e: e "+" e | x` stays a loop;
* *embedding*: all others.

Unrolling ends if every cycle with an embedding reference, or with own tails of several rules,
leaves a rule that is *counted* by such a reference. Few are chosen, one by one, each so that the
references left on such cycles are fewest. If none is needed the rules are regular. Cf. Nederhof,
"Practical experiments with regular approximation of context-free languages", Computational
Linguistics 26 (2000), on strongly regular grammars and their automata.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from enum import Enum

from gcd.automata.automaton import Automaton
from gcd.automata.limits import spend
from gcd.languages.cycles import components, cycles

Symbol = Automaton | str
Production = tuple[Symbol, ...]
Productions = dict[str, list[Production]]

_MOST_TRIED = 12  # of more candidates, the one with most references is taken without a trial
_PER_REFERENCE = 1000  # units for one reference in one round


class _Kind(Enum):
    LEFT, TAIL, OWN_TAIL, EMBEDDING = range(4)


def left_groups(productions: Productions) -> dict[str, str]:
    """Map each left-recursive symbol to the first of the symbols on its cycle of left corners."""
    corners = {
        name: {p[0] for p in ways if p and isinstance(p[0], str) and p[0] in productions}
        for name, ways in productions.items()
    }
    first: dict[int, str] = {}
    return {name: first.setdefault(number, name) for name, number in cycles(corners).items()}


def counted_rules(productions: Productions, left: Mapping[str, str]) -> set[str]:
    """Return the symbols whose nested uses have to be counted, empty if all are regular.

    Args:
        productions: of some rules; other rules that they refer to do not lead back to them.
        left: as `left_groups` returns it.
    """
    sizes: dict[str, int] = {}
    for group in left.values():
        sizes[group] = sizes.get(group, 0) + 1
    edges = [edge for name in productions for edge in _edges(name, productions, left, sizes)]
    counted: set[str] = set()
    while blamed := _not_regular(productions, edges, counted):
        candidates = [name for name in productions if name in blamed]
        if len(candidates) > _MOST_TRIED:
            uses = [target for _, target, _ in edges]
            scores = [-uses.count(name) for name in candidates]
        else:
            tried = [counted | _with(name, left) for name in candidates]
            scores = [len(_not_regular(productions, edges, more)) for more in tried]
        chosen = candidates[scores.index(min(scores))]
        counted |= _with(chosen, left)
    return counted


def _with(name: str, left: Mapping[str, str]) -> set[str]:
    """A rule and its left corners, which are entered together."""
    return {name} | {other for other in left if left[other] == left.get(name)}


def _edges(
    name: str, productions: Productions, left: Mapping[str, str], sizes: Mapping[str, int]
) -> Iterator[tuple[str, str, _Kind]]:
    for production in productions[name]:
        for i, symbol in enumerate(production):
            if isinstance(symbol, Automaton) or symbol not in productions:
                continue
            if i == 0 and name in left and left[name] == left.get(symbol):
                yield name, symbol, _Kind.LEFT
            elif i < len(production) - 1:
                yield name, symbol, _Kind.EMBEDDING
            elif name not in left:
                yield name, symbol, _Kind.TAIL
            else:
                own = sizes[left[name]] == 1
                yield name, symbol, _Kind.OWN_TAIL if own else _Kind.EMBEDDING


def _not_regular(
    productions: Productions, edges: list[tuple[str, str, _Kind]], counted: Collection[str]
) -> set[str]:
    """The symbols with references that make a cycle without counted rules more than a loop."""
    spend(_PER_REFERENCE * (len(edges) + len(productions)))
    below: dict[str, set[str]] = {name: set() for name in productions}
    harmless = (_Kind.LEFT, _Kind.TAIL)
    edges = [edge for edge in edges if edge[0] not in counted or edge[2] in harmless]
    for source, target, _ in edges:
        below[source].add(target)
    number = {name: i for i, group in enumerate(components(below)) for name in group}
    inside = [(a, kind) for a, b, kind in edges if number[a] == number[b]]
    found = {a for a, kind in inside if kind is _Kind.EMBEDDING}
    own: dict[int, set[str]] = {}
    for source, kind in inside:
        if kind is _Kind.OWN_TAIL:
            own.setdefault(number[source], set()).add(source)
    return found.union(*(sources for sources in own.values() if len(sources) > 1))

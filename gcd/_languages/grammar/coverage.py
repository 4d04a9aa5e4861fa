"""Share of a grammar's texts that remain in its automaton under a depth limit.

The numerator is the number of texts of at most n bytes that the automaton accepts. The denominator
is the number of derivations of such texts in the grammar without the limit. The number of
derivations of k bytes from a production X -> Y_1 ... Y_m is a convolution,

    d(Y_1 ... Y_i, k)  =  sum_j  d(Y_1 ... Y_{i-1}, j) d(Y_i, k - j),

over all j from 0 to k. If Y_i is an automaton, d(Y_i, k) is its number of texts. In the terms with
j = 0 or j = k, one of the two factors derives all k bytes. So if a symbol can derive itself next to
symbols with the empty text, its number would depend on itself (an *empty cycle*). Two changes
remove such cycles. The empty text counts as one derivation of a symbol, no matter how many it has.
And all symbols on an empty cycle get one common number: the derivations that don't begin with a
step along the cycle. After that, every text still has at least one derivation. So the quotient
is a lower bound, and exact if each text has a single derivation
(`gcd._languages.grammar.ambiguity`). Cost: O(symbols n^2) products of integers.
"""

from __future__ import annotations

from operator import mul
from typing import NamedTuple

from gcd._automata.automaton import Automaton
from gcd._automata.counting import by_length
from gcd._automata.kernels import graph
from gcd._automata.limits import count_work, spend
from gcd._errors import check_count, check_kind
from gcd._languages.cycles import components
from gcd._languages.grammar.ambiguity import is_unambiguous
from gcd._languages.grammar.grammar import GrammarLanguage
from gcd._languages.grammar.productions import Rules
from gcd._languages.grammar.recursion import Symbol

_PER_PRODUCT, _PER_EDGE = 20, 60  # units of work


class Coverage(NamedTuple):
    """Share of a grammar's texts, up to a length in bytes, that a language contains.

    Attributes:
        max_length: longest text in bytes that is counted.
        texts: number of texts in the language.
        whole: number of texts in the grammar. If not `is_exact`, it is an upper bound, the number
            of derivations.
        is_exact: whether each text is known to have a single derivation.
    """

    max_length: int
    texts: int
    whole: int
    is_exact: bool

    @property
    def fraction(self) -> float:
        """Share of the texts that are in the language; a lower bound if not `is_exact`."""
        return self.texts / self.whole if self.whole else 1.0

    def __str__(self) -> str:
        """Format the share as a phrase; it is rounded down, so that 100% means all texts."""
        least = "" if self.is_exact else "at least "
        thousandths = 100_000 * self.texts // self.whole if self.whole else 100_000
        return f"{least}{thousandths / 1000:.3f}% of texts of at most {self.max_length} bytes"


def grammar_coverage(language: GrammarLanguage, max_length: int = 40) -> Coverage:
    """Return the share of a grammar's texts, up to a length, that a language contains.

    Args:
        language: a result of `gcd.grammar`.
        max_length: longest text in bytes that is counted.

    Raises:
        ConstraintError: the language is not a result of `gcd.grammar`, or it is exact only for
            texts shorter than `max_length`.
        WorkLimitError: counting takes more work than `gcd.work_limit` allows.
    """
    check_kind(
        language,
        GrammarLanguage,
        "a gcd.GrammarLanguage",
        "call gcd.grammar first",
    )
    most = language.max_bytes
    check_count(f"max_length (max_bytes={most})", max_length, 0, most)
    rules = language.rules
    assert rules is not None
    with count_work():
        _pay(language, max_length)
        texts = language.count(max_length)
        if language.whole_bytes is None or max_length <= language.whole_bytes:
            return Coverage(max_length, texts, texts, True)
        return Coverage(max_length, texts, derivations(rules, max_length), is_unambiguous(rules))


def _pay(language: Automaton, max_length: int) -> None:
    """Count the work of `language.count` toward the work limit: its edges times `max_length`."""
    edges = graph.distinct_edges(language.delta)[1].size
    spend(_PER_EDGE * edges * max_length, "counting texts")


def derivations(rules: Rules, max_length: int) -> int:
    """Return the number of derivations of texts of at most `max_length` bytes."""
    counts: dict[Symbol, list[int]] = {}
    # The number of derivations of a variable is a sum of products of two numbers.
    halves: dict[str, list[tuple[Symbol, Symbol]]] = {}
    nothing = Automaton.epsilon()
    for name, ways in rules.productions.items():
        halves[name] = []
        for number, way in enumerate(ways):
            first: Symbol = way[0] if way else nothing
            for i, symbol in enumerate(way[1:-1]):
                halves[f"{name} {number} {i}"] = [(first, symbol)]
                first = f"{name} {number} {i}"
            halves[name].append((first, way[-1] if len(way) > 1 else nothing))
    for pair in (pair for pairs in halves.values() for pair in pairs):
        for symbol in pair:
            if symbol not in counts:
                counts[symbol] = [0] * (max_length + 1)
                if isinstance(symbol, Automaton):
                    _pay(symbol, max_length)
                    arrays = symbol.delta, symbol.accepting, symbol.class_of_byte
                    counts[symbol] = by_length(*arrays, max_length)
    counts |= {name: [0] * (max_length + 1) for name in halves}
    # The empty text counts as one derivation of each variable that derives it.
    for name in rules.productions:
        counts[name][0] = int(rules.fewest_bytes[name] == 0)
    for name, pairs in halves.items():
        if name not in rules.productions:
            counts[name][0] = int(all(counts[symbol][0] for symbol in pairs[0]))
    beside: dict[str, list[str]] = {  # symbols next to one that derives ""
        name: [
            symbol
            for pair in pairs
            for symbol, other in (pair, pair[::-1])
            if isinstance(symbol, str) and counts[other][0]
        ]
        for name, pairs in halves.items()
    }
    order = components(beside)
    for size in range(1, max_length + 1):
        spend(_PER_PRODUCT * size * len(halves), "counting derivations")
        for group in order:
            inside = set(group)
            total = dict.fromkeys(group, 0)
            for name in group:
                for left, right in halves[name]:
                    a, b = counts[left], counts[right]
                    total[name] += sum(map(mul, a[1:size], b[size - 1 : 0 : -1]))
                    total[name] += 0 if right in inside else a[0] * b[size]
                    total[name] += 0 if left in inside else a[size] * b[0]
            together = sum(total.values())  # shared by all symbols of an empty cycle
            for name in group:
                counts[name][size] = together
    return sum(counts[rules.start])

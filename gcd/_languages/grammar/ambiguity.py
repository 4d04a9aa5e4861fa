"""Proof that each text of a grammar has a single derivation.

A grammar is unambiguous if the next byte determines every choice in a derivation. There are two
kinds of choices. The first is which production replaces a symbol. The second occurs where a text of
an automaton may end, but also continue. These are the LL(1) conditions (Lewis and Stearns 1968)
over bytes. Left recursion can also satisfy them, because it is first rewritten as loops
(`gcd._languages.grammar.chains`). A grammar for which this proof fails may still be unambiguous.
"""

from __future__ import annotations

import numpy as np

from gcd._automata.automaton import Automaton
from gcd._automata.limits import spend
from gcd._languages.grammar.productions import Rules
from gcd._languages.grammar.recursion import Production, Symbol

_PER_LOOK = 400  # units of work
_END = 1 << 256  # the end of the text, in addition to 256 bytes


def is_unambiguous(rules: Rules) -> bool:
    """Return whether the next byte determines every choice, so that no text has two derivations."""
    return _Proof(rules).holds()


class _Proof:
    """Check of the LL(1) conditions; a set of bytes is an integer with one bit for each byte."""

    def __init__(self, rules: Rules) -> None:
        self._rules = rules
        self._first: dict[Symbol, int] = dict.fromkeys(rules.productions, 0)
        self._going_on: dict[Automaton, int] = {}  # bytes after a complete text
        leaves = (s for ways in rules.productions.values() for way in ways for s in way)
        for leaf in (symbol for symbol in leaves if isinstance(symbol, Automaton)):
            if leaf not in self._first:
                table = leaf.transitions >= 0
                self._first[leaf] = _bits(table[0])
                self._going_on[leaf] = _bits(table[leaf.accepting].any(axis=0))
        self._grow(self._first, lambda name, way: [(name, self._begins(way))])
        self._follow: dict[Symbol, int] = dict.fromkeys(rules.productions, 0)
        self._follow[rules.start] = _END
        self._grow(self._follow, self._followers)

    def holds(self) -> bool:
        for name, ways in self._rules.productions.items():
            if sum(map(self._is_empty, ways)) > 1:
                return False
            after = self._follow[name]
            if _overlap([self._begins(w) | (after if self._is_empty(w) else 0) for w in ways]):
                return False
            for way in ways:
                for i, symbol in enumerate(way):
                    if isinstance(symbol, Automaton) and self._going_on[symbol] & self._next(
                        name, way, i
                    ):
                        return False
        return True

    def _is_empty(self, way: Production) -> bool:
        return sum(self._rules.fewest_bytes[symbol] for symbol in way) == 0

    def _begins(self, way: Production) -> int:
        """Return the bytes with which a text of a sequence of symbols may begin."""
        found = 0
        for symbol in way:
            found |= self._first[symbol]
            if self._rules.fewest_bytes[symbol]:
                break
        return found

    def _next(self, name: str, way: Production, i: int) -> int:
        """Return the bytes that may follow the symbol at index `i` of a production of `name`."""
        rest = way[i + 1 :]
        return self._begins(rest) | (self._follow[name] if self._is_empty(rest) else 0)

    def _followers(self, name: str, way: Production) -> list[tuple[Symbol, int]]:
        return [
            (symbol, self._next(name, way, i))
            for i, symbol in enumerate(way)
            if isinstance(symbol, str)
        ]

    def _grow(self, sets: dict[Symbol, int], found: object) -> None:
        """Extend the symbols' sets of bytes until nothing changes.

        `found` is called with a rule and each of its productions. It returns pairs (symbol, bytes
        to add to the symbol's set).
        """
        assert callable(found)
        is_stable = False
        while not is_stable:
            is_stable = True
            for name, ways in self._rules.productions.items():
                for way in ways:
                    spend(
                        _PER_LOOK * (1 + len(way) ** 2), "the proof that a grammar is unambiguous"
                    )
                    for symbol, more in found(name, way):
                        if more & ~sets[symbol]:
                            sets[symbol] |= more
                            is_stable = False


def _bits(row: np.ndarray) -> int:
    return sum(1 << int(byte) for byte in np.flatnonzero(row))


def _overlap(sets: list[int]) -> bool:
    union = 0
    for each in sets:
        if union & each:
            return True
        union |= each
    return False

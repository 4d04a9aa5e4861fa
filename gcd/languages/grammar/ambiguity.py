"""This module proves that each text of a grammar has one derivation, by looking one byte ahead.

A grammar in which the next byte says, at each choice, what is to be done is unambiguous. A choice
is which production a symbol takes, and whether a text of an automaton, which may end here, goes
on. A symbol that is left-recursive, X -> X z_1 | ... | y_1 | ..., takes one y and then a z as long
as one begins with the next byte. These are the conditions LL(1) (Lewis and Stearns 1968) over
bytes, with loops. What they do not prove may be unambiguous all the same.
"""

from __future__ import annotations

import numpy as np

from gcd.automata.automaton import Automaton
from gcd.automata.limits import spend
from gcd.languages.grammar.productions import Rules
from gcd.languages.grammar.recursion import Production, Symbol

_PER_LOOK = 400  # units
_END = 1 << 256  # the end of the text, beside 256 bytes


def is_unambiguous(rules: Rules) -> bool:
    """Return whether it is proven that no text has two derivations."""
    sizes: dict[str, int] = {}
    for group in rules.left.values():
        sizes[group] = sizes.get(group, 0) + 1
    if any(size > 1 for size in sizes.values()):
        return False
    return _Proof(rules).holds()


class _Proof:
    """Sets of bytes are bits of a whole number."""

    def __init__(self, rules: Rules) -> None:
        self._rules = rules
        self._first: dict[Symbol, int] = dict.fromkeys(rules.productions, 0)
        self._going_on: dict[Automaton, int] = {}  # bytes that may follow a text, in a longer one
        leaves = (s for ways in rules.productions.values() for way in ways for s in way)
        for leaf in (symbol for symbol in leaves if isinstance(symbol, Automaton)):
            if leaf not in self._first:
                table = leaf.transitions >= 0
                self._first[leaf] = _bits(table[0])
                self._going_on[leaf] = _bits(table[leaf.accepting].any(axis=0))
        self._grow(self._first, lambda name, way: [(name, self._begins(way))])
        # What may follow a symbol, once its own left recursion is through.
        self._follow: dict[Symbol, int] = dict.fromkeys(rules.productions, 0)
        self._follow[rules.start] = _END
        self._loop = {
            name: self._union(self._begins(way[1:]) for way in ways if self._is_loop(name, way))
            for name, ways in rules.productions.items()
        }
        self._grow(self._follow, self._followers)

    def holds(self) -> bool:
        for name, ways in self._rules.productions.items():
            loops = [way[1:] for way in ways if self._is_loop(name, way)]
            entries = [way for way in ways if not self._is_loop(name, way)]
            if any(self._is_empty(way) for way in loops):
                return False
            if sum(map(self._is_empty, entries)) > 1:
                return False
            after = self._loop[name] | self._follow[name]
            begins = [self._begins(w) | (after if self._is_empty(w) else 0) for w in entries]
            begun = [self._begins(way) for way in loops]
            if _overlap(begins) or _overlap([*begun, self._follow[name]]):
                return False
            for way in ways:
                for i, symbol in enumerate(way):
                    if isinstance(symbol, Automaton) and self._going_on[symbol] & self._next(
                        name, way, i
                    ):
                        return False
        return True

    def _is_loop(self, name: str, way: Production) -> bool:
        return bool(way) and way[0] == name

    def _is_empty(self, way: Production) -> bool:
        return sum(self._rules.fewest_bytes[symbol] for symbol in way) == 0

    def _begins(self, way: Production) -> int:
        """The first bytes of the texts of some symbols in a row."""
        found = 0
        for symbol in way:
            found |= self._first[symbol]
            if self._rules.fewest_bytes[symbol]:
                break
        return found

    def _next(self, name: str, way: Production, i: int) -> int:
        """What may follow a symbol of a production."""
        rest = way[i + 1 :]
        after = self._follow[name] | self._loop[name]
        return self._begins(rest) | (after if self._is_empty(rest) else 0)

    def _followers(self, name: str, way: Production) -> list[tuple[Symbol, int]]:
        loop = self._is_loop(name, way)
        return [
            (symbol, self._next(name, way, i))
            for i, symbol in enumerate(way)
            if isinstance(symbol, str) and not (loop and i == 0)
        ]

    def _grow(self, sets: dict[Symbol, int], found: object) -> None:
        """Add to sets what follows from them, until nothing does."""
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

    @staticmethod
    def _union(sets: object) -> int:
        total = 0
        for each in sets:  # type: ignore[attr-defined]
            total |= each
        return total


def _bits(row: np.ndarray) -> int:
    return sum(1 << int(byte) for byte in np.flatnonzero(row))


def _overlap(sets: list[int]) -> bool:
    union = 0
    for each in sets:
        if union & each:
            return True
        union |= each
    return False

"""Small vocabularies and constraints on which everything can be enumerated."""

from __future__ import annotations

from gcd.automata.automaton import Automaton
from gcd.tokens.lifting import lift
from gcd.tokens.token_automaton import TokenAutomaton
from gcd.tokens.vocabulary import Vocabulary

# Tokens of several bytes, one spelling in two ways, an id without bytes, and two EOS ids.
VOCABULARY = Vocabulary.from_bytes([b"a", b"b", b"ab", b"", b"", b""], [3, 5])


def choice(*texts: str) -> Automaton:
    """These texts."""
    return Automaton.union([Automaton.literal(text) for text in texts])


def a_star_b() -> TokenAutomaton:
    """Any number of a, then b."""
    return lift(Automaton.literal("a").star() + Automaton.literal("b"), VOCABULARY)


def few_words() -> TokenAutomaton:
    """Four words, one the beginning of another, and one that takes long."""
    return lift(choice("a", "ab", "ba", "bbb"), VOCABULARY)


def forced() -> TokenAutomaton:
    """One word only."""
    return lift(choice("ba"), VOCABULARY)


CONSTRAINTS = {"a_star_b": a_star_b, "few_words": few_words, "forced": forced}

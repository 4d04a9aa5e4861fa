"""These problems are sentences with keywords, written by an HMM of short stories.

A sentence here is at most twenty words of lower-case letters, each with a space before it, and a
full stop, at which it ends by itself; the model wrote what goes before. Three to five words must
occur in it, as whole words, in any order or in a given one. That is an obligation which can be put
off: a text may go on for long as if there were none, and only then has no room left.

Events are which keyword comes first, or how many words there are.

They were written down before any sampler was run on them, and all of them are reported.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import reduce

import gcd
from experiments.convergence.scale.problem import EventProblem
from experiments.convergence.scale.truth import Event
from gcd.automata.automaton import Automaton

MOST_WORDS = 20
LONG, TIGHT = (0, 60), (1, 6)  # factor of the fewest tokens, tokens on top

_WORD = gcd.regex(" [a-z]+")
_STOP = gcd.literal(".")
_LENGTHS = ((1, 8), (9, 12), (13, 16), (17, MOST_WORDS))


def of_words(low: int, high: int) -> Automaton:
    """Return the language of sentences of so many words."""
    return _WORD.repeat(low, high) + _STOP


def any_order(keywords: Sequence[str]) -> Automaton:
    """Return the language of sentences of any length in which all of these words occur."""
    each = [in_order([keyword]) for keyword in keywords]
    return reduce(Automaton.__and__, each)


def in_order(keywords: Sequence[str]) -> Automaton:
    """Return the language of sentences in which these words occur one after another.

    Others may stand between them, and each may occur more than once.
    """
    parts = [part for word in keywords for part in (_WORD.star(), gcd.literal(f" {word}"))]
    return Automaton.concatenate([*parts, _WORD.star(), _STOP])


def first(keyword: str, keywords: Sequence[str]) -> Automaton:
    """Return the language of sentences in which this one occurs before any other keyword does."""
    others = _WORD - gcd.choice([f" {word}" for word in keywords])
    return others.star() + gcd.literal(f" {keyword}") + _WORD.star() + _STOP


def unordered(keywords: str, budget: tuple[int, int], name: str) -> EventProblem:
    """Make the problem of a sentence with these words, in any order."""
    words = keywords.split()
    return EventProblem(
        name=name,
        source="stories",
        note=f"a sentence with {', '.join(words)} in any order; events: which comes first",
        language=any_order(words) & of_words(1, MOST_WORDS),
        events=tuple(Event(word, first(word, words)) for word in words),
        budget=budget,
        ending="accept",
    )


def ordered(keywords: str, budget: tuple[int, int], name: str) -> EventProblem:
    """Make the problem of a sentence with these words, in this order."""
    words = keywords.split()
    return EventProblem(
        name=name,
        source="stories",
        note=f"a sentence with {', '.join(words)} in this order; events: how many words it has",
        language=in_order(words) & of_words(1, MOST_WORDS),
        events=tuple(Event(f"{low} to {high}", of_words(low, high)) for low, high in _LENGTHS),
        budget=budget,
        ending="accept",
    )


SENTENCES: dict[str, Callable[[str], EventProblem]] = {
    "three-words": lambda name: unordered("dog park ball", LONG, name),
    "four-words": lambda name: unordered("mom happy play friend", LONG, name),
    "four-words-tight": lambda name: unordered("mom happy play friend", TIGHT, name),
    "five-words-ordered": lambda name: ordered("girl saw bird tree home", LONG, name),
}
"""Makers of the problems, by name."""

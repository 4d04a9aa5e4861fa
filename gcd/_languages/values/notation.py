"""Notations of values: the same values, written in JSON or in Python.

A schema describes the allowed values, and a notation describes their texts. JSON and Python
literals differ only in their words (`true`, `True`), their strings and their brackets. So the
language of a schema is built from the same parts in either notation.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import NamedTuple

from gcd._automata.automaton import Automaton
from gcd._automata.limits import cache_with_price
from gcd._errors import ConstraintError
from gcd._languages.literal import encodable


class Brackets(NamedTuple):
    """Delimiters around the elements of an array."""

    open: str
    close: str
    # The text of an array without elements; None: `open`, a gap, and `close`
    empty: str | None = None
    # The closing delimiter after a single element; None: the same as `close`
    close_single: str | None = None
    # True if the elements have to be hashable, and are therefore written in `Notation.hashable`
    of_hashable: bool = False


@dataclass(frozen=True, eq=False)
class Notation:
    """Description of how values are written."""

    gap: Automaton  # whitespace that is allowed next to a bracket
    comma: Automaton
    colon: Automaton
    null: Automaton
    true: Automaton
    false: Automaton
    # Function from a shortest and a longest length in code points (None: no limit) to all strings
    # of these lengths, in all spellings
    string: Callable[[int, int | None], Automaton]
    # Function from strings to their spellings as keys or constants
    choice: Callable[[Iterable[str]], Automaton]
    spell_all: Callable[[str], Automaton]  # function from a string to all its spellings
    # Kind of array ("list", "tuple", "set") -> its possible brackets
    containers: dict[str, tuple[Brackets, ...]]
    # Function from a language of texts to the language of these texts as strings, as `choice`
    # spells them; None if it is not supported
    quoted: Callable[[Automaton], Automaton] | None = None
    quoted_all: Callable[[Automaton], Automaton] | None = None  # the same, in all spellings
    objects: bool = True  # whether the notation has objects
    # The notation of values that Python can hash, for elements of a set
    hashable: Notation | None = None
    # Function that returns whether a key is written without quotes
    is_bare: Callable[[str], bool] = lambda _: False

    def every_spelling(self, texts: Iterable[str]) -> Automaton:
        """Return the given strings in all their spellings; there may be thousands of strings."""
        if self.quoted_all is not None:
            return self.quoted_all(Automaton.from_strings(map(encodable, texts)))
        return Automaton.union([self.spell_all(text) for text in texts])

    @cache_with_price(maxsize=4096)
    def spell(self, text: str) -> Automaton:
        """Return the spellings of a string as a key or a constant."""
        return self.choice([text])


class Separators(NamedTuple):
    """Texts next to brackets (`gap`), between elements, and between a label and its value."""

    gap: Automaton
    comma: Automaton
    colon: Automaton


@cache_with_price(maxsize=64)
def mark(text: str) -> Automaton:
    """Return the language of a bracket or another short delimiter; results are cached."""
    return Automaton.literal(text)


@cache_with_price(maxsize=16)
def separators(
    whitespace: str, colon: str = ":", *, after: str = " ", blanks: bytes = b" \t\n\r"
) -> Separators:
    """Return the separators of a whitespace style; "spaced" has `after` behind a colon."""
    nothing = Automaton.epsilon()
    match whitespace:
        case "compact":
            return Separators(nothing, mark(","), mark(colon))
        case "spaced":
            return Separators(nothing, mark(", "), mark(colon + after))
        case "flexible":
            gap = Automaton.byte_set(blanks).star()
            padded = (Automaton.concatenate([gap, mark(m), gap]) for m in (",", colon))
            return Separators(gap, *padded)
        case _:
            raise ConstraintError(
                f'expected whitespace to be "compact", "spaced" or "flexible", got {whitespace!r}'
            )

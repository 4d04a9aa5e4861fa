"""Finite languages given by their strings."""

from __future__ import annotations

from collections.abc import Iterable

from gcd.automaton import Automaton
from gcd.errors import EmptyLanguageError


def literal(text: str | bytes) -> Automaton:
    """Exactly this text (UTF-8 encoded if it is a `str`)."""
    return Automaton.literal(text)


def choice(texts: Iterable[str | bytes]) -> Automaton:
    """Any one of these texts; `EmptyLanguageError` if there are none."""
    automaton = Automaton.from_strings(texts)
    if automaton.is_empty:
        raise EmptyLanguageError("choice() needs at least one text, got none")
    return automaton

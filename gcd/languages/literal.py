"""Finite languages given by their strings."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from gcd.automata.automaton import Automaton
from gcd.errors import ConstraintError, EmptyLanguageError


def literal(text: str | bytes) -> Automaton:
    """Exactly this text (UTF-8 encoded if it is a `str`); `ConstraintError` if it is none."""
    return Automaton.literal(_text(text))


def choice(texts: Iterable[str | bytes]) -> Automaton:
    """Any one of these texts.

    Raises:
        ConstraintError: if they are not a list of texts; a single text is `literal`.
        EmptyLanguageError: if there are none.
    """
    if isinstance(texts, (str, bytes)) or not isinstance(texts, Iterable):
        raise ConstraintError(f"choice() got {texts!r}; give a list of texts")
    automaton = Automaton.from_strings(map(_text, texts))
    if automaton.is_empty:
        raise EmptyLanguageError("choice() needs at least one text, got none")
    return automaton


def encodable(text: str) -> str:
    """The text itself; `ConstraintError` if it has no UTF-8 form."""
    if any("\ud800" <= character <= "\udfff" for character in text):
        raise ConstraintError(
            f"the string {text!r} holds a lone surrogate, which is not Unicode text; remove it"
        )
    return text


def _text(text: Any) -> str | bytes:
    if not isinstance(text, (str, bytes)):
        raise ConstraintError(f"a text must be str or bytes, got {text!r}; write it out, as in '3'")
    return encodable(text) if isinstance(text, str) else text

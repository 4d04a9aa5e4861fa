"""This module makes languages that are finite and given by their strings."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from gcd.automata.automaton import Automaton
from gcd.errors import ConstraintError, EmptyLanguageError


def literal(text: str | bytes) -> Automaton:
    """Return the language that holds this text and nothing else.

    Args:
        text: a `str` is encoded as UTF-8; `bytes` are taken as they are.

    Raises:
        ConstraintError: for anything else, or a `str` with a lone surrogate.
    """
    return Automaton.literal(_text(text))


def without_mark(text: str) -> str:
    """Return a text without the byte order mark that some editors begin a file with."""
    return text.removeprefix("\ufeff")


def choice(texts: Iterable[str | bytes]) -> Automaton:
    """Return the language that holds these texts and nothing else.

    Args:
        texts: any iterable of `str` (encoded as UTF-8) and `bytes`, in any order.

    Raises:
        ConstraintError: for a single text (that is `literal`), or a member that is no text.
        EmptyLanguageError: if there are no texts at all.
    """
    if isinstance(texts, (str, bytes)) or not isinstance(texts, Iterable):
        raise ConstraintError(f"choice() got {texts!r}; give a list of texts")
    automaton = Automaton.from_strings(map(_text, texts))
    if automaton.is_empty:
        raise EmptyLanguageError("choice() needs at least one text, got none")
    return automaton


def encodable(text: str) -> str:
    """Return the text as it is; raise `ConstraintError` if it cannot be encoded as UTF-8."""
    if any("\ud800" <= character <= "\udfff" for character in text):
        raise ConstraintError(
            f"the string {text!r} holds a lone surrogate, which is not Unicode text; remove it"
        )
    return text


def _text(text: Any) -> str | bytes:
    if not isinstance(text, (str, bytes)):
        raise ConstraintError(f"a text must be str or bytes, got {text!r}; write it out, as in '3'")
    return encodable(text) if isinstance(text, str) else text

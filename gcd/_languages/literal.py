"""Finite languages, given by lists of their strings."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from gcd._automata.automaton import Automaton
from gcd._errors import ConstraintError, EmptyLanguageError


def literal(text: str | bytes) -> Automaton:
    """Return the language that contains only one text.

    Args:
        text: the text; a `str` is encoded as UTF-8, and `bytes` are used as they are.

    Raises:
        ConstraintError: `text` has another type, or is a `str` with a lone surrogate.
    """
    return Automaton.literal(_text(text))


def without_mark(text: str) -> str:
    """Remove the byte order mark that some editors write at the beginning of a file."""
    return text.removeprefix("\ufeff")


def choice(texts: Iterable[str | bytes]) -> Automaton:
    """Return the language that contains only the given texts.

    Args:
        texts: any iterable of `str` (encoded as UTF-8) and `bytes`, in any order.

    Raises:
        ConstraintError: `texts` is a single text (use `literal`), or one of its elements is not a
            text.
        EmptyLanguageError: there are no texts.
    """
    if isinstance(texts, (str, bytes)) or not isinstance(texts, Iterable):
        raise ConstraintError(
            f"expected a list of texts for choice(), got {texts!r}; put a single text in a list"
        )
    automaton = Automaton.from_strings(map(_text, texts))
    if automaton.is_empty:
        raise EmptyLanguageError("expected at least one text for choice(), got none; add a text")
    return automaton


def encodable(text: str) -> str:
    """Return the text unchanged, or raise `ConstraintError` if UTF-8 cannot encode it."""
    if any("\ud800" <= character <= "\udfff" for character in text):
        raise ConstraintError(
            f"expected Unicode text, got {text!r} with a lone surrogate; remove it"
        )
    return text


def _text(text: Any) -> str | bytes:
    if not isinstance(text, (str, bytes)):
        raise ConstraintError(f"expected a text as str or bytes, got {text!r}; quote it, as in '3'")
    return encodable(text) if isinstance(text, str) else text

"""Patterns in dialects other than ECMA-262, and languages of texts given by automata.

The `pattern` of a JSON schema uses the syntax of ECMA-262. The patterns of a class use the syntax
of the engine that validates its values: Rust's `regex` crate for pydantic, or Python's `re` if the
class selects it. Types without a pattern, such as times, are given by the automaton of their texts.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from gcd._automata.automaton import Automaton
from gcd._errors import ConstraintError
from gcd._languages.text.ecma_syntax import ecma_pattern
from gcd._languages.text.python_re_syntax import python_pattern
from gcd._languages.text.rust_syntax import rust_pattern


class TextPattern(str):
    """Value of the keyword `pattern` in another dialect than ECMA-262.

    Attributes:
        kind: dialect of the pattern; two patterns are equal if their texts and kinds are equal.
        build: function that makes the automaton of the texts that contain a match.
    """

    kind: str
    build: Callable[[], Automaton]

    def __new__(cls, text: str, kind: str, build: Callable[[], Automaton]) -> TextPattern:
        made = super().__new__(cls, text)
        made.kind, made.build = kind, build
        return made

    def __getnewargs__(self) -> tuple[Any, ...]:
        return str(self), self.kind, self.build

    def __eq__(self, other: object) -> bool:
        return str.__eq__(self, other) is True and self.kind == getattr(other, "kind", "")

    def __ne__(self, other: object) -> bool:
        return not self == other

    def __hash__(self) -> int:
        return hash((str(self), self.kind))


def rust(pattern: str) -> TextPattern:
    """Return a pattern of Rust's `regex` crate."""
    return TextPattern(pattern, "Rust", partial(rust_pattern, pattern))


def python(pattern: str, flags: int = 0) -> TextPattern:
    """Return a pattern of Python's `re`, compiled with the given flags."""
    return TextPattern(pattern, f"Python {flags}", partial(python_pattern, pattern, flags))


def refuse(name: str, reason: str) -> TextPattern:
    """Return a pattern that raises an error wherever it is used.

    The message of the error is `name` followed by `reason`.
    """
    return TextPattern(name, "refused", partial(_refuse, f"{name} {reason}"))


def is_written(pattern: str) -> bool:
    """Return whether a pattern was written as such, rather than made from a Python type."""
    return getattr(pattern, "kind", "ECMA").startswith(("ECMA", "Python", "Rust"))


def search_language(pattern: str) -> Automaton:
    """Return the texts that contain a match of a pattern in its dialect."""
    return pattern.build() if isinstance(pattern, TextPattern) else ecma_pattern(pattern)


def _refuse(message: str) -> Automaton:
    raise ConstraintError(message)

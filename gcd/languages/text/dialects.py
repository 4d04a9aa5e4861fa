"""Patterns that say in which dialect of regular expressions they are written.

A `pattern` of JSON Schema is ECMA-262's. A class's patterns are those of the engine that validates
its values: Rust's `regex` crate for pydantic, or Python's `re` where the class asks for that.
"""

from __future__ import annotations

from typing import Any

from gcd.automata.automaton import Automaton
from gcd.languages.text.ecma_syntax import ecma_pattern
from gcd.languages.text.python_re_syntax import python_pattern
from gcd.languages.text.rust_syntax import rust_pattern


class DialectPattern(str):
    """A pattern of another dialect than ECMA-262; equal ones have the same dialect.

    Attributes:
        dialect: "rust" or "python".
        flags: those of `re` under which a Python pattern was compiled.
    """

    dialect: str
    flags: int

    def __new__(cls, pattern: str, dialect: str, flags: int = 0) -> DialectPattern:
        made = super().__new__(cls, pattern)
        made.dialect, made.flags = dialect, flags
        return made

    def __getnewargs__(self) -> tuple[Any, ...]:
        return str(self), self.dialect, self.flags

    def __eq__(self, other: object) -> bool:
        return str.__eq__(self, other) is True and _kind(self) == _kind(other)

    def __ne__(self, other: object) -> bool:
        return not self == other

    def __hash__(self) -> int:
        return hash((str(self), *_kind(self)))


def search_language(pattern: str) -> Automaton:
    """Return the texts in which a pattern is found, by the rules of its dialect."""
    if not isinstance(pattern, DialectPattern):
        return ecma_pattern(pattern)
    if pattern.dialect == "rust":
        return rust_pattern(str(pattern))
    return python_pattern(str(pattern), pattern.flags)


def _kind(pattern: object) -> tuple[str, int]:
    return getattr(pattern, "dialect", ""), getattr(pattern, "flags", 0)

r"""Dialects of regular expressions, and patterns of schemas in one of them.

The `pattern` of a JSON schema uses the syntax of ECMA-262. The patterns of a class use the syntax
of the engine that validates its values: Rust's `regex` crate for pydantic, or Python's `re` if the
class selects it. Terminals of grammars use that of lark. Each is a row of `Dialect`, which lists
the differences from the common syntax of Python and Rust (`gcd._languages.text.regex`).

* `ECMA` has the syntax with the `u` flag. With it, many malformed patterns are errors. Such a
  pattern is accepted if all implementations agree on its meaning, as Annex B of the standard does
  without the flag. Examples are `{`, `}` and `]` for themselves, `\-` and other escaped
  punctuation, and `[\w-.]` with a literal hyphen. Where dialects differ (`\A`, `\1` to `\9` in a
  class, `{,3}`) the pattern is refused. ES2025's modifiers `(?ims-ims:...)` are supported.
* `RUST` has no look-around and no comments. `a*+` repeats a repetition, `a{ 2 }` means `a{2}`, and
  `\<` and `\b{start}` are edges of words. The flag R makes `\r\n` a line end, and the flag x
  ignores white space in classes. Source: the documentation of the crate `regex`, section "Syntax".
* `PYTHON` has no Unicode properties, and `[` has no special meaning inside a class. `$` also
  matches before a line feed that ends the text. `\d`, `\w`, `\s` and the cases of letters are those
  of the running Python.
* `LARK` is Python's syntax with Unicode properties and laziness (`gcd._languages.text.matches`).
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

from gcd._automata.automaton import Automaton
from gcd._automata.limits import cache_with_price
from gcd._errors import ConstraintError
from gcd._languages.text import unicode_tables
from gcd._languages.text.look_around import automaton_of
from gcd._languages.text.regex import (
    COMMENT,
    EDGES,
    HEX,
    LINE_FEED,
    NOT_REGULAR,
    SPACED_COUNT,
    Dialect,
    Flags,
    parse,
)
from gcd._languages.text.syntax import EMPTY, Chars, Choice, End, Look, Sequence

_NEVER = re.compile("(?!)")
_SPACE = r"[ \t\n\r\v\f\x85\u200e\u200f\u2028\u2029]"  # Pattern_White_Space of the standard
_PYTHON_FLAGS = {"i": re.I, "m": re.M, "s": re.S, "x": re.X, "a": re.A}
_CONTROL = (r"\\c(?![A-Za-z])", r"expected a letter after `\c`, got `{}`; write `\\c` for `\c`")

ECMA = Dialect(
    classes=unicode_tables.ecma_class,
    properties=unicode_tables.ecma_property,
    property=re.compile(r"\{[A-Za-z0-9_]+(?:=[A-Za-z0-9_]+)?\}"),
    anchors="",
    line_ends=unicode_tables.ECMA_LINE_ENDS,
    controls="tnvfr",
    hexadecimal={
        "x": re.compile(f"{HEX}{{2}}"),
        "u": re.compile(
            rf"\{{{HEX}+\}}|[dD][89abAB]{HEX}{{2}}\\u[dD][c-fC-F]{HEX}{{2}}|{HEX}{{4}}"
        ),
    },
    flags="ims",
    # Each letter occurs at most once, and there is a letter.
    modifiers=re.compile(
        r"\?(?![ims-]*([ims])[ims-]*\1)(?!-:)(?P<on>[ims]*)(?P<off>-[ims]*)?(?P<close>:)"
    ),
    name=re.compile(r"\?<((?:[^\W\d]|\$)(?:\w|\$)*)>"),
    ignored=_NEVER,
    quantifier=re.compile(r"[*+?]|\{(?P<low>[0-9]+)(?P<comma>,(?P<high>[0-9]*))?\}"),
    operators=(),
    is_ecma=True,
    refused=(
        _CONTROL,
        (r"\\A", "the anchor `{}` belongs to another dialect; write `^`"),
        (r"\\[Zz]", "the anchor `{}` belongs to another dialect; write `$`"),
        (r"\{,[0-9]+\}", "dialects interpret the quantifier `{,n}` differently; write `{0,n}`"),
    ),
    refused_in_class=(_CONTROL,),
)
RUST = Dialect(
    anchors="Az",
    flags="imsxR",
    ignored=_NEVER,
    ignored_x=re.compile(rf"{_SPACE}+|#[^\n]*"),
    # White space around the numbers of a count is ignored.
    quantifier=re.compile(
        r"[*+?]|\{\s*(?P<low>[0-9]+)\s*(?P<comma>,\s*(?:(?P<high>[0-9]+)\s*)?)?\}"
    ),
    is_rust=True,
    refused=(
        (r"\(\?(?:<?[=!]|#)", "Rust's `regex` has no group `{}`; remove it"),
        (r"\\b\{(?!(?:start|end)(?:-half)?\})", r"expected `\b{start}` or `\b{end}`, got `{}`"),
        *NOT_REGULAR,
    ),
)
LARK = Dialect(
    classes=unicode_tables.python_class,
    dollar=Look(((EMPTY, Choice((End(), Sequence((Chars(LINE_FEED), End()))))),)),
    is_python=True,
    operators=(),
    refused=(SPACED_COUNT, (r"\\b(?=\{)", EDGES[1]), *NOT_REGULAR, COMMENT),
    refused_in_class=(
        (
            r"\[:",
            r"`[:` in a class means different things in Rust and in Python; list the "
            r"characters, or write `\[:`",
        ),
    ),
)
PYTHON = replace(
    LARK,
    cases=unicode_tables.with_other_cases_in_python,
    properties=lambda name: None,
    anchors="AZ",
    refused_in_class=(),
)
DIALECTS = {"ECMA": ECMA, "Rust": RUST, "Python": PYTHON}


@cache_with_price(1024)
def contains(pattern: str, dialect: str, flags: Flags = frozenset()) -> Automaton:
    """Return the UTF-8 texts that contain a match of a pattern, in which some flags are set."""
    return automaton_of(parse(pattern, DIALECTS[dialect], flags), pattern, search=True)


class TextPattern(str):
    """Value of the keyword `pattern` in another dialect than ECMA-262."""

    kind: str  # dialect of the pattern; two patterns are equal if their texts and kinds are equal
    # Function that makes the automaton of the texts that contain a match
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
    return TextPattern(pattern, "Rust", partial(contains, pattern, "Rust"))


def python(pattern: str, flags: int = 0) -> TextPattern:
    """Return a pattern of Python's `re`, compiled with the given flags."""
    letters = frozenset(letter for letter, flag in _PYTHON_FLAGS.items() if flags & flag)
    return TextPattern(pattern, f"Python {flags}", partial(contains, pattern, "Python", letters))


def refuse(name: str, reason: str) -> TextPattern:
    """Return a pattern that raises the error `name` and `reason` wherever it is used."""
    return TextPattern(name, "refused", partial(_refuse, f"{name} {reason}"))


def is_written(pattern: str) -> bool:
    """Return whether a pattern was written as such, rather than made from a Python type."""
    return getattr(pattern, "kind", "ECMA").startswith(("ECMA", "Python", "Rust"))


def search_language(pattern: str) -> Automaton:
    """Return the texts that contain a match of a pattern in its dialect."""
    return pattern.build() if isinstance(pattern, TextPattern) else contains(pattern, "ECMA")


def _refuse(message: str) -> Automaton:
    raise ConstraintError(message)

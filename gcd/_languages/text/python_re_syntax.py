r"""Parser of the patterns of Python's `re`, which a pydantic class may select.

`gcd._languages.text.python_syntax` parses the syntax on which Rust and Python agree. Where the two
differ, this parser follows `re`. `$` also matches before a line feed that ends the text. `[` has no
special meaning inside a class. `\d`, `\w`, `\s` and the cases of letters are those of the running
Python.
"""

from __future__ import annotations

import re
from dataclasses import replace
from functools import lru_cache

from gcd._automata.automaton import Automaton
from gcd._automata.limits import cache_with_price
from gcd._languages.text.code_points import Ranges, complement, ranges
from gcd._languages.text.look_around import automaton_of
from gcd._languages.text.parsing import single
from gcd._languages.text.python_syntax import CommonParser
from gcd._languages.text.syntax import EMPTY, Chars, Choice, End, Look, Node, Sequence
from gcd._languages.text.unicode_tables import all_code_points, runs

_LETTERS = {"i": re.IGNORECASE, "m": re.MULTILINE, "s": re.DOTALL, "x": re.VERBOSE, "a": re.ASCII}
_LINE_FEED = Chars(single(0x0A))


@cache_with_price(256)
def python_pattern(pattern: str, flags: int = 0) -> Automaton:
    """Return the UTF-8 texts in which `re.search` finds a pattern that is compiled with `flags`.

    Raises:
        ConstraintError: the pattern is invalid, or uses unsupported syntax. The message gives the
            problem and its position.
        StateLimitError: its automaton has more states than `gcd.state_limit` allows.
        WorkLimitError: building its automaton takes more work than `gcd.work_limit` allows.
    """
    return automaton_of(PythonParser(pattern, flags).pattern(), pattern, search=True)


class PythonParser(CommonParser):
    _ends = "Z"

    def __init__(self, pattern: str, flags: int) -> None:
        super().__init__(pattern)
        on = {letter: bool(flags & flag) for letter, flag in _LETTERS.items()}
        self._flags = replace(self._flags, **on)

    def _anchor(self, character: str) -> Node:
        if character == "$" and not self._flags.m:
            return Look(((EMPTY, Choice((End(), Sequence((_LINE_FEED, End()))))),))
        return super()._anchor(character)

    def _boundary(self, begin: int) -> Node:
        if self._text[self._at] in "<>":  # not a word boundary in Python
            return Chars(self._escape(begin))
        return super()._boundary(begin)

    def _class(self, begin: int) -> Ranges:
        negated = self._skip("^")
        found: list[tuple[int, int]] = []
        first_at = self._at
        while not (self._at > first_at and self._skip("]")):
            at = self._at
            first = self._member(begin)
            follows = self._text[self._at : self._at + 2]
            if not follows.startswith("-") or follows in ("-", "-]"):
                found += first
                continue
            self._at += 1
            pair = self._range(first, self._member(begin), at)
            if pair is None:
                shown = self._text[at : self._at]
                raise self._error(
                    at, f"expected single characters as the ends of the range, got `{shown}`"
                )
            found.append(pair)
        inside = self._add_cases(self._paid(ranges(found)))
        return complement(inside) if negated else inside

    def _member(self, begin: int) -> Ranges:
        at = self._at
        character = self._next()
        if not character:
            raise self._refuse_unpaired(begin)
        return self._escape(at, in_class=True) if character == "\\" else single(ord(character))

    def _property(self, begin: int, negated: bool) -> Ranges:
        raise self._error(
            begin, "Python's `re` has no Unicode properties; list the characters in `[]`"
        )

    def _perl_class(self, letter: str) -> Ranges:
        return super()._perl_class(letter) if self._flags.a else _perl_class(letter)

    def _add_cases(self, inside: Ranges) -> Ranges:
        if not self._flags.i or self._flags.a:
            return super()._add_cases(inside)
        self._paid(inside)
        return _with_other_cases(inside)


class TerminalParser(PythonParser):
    """Parser of the terminals of lark, which also reads Unicode properties."""

    _ends = "zZ"
    _keeps_laziness = True
    _property = CommonParser._property
    _add_cases = CommonParser._add_cases

    def _member(self, begin: int) -> Ranges:
        if self._text.startswith("[:", self._at):
            raise self._error(
                self._at,
                r"`[:` in a class means different things in Rust and in Python; list the "
                r"characters, or write `\[:`",
            )
        return super()._member(begin)


@lru_cache(maxsize=3)
def _perl_class(letter: str) -> Ranges:
    return runs(re.compile(rf"\{letter}+"), all_code_points())


@lru_cache(maxsize=256)
def _with_other_cases(inside: Ranges) -> Ranges:
    written = "".join(f"\\U{first:08X}-\\U{last:08X}" for first, last in inside)
    if not written:
        return inside
    return runs(re.compile(f"(?i:[{written}]+)"), all_code_points())

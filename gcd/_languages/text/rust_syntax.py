r"""Parser of the regular expressions of Rust's `regex` crate, which pydantic uses by default.

`gcd._languages.text.python_syntax` parses the syntax on which Rust and Python agree. This parser
adds syntax that Python interprets differently. `a*+` repeats a repetition, and `a{ 2 }` means
`a{2}`. `\<`, `\>` and `\b{start}` are edges of words. The flag R makes `\r\n` a line end, and
the flag x ignores white space in classes. Rust has no look-around, no comments `(?#...)`, and no
`\Z`.

Source: the documentation of the crate `regex`, section "Syntax".
"""

from __future__ import annotations

import re

from gcd._automata.automaton import Automaton
from gcd._automata.limits import cache_with_price
from gcd._languages.text import unicode_tables
from gcd._languages.text.code_points import Ranges, complement, ranges
from gcd._languages.text.look_around import automaton_of
from gcd._languages.text.parsing import QUANTIFIER
from gcd._languages.text.python_syntax import CommonParser
from gcd._languages.text.syntax import Chars, Look, Node, line_end, line_start, word_edge

_LF, _CR_OR_LF = ranges([(0x0A, 0x0A)]), ranges([(0x0A, 0x0A), (0x0D, 0x0D)])
_SPACE = r"[ \t\n\r\v\f\x85\u200e\u200f\u2028\u2029]"  # Pattern_White_Space of the standard
_EDGES = re.compile(r"\{(start|end)(-half)?\}")


@cache_with_price(256)
def rust_pattern(pattern: str) -> Automaton:
    """Return the UTF-8 texts that contain a match of a pattern of Rust's `regex` crate.

    Raises:
        ConstraintError: the pattern is invalid, or uses unsupported syntax. The message gives the
            problem and its position.
        StateLimitError: its automaton has more states than `gcd.state_limit` allows.
        WorkLimitError: building its automaton takes more work than `gcd.work_limit` allows.
    """
    return automaton_of(_RustParser(pattern).pattern(), pattern, search=True)


class _RustParser(CommonParser):
    _ends = "z"
    _flag_letters = "imsxR"
    _ignored = re.compile(rf"{_SPACE}+|#[^\n]*")
    _reads_plus_twice = True

    def __init__(self, pattern: str) -> None:
        super().__init__(pattern)
        self._asks_tables = False  # whether the current term depends on Unicode tables

    def _term(self) -> Node:
        self._asks_tables = False
        node = super()._term()
        if isinstance(node, Chars) and self._asks_tables:
            # Versions of the crate have different Unicode tables, so new characters are excluded.
            assigned = self._paid(unicode_tables.list_assigned())
            node = Chars(complement(ranges([*complement(node.inside), *complement(assigned)])))
        return node

    def _perl_class(self, letter: str) -> Ranges:
        self._asks_tables |= not self._flags.a
        return super()._perl_class(letter)

    def _property(self, begin: int, negated: bool) -> Ranges:
        self._asks_tables = True
        return super()._property(begin, negated)

    def _look_around(self, begin: int) -> Look | None:
        found = self._match(r"\?<?[=!]|\?#")
        if found:
            raise self._error(begin, f"Rust's `regex` has no group `({found}`; remove it")
        return None

    def _skip_ignored(self) -> None:
        while self._flags.x and (found := self._ignored.match(self._text, self._at)):
            self._at = found.end()

    def _quantifier(self) -> re.Match[str] | None:
        if not self._text.startswith("{", self._at):
            return QUANTIFIER.match(self._text, self._at)
        # A brace always begins a count, and white space in it is ignored.
        return re.compile(r"\{\s*([0-9]+)\s*(?:(,)\s*([0-9]*)\s*)?\}").match(self._text, self._at)

    def _line_ends(self) -> Ranges:
        return _CR_OR_LF if self._flags.R else _LF

    def _anchor(self, character: str) -> Node:
        if not self._flags.m:
            return super()._anchor(character)
        edge = line_start if character == "^" else line_end
        return edge(self._line_ends(), crlf=self._flags.R)

    def _boundary(self, begin: int) -> Node:
        letter = self._text[self._at]
        word = self._perl_class("w")
        if letter in "<>":
            self._at += 1
            return word_edge(word, end=letter == ">")
        found = _EDGES.match(self._text, self._at + 1) if letter == "b" else None
        if not found:
            return super()._boundary(begin)
        self._at = found.end()
        return word_edge(word, end=found[1] == "end", half=bool(found[2]))

    def _skip_class_space(self) -> None:
        self._skip_ignored()

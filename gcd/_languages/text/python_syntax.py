"""Parser of the regular expression syntax on which Python's `re` and Rust's `regex` crate agree.

Some syntax exists in only one of the two. It is accepted if the other one refuses it, or warns that
it will adopt the same meaning. From Rust, these are flags in the middle of a pattern, nested
classes with `&&`, `--` and `~~` between them, POSIX classes and `\\p{...}`. From Python, these are
look-around, comments `(?#...)`, `\\0`, `{,n}` and a literal `{`. Syntax that the two interpret
differently is refused: `a*+` (possessive in Python, a repetition of a repetition in Rust), `[--/]`,
white space in classes under the flag x, and `\\<`.

Where the two disagree about the characters of a class, this parser follows Rust, and thus the
Unicode standard. `\\s` is White_Space, `\\w` is that of UTS #18, the flag i uses simple case
folding, and `$` is the end of the text, even after a line feed. The flags a (Python) and -u
(Rust) restrict `\\d`, `\\w`, `\\s` and the cases of letters to ASCII.

Look-around exists only in Python, and look-behind may have any width here. Atomic groups and
back-references raise an error that names them.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace

from gcd._languages.text import unicode_tables
from gcd._languages.text.code_points import Ranges, complement, ranges
from gcd._languages.text.parsing import CONTROLS, MAX_NESTING, QUANTIFIER, PatternParser, single
from gcd._languages.text.syntax import (
    Chars,
    End,
    Node,
    Sequence,
    Start,
    line_end,
    line_start,
    word_boundary,
)

_UPPER, _LOWER, _DIGITS = (0x41, 0x5A), (0x61, 0x7A), (0x30, 0x39)
_SPACES = ((0x09, 0x0D), (0x20, 0x20))
_ASCII_CLASSES = {
    "d": ranges([_DIGITS]),
    "s": ranges(_SPACES),
    "w": ranges([_DIGITS, _UPPER, _LOWER, (0x5F, 0x5F)]),
}
_POSIX = {
    "alnum": [_DIGITS, _UPPER, _LOWER],
    "alpha": [_UPPER, _LOWER],
    "ascii": [(0x00, 0x7F)],
    "blank": [(0x09, 0x09), (0x20, 0x20)],
    "cntrl": [(0x00, 0x1F), (0x7F, 0x7F)],
    "digit": [_DIGITS],
    "graph": [(0x21, 0x7E)],
    "lower": [_LOWER],
    "print": [(0x20, 0x7E)],
    "punct": [(0x21, 0x2F), (0x3A, 0x40), (0x5B, 0x60), (0x7B, 0x7E)],
    "space": _SPACES,
    "upper": [_UPPER],
    "word": [_DIGITS, _UPPER, _LOWER, (0x5F, 0x5F)],
    "xdigit": [_DIGITS, (0x41, 0x46), (0x61, 0x66)],
}
_GROUP_NAME = re.compile(r"\?P?<([^\W\d]\w*)>")
_FLAGS = re.compile(r"\?([A-Za-z]*)(-[A-Za-z]+)?([:)])")
_FLAGS_ALONE = Sequence(())  # term that only sets flags, recognized by identity
_IGNORED = re.compile(r"[ \t\n\r\v\f]+|#[^\n]*")  # skipped under the flag x
ONLY_RUST_IGNORES = "\x85\u200e\u200f\u2028\u2029"
_LINE_FEED = single(0x0A)
_OPERATORS = ("&&", "--", "~~")


def parse(pattern: str) -> Node:
    """Parse a pattern.

    Raises:
        ConstraintError: the syntax is invalid or unsupported; the message names it.
    """
    return CommonParser(pattern).pattern()


@dataclass(frozen=True)
class Flags:
    """Flags of a pattern: i, m, s, x and a in both dialects, R only in Rust."""

    i: bool = False
    m: bool = False
    s: bool = False
    x: bool = False
    a: bool = False
    R: bool = False


class CommonParser(PatternParser):
    """Parser of the common syntax, and base class of the parsers of each dialect."""

    _references = "kg"
    _ends = "zZ"  # letters of escapes for the end of the text
    _flag_letters = "imsx"  # flags that may be set and cleared
    _ignored = _IGNORED  # text that is skipped under the flag x
    _reads_plus_twice = False  # whether `a*+` is a repetition of a repetition
    _keeps_laziness = False  # otherwise, lazy quantifiers match the same texts

    def __init__(self, pattern: str) -> None:
        super().__init__(pattern)
        self._flags = Flags()
        self._names: set[str] = set()

    # -- structure ----------------------------------------------------------------------------

    def _skip_ignored(self) -> None:
        while True:
            if self._text.startswith("(?#", self._at):
                end = self._text.find(")", self._at)
                if end < 0:
                    raise self._error(self._at, "a comment `(?#` without `)`; add `)` at its end")
                self._at = end + 1
                continue
            found = self._ignored.match(self._text, self._at) if self._flags.x else None
            if not found:
                return
            self._at = found.end()

    def _quantify(self, node: Node, begin: int) -> Node:
        self._skip_ignored()
        is_repeated = False
        while found := self._quantifier():
            if node is _FLAGS_ALONE:
                raise self._error(self._at, "flags cannot be repeated; remove the quantifier")
            if is_repeated and found[0] == "+" and not self._reads_plus_twice:
                raise self._error(
                    self._at,
                    "`+` after a quantifier is possessive in Python, but a repetition in Rust; for "
                    "a repetition, put `(?:)` around the part before `+`",
                )
            self._at = found.end()
            lazy = self._skip("?")
            node = self._repeat(node, found, begin, lazy=lazy and self._keeps_laziness)
            is_repeated = not lazy
            self._skip_ignored()
        return node

    def _quantifier(self) -> re.Match[str] | None:
        """Return the quantifier at this position, if there is one."""
        found = QUANTIFIER.match(self._text, self._at)
        if found or not self._text.startswith("{", self._at):
            return found
        spaced = re.compile(r"\{[\s0-9]*(?:,[\s0-9]*)?\}").match(self._text, self._at)
        if spaced and re.search(r"[0-9]", spaced[0]) and re.search(r"\s", spaced[0]):
            raise self._error(
                self._at,
                f"the quantifier `{spaced[0]}` means different things in Rust and in Python; "
                "remove the spaces",
            )
        # Python reads `{,n}` as a quantifier from 0 to n.
        return re.compile(r"\{()(,)([0-9]+)\}").match(self._text, self._at)

    def _term(self) -> Node:
        begin = self._at
        if self._quantifier():
            raise self._error(
                begin,
                r"a quantifier has nothing to repeat; put text before it, or `\` to escape it",
            )
        character = self._next()
        if character in "^$":
            return self._anchor(character)
        if character == ".":
            return Chars(complement(() if self._flags.s else self._line_ends()))
        if character == "(":
            return self._group(begin)
        if character == "[":
            return Chars(self._class(begin))
        if character == "\\":
            letter = self._text[self._at : self._at + 1]
            if letter and letter in "A" + self._ends:
                self._at += 1
                return Start() if letter == "A" else End()
            if letter and letter in "bB<>":
                return self._boundary(begin)
            return Chars(self._escape(begin))
        if self._flags.x and character in ONLY_RUST_IGNORES:
            raise self._error(
                begin, f"only Rust skips the white space {character!r}; write an escape"
            )
        return Chars(self._add_cases(single(ord(character))))

    def _line_ends(self) -> Ranges:
        return _LINE_FEED

    def _anchor(self, character: str) -> Node:
        """Parse `^` or `$`."""
        if not self._flags.m:
            return Start() if character == "^" else End()
        return line_start(_LINE_FEED) if character == "^" else line_end(_LINE_FEED)

    def _boundary(self, begin: int) -> Node:
        """Parse a word boundary after its backslash."""
        letter = self._next()
        if letter in "<>" or (letter == "b" and self._text.startswith("{", self._at)):
            raise self._error(
                begin,
                rf"the escape `\{letter}` means different things in Rust and in Python; use "
                "look-around",
            )
        return word_boundary(self._perl_class("w"), negated=letter == "B")

    def _group(self, begin: int) -> Node:
        outside = self._flags
        look = self._look_around(begin)
        if look:
            self._flags = outside
            return look
        rest = self._text[self._at : self._at + 3]
        if rest.startswith(("?P=", "?(")):
            raise self._error(
                begin, "a back-reference is not regular; write the possible texts instead"
            )
        if rest.startswith("?>"):
            raise self._error(
                begin, "an atomic group is not supported; write `(?:` instead of `(?>`"
            )
        if rest.startswith("?"):
            name = _GROUP_NAME.match(self._text, self._at)
            flags = _FLAGS.match(self._text, self._at)
            if name:
                self._at = name.end()
                if name[1] in self._names:
                    raise self._error(
                        begin, f"two groups have the name {name[1]!r}; rename one of them"
                    )
                self._names.add(name[1])
            elif flags and (flags[1] or flags[2] or flags[3] == ":"):
                self._at = flags.end()
                self._set(flags[1], flags[2] or "", begin)
                if flags[3] == ")":
                    return _FLAGS_ALONE
            else:
                raise self._error(
                    begin,
                    f"the group `({rest}` is not supported; use `(`, `(?:`, `(?P<name>` or `(?i)`",
                )
        inner = self._inside_group(begin)
        self._flags = outside
        return inner

    def _set(self, on: str, off: str, begin: int) -> None:
        """Set the flags `on`, and clear the flags that follow a hyphen in `off`."""
        for letters, value in ((on, True), (off[1:], False)):
            for letter in letters:
                if letter in self._flag_letters:
                    self._flags = replace(self._flags, **{letter: value})
                elif letter == "u" or (letter == "a" and value):
                    self._flags = replace(self._flags, a=(letter == "a") == value)
                elif letter != "U" or self._keeps_laziness:  # U exchanges greedy and lazy
                    raise self._error(
                        begin, f"the flag {letter} is not supported; use a, i, m, s, u, x or U"
                    )

    # -- classes ------------------------------------------------------------------------------

    def _class(self, begin: int) -> Ranges:
        """Parse a class in brackets, after its opening bracket."""
        self._depth += 1
        if self._depth > MAX_NESTING:
            raise self._error(begin, f"expected at most {MAX_NESTING} nested classes, got more")
        self._skip_class_space()
        negated = self._skip("^")
        if self._text.startswith("--", self._at):
            raise self._error(
                self._at, r"`--` at the start of a class is ambiguous; write `\-` for `-`"
            )
        result: Ranges | None = None
        operator = ""
        while True:
            operand = self._union(begin, may_close=result is not None)
            self._paid(operand, result or ())
            if result is None:
                result = operand
            elif operator == "&&":
                result = _without(result, complement(operand))
            elif operator == "--":
                result = _without(result, operand)
            else:
                result = ranges([*_without(result, operand), *_without(operand, result)])
            if self._skip("]"):
                self._depth -= 1
                return complement(result) if negated else result
            operator = self._next() + self._next()

    def _skip_class_space(self) -> None:
        """Skip characters that the dialect ignores in a class."""

    def _union(self, begin: int, *, may_close: bool) -> Ranges:
        """Parse members of a class up to its end or to an operator, and return their union."""
        found: list[tuple[int, int]] = []
        self._skip_class_space()
        first_at = self._at
        while True:
            self._skip_class_space()
            follows = self._text[self._at : self._at + 2]
            is_first = self._at == first_at
            if follows in _OPERATORS or (follows.startswith("]") and (may_close or not is_first)):
                if is_first:
                    raise self._error(
                        self._at,
                        "a class operator (`&&`, `--` or `~~`) needs characters on both sides; "
                        "add them",
                    )
                return self._add_cases(ranges(found))
            at = self._at
            first = self._member(begin)
            self._skip_class_space()
            follows = self._text[self._at : self._at + 2]
            if not follows.startswith("-") or follows in ("-", "-]", "--"):
                found += first
                continue
            self._at += 1
            self._skip_class_space()
            last_at = self._at
            pair = self._range(first, self._member(begin), at)
            if pair is None or "[" in (self._text[at], self._text[last_at]):
                shown = self._text[at : self._at]
                raise self._error(
                    at, f"expected single characters as the ends of the range, got `{shown}`"
                )
            found.append(pair)

    def _member(self, begin: int) -> Ranges:
        at = self._at
        character = self._next()
        if not character:
            raise self._refuse_unpaired(begin)
        if character == "\\":
            return self._escape(at, in_class=True)
        if character == "[":
            posix = re.compile(r":(\^?)([a-z]+):\]").match(self._text, self._at)
            if not posix:
                return self._class(at)
            self._at = posix.end()
            if posix[2] not in _POSIX:
                names = ", ".join(_POSIX)
                raise self._error(at, f"the class `[{posix[0]}` is unknown; use one of {names}")
            inside = self._add_cases(ranges(_POSIX[posix[2]]))
            return complement(inside) if posix[1] else inside
        if self._flags.x and (character.isspace() or character in "#\u200e\u200f"):
            raise self._error(
                at,
                f"only Rust skips the character {character!r} in a class under the flag x; "
                "write an escape",
            )
        return single(ord(character))

    def _add_cases(self, inside: Ranges) -> Ranges:
        """Return code points and, if the flag i is set, those that differ only in case."""
        if not self._flags.i:
            return inside
        if self._flags.a:
            return unicode_tables.with_other_ascii_cases(inside)
        return self._with_other_cases(inside)

    # -- escapes ------------------------------------------------------------------------------

    def _escape(self, begin: int, in_class: bool = False) -> Ranges:
        """Return the code points of an escape whose backslash has been read."""
        letter = self._next()
        if letter and letter in "dDsSwW":
            kind = letter.lower()
            table = self._perl_class(kind)
            return self._paid(table if letter == kind else complement(table))
        if letter in ("p", "P"):
            return self._property(begin, negated=letter == "P")
        value = self._unescape(letter, begin, in_class)
        return single(value) if in_class else self._add_cases(single(value))

    def _perl_class(self, letter: str) -> Ranges:
        return _ASCII_CLASSES[letter] if self._flags.a else unicode_tables.perl_class(letter)

    def _unescape(self, letter: str, begin: int, in_class: bool) -> int:
        if letter in CONTROLS:
            return CONTROLS[letter]
        if letter == "a":
            return 0x07
        if letter == "b" and in_class:
            return 0x08
        if letter in ("x", "u", "U"):
            return self._check(self._hexadecimal(letter, begin), begin)
        if letter == "0" and not self._match("[0-9]"):
            return 0
        return self._other_escape(letter, begin, in_class)

    def _hexadecimal(self, letter: str, begin: int) -> int:
        if self._skip("{"):
            value = self._number(
                begin, "[0-9a-fA-F]{1,8}(?=})", rf"hex digits in `\{letter}{{...}}`"
            )
            self._at += 1
            return value
        count = {"x": 2, "u": 4, "U": 8}[letter]
        return self._number(
            begin, f"[0-9a-fA-F]{{{count}}}", rf"{count} hex digits after `\{letter}`"
        )

    def _property(self, begin: int, negated: bool) -> Ranges:
        written = r"[A-Za-z]|\{[A-Za-z0-9_ -]+([=:][A-Za-z0-9_ -]+)?\}"
        inside = self._having_property(begin, written, unicode_tables.property_ranges)
        inside = self._paid(self._add_cases(inside))
        return complement(inside) if negated else inside


def _without(inside: Ranges, outside: Ranges) -> Ranges:
    return complement(ranges([*complement(inside), *outside]))

"""The syntax of ECMA-262 regular expressions with the `u` flag, as JSON Schema writes `pattern`.

A recursive-descent parser for the part of it that describes regular sets of texts. Classes and
escapes become ranges of code points, with ECMA's meaning: `\\d` and `\\w` are ASCII, `\\s` is its
white space and line terminators, `.` is all but line terminators. Captures and laziness say
nothing about which texts match, and are read over.

Strictness. With the `u` flag many a sloppy pattern is an error. Where the rest of the world agrees
on what it means it is read that way, as Annex B of the standard does without the flag: `{`, `}`
and `]` for themselves, `\\-` and other escaped punctuation, `[\\w-.]` with a literal hyphen. Where
dialects differ (`\\A`, `\\1` to `\\9` in a class, `{,3}`) the pattern is refused.

Refused by name too is what is regular but not built here (look-around, word boundaries) and what
is not regular (back-references).
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import lru_cache

from gcd.errors import ConstraintError
from gcd.languages.text.code_points import Ranges, complement, ranges, ranges_of
from gcd.languages.text.ecma_properties import BINARY, GENERAL_CATEGORIES
from gcd.languages.text.regex import regex

MAX_NESTING = 50  # groups inside groups

DIGITS = ranges([(0x30, 0x39)])
WORD = ranges([(0x30, 0x39), (0x41, 0x5A), (0x5F, 0x5F), (0x61, 0x7A)])
LINE_ENDS = ranges([(0x0A, 0x0A), (0x0D, 0x0D), (0x2028, 0x2029)])
# WhiteSpace and LineTerminator of the standard: tab, VT, FF, U+FEFF, category Zs; and the above.
SPACE = ranges(
    [
        *((0x09, 0x0D), (0x20, 0x20), (0xA0, 0xA0), (0x1680, 0x1680), (0x2000, 0x200A)),
        *((0x2028, 0x2029), (0x202F, 0x202F), (0x205F, 0x205F), (0x3000, 0x3000)),
        (0xFEFF, 0xFEFF),
    ]
)
_CLASSES = {
    "d": DIGITS, "D": complement(DIGITS),
    "w": WORD, "W": complement(WORD),
    "s": SPACE, "S": complement(SPACE),
}  # fmt: skip
_CONTROLS = {"t": "\t", "n": "\n", "v": "\v", "f": "\f", "r": "\r"}
_QUANTIFIER = re.compile(r"[*+?]|\{([0-9]+)(?:(,)([0-9]*))?\}")
_GROUP_NAME = re.compile(r"\?<([^\W\d]|\$)(\w|\$)*>")


@dataclass(frozen=True)
class Chars:
    """One code point out of these."""

    inside: Ranges


@dataclass(frozen=True)
class Start:
    """`^`: nothing lies before."""


@dataclass(frozen=True)
class End:
    """`$`: nothing follows."""


@dataclass(frozen=True)
class Sequence:
    """One after the other."""

    parts: tuple[Node, ...]


@dataclass(frozen=True)
class Choice:
    """Any one of these."""

    options: tuple[Node, ...]


@dataclass(frozen=True)
class Repeat:
    """`minimum` to `maximum` times in a row; None: no upper bound."""

    body: Node
    minimum: int
    maximum: int | None


Node = Chars | Start | End | Sequence | Choice | Repeat


def parse(pattern: str) -> Node:
    """The pattern as a tree; `ConstraintError` names what is wrong with it or not supported."""
    return _Parser(pattern).pattern()


class _Parser:
    def __init__(self, pattern: str) -> None:
        self._text = pattern
        self._at = 0
        self._depth = 0

    # -- structure ----------------------------------------------------------------------------

    def pattern(self) -> Node:
        for position, character in enumerate(self._text):
            if "\ud800" <= character <= "\udfff":
                raise self._error("a lone surrogate", position, "it is no text; remove it")
        tree = self._choice()
        if self._at < len(self._text):
            raise self._error("a `)` without `(`", self._at, r"write `\)` for the character")
        return tree

    def _choice(self) -> Node:
        options = [self._sequence()]
        while self._skip("|"):
            options.append(self._sequence())
        return options[0] if len(options) == 1 else Choice(tuple(options))

    def _sequence(self) -> Node:
        parts: list[Node] = []
        while self._at < len(self._text) and self._text[self._at] not in "|)":
            begin = self._at
            parts.append(self._quantified(self._term(), begin))
        return parts[0] if len(parts) == 1 else Sequence(tuple(parts))

    def _quantified(self, node: Node, begin: int) -> Node:
        found = _QUANTIFIER.match(self._text, self._at)
        if not found:
            return node
        if self._text[begin] in "^$":
            raise self._error(f"`{self._text[begin : found.end()]}`", begin, "repeat no anchors")
        self._at = found.end()
        self._skip("?")  # lazy: the same texts match
        sign, low, comma, high = found[0], found[1], found[2], found[3]
        if low is None:
            return Repeat(node, int(sign == "+"), 1 if sign == "?" else None)
        minimum = _count(low)
        maximum = (_count(high) if high else None) if comma else minimum
        if maximum is not None and maximum < minimum:
            raise self._error(f"`{found[0]}`", found.start(), "its numbers are out of order")
        return Repeat(node, minimum, maximum)

    def _term(self) -> Node:
        begin = self._at
        character = self._next()
        if character == "^":
            return Start()
        if character == "$":
            return End()
        if character == ".":
            return Chars(complement(LINE_ENDS))
        if character == "(":
            return self._group(begin)
        if character == "[":
            return Chars(self._class(begin))
        if character == "\\":
            return Chars(self._escape(begin))
        if character in "*+?" or _QUANTIFIER.match(self._text, begin):
            raise self._error("a quantifier with nothing to repeat", begin, "escape it with `\\`")
        if re.match(r"\{,[0-9]+\}", self._text[begin:]):
            raise self._error("`{,n}`", begin, "dialects read it differently; write `{0,n}`")
        return Chars(_single(ord(character)))

    def _group(self, begin: int) -> Node:
        rest = self._text[self._at : self._at + 3]
        if rest.startswith(("?=", "?!", "?<=", "?<!")):
            raise self._error(
                "look-around", begin, "use `allOf` and `not` with patterns of their own instead"
            )
        if rest.startswith("?:"):
            self._at += 2
        elif rest.startswith("?"):
            name = _GROUP_NAME.match(self._text, self._at)
            if not name:
                raise self._error(
                    f"the group `({rest}`", begin, "ECMA-262 has `(`, `(?:` and `(?<name>`"
                )
            self._at = name.end()
        self._depth += 1
        if self._depth > MAX_NESTING:
            raise self._error("groups", begin, f"they are nested deeper than {MAX_NESTING}")
        inner = self._choice()
        self._depth -= 1
        if not self._skip(")"):
            raise self._error("a `(` without `)`", begin, r"write `\(` for the character")
        return inner

    # -- classes and escapes ------------------------------------------------------------------

    def _class(self, begin: int) -> Ranges:
        negated = self._skip("^")
        found: list[tuple[int, int]] = []
        while not self._skip("]"):
            at = self._at
            first = self._class_atom(begin)
            follows = self._text[self._at : self._at + 2]
            if not follows.startswith("-") or follows in ("-", "-]"):
                found += first
                continue
            self._at += 1
            last = self._class_atom(begin)
            low, high = _code_point(first), _code_point(last)
            if low is None or high is None:  # `\w-.`: a hyphen between a class and something
                found += [*first, (0x2D, 0x2D), *last]
            elif low > high:
                shown = self._text[at : self._at]
                raise self._error(f"the range `{shown}`", at, "its ends are out of order")
            else:
                found.append((low, high))
        inside = ranges(found)
        return complement(inside) if negated else inside

    def _class_atom(self, begin: int) -> Ranges:
        if self._at >= len(self._text):
            raise self._error("a `[` without `]`", begin, r"write `\[` for the character")
        at = self._at
        character = self._next()
        return self._escape(at, in_class=True) if character == "\\" else _single(ord(character))

    def _escape(self, begin: int, in_class: bool = False) -> Ranges:
        """The code points that an escape stands for; its backslash is read already."""
        letter = self._next()
        if letter in _CLASSES:
            return _CLASSES[letter]
        if letter in _CONTROLS:
            return _single(ord(_CONTROLS[letter]))
        if letter in ("p", "P"):
            return self._property(begin, negated=letter == "P")
        if letter == "u":
            return _single(self._unicode(begin))
        if letter == "x":
            return _single(self._number(begin, "[0-9a-fA-F]{2}", r"`\x` takes two hex digits"))
        if letter == "c":
            control = self._matched("[a-zA-Z]")
            if not control:
                raise self._error(r"`\c`", begin, r"a letter must follow; write `\\c` for the text")
            return _single(ord(control) % 32)
        if letter == "b" and in_class:
            return _single(0x08)
        if letter in ("b", "B") and not in_class:
            raise self._error(
                f"the word boundary `\\{letter}`", begin, "say which characters may come there"
            )
        if letter == "0" and not self._matched("[0-9]"):
            return _single(0)
        if letter.isdigit() or (letter == "k" and not in_class):
            what = "an octal escape" if in_class or letter == "0" else "a back-reference"
            raise self._error(
                what, begin, r"spell out what it stands for (a character is `\xHH` or `\uHHHH`)"
            )
        if letter.isascii() and letter.isalpha():
            raise self._error(f"the escape `\\{letter}`", begin, "ECMA-262 has none of that name")
        if not letter:
            raise self._error("a backslash at the end", begin, r"write `\\` for the character")
        return _single(ord(letter))

    def _unicode(self, begin: int) -> int:
        if self._skip("{"):
            value = self._number(begin, "[0-9a-fA-F]+(?=})", r"`\u{...}` takes hex digits")
            self._at += 1
        else:
            value = self._number(begin, "[0-9a-fA-F]{4}", r"`\u` takes four hex digits")
            low = re.compile(r"\\u([dD][c-fC-F][0-9a-fA-F]{2})").match(self._text, self._at)
            if 0xD800 <= value <= 0xDBFF and low:
                self._at = low.end()
                return 0x10000 + ((value - 0xD800) << 10) + int(low[1], 16) - 0xDC00
        if 0xD800 <= value <= 0xDFFF:
            raise self._error("a lone surrogate", begin, "no text holds it; remove it")
        if value > 0x10FFFF:
            raise self._error("an escape", begin, "the last code point is U+10FFFF")
        return value

    def _number(self, begin: int, digits: str, usage: str) -> int:
        found = self._matched(digits)
        if not found:
            raise self._error(f"`{self._text[begin : begin + 3]}`", begin, usage)
        return int(found, 16)

    def _property(self, begin: int, negated: bool) -> Ranges:
        found = self._matched(r"\{[A-Za-z0-9_]+(=[A-Za-z0-9_]+)?\}")
        inside = property_ranges(found[1:-1]) if found else None
        if inside is None:
            shown = self._text[begin : begin + 2] + (found or "")
            raise self._error(
                f"the property `{shown}`", begin, "it is unknown here; list its characters in `[]`"
            )
        return complement(inside) if negated else inside

    # -- reading ------------------------------------------------------------------------------

    def _next(self) -> str:
        """The next character, "" at the end."""
        self._at += 1
        return self._text[self._at - 1 : self._at]

    def _skip(self, sign: str) -> bool:
        found = self._text.startswith(sign, self._at)
        self._at += len(sign) * found
        return found

    def _matched(self, expression: str) -> str:
        found = re.compile(expression).match(self._text, self._at)
        if not found:
            return ""
        self._at = found.end()
        return found[0]

    def _error(self, what: str, position: int, hint: str) -> ConstraintError:
        shown = self._text if len(self._text) <= 200 else f"{self._text[:200]}..."
        return ConstraintError(
            f"{what} at position {position} of the pattern {shown!r} is not supported: {hint}"
        )


@lru_cache(maxsize=256)
def property_ranges(name: str) -> Ranges | None:
    """The code points of `\\p{name}`; None if ECMA-262 or the tables at hand lack it."""
    key, _, value = name.partition("=")
    if value and key in ("General_Category", "gc"):
        if value not in GENERAL_CATEGORIES:
            return None
    elif value:
        if key not in ("Script", "sc", "Script_Extensions", "scx"):
            return None
    elif name not in GENERAL_CATEGORIES and name not in BINARY:
        return None
    try:
        return ranges_of(regex(rf"\p{{{name}}}"))
    except ConstraintError:
        return None


def _count(digits: str) -> int:
    """A number in a quantifier; a billion stands for all that is more."""
    digits = digits.lstrip("0")
    return int(digits or "0") if len(digits) <= 9 else 10**9


def _single(code_point: int) -> Ranges:
    return ((code_point, code_point),)


def _code_point(inside: Ranges) -> int | None:
    """The only code point, if there is one."""
    return inside[0][0] if len(inside) == 1 and inside[0][0] == inside[0][1] else None

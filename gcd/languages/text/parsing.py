"""This module has what the parsers of all flavours of regular expressions share.

A recursive-descent parser over alternatives, sequences, quantified terms and groups. A flavour
says what a term is, which groups there are, and what may be skipped between terms.
"""

from __future__ import annotations

import re
from collections.abc import Callable

from gcd.automata.limits import spend
from gcd.errors import ConstraintError
from gcd.languages.text.code_points import Ranges
from gcd.languages.text.syntax import (
    Choice,
    Look,
    Node,
    Sequence,
    look_around,
    repeat,
    shown_pattern,
)
from gcd.languages.text.unicode_tables import with_other_cases

MAX_NESTING = 50  # groups inside groups
# Units of work, for the parsers are interpreted code: for a character of the pattern, and for a
# range of code points in what a class or an escape stands for.
_PER_CHARACTER, _PER_RANGE = 1000, 500
_PER_CASED_CHARACTER, _PER_CASED_SET = 60_000, 1_500_000  # units of work to find other cases

QUANTIFIER = re.compile(r"[*+?]|\{([0-9]+)(?:(,)([0-9]*))?\}")
CONTROLS = {"t": 0x09, "n": 0x0A, "v": 0x0B, "f": 0x0C, "r": 0x0D}


class PatternParser:
    """A parser at one position of a pattern."""

    _references: str  # letters, beside digits, of escapes that refer back to groups

    def __init__(self, pattern: str) -> None:
        self._text = pattern
        self._at = 0
        self._depth = 0
        self._cased_before: set[Ranges] = set()

    # -- structure ----------------------------------------------------------------------------

    def pattern(self) -> Node:
        """Parse the whole pattern; `ConstraintError` names what is wrong or not supported."""
        self._spend(_PER_CHARACTER * len(self._text))
        for position, character in enumerate(self._text):
            if "\ud800" <= character <= "\udfff":
                raise self._error("a lone surrogate", position, "it is no text; remove it")
        tree = self._choice()
        if self._at < len(self._text):
            raise self._unpaired(")", self._at)
        return tree

    def _term(self) -> Node:
        """What a quantifier may follow; at least one character is left."""
        raise NotImplementedError

    def _quantified(self, node: Node, begin: int) -> Node:
        """The node, read since `begin`, under the quantifier that follows, if one does."""
        raise NotImplementedError

    def _skip_ignored(self) -> None:
        """Go on to what means something."""

    def _choice(self) -> Node:
        options = [self._sequence()]
        while self._skip("|"):
            options.append(self._sequence())
        return options[0] if len(options) == 1 else Choice(tuple(options))

    def _sequence(self) -> Node:
        parts: list[Node] = []
        self._skip_ignored()
        while self._at < len(self._text) and self._text[self._at] not in "|)":
            begin = self._at
            parts.append(self._quantified(self._term(), begin))
            self._skip_ignored()
        return parts[0] if len(parts) == 1 else Sequence(tuple(parts))

    def _inside_group(self, begin: int) -> Node:
        """What is in the group that opens at `begin`, its closing parenthesis read as well."""
        self._depth += 1
        if self._depth > MAX_NESTING:
            raise self._error("a group", begin, f"they are nested deeper than {MAX_NESTING}")
        inner = self._choice()
        self._depth -= 1
        if not self._skip(")"):
            raise self._unpaired("(", begin)
        return inner

    def _counted(self, node: Node, found: re.Match[str], begin: int) -> Node:
        """The node under a quantifier that is read already."""
        span = begin, self._at
        sign, low, comma, high = found[0], found[1], found[2], found[3]
        if low is None:
            return repeat(node, int(sign == "+"), 1 if sign == "?" else None, span)
        minimum = _count(low)
        maximum = (_count(high) if high else None) if comma else minimum
        if maximum is not None and maximum < minimum:
            raise self._error(f"`{found[0]}`", found.start(), "its numbers are out of order")
        return repeat(node, minimum, maximum, span)

    # -- code points ----------------------------------------------------------------------------

    def _number(self, begin: int, digits: str, usage: str) -> int:
        found = self._matched(digits)
        if not found:
            raise self._error(f"`{self._text[begin : begin + 3]}`", begin, usage)
        return int(found, 16)

    def _checked(self, value: int, begin: int) -> int:
        """The number of a code point that a text may hold."""
        if 0xD800 <= value <= 0xDFFF:
            raise self._error("a lone surrogate", begin, "no text holds it; remove it")
        if value > 0x10FFFF:
            raise self._error("an escape", begin, "the last code point is U+10FFFF")
        return value

    def _look_around(self, begin: int) -> Look | None:
        """The look-around that the group which opens at `begin` is, if it is one."""
        found = self._matched(r"\?<?[=!]")
        if not found:
            return None
        body = self._inside_group(begin)
        return look_around(body, ahead="<" not in found, negated="!" in found)

    def _other_escape(self, letter: str, begin: int, in_class: bool) -> int:
        """The character behind a backslash that stands for itself; "" is the pattern's end."""
        if letter.isdigit() or (letter and letter in self._references and not in_class):
            what = "an octal escape" if in_class or letter == "0" else "a back-reference"
            raise self._error(
                what, begin, r"spell out what it stands for (a character is `\xHH` or `\uHHHH`)"
            )
        if letter.isascii() and letter.isalpha():
            raise self._error(f"the escape `\\{letter}`", begin, "there is none of that name")
        if not letter:
            raise self._error("a backslash at the end", begin, r"write `\\` for the character")
        return ord(letter)

    def _with_other_cases(self, inside: Ranges) -> Ranges:
        """The code points and all whose simple case folding is that of one of them."""
        if inside not in self._cased_before:
            self._cased_before.add(inside)
            self._spend(_PER_CASED_SET if _code_point(inside) is None else _PER_CASED_CHARACTER)
        return with_other_cases(inside)

    def _having_property(
        self, begin: int, written: str, look_up: Callable[[str], Ranges | None]
    ) -> Ranges:
        """The code points with the Unicode property whose name is `written` here."""
        found = self._matched(written)
        inside = look_up(found.strip("{}")) if found else None
        if inside is None:
            shown = self._text[begin : begin + 2] + found
            raise self._error(
                f"the property `{shown}`", begin, "it is unknown here; list its characters in `[]`"
            )
        return inside

    def _range(self, first: Ranges, last: Ranges, begin: int) -> tuple[int, int] | None:
        """The range of a class that two of its members bound; None if one is no single one."""
        low, high = _code_point(first), _code_point(last)
        if low is None or high is None:
            return None
        if low > high:
            written = self._text[begin : self._at]
            raise self._error(f"the range `{written}`", begin, "its ends are out of order")
        return low, high

    def _paid(self, *inside: Ranges) -> Ranges:
        """Return the first of some sets of code points, paid for by the ranges of them all."""
        self._spend(_PER_RANGE * sum(map(len, inside)))
        return inside[0]

    def _spend(self, units: int) -> None:
        spend(units, f"the pattern {shown_pattern(self._text)}")

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

    def _error(
        self, what: str, position: int, hint: str, fault: str = "is not supported"
    ) -> ConstraintError:
        place = f"at position {position} of the pattern {shown_pattern(self._text)}"
        return ConstraintError(f"{what} {place} {fault}: {hint}")

    def _unpaired(self, what: str, position: int) -> ConstraintError:
        """A bracket without the other: `(`, `)` or `[`."""
        other = {"(": ")", ")": "(", "[": "]"}[what]
        fault = "closes nothing" if what == ")" else "is not closed"
        hint = rf"add `{other}`, or write `\{what}` for the character"
        return self._error(f"a `{what}` without `{other}`", position, hint, fault)


def single(code_point: int) -> Ranges:
    """Return the set of one code point alone."""
    return ((code_point, code_point),)


def _code_point(inside: Ranges) -> int | None:
    """The only code point, if there is one."""
    return inside[0][0] if len(inside) == 1 and inside[0][0] == inside[0][1] else None


def _count(digits: str) -> int:
    """A number in a quantifier; a billion stands for all that is more."""
    digits = digits.lstrip("0")
    return int(digits or "0") if len(digits) <= 9 else 10**9

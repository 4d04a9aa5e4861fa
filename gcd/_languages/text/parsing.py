"""Base class of the parsers of all regular expression dialects.

It is a recursive-descent parser of alternatives, sequences, quantified terms and groups. A dialect
defines the terms, the groups, and the characters that are ignored between terms.
"""

from __future__ import annotations

import re
from collections.abc import Callable

from gcd._automata.limits import spend
from gcd._errors import ConstraintError
from gcd._languages.text.code_points import Ranges
from gcd._languages.text.syntax import (
    Choice,
    Look,
    Node,
    Sequence,
    look_around,
    repeat,
    show_pattern,
)
from gcd._languages.text.unicode_tables import with_other_cases

MAX_NESTING = 50  # maximum number of levels of groups inside groups
# Units of work of a parser, which is interpreted code: per character of the pattern, and per range
# of code points in a class or an escape.
_PER_CHARACTER, _PER_RANGE = 1000, 500
_PER_CASED_CHARACTER, _PER_CASED_SET = 60_000, 1_500_000  # units of work to find the other cases

QUANTIFIER = re.compile(r"[*+?]|\{([0-9]+)(?:(,)([0-9]*))?\}")
CONTROLS = {"t": 0x09, "n": 0x0A, "v": 0x0B, "f": 0x0C, "r": 0x0D}


class PatternParser:
    """Parser of one pattern, with the current position in it."""

    _references: str  # letters that begin a back-reference, besides digits

    def __init__(self, pattern: str) -> None:
        self._text = pattern
        self._at = 0
        self._depth = 0
        self._cased_before: set[Ranges] = set()

    # -- structure ----------------------------------------------------------------------------

    def pattern(self) -> Node:
        """Parse the whole pattern.

        Raises:
            ConstraintError: the syntax is invalid or unsupported; the message names it.
        """
        self._spend(_PER_CHARACTER * len(self._text))
        for position, character in enumerate(self._text):
            if "\ud800" <= character <= "\udfff":
                raise self._error(position, "a lone surrogate is not valid text; remove it")
        tree = self._choice()
        if self._at < len(self._text):
            raise self._refuse_unpaired(self._at)
        return tree

    def _term(self) -> Node:
        """Parse a term, which a quantifier may follow; there is at least one character left."""
        raise NotImplementedError

    def _quantify(self, node: Node, begin: int) -> Node:
        """Parse a quantifier, if one follows, and apply it to the node that begins at `begin`."""
        raise NotImplementedError

    def _skip_ignored(self) -> None:
        """Skip characters that the dialect ignores between terms."""

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
            parts.append(self._quantify(self._term(), begin))
            self._skip_ignored()
        return parts[0] if len(parts) == 1 else Sequence(tuple(parts))

    def _inside_group(self, begin: int) -> Node:
        """Parse the content and the closing parenthesis of the group that opens at `begin`."""
        self._depth += 1
        if self._depth > MAX_NESTING:
            raise self._error(begin, f"expected at most {MAX_NESTING} nested groups, got more")
        inner = self._choice()
        self._depth -= 1
        if not self._skip(")"):
            raise self._refuse_unpaired(begin)
        return inner

    def _repeat(self, node: Node, found: re.Match[str], begin: int, *, lazy: bool = False) -> Node:
        """Return the node repeated as often as the quantifier `found` states."""
        span = begin, self._at
        sign, low, comma, high = found[0], found[1], found[2], found[3]
        if low is None:
            return repeat(node, int(sign == "+"), 1 if sign == "?" else None, span, lazy=lazy)
        minimum = _count(low)
        maximum = (_count(high) if high else None) if comma else minimum
        if maximum is not None and maximum < minimum:
            raise self._error(
                found.start(),
                f"expected a quantifier from a smaller to a larger number, got `{found[0]}`; "
                "exchange the numbers",
            )
        return repeat(node, minimum, maximum, span, lazy=lazy)

    # -- code points ----------------------------------------------------------------------------

    def _number(self, begin: int, digits: str, expected: str) -> int:
        found = self._match(digits)
        if not found:
            escape = self._text[begin : begin + 3]
            raise self._error(begin, f"expected {expected} in an escape, got `{escape}`")
        return int(found, 16)

    def _check(self, value: int, begin: int) -> int:
        """Return a code point unchanged, or raise an error if texts can't contain it."""
        if 0xD800 <= value <= 0xDFFF:
            raise self._error(begin, "a lone surrogate is not valid text; remove its escape")
        if value > 0x10FFFF:
            raise self._error(begin, "expected an escape up to U+10FFFF, got a larger code point")
        return value

    def _look_around(self, begin: int) -> Look | None:
        """Parse look-around in the group that opens at `begin`; return None for other groups."""
        found = self._match(r"\?<?[=!]")
        if not found:
            return None
        body = self._inside_group(begin)
        return look_around(body, ahead="<" not in found, negated="!" in found)

    def _other_escape(self, letter: str, begin: int, in_class: bool) -> int:
        """Return the character of an escape that stands for the character after the backslash.

        `letter` is that character, or "" at the end of the pattern.
        """
        if letter.isdigit() or (letter and letter in self._references and not in_class):
            what = "an octal escape" if in_class or letter == "0" else "a back-reference"
            raise self._error(
                begin, rf"{what} is not supported; write its text, or `\xHH` for a character"
            )
        if letter.isascii() and letter.isalpha():
            raise self._error(
                begin,
                rf"the escape `\{letter}` is unknown; list the characters that it stands for, or "
                rf"write `{letter}` for the letter",
            )
        if not letter:
            raise self._error(
                begin, r"expected a character after the backslash, got the end; write `\\` for `\`"
            )
        return ord(letter)

    def _with_other_cases(self, inside: Ranges) -> Ranges:
        """Return all code points that have the simple case folding of one of the given ones."""
        if inside not in self._cased_before:
            self._cased_before.add(inside)
            self._spend(_PER_CASED_SET if _code_point(inside) is None else _PER_CASED_CHARACTER)
        return with_other_cases(inside)

    def _having_property(
        self, begin: int, written: str, look_up: Callable[[str], Ranges | None]
    ) -> Ranges:
        """Return the code points with a Unicode property whose name matches `written`."""
        found = self._match(written)
        inside = look_up(found.strip("{}")) if found else None
        if inside is None:
            shown = self._text[begin : begin + 2] + found
            raise self._error(
                begin, f"the property `{shown}` is unknown; list its characters in `[]`"
            )
        return inside

    def _range(self, first: Ranges, last: Ranges, begin: int) -> tuple[int, int] | None:
        """Return the range between two class members; None if one is not a single character."""
        low, high = _code_point(first), _code_point(last)
        if low is None or high is None:
            return None
        if low > high:
            written = self._text[begin : self._at]
            raise self._error(
                begin, f"expected the smaller end of the range `{written}` first; exchange the ends"
            )
        return low, high

    def _paid(self, *inside: Ranges) -> Ranges:
        """Count the ranges of some sets toward the work limit; return the first set."""
        self._spend(_PER_RANGE * sum(map(len, inside)))
        return inside[0]

    def _spend(self, units: int) -> None:
        spend(units, f"the pattern {show_pattern(self._text)}")

    # -- reading ------------------------------------------------------------------------------

    def _next(self) -> str:
        """Read the next character; "" at the end."""
        self._at += 1
        return self._text[self._at - 1 : self._at]

    def _skip(self, sign: str) -> bool:
        found = self._text.startswith(sign, self._at)
        self._at += len(sign) * found
        return found

    def _match(self, expression: str) -> str:
        found = re.compile(expression).match(self._text, self._at)
        if not found:
            return ""
        self._at = found.end()
        return found[0]

    def _error(self, position: int, message: str) -> ConstraintError:
        pattern = show_pattern(self._text)
        return ConstraintError(f"{message} (at position {position} of the pattern {pattern})")

    def _refuse_unpaired(self, position: int) -> ConstraintError:
        """Return the error for the unpaired bracket at a position: `(`, `)` or `[`."""
        what = self._text[position]
        other = {"(": ")", ")": "(", "[": "]"}[what]
        return self._error(
            position,
            rf"a `{what}` without `{other}`; add `{other}`, or write `\{what}` for `{what}`",
        )


def single(code_point: int) -> Ranges:
    """Return the set that contains one code point."""
    return ((code_point, code_point),)


def _code_point(inside: Ranges) -> int | None:
    """Return the code point in a set that contains only one; None for other sets."""
    return inside[0][0] if len(inside) == 1 and inside[0][0] == inside[0][1] else None


def _count(digits: str) -> int:
    """Return the number in a quantifier, limited to a billion."""
    digits = digits.lstrip("0")
    return int(digits or "0") if len(digits) <= 9 else 10**9

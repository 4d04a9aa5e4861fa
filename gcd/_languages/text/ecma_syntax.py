"""Parser of ECMA-262 patterns with the `u` flag, the syntax of JSON Schema's `pattern`.

A text satisfies a `pattern` if some part of it matches (`ecma_pattern`). So the language of a
pattern P is `.* P .*`, unless P has anchors. A recursive-descent parser supports the part of
ECMA-262 that describes regular languages. Classes and escapes become ranges of code points with
ECMA's meaning: `\\d` and `\\w` are ASCII, `\\s` is its white space and line terminators, and `.` is
everything but line terminators. Captures and laziness are ignored, because they don't affect which
texts match.

Strictness. With the `u` flag, many malformed patterns are errors. Such a pattern is accepted if all
implementations agree on its meaning, as Annex B of the standard does without the flag. Examples are
`{`, `}` and `]` for themselves, `\\-` and other escaped punctuation, and `[\\w-.]` with a literal
hyphen. Where dialects differ (`\\A`, `\\1` to `\\9` in a class, `{,3}`) the pattern is refused.

Look-around and word boundaries are conditions on a position (`gcd._languages.text.look_around`).
ES2025's modifiers `(?ims-ims:...)` are supported. Back-references are not regular, and raise an
error that names them.
"""

from __future__ import annotations

import re
from functools import lru_cache

from gcd._automata.automaton import Automaton
from gcd._automata.limits import cache_with_price
from gcd._languages.text.code_points import Ranges, complement, ranges
from gcd._languages.text.ecma_properties import BINARY, GENERAL_CATEGORIES
from gcd._languages.text.look_around import automaton_of
from gcd._languages.text.parsing import CONTROLS, QUANTIFIER, PatternParser, single
from gcd._languages.text.syntax import (
    Chars,
    End,
    Node,
    Start,
    has_anchors,
    line_end,
    line_start,
    word_boundary,
)
from gcd._languages.text.unicode_tables import property_ranges

DIGITS = ranges([(0x30, 0x39)])
WORD = ranges([(0x30, 0x39), (0x41, 0x5A), (0x5F, 0x5F), (0x61, 0x7A)])
LINE_ENDS = ranges([(0x0A, 0x0A), (0x0D, 0x0D), (0x2028, 0x2029)])
# The standard's LineTerminator (above) and WhiteSpace: tab, VT, FF, U+FEFF, category Zs.
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
_OPEN_COUNT = re.compile(r"\{,[0-9]+\}")
_ANCHORS = {"A": "^", "Z": "$", "z": "$"}  # in other dialects
_CONDITIONS = ("^", "$", r"\b", r"\B", "(?=", "(?!", "(?<=", "(?<!")  # not repeatable
_MODIFIERS = re.compile(r"\?([ims]*)(-[ims]*)?:")
_GROUP_NAME = re.compile(r"\?<([^\W\d]|\$)(\w|\$)*>")


def parse(pattern: str) -> Node:
    """Parse a pattern.

    Raises:
        ConstraintError: the syntax is invalid or unsupported; the message names it.
    """
    return _Parser(pattern).pattern()


class _Parser(PatternParser):
    _references = "k"

    def __init__(self, pattern: str) -> None:
        super().__init__(pattern)
        self._flags = frozenset[str]()  # the flags that are set, of i, m and s

    # -- structure ----------------------------------------------------------------------------

    def _quantify(self, node: Node, begin: int) -> Node:
        found = QUANTIFIER.match(self._text, self._at)
        if not found:
            return node
        if has_anchors(node) and self._text.startswith(_CONDITIONS, begin):
            repeated = self._text[begin : found.end()]
            raise self._error(
                begin,
                f"repeating an anchor, a word boundary or look-around has no effect, got "
                f"`{repeated}`; remove the quantifier",
            )
        self._at = found.end()
        self._skip("?")  # a lazy quantifier matches the same texts
        return self._repeat(node, found, begin)

    def _term(self) -> Node:
        begin = self._at
        character = self._next()
        if character == "^":
            return line_start(LINE_ENDS) if "m" in self._flags else Start()
        if character == "$":
            return line_end(LINE_ENDS) if "m" in self._flags else End()
        if character == ".":
            return Chars(complement(() if "s" in self._flags else LINE_ENDS))
        if character == "(":
            return self._group(begin)
        if character == "[":
            return Chars(self._class(begin))
        if character == "\\":
            boundary = self._match("[bB]")
            if boundary:
                return word_boundary(self._add_cases(WORD), negated=boundary == "B")
            anchor = self._match("[AZz]")
            if anchor:
                written = _ANCHORS[anchor]
                raise self._error(
                    begin, rf"the anchor `\{anchor}` belongs to another dialect; write `{written}`"
                )
            return Chars(self._add_cases(self._escape(begin)))
        if character in "*+?" or QUANTIFIER.match(self._text, begin):
            raise self._error(
                begin,
                r"a quantifier has nothing to repeat; put text before it, or `\` to escape it",
            )
        if _OPEN_COUNT.match(self._text, begin):
            raise self._error(
                begin, "dialects interpret the quantifier `{,n}` differently; write `{0,n}`"
            )
        return Chars(self._add_cases(single(ord(character))))

    def _group(self, begin: int) -> Node:
        look = self._look_around(begin)
        if look:
            return look
        rest = self._text[self._at : self._at + 3]
        outside = self._flags
        if rest.startswith("?"):
            name = _GROUP_NAME.match(self._text, self._at)
            found = name or _MODIFIERS.match(self._text, self._at)
            if not found:
                raise self._error(
                    begin,
                    f"the group `({rest}` is not supported; use `(`, `(?:`, `(?<name>`, "
                    "look-around, or modifiers as in `(?i:`",
                )
            self._at = found.end()
            if not name:
                self._modify(found[1], found[2] or "", begin)
        inner = self._inside_group(begin)
        self._flags = outside
        return inner

    def _modify(self, on: str, off: str, begin: int) -> None:
        """Set the flags `on`, and clear the flags that follow a hyphen in `off`."""
        letters, written = on + off[1:], on + off
        if len(set(letters)) < len(letters) or written == "-":
            raise self._error(
                begin, f"expected some of the modifiers i, m, s, each at most once, got `{written}`"
            )
        self._flags = (self._flags | set(on)) - set(off[1:])

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
            pair = self._range(first, last, at)
            if pair is None:  # `\w-.`: the hyphen after a class stands for itself
                found += [*first, (0x2D, 0x2D), *last]
            else:
                found.append(pair)
        inside = self._add_cases(self._paid(ranges(found)))
        return complement(inside) if negated else inside

    def _add_cases(self, inside: Ranges) -> Ranges:
        """Return code points and, if the flag i is set, those that differ only in case."""
        return self._with_other_cases(inside) if "i" in self._flags else inside

    def _class_atom(self, begin: int) -> Ranges:
        if self._at >= len(self._text):
            raise self._refuse_unpaired(begin)
        at = self._at
        character = self._next()
        return self._escape(at, in_class=True) if character == "\\" else single(ord(character))

    def _escape(self, begin: int, in_class: bool = False) -> Ranges:
        """Return the code points of an escape whose backslash has been read."""
        letter = self._next()
        if letter in _CLASSES:
            inside = self._paid(_CLASSES[letter])
            # Under the flag i, words include the other cases of k and s, and `\W` excludes them.
            return complement(self._add_cases(WORD)) if letter == "W" else inside
        if letter in CONTROLS:
            return single(CONTROLS[letter])
        if letter in ("p", "P"):
            return self._property(begin, negated=letter == "P")
        if letter == "u":
            return single(self._unicode(begin))
        if letter == "x":
            return single(self._number(begin, "[0-9a-fA-F]{2}", r"two hex digits after `\x`"))
        if letter == "c":
            control = self._match("[a-zA-Z]")
            if not control:
                raise self._error(
                    begin, r"expected a letter after the escape `\c`; write `\\c` for the text `\c`"
                )
            return single(ord(control) % 32)
        if letter == "b" and in_class:
            return single(0x08)
        if letter == "0" and not self._match("[0-9]"):
            return single(0)
        return single(self._other_escape(letter, begin, in_class))

    def _unicode(self, begin: int) -> int:
        if self._skip("{"):
            value = self._number(begin, "[0-9a-fA-F]+(?=})", r"hex digits in `\u{...}`")
            self._at += 1
        else:
            value = self._number(begin, "[0-9a-fA-F]{4}", r"four hex digits after `\u`")
            low = re.compile(r"\\u([dD][c-fC-F][0-9a-fA-F]{2})").match(self._text, self._at)
            if 0xD800 <= value <= 0xDBFF and low:
                self._at = low.end()
                return 0x10000 + ((value - 0xD800) << 10) + int(low[1], 16) - 0xDC00
        return self._check(value, begin)

    def _property(self, begin: int, negated: bool) -> Ranges:
        written = r"\{[A-Za-z0-9_]+(=[A-Za-z0-9_]+)?\}"
        inside = self._having_property(begin, written, look_up_property)
        return self._paid(complement(inside) if negated else inside)


@lru_cache(maxsize=256)
def look_up_property(name: str) -> Ranges | None:
    r"""Return the code points of `\p{name}`; None if ECMA-262 or the available tables lack it."""
    key, _, value = name.partition("=")
    if not value and name in GENERAL_CATEGORIES:
        return property_ranges(f"gc={name}")
    if not value:
        return property_ranges(name) if name in BINARY else None
    if key in ("General_Category", "gc"):
        return property_ranges(name) if value in GENERAL_CATEGORIES else None
    if key in ("Script", "sc", "Script_Extensions", "scx"):
        return property_ranges(name)
    return None


@cache_with_price(256)
def ecma_pattern(pattern: str) -> Automaton:
    """Return the UTF-8 texts that contain a match of an ECMA-262 pattern with the `u` flag.

    Raises:
        ConstraintError: the pattern is invalid, or uses unsupported syntax. The message gives the
            problem and its position.
        StateLimitError: its automaton has more states than `gcd.state_limit` allows.
        WorkLimitError: building its automaton takes more work than `gcd.work_limit` allows.
    """
    return automaton_of(parse(pattern), pattern, search=True)

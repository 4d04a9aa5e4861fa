r"""Parser of regular expressions in every dialect, and `gcd.regex` for the common one.

A recursive-descent parser reads alternatives, sequences, quantified terms, groups and classes. A
`Dialect` lists what depends on the dialect: tables of classes and escapes, anchors, flags, and what
is refused with which advice. Captures and laziness are ignored, because they don't affect which
texts match.

The default is the **common dialect** of Python's `re` and Rust's `regex` crate. Syntax that exists
in only one of the two is accepted if the other one refuses it, or warns that it will adopt the same
meaning. Syntax that the two interpret differently is refused: `a*+` (possessive in Python, a
repetition of a repetition in Rust), `[--/]`, white space in classes under the flag x, and `\<`.

Where the two disagree about the characters of a class, the common dialect follows Rust, and thus
the Unicode standard. `\s` is White_Space, `\w` is that of UTS #18, the flag i uses simple case
folding, and `$` is the end of the text, even after a line feed. The flags a (Python) and -u (Rust)
restrict `\d`, `\w`, `\s` and the cases of letters to ASCII.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from gcd._automata.automaton import Automaton
from gcd._errors import ConstraintError, check_kind
from gcd._languages.text import unicode_tables
from gcd._languages.text.code_points import Ranges, complement, ranges
from gcd._languages.text.look_around import automaton_of
from gcd._languages.text.syntax import (
    Chars,
    Choice,
    End,
    Node,
    Sequence,
    Start,
    has_anchors,
    line_end,
    line_start,
    look_around,
    repeat,
    show_pattern,
    word_boundary,
    word_edge,
)

MAX_NESTING = 50  # maximum number of levels of groups inside groups

Flags = frozenset[str]
"""Letters of the flags that are set: i, m, s and x; a (ASCII) also for Rust's -u; R of Rust."""

LINE_FEED: Ranges = ((0x0A, 0x0A),)
HEX = "[0-9a-fA-F]"
_CR_OR_LF: Ranges = ((0x0A, 0x0A), (0x0D, 0x0D))
_CONTROLS = {"t": 0x09, "n": 0x0A, "v": 0x0B, "f": 0x0C, "r": 0x0D, "a": 0x07}
_HEXADECIMAL = {
    letter: re.compile(rf"\{{{HEX}+\}}|{HEX}{{{count}}}")
    for letter, count in (("x", 2), ("u", 4), ("U", 8))
}
_END = End()
_ONLY_RUST_SKIPS = frozenset(" \t\n\r\v\f#\x85\u200e\u200f\u2028\u2029")
_FLAGS_ALONE = Sequence(())  # term that only sets flags, recognized by identity
_CONDITIONS = ("^", "$", r"\b", r"\B", "(?=", "(?!", "(?<=", "(?<!")
_LOOK_AROUND = re.compile(r"\?<?[=!]")
_POSIX = re.compile(r":(\^?)([a-z]+):\]")
_EDGE = re.compile(r"\\(?:[<>]|b\{(start|end)(-half)?\})")


SPACED_COUNT = (
    r"\{(?=[^}]*\s)(?=[^}]*[0-9])[\s0-9]*(?:,[\s0-9]*)?\}",
    "the quantifier `{}` means different things in Rust and in Python; remove the spaces",
)
EDGES = (
    r"\\(?:[<>]|b(?=\{))",
    "the escape `{}` means different things in Rust and in Python; use look-around",
)
NOT_REGULAR = (
    (r"\(\?(?:P=|\()", "a back-reference is not regular; write the possible texts instead"),
    (r"\(\?>", "an atomic group is not supported; write `(?:` instead of `(?>`"),
)
COMMENT = (r"\(\?#", "a comment `(?#` without `)`; add `)` at its end")
# Refused in every dialect.
_END_ESCAPED = "expected a character after the backslash, got the end; write `\\\\` for `\\`"
_INSTEAD = r"is not supported; write its text, or `\xHH` for a character"
_OCTAL, _BACK_REFERENCE = f"an octal escape {_INSTEAD}", f"a back-reference {_INSTEAD}"
_ESCAPES = ((r"\\\Z", _END_ESCAPED), (r"\\0[0-9]", _OCTAL), (r"\\[1-9gk]", _BACK_REFERENCE))
_ESCAPES_IN_CLASS = ((r"\\\Z", _END_ESCAPED), (r"\\(?:0[0-9]|[1-9])", _OCTAL))


@dataclass(frozen=True, eq=False)
class Dialect:
    """Differences between dialects; the defaults are the common syntax of Python and Rust."""

    # Characters of d, s or w under some flags, with the other cases, and with a property by name.
    classes: Callable[[str, Flags], Ranges] = unicode_tables.perl_class
    cases: Callable[[Ranges], Ranges] = unicode_tables.with_other_cases
    properties: Callable[[str], Ranges | None] = unicode_tables.property_ranges
    property: re.Pattern[str] = re.compile(r"[A-Za-z]|\{[A-Za-z0-9_ -]+(?:[=:][A-Za-z0-9_ -]+)?\}")
    # Letters of escapes: start (A) and end of the text, controls; by letter, hexadecimal digits.
    anchors: str = "AzZ"
    controls: str = "tnvfra"
    hexadecimal: Mapping[str, re.Pattern[str]] = field(default_factory=_HEXADECIMAL.copy)
    dollar: Node = _END  # the condition of `$` without the flag m
    line_ends: Ranges = LINE_FEED
    # Syntax after the parenthesis of a group: flags to set and to clear (also a and u), or a name.
    flags: str = "imsx"
    modifiers: re.Pattern[str] = re.compile(
        r"\?(?!\))(?P<on>[A-Za-z]*)(?P<off>-[A-Za-z]+)?(?P<close>[:)])"
    )
    name: re.Pattern[str] = re.compile(r"\?P?<([^\W\d]\w*)>")
    # Text that is skipped between terms, without and with the flag x.
    ignored: re.Pattern[str] = re.compile(r"\(\?#[^)]*\)")
    ignored_x: re.Pattern[str] = re.compile(r"\(\?#[^)]*\)|[ \t\n\r\v\f]+|#[^\n]*")
    quantifier: re.Pattern[str] = re.compile(
        r"[*+?]|\{(?!\})(?P<low>[0-9]*)(?P<comma>,(?P<high>[0-9]*))?\}"
    )
    operators: tuple[str, ...] = ("&&", "--", "~~")  # none if `[` in a class is a character
    # Syntax of terms and of members of classes that is refused, with a message for each, in which
    # `{}` stands for the syntax.
    refused: tuple[tuple[str, str], ...] = (SPACED_COUNT, EDGES, *NOT_REGULAR, COMMENT)
    refused_in_class: tuple[tuple[str, str], ...] = ()
    # A term has one quantifier, `[]` is empty, `[\w-.]` contains a hyphen, names of groups may be
    # repeated, `\cA` is a control character, and the flag i applies to the complement in `\P{...}`.
    is_ecma: bool = False
    # `a*+` repeats a repetition, `\<` and `\b{start}` are edges of words, classes ignore what is
    # ignored between terms, and those from Unicode tables exclude unassigned code points.
    is_rust: bool = False
    # Lazy quantifiers are told apart, and the flag x doesn't ignore more white space in Rust.
    is_python: bool = False


COMMON = Dialect()


def regex(pattern: str) -> Automaton:
    """Return the language of UTF-8 texts that match a pattern from the first character to the last.

    Args:
        pattern: a regular expression in the common syntax of Python's `re` and Rust's `regex`, with
            Python's look-around and without back-references.

    Raises:
        ConstraintError: the pattern is invalid, or uses unsupported syntax. The message gives the
            problem and its position.
        StateLimitError: the automaton has more states than `gcd.state_limit` allows.
        WorkLimitError: building the automaton takes more work than `gcd.work_limit` allows.
    """
    check_kind(
        pattern, str, "a pattern as str", "decode bytes, and pass a compiled pattern's .pattern"
    )
    return automaton_of(parse(pattern), pattern)


def parse(pattern: str, dialect: Dialect = COMMON, flags: Flags = frozenset()) -> Node:
    """Parse a pattern of a dialect, in which `flags` are set from the beginning."""
    return _Parser(pattern, dialect, flags).pattern()


class _Parser:
    """Parser of one pattern, with the current position in it."""

    def __init__(self, pattern: str, dialect: Dialect, flags: Flags) -> None:
        self._text = pattern
        self._dialect = dialect
        self._flags = flags
        self._at = 0
        self._depth = 0
        self._names: set[str] = set()
        self._asks_tables = False  # whether the current term depends on Unicode tables

    # -- structure ----------------------------------------------------------------------------

    def pattern(self) -> Node:
        """Parse the whole pattern."""
        surrogate = re.search("[\ud800-\udfff]", self._text)
        if surrogate:
            raise self._error(surrogate.start(), "a lone surrogate is not valid text; remove it")
        tree = self._choice()
        if self._at < len(self._text):
            raise self._refuse_unpaired(self._at)
        return tree

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

    def _skip_ignored(self) -> None:
        """Skip comments and, under the flag x, white space."""
        dialect = self._dialect
        ignored = dialect.ignored_x if "x" in self._flags else dialect.ignored
        while found := ignored.match(self._text, self._at):
            self._at = found.end()

    def _term(self) -> Node:
        """Parse a term, which a quantifier may follow; there is at least one character left."""
        begin, dialect = self._at, self._dialect
        if self._text[begin] in "\\({":
            self._refuse(dialect.refused + _ESCAPES)
        if dialect.quantifier.match(self._text, begin):
            raise self._error(
                begin,
                r"a quantifier has nothing to repeat; put text before it, or `\` to escape it",
            )
        character = self._next()
        if character == "(":
            return self._group(begin)
        if character in "^$":
            return self._anchor(character)
        if character == "\\":
            condition = self._condition(begin)
            if condition:
                return condition
        self._asks_tables = False
        if character == ".":
            inside = complement(() if "s" in self._flags else self._line_ends())
        elif character == "[":
            inside = self._class(begin)
        elif character == "\\":
            inside = self._escape(begin)
        else:
            inside = self._add_cases(self._literal(begin))
        if self._asks_tables and dialect.is_rust:
            # Versions of the crate have different Unicode tables, so new characters are excluded.
            assigned = unicode_tables.list_assigned()
            inside = _without(inside, complement(assigned))
        return Chars(inside)

    def _line_ends(self) -> Ranges:
        return _CR_OR_LF if "R" in self._flags else self._dialect.line_ends

    def _anchor(self, character: str) -> Node:
        """Return the condition of `^` or `$`."""
        if "m" in self._flags:
            edge = line_start if character == "^" else line_end
            return edge(self._line_ends(), crlf="R" in self._flags)
        return Start() if character == "^" else self._dialect.dollar

    def _condition(self, begin: int) -> Node | None:
        """Parse an anchor or a word boundary after its backslash; None for other escapes."""
        dialect = self._dialect
        edge = _EDGE.match(self._text, begin) if dialect.is_rust else None
        if edge:
            self._at = edge.end()
            end = edge[0] == r"\>" or edge[1] == "end"
            return word_edge(self._perl_class("w"), end=end, half=bool(edge[2]))
        letter = self._text[self._at : self._at + 1]
        if not letter or letter not in "bB" + dialect.anchors:
            return None
        self._at += 1
        if letter in "bB":
            return word_boundary(self._perl_class("w"), negated=letter == "B")
        return Start() if letter == "A" else End()

    def _group(self, begin: int) -> Node:
        outside = self._flags
        look = self._match(_LOOK_AROUND)
        if look:
            body = self._inside_group(begin)
            self._flags = outside
            return look_around(body, ahead="<" not in look, negated="!" in look)
        if self._text.startswith("?", self._at):
            name = self._dialect.name.match(self._text, self._at)
            flags = self._dialect.modifiers.match(self._text, self._at)
            found = name or flags
            if not found:
                rest = self._text[self._at : self._at + 3]
                raise self._error(
                    begin,
                    f"the group `({rest}` is not supported; use `(`, `(?:`, `(?<name>`, "
                    "look-around, or flags, each once, as in `(?i:`",
                )
            self._at = found.end()
            if name and name[1] in self._names and not self._dialect.is_ecma:
                raise self._error(
                    begin, f"two groups have the name {name[1]!r}; rename one of them"
                )
            if name:
                self._names.add(name[1])
            elif flags:
                self._set(flags["on"], flags["off"] or "", begin)
                if flags["close"] == ")":
                    return _FLAGS_ALONE
        inner = self._inside_group(begin)
        self._flags = outside
        return inner

    def _inside_group(self, begin: int) -> Node:
        """Parse the content and the closing parenthesis of the group that opens at `begin`."""
        self._deepen(begin, "groups")
        inner = self._choice()
        self._depth -= 1
        if not self._skip(")"):
            raise self._refuse_unpaired(begin)
        return inner

    def _deepen(self, begin: int, what: str) -> None:
        self._depth += 1
        if self._depth > MAX_NESTING:
            raise self._error(begin, f"expected at most {MAX_NESTING} nested {what}, got more")

    def _set(self, on: str, off: str, begin: int) -> None:
        """Set the flags `on`, and clear the flags that follow a hyphen in `off`."""
        dialect = self._dialect
        for letters, is_on in ((on, True), (off[1:], False)):
            for letter in letters:
                if letter == "U" and not dialect.is_python:  # exchanges greedy and lazy
                    continue
                if letter not in dialect.flags + ("au" if is_on else "u"):
                    raise self._error(
                        begin, f"the flag {letter} is not supported; use a, i, m, s, u, x or U"
                    )
                name, sets = ("a", not is_on) if letter == "u" else (letter, is_on)
                self._flags = self._flags | {name} if sets else self._flags - {name}

    def _quantify(self, node: Node, begin: int) -> Node:
        """Parse the quantifiers that follow a term, and apply them to its node."""
        dialect, is_repeated = self._dialect, False
        self._skip_ignored()
        while found := dialect.quantifier.match(self._text, self._at):
            if node is _FLAGS_ALONE:
                raise self._error(self._at, "flags cannot be repeated; remove the quantifier")
            if is_repeated and found[0] == "+" and not dialect.is_rust:
                raise self._error(
                    self._at,
                    "`+` after a quantifier is possessive in Python, but a repetition in Rust; for "
                    "a repetition, put `(?:)` around the part before `+`",
                )
            if dialect.is_ecma and has_anchors(node) and self._text.startswith(_CONDITIONS, begin):
                raise self._error(
                    begin,
                    f"repeating an anchor, a word boundary or look-around has no effect, got "
                    f"`{self._text[begin : found.end()]}`; remove the quantifier",
                )
            self._at = found.end()
            lazy = self._skip("?")
            node = self._repeat(node, found, begin, lazy=lazy and dialect.is_python)
            if dialect.is_ecma:
                return node
            is_repeated = not lazy
            self._skip_ignored()
        return node

    def _repeat(self, node: Node, found: re.Match[str], begin: int, *, lazy: bool) -> Node:
        """Return the node repeated as often as the quantifier `found` states."""
        span, sign, low, high = (begin, self._at), found[0], found["low"], found["high"]
        if low is None:
            return repeat(node, int(sign == "+"), 1 if sign == "?" else None, span, lazy=lazy)
        minimum = count(low)
        maximum = minimum if found["comma"] is None else count(high) if high else None
        if maximum is not None and maximum < minimum:
            raise self._error(
                found.start(),
                f"expected a quantifier from a smaller to a larger number, got `{sign}`; "
                "exchange the numbers",
            )
        return repeat(node, minimum, maximum, span, lazy=lazy)

    # -- classes ------------------------------------------------------------------------------

    def _class(self, begin: int) -> Ranges:
        """Parse a class in brackets, after its opening bracket."""
        self._deepen(begin, "classes")
        self._skip_in_class()
        negated = self._skip("^")
        if self._dialect.operators and self._text.startswith("--", self._at):
            raise self._error(
                self._at, r"`--` at the start of a class is ambiguous; write `\-` for `-`"
            )
        result = self._union(begin, is_first=True)
        while not self._skip("]"):
            operator = self._next() + self._next()
            operand = self._union(begin, is_first=False)
            if operator == "&&":
                result = _without(result, complement(operand))
            elif operator == "--":
                result = _without(result, operand)
            else:
                result = ranges([*_without(result, operand), *_without(operand, result)])
        self._depth -= 1
        return complement(result) if negated else result

    def _skip_in_class(self) -> None:
        if self._dialect.is_rust:
            self._skip_ignored()

    def _union(self, begin: int, *, is_first: bool) -> Ranges:
        """Parse members of a class up to its end or to an operator, and return their union."""
        dialect = self._dialect
        found: list[tuple[int, int]] = []
        self._skip_in_class()
        first_at = self._at
        while True:
            self._skip_in_class()
            at = self._at
            follows = self._text[at : at + 2]
            is_operator = follows in dialect.operators
            # The first bracket is a character, unless the dialect has empty classes.
            may_end = at > first_at or not is_first or dialect.is_ecma
            if is_operator or (follows.startswith("]") and may_end):
                if at == first_at and (is_operator or not is_first):
                    raise self._error(
                        at,
                        "a class operator (`&&`, `--` or `~~`) needs characters on both sides; "
                        "add them",
                    )
                return self._add_cases(ranges(found))
            found += self._members(begin)

    def _members(self, begin: int) -> Ranges:
        """Parse a member of a class, or the two ends of a range; return their code points."""
        at, dialect = self._at, self._dialect
        first = self._member(begin)
        self._skip_in_class()
        follows = self._text[self._at : self._at + 2]
        if not follows.startswith("-") or follows in ("-", "-]", *dialect.operators):
            return first
        self._at += 1
        self._skip_in_class()
        last_at = self._at
        last = self._member(begin)
        low, high = _code_point(first), _code_point(last)
        is_nested = dialect.operators and "[" in (self._text[at], self._text[last_at])
        shown = self._text[at : self._at]
        if low is None or high is None or is_nested:
            if dialect.is_ecma:  # `\w-.`: the hyphen after a class stands for itself
                return (*first, *single(ord("-")), *last)
            raise self._error(
                at, f"expected single characters as the ends of the range, got `{shown}`"
            )
        if low > high:
            raise self._error(
                at, f"expected the ends of the range `{shown}` in ascending order; exchange them"
            )
        return ((low, high),)

    def _member(self, begin: int) -> Ranges:
        at, dialect = self._at, self._dialect
        self._refuse(dialect.refused_in_class + _ESCAPES_IN_CLASS)
        character = self._next()
        if not character:
            raise self._refuse_unpaired(begin)
        if character == "\\":
            return self._escape(at, in_class=True)
        if character != "[" or not dialect.operators:
            return self._literal(at)
        posix = _POSIX.match(self._text, self._at)
        if not posix:
            return self._class(at)
        self._at = posix.end()
        if posix[2] not in unicode_tables.POSIX:
            names = ", ".join(unicode_tables.POSIX)
            raise self._error(at, f"the class `[{posix[0]}` is unknown; use one of {names}")
        inside = self._add_cases(unicode_tables.POSIX[posix[2]])
        return complement(inside) if posix[1] else inside

    # -- characters ---------------------------------------------------------------------------

    def _literal(self, at: int) -> Ranges:
        """Return the character at a position, which stands for itself."""
        character = self._text[at]
        if "x" in self._flags and not self._dialect.is_python and character in _ONLY_RUST_SKIPS:
            raise self._error(
                at,
                f"only Rust skips the white space or sign {character!r} here under the flag x; "
                "write an escape",
            )
        return single(ord(character))

    def _escape(self, begin: int, in_class: bool = False) -> Ranges:
        """Return the code points of an escape whose backslash has been read."""
        letter = self._next()
        if letter in "dDsSwW":
            table = self._perl_class(letter.lower())
            return table if letter.islower() else complement(table)
        if letter in ("p", "P"):
            return self._property(begin, negated=letter == "P")
        value = single(self._code_point(letter, begin, in_class))
        return value if in_class else self._add_cases(value)

    def _perl_class(self, letter: str) -> Ranges:
        self._asks_tables |= "a" not in self._flags
        return self._dialect.classes(letter, self._flags)

    def _property(self, begin: int, *, negated: bool) -> Ranges:
        dialect = self._dialect
        self._asks_tables = True
        found = self._match(dialect.property)
        inside = dialect.properties(found.strip("{}")) if found else None
        if inside is None:
            shown = self._text[begin : begin + 2] + found
            raise self._error(
                begin, f"the property `{shown}` is unknown; list its characters in `[]`"
            )
        if dialect.is_ecma:
            return self._add_cases(complement(inside) if negated else inside)
        inside = self._add_cases(inside)
        return complement(inside) if negated else inside

    def _code_point(self, letter: str, begin: int, in_class: bool) -> int:
        """Return the code point of an escape; `letter` follows its backslash."""
        dialect = self._dialect
        if letter in dialect.hexadecimal:
            return self._hexadecimal(letter, begin)
        if letter in dialect.controls:
            return _CONTROLS[letter]
        if letter == "b" and in_class:
            return 0x08
        if letter == "c" and dialect.is_ecma:
            return ord(self._next()) % 32
        if letter.isascii() and letter.isalpha():
            raise self._error(
                begin,
                rf"the escape `\{letter}` is unknown; list the characters that it stands for, or "
                rf"write `{letter}` for the letter",
            )
        return 0 if letter == "0" else ord(letter)

    def _hexadecimal(self, letter: str, begin: int) -> int:
        found = self._match(self._dialect.hexadecimal[letter])
        if not found:
            count, shown = {"x": 2, "u": 4, "U": 8}[letter], self._text[begin : begin + 3]
            raise self._error(
                begin, rf"expected {count} hex digits after the escape `\{letter}`, got `{shown}`"
            )
        high, _, low = found.strip("{}").partition(r"\u")
        value = int(high, 16)
        if low:  # ECMA's pair of surrogates
            value = 0x10000 + ((value - 0xD800) << 10) + int(low, 16) - 0xDC00
        if 0xD800 <= value <= 0xDFFF:
            raise self._error(begin, "a lone surrogate is not valid text; remove its escape")
        if value > 0x10FFFF:
            raise self._error(begin, "expected an escape up to U+10FFFF, got a larger code point")
        return value

    def _add_cases(self, inside: Ranges) -> Ranges:
        """Return code points and, if the flag i is set, those that differ only in case."""
        if "i" not in self._flags:
            return inside
        if "a" in self._flags:
            return unicode_tables.with_other_ascii_cases(inside)
        return self._dialect.cases(inside)

    # -- reading ------------------------------------------------------------------------------

    def _next(self) -> str:
        """Read the next character; "" at the end."""
        self._at += 1
        return self._text[self._at - 1 : self._at]

    def _skip(self, sign: str) -> bool:
        found = self._text.startswith(sign, self._at)
        self._at += len(sign) * found
        return found

    def _match(self, syntax: re.Pattern[str]) -> str:
        """Read what matches at this position; "" if nothing does."""
        found = syntax.match(self._text, self._at)
        self._at = found.end() if found else self._at
        return found[0] if found else ""

    def _error(self, position: int, message: str) -> ConstraintError:
        pattern = show_pattern(self._text)
        return ConstraintError(f"{message} (at position {position} of the pattern {pattern})")

    def _refuse(self, refused: tuple[tuple[str, str], ...]) -> None:
        """Raise an error if the dialect refuses the syntax at this position."""
        for syntax, message in refused:
            found = re.compile(syntax).match(self._text, self._at)
            if found:
                raise self._error(self._at, message.replace("{}", found[0]))

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


def count(digits: str) -> int:
    """Return the number in a quantifier, limited to a billion."""
    digits = digits.strip().lstrip("0")
    return int(digits or "0") if len(digits) <= 9 else 10**9


def _without(inside: Ranges, outside: Ranges) -> Ranges:
    return complement(ranges([*complement(inside), *outside]))

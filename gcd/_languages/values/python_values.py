"""Values in Python notation: the literals that `ast.literal_eval` reads.

The values are those of JSON. `null`, `true` and `false` are written `None`, `True` and `False`. An
array is a list, or a tuple or a set if the type of a tool's parameter requires it. An object is a
dictionary with string keys. Numbers are written as in JSON (digits, point, exponent), which is a
subset of Python's syntax: `1_000`, `.5`, `0x1F` and `inf` are excluded. A set in braces contains
only hashable values: scalars, and tuples of hashable values in round brackets. A set of other
values is written as a list.

**Strings** are in single or double quotes, on one line, without a prefix (`r`, `b`, `f`), and
without concatenation of adjacent literals. A code point is written as its UTF-8 bytes, or escaped
as `\\\\ \\' \\" \\a \\b \\f \\n \\r \\t \\v`, `\\xHH`, `\\uXXXX` or `\\UXXXXXXXX`. Three kinds of
escapes are excluded: octal ones (the number of digits after `\\1` depends on what follows), names
`\\N{...}`, and line continuations. Control characters below U+0020 must be escaped. Escapes of
surrogates are excluded, because surrogates are not Unicode text, and Python does not join a pair of
them.

**Names** are written without quotes if Python reads them unchanged (`is_python_name`). For example,
it reads `ﬁle`, with a ligature, as `file`, because identifiers are normalized (NFKC).

**Keys and constants** are written in either kind of quotes. Nonprintable characters are either raw,
or escaped as by `repr`. `escapes="all"` allows every spelling above.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterable
from dataclasses import replace
from keyword import iskeyword

from gcd._automata.automaton import Automaton
from gcd._automata.limits import cache_with_price
from gcd._languages.literal import encodable
from gcd._languages.text.code_points import repeat
from gcd._languages.text.regex import regex
from gcd._languages.values.json_values import LONE_UNIT
from gcd._languages.values.notation import Brackets, Notation, separators

_HEX = "[0-9a-fA-F]"
_SHORT_ESCAPES = {
    "\\": "\\", "'": "'", '"': '"', "\a": "a", "\b": "b", "\f": "f", "\n": "n", "\r": "r",
    "\t": "t", "\v": "v",
}  # fmt: skip
_LONG_UNIT = rf"U(?:0000{LONE_UNIT[1:]}|000[1-9a-fA-F]{_HEX}{{4}}|0010{_HEX}{{4}})"
PYTHON_BLANKS = b" \t\n"  # whitespace of the style "flexible", which occurs only inside brackets
_QUOTES = ('"', "'")

_LIST = Brackets("[", "]")
_TUPLE = Brackets("(", ")", close_single=",)")
_SET = Brackets("{", "}", empty="set()", of_hashable=True)


def is_python_name(name: str) -> bool:
    """Return whether Python reads a text as the identifier with exactly this name."""
    return why_no_python_name(name) is None


def why_no_python_name(name: str) -> str | None:
    """Return why Python doesn't read a text as an identifier with this name; None if it does."""
    if iskeyword(name) or name == "__debug__":  # `__debug__` is a constant
        return "is a keyword or a constant of Python"
    if not name.isidentifier():
        return "is not an identifier"
    read = unicodedata.normalize("NFKC", name)
    return None if read == name else f"is read as {read!r}"


@cache_with_price(maxsize=8)
def python_notation(whitespace: str, escapes: str = "canonical") -> Notation:
    """Return Python's notation of values, in the options of `gcd.tool_calls`."""
    gap, comma, colon = separators(whitespace, blanks=PYTHON_BLANKS)
    everything = Notation(
        gap=gap,
        comma=comma,
        colon=colon,
        null=Automaton.literal("None"),
        true=Automaton.literal("True"),
        false=Automaton.literal("False"),
        string=python_string,
        choice=python_constants if escapes == "canonical" else _all_spellings,
        spell_all=python_spellings,
        containers={"list": (_LIST,), "tuple": (_TUPLE, _LIST), "set": (_SET, _LIST)},
    )
    hashable = replace(
        everything, containers={"list": (), "tuple": (_TUPLE,), "set": ()}, objects=False
    )
    return replace(everything, hashable=hashable)


@cache_with_price(maxsize=2)
def python_character(quote: str) -> Automaton:
    """Return one code point inside a Python string with the given quotes, in every spelling."""
    return regex(
        rf"[^{quote}\\\x00-\x1f]|\\(?:[\\'" + rf'"abfnrtv]|x{_HEX}{{2}}|{LONE_UNIT}|{_LONG_UNIT})'
    )


@cache_with_price(maxsize=256)
def python_string(minimum: int, maximum: int | None) -> Automaton:
    """Return the Python strings of `minimum` to `maximum` code points (None: no upper bound)."""
    quoted = []
    for mark in _QUOTES:
        quote = Automaton.literal(mark)
        body = repeat(python_character(mark), minimum, maximum)
        quoted.append(Automaton.concatenate([quote, body, quote]))
    return Automaton.union(quoted)


def python_constants(texts: Iterable[str]) -> Automaton:
    """Return strings in either kind of quotes, with the fewest escapes or with those of `repr`."""
    return Automaton.from_strings(
        quote + "".join(_write(character, quote, as_repr) for character in text) + quote
        for text in map(encodable, texts)
        for quote in _QUOTES
        for as_repr in (False, True)
    )


def _all_spellings(texts: Iterable[str]) -> Automaton:
    return Automaton.union([python_spellings(text) for text in texts])


def _write(character: str, quote: str, as_repr: bool) -> str:
    if character in ("\\", quote):
        return "\\" + character
    if character < " " or (as_repr and not character.isprintable()):
        return repr(character)[1:-1]
    return character


@cache_with_price(maxsize=1024)
def python_spellings(text: str) -> Automaton:
    """Return a string in every spelling."""
    spelled = []
    for quote in _QUOTES:
        each = ("|".join(_alternatives(character, quote)) for character in encodable(text))
        spelled.append(regex(quote + "".join(f"(?:{ways})" for ways in each) + quote))
    return Automaton.union(spelled)


def _alternatives(character: str, quote: str) -> list[str]:
    code = ord(character)
    found = [rf"\\U{_any_case(f'{code:08x}')}"]
    if code <= 0xFFFF:
        found.append(rf"\\u{_any_case(f'{code:04x}')}")
    if code <= 0xFF:
        found.append(rf"\\x{_any_case(f'{code:02x}')}")
    if character in _SHORT_ESCAPES:
        found.append(r"\\" + re.escape(_SHORT_ESCAPES[character]))
    if character >= " " and character not in ("\\", quote):
        found.append(rf"\x{{{code:x}}}")
    return found


def _any_case(digits: str) -> str:
    """Return a regular expression for hexadecimal digits in either case."""
    return "".join(f"[{d}{d.upper()}]" if d.isalpha() else d for d in digits)

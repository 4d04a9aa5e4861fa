"""Unicode properties of code points, and the other cases of letters.

The tables are those of the `regex` package (mrab-regex), which follows the newest Unicode version.
To find the code points with a property, a pattern is searched in a text of all code points, so that
whole ranges are found at once. The package is imported when a pattern first needs it.
"""

from __future__ import annotations

import unicodedata
from functools import lru_cache
from typing import TYPE_CHECKING

import numpy as np

from gcd._languages.text.code_points import Ranges, complement, ranges

if TYPE_CHECKING:
    import re

    import regex as unicode_regex

# The I with a dot and the i without one, which are other cases of i and I only in Turkic languages.
_TURKIC = ranges([(0x130, 0x131)])


@lru_cache(maxsize=256)
def property_ranges(name: str) -> Ranges | None:
    r"""Return the code points of `\p{name}` or `\p{key=value}`; None if the name is unknown."""
    import regex as unicode_regex

    try:
        found = unicode_regex.compile(rf"\p{{{name}}}+", unicode_regex.V1)
    except unicode_regex.error:
        return None
    return runs(found, all_code_points())


@lru_cache(maxsize=3)
def perl_class(letter: str) -> Ranges:
    r"""Return the code points of `\d`, `\s` or `\w`, as Annex C of UTS #18 defines them."""
    names = {
        "d": ["Nd"],
        "s": ["White_Space"],
        "w": ["Alphabetic", "M", "Nd", "Pc", "Join_Control"],
    }
    found = [property_ranges(name) for name in names[letter]]
    return ranges(pair for part in found for pair in part or ())


@lru_cache(maxsize=1)
def list_assigned() -> Ranges:
    """Return the code points that are assigned in the Unicode tables of the running Python.

    These tables may be some years old.
    """
    return ranges((c, c) for c in range(0x110000) if unicodedata.category(chr(c)) != "Cn")


@lru_cache(maxsize=256)
def with_other_cases(inside: Ranges) -> Ranges:
    """Return a set with all code points that have the same simple case folding as a member."""
    import regex as unicode_regex

    plain = complement(ranges([*complement(inside), *_TURKIC]))
    written = "".join(f"\\U{first:08X}-\\U{last:08X}" for first, last in plain)
    if not written:
        return inside
    others = unicode_regex.compile(f"(?i)[{written}]", unicode_regex.V1)
    found = [ord(match[0]) for match in others.finditer(_list_cased())]
    return ranges([*inside, *((c, c) for c in found)])


def with_other_ascii_cases(inside: Ranges) -> Ranges:
    """Return a set of code points, and the other case of each of its ASCII letters."""
    found = list(inside)
    for shift, (low, high) in ((0x20, (0x41, 0x5A)), (-0x20, (0x61, 0x7A))):
        for first, last in inside:
            if first <= high and last >= low:
                found.append((max(first, low) + shift, min(last, high) + shift))
    return ranges(found)


def runs(pattern: unicode_regex.Pattern[str] | re.Pattern[str], text: str) -> Ranges:
    """Return the ranges of code points that a pattern matches.

    `text` must be a text of consecutive code points.
    """
    return ranges((match.start(), match.end() - 1) for match in pattern.finditer(text))


@lru_cache(maxsize=1)
def all_code_points() -> str:
    """Return a text of all code points in order, including surrogates."""
    return np.arange(0x110000, dtype="<u4").tobytes().decode("utf-32-le", "surrogatepass")


@lru_cache(maxsize=1)
def _list_cased() -> str:
    """Return all code points that have another case, except for the Turkic ones."""
    found = [property_ranges(f"Changes_When_{how}") for how in ("Casefolded", "Casemapped")]
    inside = ranges(pair for part in found for pair in part or ())
    plain = complement(ranges([*complement(inside), *_TURKIC]))
    return "".join(map(chr, (c for first, last in plain for c in range(first, last + 1))))

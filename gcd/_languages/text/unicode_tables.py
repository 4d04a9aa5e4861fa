"""Tables of characters: classes, Unicode properties, and the other cases of letters.

Unicode's tables are those of the `regex` package (mrab-regex), which follows the newest version. To
find the code points with a property, a pattern is searched in a text of all code points, so that
whole ranges are found at once. The package is imported when a pattern first needs it.
"""

from __future__ import annotations

import re
import unicodedata
from functools import lru_cache
from typing import TYPE_CHECKING

import numpy as np

from gcd._languages.text.code_points import Ranges, complement, ranges

if TYPE_CHECKING:
    import regex as unicode_regex

# The I with a dot and the i without one, which are other cases of i and I only in Turkic languages.
_TURKIC = ranges([(0x130, 0x131)])
_UPPER, _LOWER, _DIGITS, _LINE = (0x41, 0x5A), (0x61, 0x7A), (0x30, 0x39), (0x5F, 0x5F)
_SPACES = ((0x09, 0x0D), (0x20, 0x20))
POSIX = {
    "alnum": (_DIGITS, _UPPER, _LOWER), "alpha": (_UPPER, _LOWER), "ascii": ((0x00, 0x7F),),
    "blank": ((0x09, 0x09), (0x20, 0x20)), "cntrl": ((0x00, 0x1F), (0x7F, 0x7F)),
    "digit": (_DIGITS,), "graph": ((0x21, 0x7E),), "lower": (_LOWER,), "print": ((0x20, 0x7E),),
    "punct": ((0x21, 0x2F), (0x3A, 0x40), (0x5B, 0x60), (0x7B, 0x7E)),
    "space": _SPACES, "upper": (_UPPER,), "word": (_DIGITS, _UPPER, _LINE, _LOWER),
    "xdigit": (_DIGITS, (0x41, 0x46), (0x61, 0x66)),
}  # fmt: skip
ASCII = {"d": POSIX["digit"], "s": _SPACES, "w": POSIX["word"]}  # classes of ASCII characters
ECMA_LINE_ENDS = ((0x0A, 0x0A), (0x0D, 0x0D), (0x2028, 0x2029))
# The line ends and WhiteSpace of ECMA-262: tab, VT, FF, U+FEFF, category Zs.
_ECMA_SPACES = (
    *((0x09, 0x0D), (0x20, 0x20), (0xA0, 0xA0), (0x1680, 0x1680), (0x2000, 0x200A)),
    *((0x2028, 0x2029), (0x202F, 0x202F), (0x205F, 0x205F), (0x3000, 0x3000), (0xFEFF, 0xFEFF)),
)


@lru_cache(maxsize=256)
def property_ranges(name: str) -> Ranges | None:
    r"""Return the code points of `\p{name}` or `\p{key=value}`; None if the name is unknown."""
    import regex as unicode_regex

    try:
        found = unicode_regex.compile(rf"\p{{{name}}}+", unicode_regex.V1)
    except unicode_regex.error:
        return None
    return runs(found, all_code_points())


@lru_cache(maxsize=64)
def perl_class(letter: str, flags: frozenset[str]) -> Ranges:
    r"""Return the code points of `\d`, `\s` or `\w`, as Annex C of UTS #18 defines them."""
    if "a" in flags:
        return ASCII[letter]
    names = {
        "d": ["Nd"],
        "s": ["White_Space"],
        "w": ["Alphabetic", "M", "Nd", "Pc", "Join_Control"],
    }
    found = [property_ranges(name) for name in names[letter]]
    return ranges(pair for part in found for pair in part or ())


@lru_cache(maxsize=64)
def python_class(letter: str, flags: frozenset[str]) -> Ranges:
    r"""Return the code points of `\d`, `\s` or `\w` in the running Python."""
    if "a" in flags:
        return ASCII[letter]
    return runs(re.compile(rf"\{letter}+"), all_code_points())


def ecma_class(letter: str, flags: frozenset[str]) -> Ranges:
    r"""Return the code points of `\d`, `\s` or `\w` in ECMA-262."""
    if letter == "s":
        return ranges(_ECMA_SPACES)
    # Under the flag i, words include the other cases of s and k.
    others = ((0x17F, 0x17F), (0x212A, 0x212A)) if letter == "w" and "i" in flags else ()
    return (*ASCII[letter], *others)


@lru_cache(maxsize=256)
def ecma_property(name: str) -> Ranges | None:
    r"""Return the code points of `\p{name}`; None if ECMA-262 or the available tables lack it."""
    key, _, value = name.partition("=")
    if name in GENERAL_CATEGORIES:
        return property_ranges(f"gc={name}")
    is_known = (
        name in BINARY
        or (key in ("General_Category", "gc") and value in GENERAL_CATEGORIES)
        or (key in ("Script", "sc", "Script_Extensions", "scx") and value)
    )
    return property_ranges(name) if is_known else None


@lru_cache(maxsize=1)
def list_assigned() -> Ranges:
    """Return the code points that are assigned in the Unicode tables of the running Python."""
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


@lru_cache(maxsize=256)
def with_other_cases_in_python(inside: Ranges) -> Ranges:
    """Return the code points that a class of the running Python matches under the flag i."""
    written = "".join(f"\\U{first:08X}-\\U{last:08X}" for first, last in inside)
    return runs(re.compile(f"(?i:[{written}]+)"), all_code_points()) if written else inside


def with_other_ascii_cases(inside: Ranges) -> Ranges:
    """Return a set of code points, and the other case of each of its ASCII letters."""
    found = list(inside)
    for shift, (low, high) in ((0x20, (0x41, 0x5A)), (-0x20, (0x61, 0x7A))):
        for first, last in inside:
            if first <= high and last >= low:
                found.append((max(first, low) + shift, min(last, high) + shift))
    return ranges(found)


def runs(pattern: unicode_regex.Pattern[str] | re.Pattern[str], text: str) -> Ranges:
    """Return the ranges that a pattern matches in a text of consecutive code points."""
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


# Properties that ECMA-262 allows by name alone in `\p{...}`: the values of General_Category and the
# binary properties, with their aliases. Names are case-sensitive. Changes_When_NFKC_Casefolded is
# missing, because the available tables lack it.
_CATEGORIES = """
    Cased_Letter LC Close_Punctuation Pe Connector_Punctuation Pc Control Cc cntrl
    Currency_Symbol Sc Dash_Punctuation Pd Decimal_Number Nd digit Enclosing_Mark Me
    Final_Punctuation Pf Format Cf Initial_Punctuation Pi Letter L Letter_Number Nl
    Line_Separator Zl Lowercase_Letter Ll Mark M Combining_Mark Math_Symbol Sm Modifier_Letter Lm
    Modifier_Symbol Sk Nonspacing_Mark Mn Number N Open_Punctuation Ps Other C Other_Letter Lo
    Other_Number No Other_Punctuation Po Other_Symbol So Paragraph_Separator Zp Private_Use Co
    Punctuation P punct Separator Z Space_Separator Zs Spacing_Mark Mc Symbol S
    Titlecase_Letter Lt Unassigned Cn Uppercase_Letter Lu
"""

_BINARY = """
    ASCII ASCII_Hex_Digit AHex Alphabetic Alpha Any Assigned Bidi_Control Bidi_C Bidi_Mirrored
    Bidi_M Case_Ignorable CI Cased Changes_When_Casefolded CWCF Changes_When_Casemapped CWCM
    Changes_When_Lowercased CWL Changes_When_Titlecased CWT
    Changes_When_Uppercased CWU Dash Default_Ignorable_Code_Point DI Deprecated Dep Diacritic Dia
    Emoji Emoji_Component EComp Emoji_Modifier EMod Emoji_Modifier_Base EBase Emoji_Presentation
    EPres Extended_Pictographic ExtPict Extender Ext Grapheme_Base Gr_Base Grapheme_Extend Gr_Ext
    Hex_Digit Hex IDS_Binary_Operator IDSB IDS_Trinary_Operator IDST ID_Continue IDC ID_Start IDS
    Ideographic Ideo Join_Control Join_C Logical_Order_Exception LOE Lowercase Lower Math
    Noncharacter_Code_Point NChar Pattern_Syntax Pat_Syn Pattern_White_Space Pat_WS
    Quotation_Mark QMark Radical Regional_Indicator RI Sentence_Terminal STerm Soft_Dotted SD
    Terminal_Punctuation Term Unified_Ideograph UIdeo Uppercase Upper Variation_Selector VS
    White_Space space XID_Continue XIDC XID_Start XIDS
"""

GENERAL_CATEGORIES = frozenset(_CATEGORIES.split())
BINARY = frozenset(_BINARY.split())

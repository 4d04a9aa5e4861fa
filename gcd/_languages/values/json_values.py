"""Values in JSON notation (RFC 8259), as byte languages.

**Strings.** A code point of a free string may have any spelling: its UTF-8 bytes (without overlong
forms and surrogates), a two-character escape `\\" \\\\ \\/ \\b \\f \\n \\r \\t`, `\\uXXXX`, or,
above U+FFFF, a pair of surrogate escapes. Control characters below U+0020 must be escaped. A single
surrogate is not Unicode text, and is not in the language. The automaton of a string of at most n
code points has about 20 n states.

**Keys and constants** have one spelling by default, that of `json.dumps`, with `ensure_ascii`
either on or off. **Strings with a pattern or a format** have every spelling, except that printable
ASCII characters are only escaped if JSON requires it (`gcd._languages.values.json_text`).
`escapes="all"` allows every spelling, and takes some 8 states for each character.

**Whitespace.** The style "compact" has none. "spaced" has `, ` and `: `, the default of
`json.dumps`. "flexible" is all that RFC 8259 permits: any number of spaces, tabs, line feeds and
carriage returns.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from functools import partial

from gcd._automata.automaton import Automaton
from gcd._automata.limits import cache_with_price
from gcd._errors import ConstraintError
from gcd._languages.literal import encodable
from gcd._languages.text.code_points import repeat
from gcd._languages.text.regex import regex
from gcd._languages.values.json_text import quote
from gcd._languages.values.notation import Brackets, Notation, separators

_HEX = "[0-9a-fA-F]"
# \uXXXX for a code point that is not a surrogate, and for the two halves of a surrogate pair.
LONE_UNIT = rf"u(?:[0-9a-ce-fA-CE-F]{_HEX}{{3}}|[dD][0-7]{_HEX}{{2}})"
_PAIR = rf"u[dD][89abAB]{_HEX}{{2}}\\u[dD][c-fC-F]{_HEX}{{2}}"


@cache_with_price(maxsize=8)
def json_notation(whitespace: str, escapes: str = "canonical") -> Notation:
    """Return JSON's notation of values, in the options of `gcd.json_schema`."""
    if escapes not in ("canonical", "all"):
        raise ConstraintError(f'expected escapes to be "canonical" or "all", got {escapes!r}')
    gap, comma, colon = separators(whitespace)
    return Notation(
        gap=gap,
        comma=comma,
        colon=colon,
        null=Automaton.literal("null"),
        true=Automaton.literal("true"),
        false=Automaton.literal("false"),
        string=json_string,
        choice=json_constants if escapes == "canonical" else _all_spellings,
        spell_all=json_spellings,
        quoted=partial(quote, every=escapes == "all"),
        quoted_all=partial(quote, every=True),
        containers=dict.fromkeys(("list", "tuple", "set"), (Brackets("[", "]"),)),
    )


@cache_with_price(maxsize=1)
def json_character() -> Automaton:
    """Return one code point inside a JSON string, in every legal spelling."""
    return regex(rf'[^"\\\x00-\x1f]|\\(?:["\\/bfnrt]|{LONE_UNIT}|{_PAIR})')


@cache_with_price(maxsize=256)
def json_string(minimum: int, maximum: int | None) -> Automaton:
    """Return the JSON strings of `minimum` to `maximum` code points (None: no upper bound)."""
    quote = Automaton.literal('"')
    return Automaton.concatenate([quote, repeat(json_character(), minimum, maximum), quote])


def json_constants(texts: Iterable[str]) -> Automaton:
    """Return strings as `json.dumps` writes them, with `ensure_ascii` on or off."""
    return Automaton.from_strings(
        json.dumps(text, ensure_ascii=on) for text in map(encodable, texts) for on in (True, False)
    )


def _all_spellings(texts: Iterable[str]) -> Automaton:
    return quote(Automaton.from_strings(map(encodable, texts)), every=True)


@cache_with_price(maxsize=1024)
def json_spellings(text: str) -> Automaton:
    """Return a string in every legal spelling."""
    return _all_spellings([text])

"""Languages of the formats of JSON Schema (draft 2020-12), as assertions.

Each format is an automaton over the UTF-8 text of the string itself, without quotes. 30 February is
not a `date`, 256.0.0.1 is not an `ipv4`, and digits are ASCII digits. The formats without an
automaton are not regular (`regex`), or need Unicode tables (`idn-email`, `idn-hostname`, `iri`).
Callers treat them as annotations, with a warning.

| format | source | states |
|---|---|---|
| date, duration | RFC 3339 (`gcd._languages.text.format_dates`) | 29, 15 |
| time, date-time | the same | 884, 961; wide 11,000 |
| email | RFC 5321 section 4.1.2, `Mailbox` | 157 |
| hostname | RFC 1123 section 2.1, RFC 1034 section 3.1 | 1,515; wide 24,059 |
| ipv4, ipv6 | RFC 2673 section 3.2, RFC 4291 section 2.2 | 24, 151 |
| uri, uri-reference | RFC 3986 appendix A | 179, 182 |
| uri-template | RFC 6570 section 2, with erratum 6937 | 27 |
| uuid | RFC 4122 section 3, letters of either case | 37 |
| json-pointer | RFC 6901 section 3 | 10 |
| relative-json-pointer | draft-bhutton-relative-json-pointer-00 | 13 |

An automaton for all host names counts up to 63 characters in each label and, at the same time, up
to 253 in total. That takes 24,000 states, and seven times as many if characters may be escaped in
JSON. The narrow variant counts the total in units of 16 characters instead.

**Two variants.** A format has two variants if its sources leave a question open, or if an exact
automaton would be very large. Every text of the narrow variant is valid, and every valid text is in
the wide variant. Generation uses the narrow variant. A negation excludes the wide one: `{"not":
{"format": "hostname"}}` must not accept a valid host name. For all other formats, the two variants
are the same. The narrow variants exclude:

* `time`, `date-time`: leap seconds at unusual offsets and on other dates than the ends of June and
  December; `duration`: small letters (`gcd._languages.text.format_dates` explains why).
* `hostname`: labels with `--` as third and fourth character. After `xn--`, such a label is Punycode
  of a text, which IDNA2008 restricts by tables and rules of context. Other such labels are reserved
  (RFC 5890 section 2.3.1). In the official test suite, this excludes the valid A-labels, and
  nothing else. The wide variant contains all of them, and allows 255 characters instead of 253. The
  narrow variant rounds the length of every label with its dot up to 16, 32, 48 or 64 characters,
  and limits the sum to 240. So names of more than 15 labels, and some names of more than 180
  characters, are excluded.
* `email`: address literals other than IPv4 (`[127.0.0.1]`) and IPv6 (`[IPv6:::1]`), because no
  other kind is registered; and IPv4 literals with leading zeros, as in `[127.0.0.001]`. In IPv6
  literals, `::` must stand for at least two groups, as RFC 5321 requires. The rule that JSON Schema
  names doesn't limit the length, so add `maxLength` if you need it.
* `relative-json-pointer`: adjustments of an array index (`0+1/a`), which are newer than most
  validators.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import lru_cache

from gcd._automata.assembly import Assembly
from gcd._automata.automaton import Automaton
from gcd._languages.text import format_dates
from gcd._languages.text.regex import regex

_LABEL = "[0-9A-Za-z]([0-9A-Za-z-]{0,61}[0-9A-Za-z])?"
_HEX = "[0-9A-Fa-f]"
_OCTET = "(25[0-5]|2[0-4][0-9]|1[0-9]{2}|[1-9]?[0-9])"
_POINTER = "(?s:(/([^/~]|~[01])*)*)"

# RFC 3986: parts of character classes, and patterns of one character or its percent-encoding.
_UNRESERVED = r"A-Za-z0-9\-._~"
_SUB_DELIMS = r"!$&'()*+,;="
_ENCODED = f"%{_HEX}{{2}}"
_USER = f"{_UNRESERVED}{_SUB_DELIMS}:"
_PCHAR = f"([{_USER}@]|{_ENCODED})"
_PCHAR_NO_COLON = f"([{_UNRESERVED}{_SUB_DELIMS}@]|{_ENCODED})"
_UNIT, _UNITS_OF_HOST = 16, 15  # characters per unit, and units per host name
_SEGMENTS = f"(/{_PCHAR}*)*"


@lru_cache(maxsize=32)
def text_format(name: str, *, widest: bool = False) -> Automaton | None:
    """Return the language of the texts of a format; None if there is no automaton for it.

    Args:
        name: name of the format in the schema.
        widest: whether to return the wide variant (which contains all valid texts) instead of the
            narrow one (in which all texts are valid).
    """
    build = _BUILDERS.get(name)
    return build(widest) if build else None


def _email(wide: bool) -> Automaton:
    atom = r"[A-Za-z0-9!#$%&'*+\-/=?^_`{|}~]+"
    quoted = r'"([ !#-\[\]-~]|\\[ -~])*"'
    local = regex(rf"{atom}(\.{atom})*|{quoted}")
    label = "[0-9A-Za-z]([0-9A-Za-z-]*[0-9A-Za-z])?"
    domain = regex(rf"{label}(\.{label})*")
    if wide:
        number = "(0{0,2}[0-9]|0?[1-9][0-9]|1[0-9]{2}|2[0-4][0-9]|25[0-5])"
        literal = regex(rf"{number}(\.{number}){{3}}|[0-9A-Za-z-]*[0-9A-Za-z]:[!-Z^-~]+")
    else:
        literal = _ipv4() | (regex("[Ii][Pp][Vv]6:") + _ipv6(fewest_elided=2))
    in_brackets = Automaton.concatenate([regex(r"\["), literal, regex(r"\]")])
    return Automaton.concatenate([local, regex("@"), domain | in_brackets])


def _hostname(wide: bool) -> Automaton:
    label = regex(_LABEL)
    if wide:
        return (label + (regex(r"\.") + label).star()) & regex("[0-9A-Za-z.-]").repeat(1, 255)
    label -= regex("[0-9A-Za-z-]{2}--[0-9A-Za-z-]*")
    graph = Assembly()
    after = [graph.node() for _ in range(_UNITS_OF_HOST + 1)]  # node after n units and a dot
    end = graph.node()
    for units in range(1, 65 // _UNIT + 1):
        longest = units * _UNIT - 1  # the dot counts as well
        sized = label & regex("[0-9A-Za-z-]").repeat(max(1, longest + 1 - _UNIT), longest)
        for here, source in enumerate(after[: _UNITS_OF_HOST + 1 - units]):
            graph.insert(source, end, sized)
            graph.insert(source, after[here + units], sized, regex(r"\."))
    return graph.build(after[0], end)


@lru_cache(maxsize=1)
def _ipv4() -> Automaton:
    return regex(rf"{_OCTET}(\.{_OCTET}){{3}}")


@lru_cache(maxsize=2)
def _ipv6(fewest_elided: int = 1) -> Automaton:
    """Return IPv6 addresses; `::` replaces at least `fewest_elided` groups of 16 bits."""
    group, ahead, ipv4 = regex(f"{_HEX}{{1,4}}"), regex(f"{_HEX}{{1,4}}:"), _ipv4()
    forms = [ahead.repeat(7, 7) + group, ahead.repeat(6, 6) + ipv4]
    most = 8 - fewest_elided  # groups written out beside `::`
    for left in range(most + 1):
        head = ahead.repeat(left - 1, left - 1) + group if left else Automaton.epsilon()
        tails = [Automaton.epsilon()]
        if left < most:
            tails.append(ahead.repeat(0, most - left - 1) + group)
        if left < most - 1:  # an IPv4 address counts as two groups
            tails.append(ahead.repeat(0, most - left - 2) + ipv4)
        forms.append(Automaton.concatenate([head, regex("::"), Automaton.union(tails)]))
    return Automaton.union(forms)


@lru_cache(maxsize=1)
def _uri() -> Automaton:
    absolute = f"/({_PCHAR}+{_SEGMENTS})?"
    rootless = f"{_PCHAR}+{_SEGMENTS}"
    scheme = regex(r"[A-Za-z][A-Za-z0-9+.-]*:")
    return Automaton.concatenate(
        [scheme, _with_authority() | regex(f"({absolute}|{rootless})?"), _query_and_fragment()]
    )


def _uri_reference() -> Automaton:
    """Return URIs, and relative references whose first segment contains no colon."""
    absolute = f"/({_PCHAR}+{_SEGMENTS})?"
    no_scheme = f"{_PCHAR_NO_COLON}+{_SEGMENTS}"
    relative = _with_authority() | regex(f"({absolute}|{no_scheme})?")
    return _uri() | (relative + _query_and_fragment())


@lru_cache(maxsize=1)
def _with_authority() -> Automaton:
    """Return the part of a URI from `//` to the path: user, host, port, and path.

    The host may be any registered name, even an empty one.
    """
    bracketed = Automaton.concatenate(
        [regex(r"\["), _ipv6() | regex(rf"[Vv]{_HEX}+\.[{_USER}]+"), regex(r"\]")]
    )
    return Automaton.concatenate(
        [
            regex(f"//(([{_USER}]|{_ENCODED})*@)?"),
            regex(f"([{_UNRESERVED}{_SUB_DELIMS}]|{_ENCODED})*") | bracketed,
            regex(f"(:[0-9]*)?{_SEGMENTS}"),
        ]
    )


def _query_and_fragment() -> Automaton:
    text = f"({_PCHAR}|[/?])*"
    return regex(rf"(\?{text})?(#{text})?")


def _uri_template() -> Automaton:
    """Return URI templates: literal text, and expressions in braces without reserved operators."""
    ucs = r"\u00A0-\uD7FF\uF900-\uFDCF\uFDF0-\uFFEF"
    ucs += "".join(rf"\U{n:04X}0000-\U{n:04X}FFFD" for n in range(1, 14)) + r"\U000E1000-\U000EFFFD"
    private = r"\uE000-\uF8FF\U000F0000-\U000FFFFD\U00100000-\U0010FFFD"
    literal = rf"[!#$&-;=?-\[\]_a-z~{ucs}{private}]|{_ENCODED}"
    character = f"([A-Za-z0-9_]|{_ENCODED})"
    name = rf"{character}(\.?{character})*(:[1-9][0-9]{{0,3}}|\*)?"
    return regex(rf"({literal}|\{{[+#./;?&]?{name}(,{name})*\}})*")


def _uuid() -> Automaton:
    return regex(f"{_HEX}{{8}}(-{_HEX}{{4}}){{3}}-{_HEX}{{12}}")


def _json_pointer() -> Automaton:
    return regex(_POINTER)


def _relative_json_pointer(wide: bool) -> Automaton:
    whole = "(0|[1-9][0-9]*)"
    adjustment = f"([+-]{whole})?" if wide else ""
    return regex(f"{whole}{adjustment}(#|{_POINTER})")


# Name -> function from the variant (wide or not) to the automaton.
_BUILDERS: Mapping[str, Callable[[bool], Automaton]] = {
    "date": lambda wide: format_dates.dates(),
    "time": lambda wide: format_dates.times(wide=wide),
    "date-time": lambda wide: format_dates.date_times(wide=wide),
    "duration": lambda wide: format_dates.durations(wide=wide),
    "email": _email,
    "hostname": _hostname,
    "ipv4": lambda wide: _ipv4(),
    "ipv6": lambda wide: _ipv6(),
    "uri": lambda wide: _uri(),
    "uri-reference": lambda wide: _uri_reference(),
    "uri-template": lambda wide: _uri_template(),
    "uuid": lambda wide: _uuid(),
    "json-pointer": lambda wide: _json_pointer(),
    "relative-json-pointer": _relative_json_pointer,
}

FORMATS: tuple[str, ...] = tuple(_BUILDERS)

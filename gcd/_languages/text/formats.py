r"""Languages of the formats of JSON Schema (draft 2020-12), as assertions.

Each format is a pattern for the text of the string itself, without quotes. 30 February is not a
`date`, 256.0.0.1 is not an `ipv4`, and digits are ASCII digits. The formats without a pattern are
not regular (`regex`), or need Unicode tables (`idn-email`, `idn-hostname`, `iri`). Callers treat
them as annotations, with a warning.

| format | source | states |
|---|---|---|
| date, duration | RFC 3339 sections 1 and 5.6, appendix A | 29, 15 |
| time, date-time | RFC 3339 sections 5.6 and 5.7 | 475, 544 |
| email | RFC 5321 section 4.1.2, `Mailbox` | 157 |
| hostname | RFC 1123 section 2.1, RFC 1034 section 3.1 | 1,515 |
| ipv4, ipv6 | RFC 2673 section 3.2, RFC 4291 section 2.2 | 24, 151 |
| uri, uri-reference | RFC 3986 appendix A | 179, 182 |
| uri-template | RFC 6570 section 2, with erratum 6937 | 27 |
| uuid | RFC 4122 section 3, letters of either case | 37 |
| json-pointer | RFC 6901 section 3 | 10 |
| relative-json-pointer | draft-bhutton-relative-json-pointer-00 | 13 |

**Two patterns.** A format has two patterns if its sources leave a question open, or if an exact
automaton would be very large. Every text of the narrow pattern is valid, and every valid text
matches the wide one. Generation uses the narrow pattern. A negation excludes the wide one:
`{"not": {"format": "hostname"}}` must not accept a valid host name. The narrow patterns exclude:

* `time`, `date-time`: leap seconds at offsets other than whole and half hours. Second 60 only
  exists at 23:59:60 in UTC, so the local time determines the offset, as in `01:29:60+01:30`. A
  `date-time` only has it at offsets from -12:00 to +14:00, at the end of June or of December in
  UTC. The wide patterns have second 60 in every minute, and a space instead of `T`.
* `duration`: small letters, which the ABNF allows, but no validator.
* `hostname`: labels with `--` as third and fourth character. After `xn--`, such a label is Punycode
  of a text, which IDNA2008 restricts by tables and rules of context. Other such labels are reserved
  (RFC 5890 section 2.3.1). An exact automaton that counts 253 characters in total, and 63 in each
  label, has 24,000 states. So the narrow pattern rounds the length of every label with its dot up
  to a multiple of 16, and limits the sum to 240. This excludes names of more than 15 labels and
  some of more than 180 characters. The wide pattern doesn't limit the length of a name.
* `email`: address literals other than IPv4 (`[127.0.0.1]`) and IPv6 (`[IPv6:::1]`), because no
  other kind is registered; and IPv4 literals with leading zeros, as in `[127.0.0.001]`. In IPv6
  literals, `::` must stand for at least two groups, as RFC 5321 requires. The rule that JSON Schema
  names doesn't limit the length, so add `maxLength` if you need it.
* `relative-json-pointer`: adjustments of an array index (`0+1/a`), which are newer than most
  validators.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import lru_cache

from gcd._automata.automaton import Automaton
from gcd._languages.text.regex import regex

_HEX = "[0-9A-Fa-f]"
_GROUP = f"{_HEX}{{1,4}}"
_OCTET = "(25[0-5]|2[0-4][0-9]|1[0-9]{2}|[1-9]?[0-9])"
_IPV4 = rf"{_OCTET}(\.{_OCTET}){{3}}"

# RFC 3339. A year is a leap year if it is divisible by 4 and not by 100, or by 400.
_BY_FOUR = "(0[48]|[2468][048]|[13579][26])"  # and not by 100
_MONTHS = "(0[13578]|1[02])-31|(0[13-9]|1[0-2])-(29|30)|(0[1-9]|1[0-2])-(0[1-9]|1[0-9]|2[0-8])"
_DATE = f"([0-9]{{4}}-({_MONTHS})|([0-9]{{2}}{_BY_FOUR}|({_BY_FOUR}|00)00)-02-29)"
_HOUR, _SIXTY, _FRACTION = "([01][0-9]|2[0-3])", "[0-5][0-9]", r"(\.[0-9]+)?"
_OFFSET = f"([Zz]|[+-]{_HOUR}:{_SIXTY})"
_TIME = f"{_HOUR}:{_SIXTY}:{_SIXTY}{_FRACTION}{_OFFSET}"
_WIDE_TIME = f"{_HOUR}:{_SIXTY}:({_SIXTY}|60){_FRACTION}{_OFFSET}"
_DAYS, _CLOCKS = "[0-9]+M([0-9]+D)?", "[0-9]+M([0-9]+S)?"
_CLOCK_PART = f"T([0-9]+H({_CLOCKS})?|{_CLOCKS}|[0-9]+S)"
_DATE_PART = f"([0-9]+Y({_DAYS})?|{_DAYS}|[0-9]+D)({_CLOCK_PART})?"
_DURATION = f"P({_DATE_PART}|{_CLOCK_PART}|[0-9]+W)"

_LABEL = "[0-9A-Za-z]([0-9A-Za-z-]{0,61}[0-9A-Za-z])?"
_HOSTNAME = rf"{_LABEL}(\.{_LABEL})*"
_NO_HYPHENS = r"(?!([^.]+\.)*[^.]{2}--)"  # as third and fourth character of a label
_UNITS = r"([^.]{16}|[^.]{0,15}\.){0,14}[^.]{0,15}"
_ATOM = r"[A-Za-z0-9!#$%&'*+\-/=?^_`{|}~]+"
_LOCAL = rf'({_ATOM}(\.{_ATOM})*|"([ !#-\[\]-~]|\\[ -~])*")'
_DOMAIN = r"[0-9A-Za-z]([0-9A-Za-z-]*[0-9A-Za-z])?(\.[0-9A-Za-z]([0-9A-Za-z-]*[0-9A-Za-z])?)*"
_LONG_OCTET = "(0{0,2}[0-9]|0?[1-9][0-9]|1[0-9]{2}|2[0-4][0-9]|25[0-5])"
_WIDE_LITERAL = rf"{_LONG_OCTET}(\.{_LONG_OCTET}){{3}}|[0-9A-Za-z-]*[0-9A-Za-z]:[!-Z^-~]+"

# RFC 3986: parts of character classes, and patterns of one character or its percent-encoding.
_UNRESERVED, _SUB_DELIMS, _ENCODED = r"A-Za-z0-9\-._~", r"!$&'()*+,;=", f"%{_HEX}{{2}}"
_USER = f"{_UNRESERVED}{_SUB_DELIMS}:"
_PCHAR = f"([{_USER}@]|{_ENCODED})"
_SEGMENTS = f"(/{_PCHAR}*)*"
_PATH = f"({_PCHAR}+{_SEGMENTS})?"
_NO_COLON = f"([{_UNRESERVED}{_SUB_DELIMS}@]|{_ENCODED})+{_SEGMENTS}"  # first segment: no colon
_QUERY = f"([{_USER}@/?]|{_ENCODED})*"
_QUERY_AND_FRAGMENT = rf"(\?{_QUERY})?(#{_QUERY})?"
_POINTER = "(/([^/~]|~[01])*)*"
_WHOLE = "(0|[1-9][0-9]*)"
_UCS = r"\u00A0-\uD7FF\uF900-\uFDCF\uFDF0-\uFFEF" + "".join(
    rf"\U{n:04X}0000-\U{n:04X}FFFD" for n in range(1, 14)
)
_UCS += r"\U000E1000-\U000EFFFD\uE000-\uF8FF\U000F0000-\U000FFFFD\U00100000-\U0010FFFD"
_VARCHAR = f"([A-Za-z0-9_]|{_ENCODED})"
_VARIABLE = rf"{_VARCHAR}(\.?{_VARCHAR})*(:[1-9][0-9]{{0,3}}|\*)?"


def _leap_seconds(offsets: Iterable[int]) -> str:
    """Return the pattern of times at 23:59:60 in UTC, at offsets in minutes."""
    endings: dict[str, list[str]] = {}  # local time -> the offsets at which it is 23:59 in UTC
    for offset in offsets:
        text = rf"\{'-+'[offset > 0]}{_clock(abs(offset))}" if offset else "[Zz]|[+-]00:00"
        endings.setdefault(_clock(1439 + offset), []).append(text)
    return "|".join(f"{local}:60{_FRACTION}({'|'.join(texts)})" for local, texts in endings.items())


def _clock(minutes: int) -> str:
    return f"{minutes // 60 % 24:02}:{minutes % 60:02}"


def _ipv6(fewest_elided: int) -> str:
    """Return the pattern of IPv6 addresses; `::` replaces at least `fewest_elided` groups."""
    most = 8 - fewest_elided  # groups written out beside `::`; an IPv4 address counts as two

    def before(whole: int, most: int) -> str:  # the last group or the IPv4 address
        elided = [f"({_GROUP}:){{{n}}}:({_GROUP}:){{0,{most - n}}}" for n in range(1, most + 1)]
        return "|".join([f"({_GROUP}:){{{whole}}}", f"::({_GROUP}:){{0,{most}}}", *elided])

    to_group, to_ipv4 = before(7, most - 1), before(6, most - 2)
    to_end = f"({_GROUP}(:{_GROUP}){{0,{most - 1}}})?::"
    return f"(({to_group}){_GROUP}|({to_ipv4}){_IPV4}|{to_end})"


_AUTHORITY = (  # with the path; the host may be any registered name, even an empty one
    rf"//(([{_USER}]|{_ENCODED})*@)?(([{_UNRESERVED}{_SUB_DELIMS}]|{_ENCODED})*|"
    rf"\[({_ipv6(1)}|[Vv]{_HEX}+\.[{_USER}]+)\])(:[0-9]*)?{_SEGMENTS}"
)
_SCHEME = "[A-Za-z][A-Za-z0-9+.-]*:"

# Name -> narrow pattern, and the wide pattern if it is different.
_PATTERNS: dict[str, tuple[str, ...]] = {
    "date": (_DATE,),
    "time": (f"{_TIME}|{_leap_seconds(range(-1410, 1440, 30))}", _WIDE_TIME),
    "date-time": (
        f"{_DATE}[Tt]{_TIME}|"
        f"[0-9]{{4}}-(06-30|12-31)[Tt]({_leap_seconds(range(-720, 1, 30))})|"
        # At offsets east of Greenwich, it is already the next day when UTC reaches 23:59:60.
        f"[0-9]{{4}}-(07-01|01-01)[Tt]({_leap_seconds(range(30, 841, 30))})",
        f"{_DATE}[Tt ]{_WIDE_TIME}",
    ),
    "duration": (_DURATION, f"(?i-u){_DURATION}"),
    "email": (
        rf"{_LOCAL}@({_DOMAIN}|\[({_IPV4}|[Ii][Pp][Vv]6:{_ipv6(2)})\])",
        rf"{_LOCAL}@({_DOMAIN}|\[({_WIDE_LITERAL})\])",
    ),
    "hostname": (f"(?={_UNITS}$){_NO_HYPHENS}{_HOSTNAME}", _HOSTNAME),
    "ipv4": (_IPV4,),
    "ipv6": (_ipv6(1),),
    "uri": (f"{_SCHEME}({_AUTHORITY}|/?{_PATH}){_QUERY_AND_FRAGMENT}",),
    "uri-reference": (
        f"(({_SCHEME})?({_AUTHORITY}|/{_PATH})|{_SCHEME}{_PATH}|({_NO_COLON})?)"
        f"{_QUERY_AND_FRAGMENT}",
    ),
    "uri-template": (
        rf"([!#$&-;=?-\[\]_a-z~{_UCS}]|{_ENCODED}|"
        rf"\{{[+#./;?&]?{_VARIABLE}(,{_VARIABLE})*\}})*",
    ),
    "uuid": (f"{_HEX}{{8}}(-{_HEX}{{4}}){{3}}-{_HEX}{{12}}",),
    "json-pointer": (f"(?s){_POINTER}",),
    "relative-json-pointer": (
        f"(?s){_WHOLE}(#|{_POINTER})",
        f"(?s){_WHOLE}([+-]{_WHOLE})?(#|{_POINTER})",
    ),
}
FORMATS: tuple[str, ...] = tuple(_PATTERNS)
_compile = lru_cache(maxsize=32)(regex)


def text_format(name: str, *, widest: bool = False) -> Automaton | None:
    """Return the texts of a format's narrow or wide pattern; None if there is no such pattern."""
    patterns = _PATTERNS.get(name)
    return _compile(patterns[-1 if widest else 0]) if patterns else None

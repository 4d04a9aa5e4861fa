"""Texts that pydantic parses as values of its types, such as dates, URLs and addresses.

Every text in these languages passes pydantic's validation, in every version 2.x that has the type.
Like pydantic, some are narrower than the JSON Schema format of the same name. If the exact set
would need a very large automaton, the language is narrower than pydantic:

| type | texts |
|---|---|
| date, datetime | years 0001 to 9999, no leap seconds, at most six digits behind the second |
| datetime, time | with or without an offset from UTC |
| timedelta | ISO 8601 durations, at most 999,999,999 days |
| Decimal | without an exponent and without NaN or Infinity |
| URLs | hosts are names of ASCII letters, digits and hyphens or IP addresses, ports up to 59999 |
| IPv6 networks | whole groups of 16 bits, or a single address |
| email | domains of two to four labels, no quoted names, no reserved domains |
| Base64Str | base64 of ASCII texts |
"""

from __future__ import annotations

import base64
import datetime
import re

from gcd._automata.automaton import Automaton
from gcd._automata.limits import cache_with_price
from gcd._languages.text.format_dates import dates as rfc_dates
from gcd._languages.text.formats import text_format
from gcd._languages.text.regex import regex

_HEX = "[0-9A-Fa-f]"
_OFFSET = "([Zz]|[+-]([01][0-9]|2[0-3]):[0-5][0-9])"
_CLOCK = r"([01][0-9]|2[0-3]):[0-5][0-9]:[0-5][0-9](\.[0-9]{1,6})?"
_SPECIAL = ("http", "https", "ws", "wss", "ftp")  # schemes whose URLs have a host
_UNITS = ("", "k", "m", "g", "t", "p", "ki", "mi", "gi", "ti", "pi")


@cache_with_price(64)
def dates(first: datetime.date | None = None, last: datetime.date | None = None) -> Automaton:
    """Return the dates from `first` to `last`, inclusive; None for no bound."""
    found = rfc_dates() - regex("0000.*")
    if first is not None:
        found &= _compare(first.isoformat(), "greater")
    if last is not None:
        found &= _compare(last.isoformat(), "less")
    return found


def _compare(text: str, how: str) -> Automaton:
    """Return `text`, and all texts that first differ from it by a greater or a smaller digit.

    `how` is "greater" or "less". After the digit that differs, anything may follow.
    """
    options = [re.escape(text)]
    for at, character in enumerate(text):
        digits = [d for d in "0123456789" if (d > character if how == "greater" else d < character)]
        if character.isdigit() and digits:
            options.append(f"{re.escape(text[:at])}[{''.join(digits)}].*")
    return regex("|".join(options))


@cache_with_price(16)
def datetimes(offset: str, last: datetime.date | None = None) -> Automaton:
    """Return dates with times; `offset` from UTC is "none", "needed" or "free" (optional)."""
    return Automaton.concatenate([dates(None, last), regex("[Tt]"), times(offset)])


def times(offset: str) -> Automaton:
    """Return times of day; `offset` from UTC is "none", "needed" or "free" (optional)."""
    return regex(_CLOCK + {"none": "", "needed": _OFFSET, "free": f"{_OFFSET}?"}[offset])


def timedeltas(*, signed: bool = True, zero: bool = True) -> Automaton:
    """Return ISO 8601 durations that fit into a `timedelta`.

    Args:
        signed: whether durations may begin with a minus sign.
        zero: whether a duration of zero is included.
    """
    second = r"([0-9]{1,8}(\.[0-9]{1,6})?S)"
    clock = f"(T(?=[0-9])([0-9]{{1,6}}H)?([0-9]{{1,6}}M)?{second}?)"
    within = r"(T(?=[0-9])((1?[0-9]|2[0-3])H)?([1-5]?[0-9]M)?([1-5]?[0-9](\.[0-9]{1,6})?S)?)"
    years = f"(?=[0-9T])([0-9]{{1,6}}Y)?([0-9]{{1,7}}M)?([0-9]{{1,8}}D)?{clock}?"
    weeks = regex("[0-9]{1,8}") | (regex("[0-9]{9}") & _compare("142857142", "less"))
    found = regex(f"P({years}|[0-9]{{1,9}}D{within}?)")
    found |= Automaton.concatenate([Automaton.literal("P"), weeks, Automaton.literal("W")])
    if not zero:
        found &= regex(".*[1-9].*")
    return Automaton.literal("-").optional() + found if signed else found


@cache_with_price(64)
def decimals(whole: int | None, places: int | None, digits: int | None) -> Automaton:
    """Return decimal numbers without an exponent, with limits on their digits; None for no limit.

    Args:
        whole: maximum number of digits before the point; a single zero doesn't count.
        places: maximum number of digits after the point.
        digits: maximum number of digits in total.
    """
    if whole is None and places is None and digits is None:
        return regex(r"-?(0|[1-9][0-9]*)(\.[0-9]+)?")
    pairs: list[tuple[int | None, int | None]]
    if digits is None:
        pairs = [(None, places)]
    else:
        fewest = 0 if places is None else places
        most = digits - fewest if whole is None else whole
        pairs = [
            (n, min(digits - n, places if places is not None else digits)) for n in range(most + 1)
        ]
    options = []
    for n, behind in pairs:
        before = "0|[1-9][0-9]*" if n is None else f"[1-9][0-9]{{{n - 1}}}" if n else "0"
        options.append(f"({before})" + (rf"(\.[0-9]{{1,{behind}}})?" if behind else ""))
    return regex(f"-?({'|'.join(options)})")


def uuids(version: int | None) -> Automaton:
    """Return UUIDs of one version, or of any version if `version` is None."""
    third = (
        f"{_HEX}{{4}}-{_HEX}{{4}}"
        if version is None
        else f"{version}{_HEX}{{3}}-[89ABab]{_HEX}{{3}}"
    )
    return regex(f"{_HEX}{{8}}-{_HEX}{{4}}-{third}-{_HEX}{{12}}")


@cache_with_price(16)
def addresses(versions: str, form: str) -> Automaton:
    """Return IP addresses, with a prefix length if required.

    Args:
        versions: "4", "6" or "46".
        form: "address", "interface" (with an optional prefix length) or "network".
    """
    options = []
    for version in versions:
        address = text_format(f"ipv{version}")
        assert address is not None
        options.append(address)
        if form == "interface":
            longest = (
                "([12]?[0-9]|3[0-2])" if version == "4" else "([1-9]?[0-9]|1[01][0-9]|12[0-8])"
            )
            options.append(address + regex(f"/{longest}"))
        if form == "network":
            options.append(_networks_4() if version == "4" else _networks_6())
    return Automaton.union(options)


def _networks_4() -> Automaton:
    """Return IPv4 networks as address and prefix length; bits after the prefix are zero."""
    octet, dot = Automaton.from_strings(map(str, range(256))), Automaton.literal(".")
    options = []
    for length in range(33):
        parts = []
        for index in range(4):
            fixed = min(max(length - 8 * index, 0), 8)
            values = octet if fixed == 8 else _multiples(1 << (8 - fixed))
            parts += [values, dot]
        options.append(Automaton.concatenate([*parts[:-1], Automaton.literal(f"/{length}")]))
    return Automaton.union(options)


def _multiples(step: int) -> Automaton:
    return Automaton.from_strings(map(str, range(0, 256, step)))


def _networks_6() -> Automaton:
    address = text_format("ipv6")
    assert address is not None
    group = f"{_HEX}{{1,4}}"
    prefixes = [f"{group}(:{group}){{{n - 1}}}::/{16 * n}" for n in range(1, 8)]
    return (address + regex("/128")) | regex("|".join(["::/0", *prefixes]))


@cache_with_price(64)
def urls(schemes: tuple[str, ...]) -> Automaton:
    """Return URLs with one of the given schemes, or with any scheme if none are given."""
    character = rf"([A-Za-z0-9._~!$&'()*+,;=:@-]|%{_HEX}{{2}})"
    after = rf"(\?({character}|[/?])*)?(#({character}|[/?])*)?"
    label = "[0-9A-Za-z]([0-9A-Za-z-]*[0-9A-Za-z])?"
    name = regex(rf"({label}\.)*[A-Za-z]([0-9A-Za-z-]*[0-9A-Za-z])?") - regex(r"([^.]+\.)*..--.*")
    ip4, ip6 = text_format("ipv4"), text_format("ipv6")
    assert ip4 is not None
    assert ip6 is not None
    host = name | ip4 | Automaton.concatenate([Automaton.literal("["), ip6, Automaton.literal("]")])
    user = "([A-Za-z0-9._~-]+(:[A-Za-z0-9._~-]*)?@)?"
    authority = Automaton.concatenate(
        [
            regex(f"//{user}"),
            host,
            regex(rf"(:([0-9]{{1,4}}|[1-5][0-9]{{4}}))?(/{character}*)*{after}"),
        ]
    )
    path = regex(f"(/({character}+(/{character}*)*)?|{character}+(/{character}*)*)?{after}")
    file = regex(f"///({character}+(/{character}*)*)?{after}")
    if schemes:
        with_host = [s for s in schemes if s != "file"]
        found = Automaton.from_strings(f"{s}:" for s in with_host) + authority
        return found | (Automaton.literal("file:") + file) if "file" in schemes else found
    listed = "|".join((*_SPECIAL, "file"))
    others = regex("[A-Za-z][A-Za-z0-9+.-]*:") - regex(f"(?i-u:{listed}):")
    special = regex(f"(?i-u:{'|'.join(_SPECIAL)}):")
    return Automaton.union(
        [special + authority, others + (authority | path), Automaton.literal("file:") + file]
    )


def emails() -> Automaton:
    """Return email addresses that `email-validator` accepts.

    They have no quoted names, and their domains are not reserved.
    """
    atom = r"[A-Za-z0-9!#$%&'*+\-/=?^_`{|}~]"
    label = "[0-9A-Za-z]([0-9A-Za-z-]{0,28}[0-9A-Za-z])?"
    reserved = "arpa|example|internal|invalid|local|localhost|onion|test"
    local = regex(rf"{atom}+(\.{atom}+)*") & regex(".{1,64}")
    domain = regex(rf"({label}\.){{1,3}}[A-Za-z]{{2,24}}")
    domain -= regex(rf"(?i-u:.*\.({reserved})|([^.]+\.)*..--.*)")
    return Automaton.concatenate([local, Automaton.literal("@"), domain])


@cache_with_price(4)
def base64_texts(*, url_safe: bool, ascii_only: bool) -> Automaton:
    """Return base64 texts of any bytes, or if `ascii_only`, of ASCII texts."""
    digits = (base64.b64encode if not url_safe else base64.urlsafe_b64encode)(
        bytes(v for a in range(0, 64, 4) for v in _pack(a, a + 1, a + 2, a + 3))
    ).decode()

    def among(mask: int) -> str:
        kept = [digits[v] for v in range(64) if not v & mask]
        return f"[{''.join(map(re.escape, kept))}]"

    bits = (32, 8, 2, 0) if ascii_only else (0, 0, 0, 0)
    one, two, three, four = map(among, bits)
    two_last, three_last = among(bits[1] | 15), among(bits[2] | 3)
    return regex(f"({one}{two}{three}{four})*({one}{two_last}==|{one}{two}{three_last}=)?")


def _pack(*values: int) -> bytes:
    a, b, c, d = values
    return (a << 18 | b << 12 | c << 6 | d).to_bytes(3, "big")


def byte_sizes() -> Automaton:
    """Return sizes of data such as `1.5GiB`."""
    units = "|".join(f"{unit}b" for unit in _UNITS)
    return regex(rf"[0-9]{{1,15}}(\.[0-9]{{1,3}})?(?i-u:{units})?")


def texts_of_bytes(fewest: int, most: int | None) -> Automaton:
    """Return texts whose UTF-8 encoding has between `fewest` and `most` bytes (None: no limit)."""
    return regex("(?s:.*)") & Automaton.byte_set(range(256)).repeat(fewest, most)

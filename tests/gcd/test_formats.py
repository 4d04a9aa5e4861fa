"""Formats against the official suite, the standard library, and rules written out by hand."""

from __future__ import annotations

import ipaddress
import itertools
import json
import re
import uuid
from collections.abc import Callable
from datetime import date, datetime, time, timedelta

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from jsonschema import Draft202012Validator

from gcd import regex
from gcd.automaton import Automaton
from gcd.languages.formats import FORMATS, text_format
from tests.gcd.oracles import shared
from tests.gcd.random_strings import random_strings

SUITE = "data/json_schema_test_suite/draft2020-12/optional/format"
CHECKER = Draft202012Validator.FORMAT_CHECKER
CHECKED = sorted(set(FORMATS) & set(CHECKER.checkers))  # more with jsonschema's optional packages
READINGS = pytest.mark.parametrize("widest", [False, True], ids=["narrow", "wide"])
TIME = re.compile(
    r"(\d\d):(\d\d):(\d\d)(?:\.\d+)?(?:[Zz]|([+-])(\d\d):(\d\d))", re.ASCII
)  # the shape alone


def known(name: str, *, widest: bool = False) -> Automaton:
    automaton = text_format(name, widest=widest)
    assert automaton is not None
    return automaton


def agrees(name: str, oracle: Callable[[str], bool], texts: list[str]) -> None:
    """The verdicts are the oracle's, and it has said both yes and no."""
    verdicts = np.array([oracle(text) for text in texts])
    assert verdicts.any()
    assert not verdicts.all()
    encoded = np.array([text.encode() for text in texts])
    wrong = accepted(known(name), encoded, [len(text.encode()) for text in texts]) != verdicts
    assert not [(texts[i], verdicts[i]) for i in np.flatnonzero(wrong)]


def accepted(automaton: Automaton, texts: np.ndarray, lengths: object) -> np.ndarray:
    """`accepts` for many texts at once, a byte of each in a step; the texts are of numpy's `S`."""
    letters = texts.view(np.uint8).reshape(len(texts), -1)
    table = np.vstack([automaton.transitions, np.full(256, -1)])  # the row of -1 is the last
    states = np.zeros(len(texts), np.int64)
    for column in range(letters.shape[1]):
        after = table[states, letters[:, column]]
        states = np.where(column < np.asarray(lengths), after, states)
    return np.append(automaton.accepting, False)[states]


# -- all formats ----------------------------------------------------------------------------


@pytest.mark.parametrize("name", FORMATS)
def test_official_suite(name):
    groups = json.loads(shared(f"{SUITE}/{name}.json").read_text())
    cases = [(test["data"], test["valid"]) for group in groups for test in group["tests"]]
    cases = [(data, valid) for data, valid in cases if isinstance(data, str)]
    assert {valid for _, valid in cases} == {True, False}
    narrow, wide = known(name), known(name, widest=True)
    for data, valid in cases:
        if name == "hostname" and data.lower().startswith("xn--"):
            assert not narrow.accepts(data), data  # documented: Punycode is not judged
        else:
            assert narrow.accepts(data) == valid, data
            assert wide.accepts(data) == valid, data
        assert wide.accepts(data) or not valid, data


@pytest.mark.parametrize("name", FORMATS)
def test_narrow_lies_within_wide(name):
    assert (known(name) - known(name, widest=True)).is_empty


def test_where_the_readings_differ():
    differ = {name for name in FORMATS if text_format(name) != text_format(name, widest=True)}
    assert differ == {
        "time",
        "date-time",
        "duration",
        "email",
        "hostname",
        "relative-json-pointer",
    }


@pytest.mark.parametrize("name", FORMATS)
def test_only_ascii_outside_of_pointers(name):
    characters = regex("(?s:.*)") if "pointer" in name else regex(r"[\x00-\x7f]*")
    assert (known(name, widest=True) - characters).is_empty


@pytest.mark.parametrize("name", CHECKED)
def test_what_is_generated_passes_the_checkers_of_jsonschema(name):
    automaton = known(name)
    if name in ("date", "date-time"):
        automaton -= regex("(?s)0000.*")  # Python's calendar begins with the year 1
    texts = automaton.enumerate(300) + random_strings(automaton, 300)
    for text in texts:
        assert CHECKER.conforms(text.decode(), name), text


def test_checkers_are_there():
    assert {"date", "email", "ipv4", "ipv6", "uuid"} <= set(CHECKED)


@pytest.mark.parametrize("name", ["regex", "idn-email", "iri", "uri-template", "Date", ""])
def test_other_names_have_no_automaton(name):
    assert text_format(name) is None
    assert text_format(name, widest=True) is None


# -- dates and times ------------------------------------------------------------------------


def test_dates_are_all_days_of_ten_thousand_years_and_no_others():
    days = np.arange("0000-01-01", "10000-01-01", dtype="datetime64[D]").astype("S10")
    automaton = known("date")
    assert accepted(automaton, days, 10).all()
    assert automaton.longest_length == 10
    assert automaton.count(10) == len(days) == 25 * 146_097


@pytest.mark.parametrize("year", [1, 4, 100, 400, 1582, 1900, 2000, 2023, 2024, 2100, 9999])
def test_dates_of_a_year_are_those_of_datetime(year):
    texts = []
    for month, day in itertools.product(range(100), repeat=2):
        try:
            texts.append(date(year, month, day).isoformat())
        except ValueError:
            assert not known("date").accepts(f"{year:04}-{month:02}-{day:02}")
    assert known("date") & regex(f"{year:04}.*") == Automaton.from_strings(texts)


def test_times_of_a_day_are_those_of_datetime():
    start = datetime(2000, 1, 1)
    texts = [(start + timedelta(seconds=s)).strftime("%H:%M:%SZ") for s in range(86_400)]
    assert accepted(known("time"), np.array(texts, "S"), 9).all()
    assert (known("time") & regex(".{8}Z")).count(9) == 86_401
    assert known("time").accepts("23:59:60Z")


def test_readings_of_a_time_differ_in_leap_seconds_alone():
    leap = regex("[0-9:]{6}60.*")
    assert known("time") - leap == known("time", widest=True) - leap


def offsets() -> list[tuple[str, timedelta]]:
    result = [("Z", timedelta()), ("z", timedelta())]
    for hours, minutes in itertools.product(range(24), range(60)):
        east = timedelta(hours=hours, minutes=minutes)
        result += [(f"+{hours:02}:{minutes:02}", east), (f"-{hours:02}:{minutes:02}", -east)]
    return result


@READINGS
def test_offsets_are_all_minutes_of_a_day_on_either_side(widest):
    texts = [f"12:00:00{text}" for text, _ in offsets()]
    at_noon = known("time", widest=widest) & regex(r"12:00:00[^.]*")
    assert at_noon == Automaton.from_strings(texts)


def is_quarter(offset: timedelta) -> bool:
    return not offset % timedelta(minutes=15)


@READINGS
def test_leap_seconds_are_at_midnight_in_utc(widest):
    last_minute = datetime(2016, 12, 31, 23, 59)
    texts = [
        (last_minute + offset).strftime("%H:%M:60") + text
        for text, offset in offsets()
        if widest or is_quarter(offset)
    ]
    leap = known("time", widest=widest) & regex("[0-9:]{6}60[^.]*")
    assert leap == Automaton.from_strings(texts)


def test_leap_seconds_of_a_date_time_end_june_or_december():
    texts = []
    for minute in ("2015-12-31T23:59", "2016-06-30T23:59", "2016-12-31T23:59"):
        for text, offset in offsets():
            local = (datetime.fromisoformat(minute) + offset).strftime("%Y-%m-%dT%H:%M:60")
            inhabited = timedelta(hours=-12) <= offset <= timedelta(hours=14)
            if local.startswith("2016") and inhabited and is_quarter(offset):
                texts.append(local + text)
    leap = known("date-time") & regex("2016-.{5}T.{6}60[^.]*")
    assert leap == Automaton.from_strings(texts)


def time_of(text: str, *, widest: bool) -> bool:
    """RFC 3339 full-time, by arithmetic on what the shape captures."""
    match = TIME.fullmatch(text)
    if not match:
        return False
    hour, minute, second = (int(match[i]) for i in (1, 2, 3))
    sign, hours, minutes = match[4] or "+", int(match[5] or 0), int(match[6] or 0)
    if max(hour, hours) > 23 or max(minute, minutes) > 59 or second > 60:
        return False
    offset = (-1 if sign == "-" else 1) * (60 * hours + minutes)
    in_utc = (60 * hour + minute - offset) % 1440
    return second < 60 or (in_utc == 1439 and (widest or offset % 15 == 0))


def date_time_of(text: str, *, widest: bool) -> bool:
    """RFC 3339 date-time, by `datetime` arithmetic; its years begin with 1."""
    if not re.fullmatch(r"\d{4}-\d\d-\d\d[Tt ].*", text, re.ASCII) or not time_of(
        text[11:], widest=True
    ):
        return False
    try:
        day = date.fromisoformat(text[:10])
    except ValueError:
        return False
    if text[17:19] < "60" or widest:
        return widest or text[10] != " "
    sign, zone = (1, "00:00") if text[-1] in "Zz" else (-1 if text[-6] == "-" else 1, text[-5:])
    offset = sign * timedelta(hours=int(zone[:2]), minutes=int(zone[3:]))
    at = datetime.combine(day, time.fromisoformat(text[11:16])) - offset
    inhabited = timedelta(hours=-12) <= offset <= timedelta(hours=14)
    month_ends = (at.month, at.day) in ((6, 30), (12, 31))
    return is_quarter(offset) and inhabited and month_ends and text[10] != " "


two_digits = st.one_of(
    st.integers(0, 99).map("{:02}".format), st.sampled_from(["00", "15", "23", "29", "59", "60"])
)
leap_texts = st.sampled_from(offsets()).map(
    lambda pair: (datetime(2000, 1, 1, 23, 59) + pair[1]).strftime("%H:%M:60{}") + pair[0]
)
fractions = st.sampled_from(["", ".", ".0", ".123", ".9" * 2, ",5"])
zones = st.builds(
    "{}{}:{}".format, st.sampled_from("+-"), st.integers(0, 25).map("{:02}".format), two_digits
)
time_texts = st.one_of(
    st.builds("{}:{}:{}{}{}".format, two_digits, two_digits, two_digits, fractions, zones),
    st.builds("{}:{}:{}{}Z".format, two_digits, two_digits, two_digits, fractions),
    st.builds(str.format, leap_texts, fractions),
)
date_texts = st.one_of(
    st.dates().map(date.isoformat),
    st.builds("{:04}-{:02}-{:02}".format, st.integers(1, 9999), st.integers(0, 13), st.just(31)),
    st.builds(
        "{:04}-{}".format, st.integers(2, 9998), st.sampled_from(["06-30", "07-01", "12-31"])
    ),
)


@READINGS
@settings(deadline=None, max_examples=200)
@given(time_texts)
@example("23:59:60.5+00:00")
def test_times_by_arithmetic(widest, text):
    assert known("time", widest=widest).accepts(text) == time_of(text, widest=widest)


@READINGS
@settings(deadline=None, max_examples=200)
@given(date_texts, st.sampled_from("TTTt _"), time_texts)
@example("2017-01-01", "t", "05:29:60.25+05:30")
@example("2016-12-31", "T", "09:44:60-14:15")
def test_date_times_by_arithmetic(widest, day, between, clock):
    text = day + between + clock
    assert known("date-time", widest=widest).accepts(text) == date_time_of(text, widest=widest)


# -- durations and pointers -----------------------------------------------------------------


def duration(text: str) -> bool:
    """Units without a gap, in their order, and at least one on each side of a `T`."""
    if not text.startswith("P") or re.search("[YMDWHS]{2}|T[YMDWHS]|[0-9](T|$)", text):
        return False
    days, separator, clock = re.sub("[0-9]", "", text[1:]).partition("T")
    if days == "W":
        return not separator
    return days in "YMD" and clock in "HMS" and bool(clock if separator else days)


def test_durations_by_their_letters():
    tokens = ["1Y", "0M", "12D", "3W", "T", "1H", "04M", "1S", "1", "S", "T1M"]
    texts = ["P" + "".join(s) for n in range(5) for s in itertools.product(tokens, repeat=n)]
    agrees("duration", duration, [*texts, "1Y", ""])
    wide = known("duration", widest=True)
    assert wide.accepts("p1yT2m")
    assert wide & regex("[^a-z]*") == known("duration")


def pointer(text: str) -> bool:
    tokens = text.split("/")
    return tokens[0] == "" and not any("~" in re.sub("~[01]", "", token) for token in tokens)


def relative_pointer(text: str) -> bool:
    match = re.match("0|[1-9][0-9]*", text)
    return match is not None and (text[match.end() :] == "#" or pointer(text[match.end() :]))


def test_pointers_by_their_tokens():
    texts = ["".join(s) for n in range(6) for s in itertools.product("/~01#é", repeat=n)]
    agrees("json-pointer", pointer, texts)
    agrees("relative-json-pointer", relative_pointer, texts)


def test_index_adjustments_are_for_the_wide_reading():
    for text in ("0+1", "0-12/a", "1+1#"):
        assert known("relative-json-pointer", widest=True).accepts(text)
        assert not known("relative-json-pointer").accepts(text)


# -- addresses ------------------------------------------------------------------------------


def is_address(kind: Callable[[str], object]) -> Callable[[str], bool]:
    def verdict(text: str) -> bool:
        try:
            kind(text)
        except ValueError:
            return False
        return "%" not in text and text.isascii()

    return verdict


def test_ipv4_octets():
    octets = [*map(str, range(300)), "", "00", "01", "001", "0256", "-1", "1e0"]
    agrees("ipv4", is_address(ipaddress.IPv4Address), [f"1.{n}.0.255" for n in octets])
    agrees("ipv4", is_address(ipaddress.IPv4Address), [".".join("1" * n) for n in range(7)])
    assert known("ipv4").count(15) == 2**32


def test_ipv6_forms():
    verdict = is_address(ipaddress.IPv6Address)
    shapes = ["".join(s) for n in range(16) for s in itertools.product("1:", repeat=n)]
    agrees("ipv6", verdict, shapes)
    agrees("ipv6", verdict, [f"{shape}1.2.3.4" for shape in shapes if len(shape) < 11])
    agrees(
        "ipv6", verdict, [f"::{s}" for s in ("aF09", "g", "00000", "0000", "1.2.3.256", "1.2.3")]
    )


@settings(deadline=None, max_examples=300)
@given(st.lists(st.sampled_from(["", "", "0", "aBc", "ffff", "1.2.3.4", "10000"]), max_size=10))
@example(["1"] * 7 + ["", ""])
@example(["", ""] + ["1"] * 7)
@example(["1"] * 4 + [""] + ["1"] * 4)
@example(["1"] * 6 + ["1.2.3.4"])
def test_ipv6_groups(groups):
    text = ":".join(groups)
    assert known("ipv6").accepts(text) == is_address(ipaddress.IPv6Address)(text)


@given(st.uuids(), st.booleans())
def test_uuids(value, upper):
    text = str(value).upper() if upper else str(value)
    assert known("uuid").accepts(text)
    assert not known("uuid").accepts(value.hex)


def test_uuids_are_no_more_than_that():
    assert known("uuid").count(100) == 22**32
    assert all(uuid.UUID(text.decode()) for text in random_strings(known("uuid"), 100))


def hostname(text: str) -> bool:
    labels = text.split(".")
    return len(text) <= 253 and all(
        re.fullmatch("[a-zA-Z0-9-]{1,63}", label)
        and label[0] != "-" != label[-1]
        and label[2:4] != "--"
        for label in labels
    )


def test_hostnames_by_their_labels():
    texts = ["".join(s) for n in range(8) for s in itertools.product("a0-.", repeat=n)]
    agrees("hostname", hostname, texts)


@settings(deadline=None, max_examples=200)
@given(
    st.lists(st.integers(1, 64) | st.sampled_from([1, 62, 63]), min_size=1, max_size=60),
    st.integers(250, 256),
)
@example([63, 63, 63, 61], 256)
@example([63, 63, 63, 62], 256)
@example([1] * 127, 256)
def test_hostnames_by_their_lengths(lengths, cut):
    text = ".".join("a" * length for length in lengths)[:cut]
    assert known("hostname").accepts(text) == hostname(text)


def test_wide_hostnames_have_labels_of_every_kind():
    wide = known("hostname", widest=True)
    assert wide.accepts("xn--zca29lwxobi7a.ab--c")
    assert not wide.accepts("xn--.example")  # ends in a hyphen


def mailbox(text: str) -> bool:
    """RFC 5321, read from left to right."""
    if text.startswith('"'):
        quoted = re.match(r'"(?:[^"\\]|\\.)*"', text)
        local, rest = ("a", text[quoted.end() :]) if quoted else ("", "")
    else:
        local, sign, domain = text.partition("@")
        rest = sign + domain
    atoms_fine = all(re.fullmatch("[a-z!+-]+", atom) for atom in local.split("."))
    return atoms_fine and rest[:1] == "@" and (hostlike(rest[1:]) or bracketed(rest[1:]))


def hostlike(text: str) -> bool:
    return all(
        label and not set(label) - set("abz09-") and label[0] != "-" != label[-1]
        for label in text.split(".")
    )


def bracketed(text: str) -> bool:
    return text in ("[1.2.3.4]", "[ipv6:1::]", "[IPv6:::1]")


def test_mailboxes_by_their_parts():
    parts = ["".join(s) for n in range(5) for s in itertools.product('a!.@-"\\ ', repeat=n)]
    literals = ["[1.2.3.4]", "[1.2.3.04]", "[ipv6:1::]", "[IPv6:::1]", "[::1]", "[x:y]", "[1.2.3.4"]
    agrees("email", mailbox, [f"{part}@a" for part in parts])
    agrees("email", mailbox, [f"a@{part}" for part in parts])
    agrees("email", mailbox, parts + [f"{p}@{a}" for p in ("a", '"', '""') for a in literals])


def test_address_literals_of_the_two_readings():
    narrow, wide = known("email"), known("email", widest=True)
    for text in ("a@[001.02.3.4]", "a@[tag:any!thing]", "a@[IPv6:1:2:3:4:5:6:7::]"):
        assert wide.accepts(text)
        assert not narrow.accepts(text)
    assert narrow.accepts("a@[IPv6:1:2:3:4:5:6::]")  # `::` for two groups
    assert narrow.accepts("a@[IPv6:1:2:3:4:5:6:7:8]")


# -- URIs -----------------------------------------------------------------------------------

COMPONENTS = re.compile(r"(?:([^:/?#]+):)?(?://([^/?#]*))?([^?#]*)(?:\?([^#]*))?(?:#(.*))?", re.S)
PLAIN = r"\-A-Za-z0-9._~!$&'()*+,;="  # unreserved and sub-delims of RFC 3986


def made_of(text: str | None, characters: str) -> bool:
    text = re.sub("%[0-9A-Fa-f]{2}", "", text or "")
    return re.fullmatch(f"[{characters}]*", text) is not None


def authority(text: str) -> bool:
    user, _, place = text.rpartition("@")
    match = re.fullmatch(r"(\[[^]]*\]|[^:]*)(:[0-9]*)?", place, re.S)
    if not match or not made_of(user, PLAIN + ":"):
        return False
    host = match[1]
    if not host.startswith("["):
        return made_of(host, PLAIN)
    future = re.fullmatch(f"[vV][0-9a-fA-F]+[.][{PLAIN}:]+", host[1:-1]) is not None
    return future or is_address(ipaddress.IPv6Address)(host[1:-1])


def reference(text: str) -> bool:
    """Split as in appendix B of RFC 3986, then each component by its own rule."""
    match = COMPONENTS.fullmatch(text)
    assert match
    scheme, place, path, query, fragment = match.groups()
    if scheme is not None and not re.fullmatch("[A-Za-z][A-Za-z0-9+.-]*", scheme):
        return False
    if scheme is None and place is None and ":" in path.split("/")[0]:
        return False
    return (
        (place is None or authority(place))
        and made_of(path, PLAIN + ":@/")
        and made_of(query, PLAIN + ":@/?")
        and made_of(fragment, PLAIN + ":@/?")
    )


def uri(text: str) -> bool:
    return reference(text) and re.match("[^:/?#]+:", text) is not None


def test_uris_by_their_components():
    texts = ["".join(s) for n in range(5) for s in itertools.product("a1:/?#@[]", repeat=n)]
    agrees("uri", uri, texts)
    agrees("uri-reference", reference, texts)


uri_pieces = st.lists(
    st.sampled_from([*"a5:/?#@[]%|~é \n", "//", "%4f", "[::1]", "[v7.a:b]", "[1::1.2.3.4]", ":80"]),
    max_size=12,
).map("".join)


@settings(deadline=None, max_examples=300)
@given(st.sampled_from(["", "a:", "http://", "//", "/"]), uri_pieces)
@example("http://", "u:p@[v7.a:b]:80/%4f//?/?#/?")
@example("http://", "[v.a]")
@example("", "a/b:c")
def test_uris_of_pieces(start, text):
    assert known("uri").accepts(start + text) == uri(start + text)
    assert known("uri-reference").accepts(start + text) == reference(start + text)

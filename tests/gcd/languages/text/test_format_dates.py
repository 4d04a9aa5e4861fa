"""Dates, times and durations against Python's and numpy's calendars, and arithmetic by hand."""

from __future__ import annotations

import itertools
import re
from contextlib import suppress
from datetime import date, datetime, time, timedelta

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from gcd import Automaton, regex
from tests.gcd.languages.text.readings import READINGS, accepted, agrees, known

TIME = re.compile(
    r"(\d\d):(\d\d):(\d\d)(?:\.\d+)?(?:[Zz]|([+-])(\d\d):(\d\d))", re.ASCII
)  # checks only the shape


def test_dates_are_all_days_of_ten_thousand_years_and_no_others():
    days = np.arange("0000-01-01", "10000-01-01", dtype="datetime64[D]").astype("S10")
    automaton = known("date")
    assert accepted(automaton, days, 10).all()
    assert automaton.longest_length == 10
    assert automaton.count(10) == len(days) == 25 * 146_097


@pytest.mark.parametrize("year", [1, 4, 400, 1900, 2000, 2023, 2024, 9999])
def test_dates_of_a_year_are_those_of_datetime(year):
    texts = []
    for month, day in itertools.product(range(1, 13), range(1, 32)):
        with suppress(ValueError):
            texts.append(date(year, month, day).isoformat())
    assert known("date") & regex(f"{year:04}.*") == Automaton.from_strings(texts)


def test_times_of_a_day_are_those_of_datetime():
    start = datetime(2000, 1, 1)
    texts = [(start + timedelta(seconds=s)).strftime("%H:%M:%SZ") for s in range(86_400)]
    assert accepted(known("time"), np.array(texts, "S"), 9).all()
    assert (known("time") & regex(".{8}Z")).count(9) == 86_401
    assert known("time").accepts("23:59:60Z")


def test_readings_of_a_time_differ_only_in_leap_seconds():
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


def is_half(offset: timedelta) -> bool:
    return not offset % timedelta(minutes=30)


def test_leap_seconds_are_at_midnight_in_utc():
    last_minute = datetime(2016, 12, 31, 23, 59)
    texts = [
        (last_minute + offset).strftime("%H:%M:60") + text
        for text, offset in offsets()
        if is_half(offset)
    ]
    leap = known("time") & regex("[0-9:]{6}60[^.]*")
    assert leap == Automaton.from_strings(texts)


def test_wide_readings_have_a_leap_second_in_every_minute():
    every = regex("([01][0-9]|2[0-3]):[0-5][0-9]:60[^.]*") & regex(r"[^.]{8}([Zz]|[+-].{5})")
    ordinary = regex("12:00:00([Zz]|[+-].{5})") & known("time")
    offset_only = {text[8:] for text in ordinary.enumerate(5000)}
    leap = known("time", widest=True) & every
    assert leap.count(14) == 1440 * len(offset_only) == 1440 * (2 + 2 * 1440)


def test_leap_seconds_of_a_date_time_end_june_or_december():
    texts = []
    for minute in ("2015-12-31T23:59", "2016-06-30T23:59", "2016-12-31T23:59"):
        for text, offset in offsets():
            local = (datetime.fromisoformat(minute) + offset).strftime("%Y-%m-%dT%H:%M:60")
            inhabited = timedelta(hours=-12) <= offset <= timedelta(hours=14)
            if local.startswith("2016") and inhabited and is_half(offset):
                texts.append(local + text)
    leap = known("date-time") & regex("2016-.{5}T.{6}60[^.]*")
    assert leap == Automaton.from_strings(texts)


def time_of(text: str, *, widest: bool) -> bool:
    """Check an RFC 3339 full-time by arithmetic on the captured groups."""
    match = TIME.fullmatch(text)
    if not match:
        return False
    hour, minute, second = (int(match[i]) for i in (1, 2, 3))
    sign, hours, minutes = match[4] or "+", int(match[5] or 0), int(match[6] or 0)
    if max(hour, hours) > 23 or max(minute, minutes) > 59 or second > 60:
        return False
    offset = (-1 if sign == "-" else 1) * (60 * hours + minutes)
    in_utc = (60 * hour + minute - offset) % 1440
    return second < 60 or widest or (in_utc == 1439 and offset % 30 == 0)


def date_time_of(text: str, *, widest: bool) -> bool:
    """Check an RFC 3339 date-time by `datetime` arithmetic, whose years begin with 1."""
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
    return is_half(offset) and inhabited and month_ends and text[10] != " "


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
@settings(max_examples=200)
@given(date_texts, st.sampled_from("TTTt _"), time_texts)
@example("2017-01-01", "t", "05:29:60.25+05:30")
@example("2016-12-31", "T", "09:44:60-14:15")
def test_date_times_by_arithmetic(widest, day, between, clock):
    text = day + between + clock
    assert known("date-time", widest=widest).accepts(text) == date_time_of(text, widest=widest)


def duration(text: str) -> bool:
    """Check for units without a gap, in order, and at least one after a `T`."""
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

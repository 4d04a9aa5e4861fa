"""Dates, times and durations against Python's and numpy's calendars, and arithmetic by hand."""

from __future__ import annotations

import itertools
import re
from datetime import datetime, timedelta

import numpy as np
import pytest

from gcd import Automaton, literal, regex
from tests.gcd.languages.text.readings import READINGS, accepted, agrees, known

FRACTION = regex(r"(\.[0-9]+)?")
CLOCK = regex("([01][0-9]|2[0-3]):[0-5][0-9]:")
ZONE = regex("[Zz]|[+-]([01][0-9]|2[0-3]):[0-5][0-9]")
ORDINARY = CLOCK + regex("[0-5][0-9]") + FRACTION + ZONE


def offsets() -> list[tuple[str, timedelta]]:
    result = [("Z", timedelta()), ("z", timedelta())]
    for hours, minutes in itertools.product(range(24), range(60)):
        east = timedelta(hours=hours, minutes=minutes)
        result += [(f"+{hours:02}:{minutes:02}", east), (f"-{hours:02}:{minutes:02}", -east)]
    return result


def leaps(minutes: list[str], shape: str, least: int, most: int) -> Automaton:
    """Spell leap seconds after minutes in UTC, at the offsets of half hours between two bounds."""
    parts = [
        Automaton.concatenate([literal(local.strftime(shape)), FRACTION, literal(zone)])
        for zone, offset in offsets()
        if not offset % timedelta(minutes=30)
        and timedelta(hours=least) <= offset <= timedelta(hours=most)
        for local in (datetime.fromisoformat(minute) + offset for minute in minutes)
    ]
    return Automaton.union(parts)


def test_dates_are_all_days_of_ten_thousand_years_and_no_others():
    days = np.arange("0000-01-01", "10000-01-01", dtype="datetime64[D]").astype("S10")
    automaton = known("date")
    assert accepted(automaton, days, 10).all()
    assert automaton.longest_length == 10
    assert automaton.count(10) == len(days) == 25 * 146_097


@READINGS
def test_times_of_a_day_and_offsets_are_those_of_datetime(widest):
    start = datetime(2000, 1, 1)
    texts = [(start + timedelta(seconds=s)).strftime("%H:%M:%SZ") for s in range(86_400)]
    assert accepted(known("time", widest=widest), np.array(texts, "S"), 9).all()
    at_noon = known("time", widest=widest) & regex(r"12:00:00[^.]*")
    assert at_noon == Automaton.from_strings([f"12:00:00{text}" for text, _ in offsets()])
    assert known("time", widest=widest) - regex("[0-9:]{6}60.*") == ORDINARY


def test_leap_seconds_are_at_midnight_in_utc_or_in_every_minute():
    leap = regex("[0-9:]{6}60.*")
    assert known("time") & leap == leaps(["2016-12-31T23:59"], "%H:%M:60", -24, 24)
    assert known("time", widest=True) & leap == CLOCK + literal("60") + FRACTION + ZONE


@pytest.mark.parametrize("year", [1000, 1900, 2016, 9998])
def test_leap_seconds_of_a_date_time_end_june_or_december(year):
    minutes = [f"{year - 1:04}-12-31T23:59", f"{year:04}-06-30T23:59", f"{year:04}-12-31T23:59"]
    ends = leaps(minutes, "%Y-%m-%dT%H:%M:60", -12, 14)
    of_year = regex(f"{year:04}-.*")
    assert known("date-time") & of_year & regex(".{10}T.{6}60.*") == ends & of_year


def test_a_date_time_is_a_date_and_a_time():
    leap = regex(".{17}60.*")
    assert known("date-time") - leap == known("date") + regex("[Tt]") + ORDINARY
    wide = known("date") + regex("[Tt ]") + known("time", widest=True)
    assert known("date-time", widest=True) == wide


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

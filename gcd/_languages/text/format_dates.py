"""Dates, times and durations of RFC 3339: `date`, `time`, `date-time`, `duration`.

**Calendar.** A year is leap if 4 divides it and 100 does not, or 400 does. All three conditions
depend on pairs of digits: the last pair for 4, and the first pair if the last is `00`. So the days
of a common year combine with every year, 29 February with the leap years, and the union has some
thirty states. Years run from 0000 to 9999, as in the RFC (section 1), by the Gregorian rule
throughout.

**Leap seconds.** Second 60 only exists at 23:59:60 in UTC (RFC 3339, sections 5.6 and 5.7), so the
local time at the beginning determines the offset at the end: `01:29:60+01:30`. The automaton's
state therefore includes the local minute until the offset. All 1,440 offsets take about ten
thousand states, although leap seconds are rare. So there are two variants, as
`gcd._languages.text.formats` explains:

* the narrow one has leap seconds at offsets of whole quarters of an hour, which are all in civil
  use. A `date-time` only has them at possible times: at offsets from -12:00 to +14:00, at the end
  of June or of December in UTC;
* the wide one has them at every offset and on every date.

Otherwise the variants differ only in letters. `T` and `Z` are in either case in both; the wide one
also allows a space for the `T`, which section 5.6 leaves to applications. Durations follow appendix
A: weeks alone, and no unit omitted between two present ones (`P1Y2D` is invalid). The wide variant
has their letters in either case, following ABNF; the narrow one has capitals, like ISO 8601 and
every validator.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import lru_cache

from gcd._automata.automaton import Automaton
from gcd._languages.text.regex import regex

_DAYS = (31, 28, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31)  # of a common year
_HOUR = 60
_DAY = 24 * _HOUR  # in minutes
_NARROW_STEP = 15  # minutes between the offsets at which the narrow variant has leap seconds
_WESTERNMOST, _EASTERNMOST = -12 * _HOUR, 14 * _HOUR  # Baker Island, the Line Islands


def dates() -> Automaton:
    """Return the language of RFC 3339 full-date, 0000-01-01 to 9999-12-31: only days that exist."""
    days = [
        f"-{month:02}-{day:02}" for month, last in enumerate(_DAYS, 1) for day in range(1, last + 1)
    ]
    by_four = [f"{n:02}" for n in range(0, 100, 4)]
    leap_years = Automaton.union(
        [
            regex("[0-9]{2}") + Automaton.from_strings(by_four[1:]),
            Automaton.from_strings(by_four) + Automaton.literal("00"),
        ]
    )
    return _years() + Automaton.from_strings(days) | leap_years + Automaton.literal("-02-29")


@lru_cache(maxsize=2)
def times(*, wide: bool = False) -> Automaton:
    """Return RFC 3339 full-time: time of day, optional fraction of a second, offset from UTC."""
    return _ordinary_times() | _leap_seconds(_offsets(1 if wide else _NARROW_STEP))


def date_times(*, wide: bool = False) -> Automaton:
    """Return RFC 3339 date-time: a date, `T`, a time with its offset."""
    if wide:
        return dates() + regex("[Tt ]") + times(wide=True)
    separator = regex("[Tt]")
    offsets = _offsets(_NARROW_STEP).items()
    # East of Greenwich the local day is over when UTC reaches 23:59:60; elsewhere it is not.
    east = {text: minutes for text, minutes in offsets if 0 < minutes <= _EASTERNMOST}
    rest = {text: minutes for text, minutes in offsets if _WESTERNMOST <= minutes <= 0}
    ends = _years() + Automaton.from_strings(["-06-30", "-12-31"])
    starts = _years() + Automaton.from_strings(["-07-01", "-01-01"])
    return Automaton.union(
        [
            dates() + separator + _ordinary_times(),
            ends + separator + _leap_seconds(rest),
            starts + separator + _leap_seconds(east),
        ]
    )


def durations(*, wide: bool = False) -> Automaton:
    """Return RFC 3339 appendix A duration: `P3Y6M4DT12H30M5S`, `PT5S`, `P2W`."""
    number = "[0-9]+"
    minute = f"{number}M({number}S)?"
    time = f"T({number}H({minute})?|{minute}|{number}S)"
    month = f"{number}M({number}D)?"
    date = f"({number}Y({month})?|{month}|{number}D)"
    return regex(f"{'(?i-u)' if wide else ''}P({date}({time})?|{time}|{number}W)")


def _years() -> Automaton:
    return regex("[0-9]{4}")


def _clock(minutes: int) -> str:
    return f"{minutes // _HOUR:02}:{minutes % _HOUR:02}"


def _ordinary_times() -> Automaton:
    """Return times with seconds 00 to 59."""
    hour, sixty = "([01][0-9]|2[0-3])", "[0-5][0-9]"
    return regex(rf"{hour}:{sixty}:{sixty}(\.[0-9]+)?([Zz]|[+-]{hour}:{sixty})")


def _offsets(step: int) -> dict[str, int]:
    """Return spellings of the offsets that are multiples of `step` minutes, with their minutes."""
    result = {"Z": 0, "z": 0}
    for minutes in range(0, _DAY, step):
        result["+" + _clock(minutes)] = minutes
        result["-" + _clock(minutes)] = -minutes
    return result


def _leap_seconds(offsets: Mapping[str, int]) -> Automaton:
    """Return second 60 with an optional fraction, at those offsets, if UTC is 23:59:60."""
    endings: dict[str, list[str]] = {}  # local time -> the offsets at which it is 23:59 in UTC
    for text, minutes in offsets.items():
        endings.setdefault(_clock((_DAY - 1 + minutes) % _DAY), []).append(text)
    return _paired(endings, seconds=":60")


def _paired(endings: Mapping[str, Iterable[str]], seconds: str) -> Automaton:
    """Return texts `start seconds [. digits] ending`, with the endings of that start.

    A state is identified by the text consumed so far; after the fraction, by the text that remains.
    """
    digits = b"0123456789"
    start = ("read", "")
    edges: dict[tuple[tuple[str, str], bytes, tuple[str, str]], None] = {}  # ordered set
    for local, those in endings.items():
        text = local + seconds
        for k, character in enumerate(text):
            edges[("read", text[:k]), character.encode(), ("read", text[: k + 1])] = None
        whole, point, fraction = ("read", text), ("read", text + "."), ("read", text + ".0")
        edges[whole, b".", point] = None
        edges[point, digits, fraction] = None
        edges[fraction, digits, fraction] = None
        for ending in those:
            for source in (whole, fraction):
                for k, character in enumerate(ending):
                    target = ("left", ending[k + 1 :])
                    edges[source, character.encode(), target] = None
                    source = target
    names = dict.fromkeys([start, *(name for edge in edges for name in (edge[0], edge[2]))])
    number = {name: i for i, name in enumerate(names)}
    return Automaton.from_nfa(
        len(number),
        [(number[source], read, number[target]) for source, read, target in edges],
        accepting=[number["left", ""]],
    )

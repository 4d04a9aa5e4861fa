"""Dates, times and durations of RFC 3339: `date`, `time`, `date-time`, `duration`.

**Calendar.** A year is a leap year if it is divisible by 4 and not by 100, or by 400. All three
conditions depend on pairs of digits: divisibility by 4 on the last pair, and on the first pair if
the last is `00`. So the days of a common year are combined with every year, 29 February is combined
with the leap years, and the union has some thirty states. Years run from 0000 to 9999, as in the
RFC (section 1), with the Gregorian rule throughout.

**Leap seconds.** Second 60 only exists at 23:59:60 in UTC (RFC 3339, sections 5.6 and 5.7). So the
local time at the beginning determines the offset at the end: `01:29:60+01:30`. The automaton's
state therefore includes the local minute until the offset has been read. All 1,440 offsets take
about ten thousand states, although leap seconds are rare. So there are two variants, as
`gcd._languages.text.formats` explains:

* The narrow variant has leap seconds at offsets of whole quarters of an hour; all offsets in civil
  use are among these. A `date-time` only has leap seconds at possible times: at offsets from -12:00
  to +14:00, at the end of June or of December in UTC.
* The wide variant has leap seconds at every offset and on every date.

Otherwise the variants differ only in letters. Both accept `T` and `Z` in either case. The wide
variant also accepts a space instead of `T`, which section 5.6 leaves to applications. Durations
follow appendix A: weeks occur alone, and no unit may be missing between two others (`P1Y2D` is
invalid). The wide variant accepts the letters of durations in either case, following ABNF. The
narrow one has capitals, like ISO 8601 and every validator.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import lru_cache

from gcd._automata.automaton import Automaton
from gcd._languages.text.regex import regex

_DAYS = (31, 28, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31)  # days of the months
_HOUR = 60
_DAY = 24 * _HOUR  # minutes
_NARROW_STEP = 15  # minutes between the offsets at which the narrow variant has leap seconds
_WESTERNMOST, _EASTERNMOST = -12 * _HOUR, 14 * _HOUR  # of Baker Island, the Line Islands


def dates() -> Automaton:
    """Return the dates from 0000-01-01 to 9999-12-31 that exist (RFC 3339 full-date)."""
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
    """Return times of day with an optional fraction and an offset from UTC (RFC 3339 full-time)."""
    return _ordinary_times() | _leap_seconds(_offsets(1 if wide else _NARROW_STEP))


def date_times(*, wide: bool = False) -> Automaton:
    """Return dates with times, joined by `T` (RFC 3339 date-time)."""
    if wide:
        return dates() + regex("[Tt ]") + times(wide=True)
    separator = regex("[Tt]")
    offsets = _offsets(_NARROW_STEP).items()
    # At offsets east of Greenwich, it is already the next day when UTC reaches 23:59:60.
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
    """Return durations such as `P3Y6M4DT12H30M5S`, `PT5S`, and `P2W` (RFC 3339 appendix A)."""
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
    """Return times of day with seconds from 00 to 59."""
    hour, sixty = "([01][0-9]|2[0-3])", "[0-5][0-9]"
    return regex(rf"{hour}:{sixty}:{sixty}(\.[0-9]+)?([Zz]|[+-]{hour}:{sixty})")


def _offsets(step: int) -> dict[str, int]:
    """Return a table of the offsets from UTC that are multiples of `step` minutes.

    It maps the text of each offset to its minutes.
    """
    result = {"Z": 0, "z": 0}
    for minutes in range(0, _DAY, step):
        result["+" + _clock(minutes)] = minutes
        result["-" + _clock(minutes)] = -minutes
    return result


def _leap_seconds(offsets: Mapping[str, int]) -> Automaton:
    """Return times with second 60 and an optional fraction, at which UTC is 23:59:60.

    `offsets` maps each offset that may end such a time to its minutes.
    """
    endings: dict[str, list[str]] = {}  # local time -> the offsets at which it is 23:59 in UTC
    for text, minutes in offsets.items():
        endings.setdefault(_clock((_DAY - 1 + minutes) % _DAY), []).append(text)
    return _pair(endings, seconds=":60")


def _pair(endings: Mapping[str, Iterable[str]], seconds: str) -> Automaton:
    """Return texts that consist of a start, `seconds`, an optional fraction, and an ending.

    `endings` maps each start to its possible endings. The automaton's state is the text so far, and
    inside an ending, the rest of the ending.
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

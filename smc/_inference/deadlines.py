"""Time limits of a call: a deadline in seconds, and events that other threads set; progress bars.

To meet a deadline, answers are closed early enough (`smc._inference.closing`). Let D be the number
of tokens that the running prefix furthest from its end needs for a shortest completion. Closing
starts once

    now + (D + 1) · seconds per token >= deadline

This is checked once per step. The time per token is the median over the last steps
(`Pace`), so that a single slow step (another request's prompt, a garbage collection) doesn't affect
it. It counts as zero in the first few steps.

A progress bar appears if a call lasts longer than `DELAY` seconds, the standard error stream is a
terminal, and tqdm can be imported. It disappears at the end of the call.
"""

from __future__ import annotations

import math
import sys
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from statistics import median
from time import monotonic
from typing import Any, Protocol, runtime_checkable

from smc._inference.arguments import real

DELAY = 3.0
"""Seconds until a bar appears."""
DEADLINE, CANCELLED = "deadline", "cancelled"
"""The reasons for closing answers early that `Posterior.stopped` reports."""


class AbandonedError(RuntimeError):
    """Error for sampling that was abandoned and therefore ended without answers."""


@runtime_checkable
class CancelToken(Protocol):
    """A flag that another thread sets, such as a `threading.Event`."""

    def is_set(self) -> bool:
        """Return whether the flag is set."""
        ...


class TimeLimit:
    """Time at which running answers must switch to a shortest completion.

    Args:
        until: time on the clock at which the answers should be complete; None for no deadline.
        cancel: flag; once it is set, closing starts with the next step.
        abandon: flag; once it is set, the next step raises `AbandonedError`.
        clock: function that returns the time in seconds.
        tick: function that is called in each step, to show progress.
    """

    def __init__(
        self,
        until: float | None = None,
        cancel: CancelToken | None = None,
        abandon: CancelToken | None = None,
        clock: Callable[[], float] = monotonic,
        tick: Callable[[], object] | None = None,
    ) -> None:
        self.until = until
        self.tick = tick
        self._cancel, self._abandon, self._clock = cancel, abandon, clock
        self._pace = Pace(clock)

    def reason(self, tokens_to_finish: int, tokens: float) -> str | None:
        """Return the reason to start closing now, or None; must be called once per step."""
        if self.tick is not None:
            self.tick()
        if self._abandon is not None and self._abandon.is_set():
            raise AbandonedError(
                "expected answers, got none: sampling was abandoned, because the event passed as "
                "`abandon` was set"
            )
        if self._cancel is not None and self._cancel.is_set():
            return CANCELLED
        if self.until is None:
            return None
        now = self._pace.lap(tokens)
        return DEADLINE if now + self._pace.seconds * (tokens_to_finish + 1) >= self.until else None

    def share(self, part: float) -> TimeLimit:
        """Return a limit for work that may take the share `part` of the remaining time."""
        until = self.until
        if until is not None:
            now = self._clock()
            until = now + part * max(0.0, until - now)
        return TimeLimit(until, self._cancel, self._abandon, self._clock, self.tick)

    def overrun(self) -> float:
        """Return the seconds since the deadline; 0 before the deadline or without one."""
        return 0.0 if self.until is None else max(0.0, self._clock() - self.until)


def check_event(what: str, given: object) -> None:
    """Raise ValueError unless a flag is an event or None."""
    if isinstance(given, type) or not (given is None or isinstance(given, CancelToken)):
        raise ValueError(f"expected {what} to be a threading.Event, got {given!r}")


def time_limit(deadline: Any, cancel: Any, abandon: CancelToken | None = None) -> TimeLimit | None:
    """Return the time limit for the arguments of `smc.sample`; None for no limit."""
    if deadline is not None:
        deadline = real("deadline", deadline)
        if not deadline >= 0:
            raise ValueError(
                f"expected deadline to be at least 0 (seconds from now), got {deadline}"
            )
    check_event("cancel", cancel)
    if deadline == math.inf:
        deadline = None
    if deadline is None and cancel is None and abandon is None:
        return None
    return TimeLimit(None if deadline is None else _clock() + deadline, cancel, abandon, _clock)


def _clock() -> float:
    """Return the time in seconds; tests replace this function."""
    return monotonic()


LAPS = 15
"""Number of recent steps that the median is computed from."""
FEWEST_LAPS = 3
"""Number of steps that must be measured before the pace is known."""


class Pace:
    """Seconds per token, measured once per step.

    Args:
        clock: function that returns a time in seconds; only differences matter.
    """

    def __init__(self, clock: Callable[[], float] = monotonic) -> None:
        self._clock = clock
        self._last: float | None = None
        self._laps: deque[float] = deque(maxlen=LAPS)

    def lap(self, tokens: float | int = 1) -> float:
        """Record the end of a step in which a sequence has grown by this many tokens.

        Returns:
            The time on the clock.
        """
        now = self._clock()
        if self._last is not None:
            self._laps.append((now - self._last) / tokens)
        self._last = now
        return now

    @property
    def seconds(self) -> float:
        """Seconds per token; 0 before `FEWEST_LAPS` steps have been measured."""
        return median(self._laps) if len(self._laps) >= FEWEST_LAPS else 0.0

    def tokens_within(self, seconds: float) -> float | int:
        """Return how many whole tokens fit into this time; inf while the pace is unknown."""
        if seconds <= 0:
            return 0
        return math.floor(seconds / self.seconds) if self.seconds > 0 else math.inf


@contextmanager
def progress(total: int, unit: str) -> Iterator[Any]:
    """Show a bar of `tqdm` while the block runs; yield the bar, or None if none is shown."""
    bar = None
    if sys.stderr is not None and sys.stderr.isatty():
        try:
            from tqdm import tqdm

            bar = tqdm(total=total, desc="smc", unit=unit, delay=DELAY, leave=False)
        except ImportError:
            pass
    try:
        yield bar
    finally:
        if bar is not None:
            bar.close()

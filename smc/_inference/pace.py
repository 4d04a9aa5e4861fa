"""Pace of a sampler or an engine: the median seconds per token of its most recent steps.

The pace converts a time limit into a limit in tokens. A single slow step (another request's prompt,
a garbage collection) doesn't affect the median.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable
from statistics import median
from time import monotonic

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

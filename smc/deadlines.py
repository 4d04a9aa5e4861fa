"""Time limits of a call: a deadline in seconds, and a token by which another thread cancels.

A deadline is kept by beginning early enough. With D the most tokens that a running prefix still
needs on its shortest way to a complete answer, the way out begins once

    now + (D + 1) · seconds per token >= deadline,

as the question is asked once in each step (`smc.closing`). Seconds per token are the median of the
last steps (`gcd.serving.pace.Pace`); in the first few, the deadline itself is all that counts.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from time import monotonic
from typing import Any, Protocol, runtime_checkable

from gcd.serving.pace import Pace
from smc.settings import real

DEADLINE, CANCELLED = "deadline", "cancelled"
"""The reasons why answers took the shortest way out, as `Posterior.stopped` gives them."""


class AbandonedError(RuntimeError):
    """Nobody waits for the answers any more, so sampling has ended without any."""


@runtime_checkable
class CancelToken(Protocol):
    """Something that another thread sets, such as a `threading.Event`."""

    def is_set(self) -> bool:
        """Whether it has been set."""
        ...


class TimeLimit:
    """When running answers have to take the shortest way out.

    Args:
        until: time on the clock at which the answers should be complete; None for no deadline.
        cancel: once it is set, the way out begins with the next step.
        abandon: once it is set, the next step raises `AbandonedError`.
        clock: returns seconds.
    """

    def __init__(
        self,
        until: float | None = None,
        cancel: CancelToken | None = None,
        abandon: CancelToken | None = None,
        clock: Callable[[], float] = monotonic,
    ) -> None:
        self.until = until
        self._cancel, self._abandon, self._clock = cancel, abandon, clock
        self._pace = Pace(clock)

    def reason(self, way_out: int, tokens: float) -> str | None:
        """Return why the way out has to begin now, or None; called once in each step.

        Args:
            way_out: the most tokens that a running prefix needs to its end.
            tokens: by how many tokens a prefix has grown since the last call.

        Raises:
            AbandonedError: nobody waits for the answers.
        """
        if self._abandon is not None and self._abandon.is_set():
            raise AbandonedError("sampling was abandoned")
        if self._cancel is not None and self._cancel.is_set():
            return CANCELLED
        if self.until is None:
            return None
        now = self._pace.lap(tokens)
        return DEADLINE if now + self._pace.seconds * (way_out + 1) >= self.until else None

    def share(self, part: float) -> TimeLimit:
        """Return the limit of work that may take this part of the time that is left."""
        until = self.until
        if until is not None:
            now = self._clock()
            until = now + part * max(0.0, until - now)
        return TimeLimit(until, self._cancel, self._abandon, self._clock)

    def overrun(self) -> float:
        """Return the seconds since the deadline; 0 before it, and without one."""
        return 0.0 if self.until is None else max(0.0, self._clock() - self.until)


def time_limit(deadline: Any, cancel: Any, abandon: CancelToken | None = None) -> TimeLimit | None:
    """Return the limit that a caller of `smc.sample` asks for; None for none.

    Raises:
        ValueError: the deadline is not a number of seconds, or the token cannot be asked.
    """
    if deadline is not None:
        deadline = real("deadline", deadline)
        if not deadline >= 0:
            raise ValueError(f"deadline is {deadline}; expected seconds from now on, 0 or more")
    if cancel is not None and not isinstance(cancel, CancelToken):
        raise ValueError(f"cancel is {cancel!r}; give a threading.Event")
    if deadline == math.inf:
        deadline = None
    if deadline is None and cancel is None and abandon is None:
        return None
    return TimeLimit(None if deadline is None else _clock() + deadline, cancel, abandon, _clock)


def _clock() -> float:
    """Read the clock of deadlines; tests put another in its place."""
    return monotonic()

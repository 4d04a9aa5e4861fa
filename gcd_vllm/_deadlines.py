"""Deadlines of requests: how many tokens still fit into the time that a request has left.

A request says `"deadline_ms": n` beside its constraint, milliseconds from when it enters the batch.
In each step the tokens that fit are the time left divided by the engine's pace, the median seconds
of its last steps. They limit the remaining budget as `gcd.Matcher.finish_within` does: never
to less than a shortest way to the end. So a request begins to end while there is time for it, and
after the deadline takes the shortest way.
"""

from __future__ import annotations

from time import monotonic
from typing import Any

from gcd import ConstraintError
from gcd._requests import ConstraintRequest
from gcd._serving.pace import Pace

_UNTIL = "gcd_until"  # the member of `extra_args` that keeps the time of a request which comes back

MANY = 1 << 40
"""More tokens than any budget: a request without a deadline has time for so many."""


def check_deadline(request: ConstraintRequest, vllm_config: Any) -> None:
    """Refuse a deadline where several workers would read different clocks.

    Raises:
        ConstraintError: the model is spread over several processes.
    """
    size = getattr(getattr(vllm_config, "parallel_config", None), "world_size", 1)
    if request.deadline_ms is not None and size > 1:
        raise ConstraintError(
            f"deadline_ms={request.deadline_ms} needs one clock, but the model is served by {size} "
            "workers, each with its own; leave deadline_ms out, or serve with one worker"
        )


class Deadlines:
    """The clock of one processor, and what the deadlines of its requests leave."""

    def __init__(self) -> None:
        self._pace = Pace(lambda: _clock())

    def begin(self, params: Any, text: str) -> float | None:
        """Return the time at which a request's answer should be complete; None for no deadline.

        A request that comes back after preemption has what is left of its time, as far as vLLM
        hands the same `extra_args`.

        Args:
            params: vLLM's `SamplingParams`.
            text: the request's constraint; one that was refused has no deadline.
        """
        if "deadline_ms" not in text:
            return None
        known = params.extra_args.get(_UNTIL)
        if known is not None:
            return float(known)
        try:
            milliseconds = ConstraintRequest.parse(text).deadline_ms
        except ConstraintError:
            return None
        if milliseconds is None:
            return None
        until = _clock() + milliseconds / 1000
        params.extra_args[_UNTIL] = until
        return until

    def step(self) -> float:
        """Note that a step begins; return the time."""
        return self._pace.lap()

    def tokens_within(self, until: float | None, now: float) -> int:
        """Return how many tokens a request has time for."""
        return MANY if until is None else int(min(MANY, self._pace.tokens_within(until - now)))


def _clock() -> float:
    """Read the clock; tests put another in its place."""
    return monotonic()

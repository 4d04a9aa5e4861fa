"""Deadlines of requests: conversion of the time left into a number of tokens.

A request may have `"deadline_ms": n` with its constraint, in milliseconds from when it enters the
batch. In each step, the time left is divided by the engine's pace (the median seconds of its last
steps). The result limits the remaining budget as `gcd.Matcher.finish_within` does, but never to
less than a shortest completion. So an answer ends in time if possible, and after the deadline only
shortest completions are allowed.
"""

from __future__ import annotations

from time import monotonic
from typing import Any

from smc._inference.deadlines import Pace

_UNTIL = "gcd_until"  # member of `extra_args` with the deadline, for preempted requests

MANY = 1 << 40
"""Number of tokens that fit before the deadline of a request without one; above any budget."""


class Deadlines:
    """Clock of one processor, which converts its requests' deadlines to numbers of tokens."""

    def __init__(self) -> None:
        self._pace = Pace(lambda: _clock())

    def begin(self, params: Any, milliseconds: int | None) -> float | None:
        """Return the time at which a request's answer should be complete; None without a deadline.

        A request that returns after preemption keeps its deadline if vLLM passes the same
        `extra_args` object.
        """
        if milliseconds is None:
            return None
        return float(params.extra_args.setdefault(_UNTIL, _clock() + milliseconds / 1000))

    def step(self) -> float:
        """Record that a step begins; return the current time."""
        return self._pace.lap()

    def tokens_within(self, until: float | None, now: float) -> int:
        """Return how many tokens can be drawn between `now` and `until` at the engine's pace."""
        return MANY if until is None else int(min(MANY, self._pace.tokens_within(until - now)))


def _clock() -> float:
    """Read the clock; tests replace this function."""
    return monotonic()

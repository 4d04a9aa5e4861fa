"""How large an automaton may grow, and how much work may go into it, before it is refused by name.

Boolean operations on automata multiply states, determinisation can be exponential, and a schema can
ask for either a thousand times. Two limits turn a machine that stops answering into an error:

* `state_limit` bounds the states of any one automaton (`StateLimitError`);
* `work_limit` bounds the work that one constraint may take altogether (`WorkLimitError`). Work is
  counted, not timed, so that two machines, or a busy one, refuse the same constraints.

Both are set for a block of code:

    with gcd.state_limit(20_000):
        gcd.json_schema(schema)

**What counts.** Whoever compiles a language for a user (`gcd.regex`, `gcd.json_schema`, ...) opens
a meter with `metered()`; whatever builds an automaton inside of it pays with `spend(units)`. A unit
is about one look at an entry of a table, a nanosecond or a few; memory that is taken is paid for as
well, a unit for each entry.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

from gcd.errors import WorkLimitError

DEFAULT_MAX_STATES = 250_000
DEFAULT_MAX_WORK = 2_000_000_000

_MAX_STATES: ContextVar[int] = ContextVar("max_states", default=DEFAULT_MAX_STATES)
_MAX_WORK: ContextVar[int] = ContextVar("max_work", default=DEFAULT_MAX_WORK)


class _Meter:
    """The work of one constraint so far."""

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.spent = 0


_METER: ContextVar[_Meter | None] = ContextVar("meter", default=None)


def max_states() -> int:
    """The limit in force: states of any automaton built, intermediate ones included."""
    return _MAX_STATES.get()


@contextmanager
def state_limit(limit: int) -> Iterator[None]:
    """Refuse automata of more than `limit` states inside the block; `ValueError` below 1."""
    if limit < 1:
        raise ValueError(f"the state limit must be at least 1, got {limit}")
    token = _MAX_STATES.set(limit)
    try:
        yield
    finally:
        _MAX_STATES.reset(token)


@contextmanager
def work_limit(limit: int) -> Iterator[None]:
    """Refuse constraints that take more than `limit` units of work; `ValueError` below 1."""
    if limit < 1:
        raise ValueError(f"the work limit must be at least 1, got {limit}")
    token = _MAX_WORK.set(limit)
    try:
        yield
    finally:
        _MAX_WORK.reset(token)


@contextmanager
def metered() -> Iterator[None]:
    """Count the work inside the block as one constraint's; inside of another such block, as its."""
    if _METER.get() is not None:
        yield
        return
    token = _METER.set(_Meter(_MAX_WORK.get()))
    try:
        yield
    finally:
        _METER.reset(token)


def work_left() -> int:
    """Units that the constraint under construction may still spend; outside of one, the limit."""
    meter = _METER.get()
    return _MAX_WORK.get() if meter is None else meter.limit - meter.spent


def spend(units: int, what: str = "the constraint") -> None:
    """Count `units` of work; `WorkLimitError`, which names `what`, when they are too many."""
    meter = _METER.get()
    if meter is None:  # a single operation, outside of any constraint
        meter = _Meter(_MAX_WORK.get())
    meter.spent += int(units)
    if meter.spent > meter.limit:
        raise WorkLimitError(meter.limit, what)

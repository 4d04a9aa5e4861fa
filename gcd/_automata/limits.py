"""Limits on the size of automata, and on the work to build them.

Boolean operations on automata multiply their states, determinization can take exponential time, and
a schema can require thousands of both. Two limits raise an error before the machine becomes
unresponsive:

* `state_limit` bounds the number of states of each automaton (`StateLimitError`).
* `work_limit` bounds the total work for one constraint (`WorkLimitError`). Work is counted, not
  timed, so all machines refuse the same constraints, no matter how fast or busy they are.

Both are set for a block of code:

    with gcd.state_limit(20_000):
        gcd.json_schema(schema)

**Accounting.** Functions that compile a language for a user (`gcd.regex`, `gcd.json_schema`, ...)
open a meter with `count_work()`. Code that may take exponential time, or keeps tables, adds its
work to this meter with `spend(units)`. Reading a constraint takes time in proportion to its length,
and isn't counted. A compiled loop cannot raise errors. It receives the remaining limits
(`kernel_limits`) and stops when it reaches one; its caller then adds the loop's work with `pay`. A
result from a cache counts its work again (`cache_with_price`). Otherwise, earlier compilations
would determine whether a constraint is refused.

**Units.** A unit is about one access to a table entry. Each module defines its units per operation,
so that a unit takes at most about 5 ns, measured on bad inputs for each loop (the script `work`
among the benchmarks of commit f4021d8). So the default limit takes at most about 10 s on one core
of a 2020s server, and usually 3 s, besides reading the constraint.

**Memory.** Every stored entry costs work: a member of a subset 64 units, and a table has at most a
64th of the work limit as entries (`max_cells`). By default, each of these takes at most 125 MB, and
everything at most about 0.7 GB, as tables are copied while they grow and during minimization.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from functools import lru_cache, wraps
from typing import Any, ParamSpec, TypeVar

from gcd._errors import StateLimitError, WorkLimitError, check_count

DEFAULT_MAX_STATES = 250_000
DEFAULT_MAX_WORK = 2_000_000_000
_WORK_PER_CELL = 64
_MANY_CELLS = 1 << 20  # tables of up to 4 MB are always allowed

P = ParamSpec("P")
R = TypeVar("R")

_MAX_STATES: ContextVar[int] = ContextVar("max_states", default=DEFAULT_MAX_STATES)
_MAX_WORK: ContextVar[int] = ContextVar("max_work", default=DEFAULT_MAX_WORK)


class _Meter:
    """Counter of the work that one constraint has taken so far."""

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.spent = 0


_METER: ContextVar[_Meter | None] = ContextVar("meter", default=None)


def max_states() -> int:
    """Return the largest allowed number of states of an automaton, including intermediate ones."""
    return _MAX_STATES.get()


@contextmanager
def _setting(variable: ContextVar[Any], value: object) -> Iterator[None]:
    token = variable.set(value)
    try:
        yield
    finally:
        variable.reset(token)


@contextmanager
def state_limit(limit: int) -> Iterator[None]:
    """Limit the states of each automaton that is built inside the `with` block.

    Raises:
        ConstraintError: the limit is not a whole number of at least 1.
    """
    check_count("the state limit", limit, 1)
    with _setting(_MAX_STATES, limit):
        yield


@contextmanager
def work_limit(limit: int) -> Iterator[None]:
    """Limit the units of work for each constraint that is compiled inside the `with` block.

    Raises:
        ConstraintError: the limit is not a whole number of at least 1.
    """
    check_count("the work limit", limit, 1)
    with _setting(_MAX_WORK, limit):
        yield


@contextmanager
def count_work() -> Iterator[None]:
    """Count all work inside the `with` block, and in nested blocks, as work for one constraint."""
    if _METER.get() is not None:
        yield
        return
    with _setting(_METER, _Meter(_MAX_WORK.get())):
        yield


@contextmanager
def share_work(share: float) -> Iterator[None]:
    """Limit the work inside the `with` block to a share of the work that is left."""
    meter = _METER.get()
    assert meter is not None
    limit, meter.limit = meter.limit, meter.spent + int(share * work_left())
    try:
        yield
    finally:
        meter.limit = limit


def max_cells() -> int:
    """Return the largest allowed number of entries in one table; an entry has 4 bytes."""
    return max(_MANY_CELLS, _MAX_WORK.get() // _WORK_PER_CELL)


def kernel_limits() -> tuple[int, int, int]:
    """Return the limits that a compiled loop gets: states, table entries, and units of work."""
    return max_states(), max_cells(), work_left()


def pay(count: int, work: int, what: str = "the automaton") -> None:
    """Count the work of a compiled loop, which stopped at a limit if `count` is negative."""
    spend(work, what)
    if count < 0:
        raise StateLimitError(max_states(), what)


def cache_with_price(maxsize: int) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """Cache results like `functools.lru_cache`; a hit counts as much work as the computation."""

    def decorate(build: Callable[P, R]) -> Callable[P, R]:
        @lru_cache(maxsize)
        def build_with_price(*args: P.args, **kwargs: P.kwargs) -> tuple[R, int]:
            before = work_left()
            result = build(*args, **kwargs)
            return result, before - work_left()

        @wraps(build)
        def build_or_recall(*args: P.args, **kwargs: P.kwargs) -> R:
            if _METER.get() is None:
                with count_work():
                    return build_or_recall(*args, **kwargs)
            misses = build_with_price.cache_info().misses
            result, price = build_with_price(*args, **kwargs)  # type: ignore[arg-type]
            if build_with_price.cache_info().misses == misses:
                spend(price)
            return result

        return build_or_recall

    return decorate


def work_left() -> int:
    """Return the work that is left; outside of `count_work()`, the whole limit."""
    meter = _METER.get()
    return _MAX_WORK.get() if meter is None else meter.limit - meter.spent


def spend(units: int, what: str = "the constraint") -> None:
    """Count units of work for the current constraint; `what` names the part in the error."""
    meter = _METER.get()
    if meter is None:  # outside of `count_work()`: limit this operation alone
        meter = _Meter(_MAX_WORK.get())
    meter.spent += int(units)
    if meter.spent > meter.limit:
        raise WorkLimitError(meter.limit, what)

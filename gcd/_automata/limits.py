"""Limits on the size of automata, and on the work to build them.

Boolean operations on automata multiply states, determinization can take exponential time, and a
schema can require thousands of both. Two limits raise an error before the machine becomes
unresponsive:

* `state_limit` bounds the states of any one automaton (`StateLimitError`);
* `work_limit` bounds the total work for one constraint (`WorkLimitError`). Work is counted, not
  timed, so different machines, and busy ones, refuse the same constraints.

Both are set for a block of code:

    with gcd.state_limit(20_000):
        gcd.json_schema(schema)

**Accounting.** Functions that compile a language for a user (`gcd.regex`, `gcd.json_schema`, ...)
open a meter with `metered()`. Code inside that builds an automaton adds its work with
`spend(units)`. A compiled loop cannot raise errors. It receives the remaining limits
(`kernel_limits`), stops at a limit, and its caller adds its units with `pay`. A cached result
counts again (`priced_cache`), because refusing a constraint must not depend on what was compiled
before it.

**Units.** A unit is about one access to a table entry. The units per operation (`PAIR`, `SET`,
`MEMBER`, ... in each module) are chosen so that a unit takes at most about 5 ns in all loops. This
was measured (the script `work` among the benchmarks of commit f4021d8) on bad inputs for each:
products of 490,000 pairs that miss every cache, `.*a.{16}`, minimization where fingerprints decide
nothing. So the default limit of 2,000,000,000 units takes at most about 10 s on one core of a 2020s
server, and usually 3 s.

**Memory.** Work also bounds memory, because every stored entry counts enough units. Members of
subsets cost 64 units each (`MEMBER`), so at most 31 million of them, 125 MB, are alive. One table
has at most a 64th of the limit as entries (`max_cells`), that is 31 million or 125 MB by default.
It takes twice that while it grows, and there are three copies while it is minimized, at most about
0.7 GB together.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from functools import lru_cache, wraps
from typing import ParamSpec, TypeVar

from gcd._errors import StateLimitError, WorkLimitError, check_count

DEFAULT_MAX_STATES = 250_000
DEFAULT_MAX_WORK = 2_000_000_000
_WORK_PER_CELL = 64
_MANY_CELLS = 1 << 20  # 4 MB are always allowed

P = ParamSpec("P")
R = TypeVar("R")

_MAX_STATES: ContextVar[int] = ContextVar("max_states", default=DEFAULT_MAX_STATES)
_MAX_WORK: ContextVar[int] = ContextVar("max_work", default=DEFAULT_MAX_WORK)


class _Meter:
    """Work that one constraint has taken so far."""

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.spent = 0


_METER: ContextVar[_Meter | None] = ContextVar("meter", default=None)


def max_states() -> int:
    """Return the maximum number of states of any automaton, including intermediate ones."""
    return _MAX_STATES.get()


@contextmanager
def state_limit(limit: int) -> Iterator[None]:
    """Limit the states of automata made inside the `with` block; `ValueError` if below 1."""
    check_count("the state limit", limit, 1)
    token = _MAX_STATES.set(limit)
    try:
        yield
    finally:
        _MAX_STATES.reset(token)


@contextmanager
def work_limit(limit: int) -> Iterator[None]:
    """Limit the units of work per constraint inside the `with` block; `ValueError` if below 1."""
    check_count("the work limit", limit, 1)
    token = _MAX_WORK.set(limit)
    try:
        yield
    finally:
        _MAX_WORK.reset(token)


@contextmanager
def metered() -> Iterator[None]:
    """Count the work inside the `with` block, including nested ones, as that of one constraint."""
    if _METER.get() is not None:
        yield
        return
    token = _METER.set(_Meter(_MAX_WORK.get()))
    try:
        yield
    finally:
        _METER.reset(token)


def max_cells() -> int:
    """Return the maximum number of entries, of 4 bytes each, in one table."""
    return max(_MANY_CELLS, _MAX_WORK.get() // _WORK_PER_CELL)


def kernel_limits() -> tuple[int, int, int]:
    """Return the limits of compiled loops: states, table entries, and units of work."""
    return max_states(), max_cells(), work_left()


def pay(count: int, work: int, what: str = "the automaton") -> None:
    """Count the work of a compiled loop; raise if it stopped early (`count` below 0).

    Raises:
        WorkLimitError: if the work exceeds what was left.
        StateLimitError: if the loop stopped for another reason.
    """
    spend(work, what)
    if count < 0:
        raise StateLimitError(max_states(), what)


def priced_cache(maxsize: int) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """Cache the results of a function like `functools.lru_cache`, but count the work of each use.

    Each cache hit counts the work of the original computation again.
    """

    def decorate(build: Callable[P, R]) -> Callable[P, R]:
        @lru_cache(maxsize)
        def priced(*args: P.args, **kwargs: P.kwargs) -> tuple[R, int]:
            before = work_left()
            result = build(*args, **kwargs)
            return result, before - work_left()

        @wraps(build)
        def build_or_recall(*args: P.args, **kwargs: P.kwargs) -> R:
            if _METER.get() is None:
                with metered():
                    return build_or_recall(*args, **kwargs)
            misses = priced.cache_info().misses
            result, price = priced(*args, **kwargs)  # type: ignore[arg-type]
            if priced.cache_info().misses == misses:
                spend(price)
            return result

        return build_or_recall

    return decorate


def work_left() -> int:
    """Return the remaining work of the current constraint; outside of one, the limit."""
    meter = _METER.get()
    return _MAX_WORK.get() if meter is None else meter.limit - meter.spent


def spend(units: int, what: str = "the constraint") -> None:
    """Count `units` of work; raise `WorkLimitError`, which names `what`, above the limit."""
    meter = _METER.get()
    if meter is None:  # a single operation, outside of any constraint
        meter = _Meter(_MAX_WORK.get())
    meter.spent += int(units)
    if meter.spent > meter.limit:
        raise WorkLimitError(meter.limit, what)

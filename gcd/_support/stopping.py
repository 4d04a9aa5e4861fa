"""Cancellation of work whose result isn't needed any longer.

Long computations call `stop_if_asked` from time to time. Code that runs them in the background
provides the condition with `stop_when`. Without a condition, the check does nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar


class WorkStoppedError(Exception):
    """Raised by `stop_if_asked` in a computation that is canceled."""


_ASKED: ContextVar[Callable[[], bool] | None] = ContextVar("asked", default=None)


@contextmanager
def stop_when(asked: Callable[[], bool]) -> Iterator[None]:
    """Cancel the computation inside the block at its first check after `asked()` becomes true."""
    token = _ASKED.set(asked)
    try:
        yield
    finally:
        _ASKED.reset(token)


def stop_if_asked() -> None:
    """Raise `WorkStoppedError` if the current computation is canceled."""
    asked = _ASKED.get()
    if asked is not None and asked():
        raise WorkStoppedError

"""Cancellation of work whose result isn't needed any longer.

Long work calls `stop_if_asked` between its parts. Code that runs it in the background uses
`stopped_when` to provide the condition; elsewhere the check is free and work continues.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar


class WorkStoppedError(Exception):
    """Raised inside work that is canceled."""


_ASKED: ContextVar[Callable[[], bool] | None] = ContextVar("asked", default=None)


@contextmanager
def stopped_when(asked: Callable[[], bool]) -> Iterator[None]:
    """Cancel the work inside the block, at its next check, once `asked()` is true."""
    token = _ASKED.set(asked)
    try:
        yield
    finally:
        _ASKED.reset(token)


def stop_if_asked() -> None:
    """Raise `WorkStoppedError` if the current work is canceled."""
    asked = _ASKED.get()
    if asked is not None and asked():
        raise WorkStoppedError

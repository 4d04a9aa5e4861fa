"""Stopping of work that nobody waits for any more.

Long work asks `stop_if_asked` between its parts. Whoever runs it in the background says with
`stopped_when` how to find out; elsewhere the question costs nothing and work goes on.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar


class WorkStoppedError(Exception):
    """Raised inside work that is to stop."""


_ASKED: ContextVar[Callable[[], bool] | None] = ContextVar("asked", default=None)


@contextmanager
def stopped_when(asked: Callable[[], bool]) -> Iterator[None]:
    """Stop the work inside the block, at its next question, once `asked()` is true."""
    token = _ASKED.set(asked)
    try:
        yield
    finally:
        _ASKED.reset(token)


def stop_if_asked() -> None:
    """Raise `WorkStoppedError` if the work around is to stop."""
    asked = _ASKED.get()
    if asked is not None and asked():
        raise WorkStoppedError

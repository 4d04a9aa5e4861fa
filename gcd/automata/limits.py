"""How large an automaton may grow before it is refused by name.

Boolean operations on automata multiply states, and determinisation can be exponential. A limit
turns a machine that stops answering into a `StateLimitError`. It is set for a block of code:

    with gcd.state_limit(20_000):
        gcd.json_schema(schema)
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

DEFAULT_MAX_STATES = 250_000

_MAX_STATES: ContextVar[int] = ContextVar("max_states", default=DEFAULT_MAX_STATES)


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

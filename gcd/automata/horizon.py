"""Some automata are exact up to a length only: what they say of longer strings means nothing.

A limit of 32 767 characters takes hundreds of thousands of states to count, and no answer of some
hundred tokens ever comes to it. So an automaton may hold for strings of at most `max_bytes` bytes
only: up to there it accepts exactly the strings of the language it stands for, beyond that its
table accepts whatever takes few states.

That is respected by every operation of `gcd.automata.automaton`: whether a string is in a union,
an intersection, a difference, a concatenation or a repetition depends only on strings that are not
longer than it. So a result holds as far as all of its parts do (`holds_as_far_as_its_parts`).

What asks such an automaton about longer strings is refused where budgets come in: a text of n
tokens must not be able to have more bytes than the automaton holds for
(`gcd.tokens.token_automaton.TokenAutomaton.max_budget`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import wraps
from typing import Any, ParamSpec, TypeVar

P = ParamSpec("P")
Result = TypeVar("Result")  # an automaton


def holds_as_far_as_its_parts(operation: Callable[P, Result]) -> Callable[P, Result]:
    """Give the result of an operation the smallest `max_bytes` of the automata it is made of."""

    @wraps(operation)
    def bounded(*args: P.args, **kwargs: P.kwargs) -> Result:
        result: Any = operation(*args, **kwargs)
        known = list(_bounds(args))
        if known and result.max_bytes != min(known):
            return replace(result, max_bytes=min(known))
        return result

    return bounded


def _bounds(arguments: Any) -> Iterator[int]:
    """The `max_bytes` of the automata among some arguments, and in sequences among them."""
    for argument in arguments:
        parts = argument if isinstance(argument, (list, tuple)) else (argument,)
        if parts and hasattr(parts[0], "max_bytes"):
            yield from (part.max_bytes for part in parts if part.max_bytes is not None)

"""Automata that do not hold all of a constraint: how far they do, and what is left to a check.

Some are exact up to a length only: what they say of longer strings means nothing.

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

Which parts of a constraint are concerned is listed in `caveats`, together with the parts that no
automaton holds and that must be checked in the finished text. Both go from parts to results.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import wraps
from typing import Any, NamedTuple, ParamSpec, TypeVar

from gcd.errors import ConstraintError, at

_SHOWN = 5

P = ParamSpec("P")
Result = TypeVar("Result")  # an automaton


class Caveat(NamedTuple):
    """A caveat is a part of a constraint that an automaton does not hold in every text.

    Attributes:
        keyword: the keyword of a schema.
        pointer: JSON pointer (RFC 6901) of the schema that holds it, `""` for the root.
        value: what the schema says.
        max_bytes: the keyword is held in texts of at most so many bytes, and budgets are refused
            that could hold more; None: it is not held, and has to be checked afterwards.
    """

    keyword: str
    pointer: str
    value: Any
    max_bytes: int | None

    @property
    def is_unchecked(self) -> bool:
        """Whether a text may break the keyword, so that it has to be checked afterwards."""
        return self.max_bytes is None

    def __str__(self) -> str:
        said = f"{self.keyword} {self.value} {at(self.pointer)}"
        if self.max_bytes is None:
            return f"{said} is left to a check afterwards"
        return f"{said} holds for texts of at most {self.max_bytes} bytes"


class CaveatWarning(UserWarning):
    """This warning says that an automaton does not hold all of a constraint in every text.

    Attributes:
        caveats: what it does not hold, all of it.
    """

    def __init__(self, message: str, caveats: Sequence[Caveat] = ()) -> None:
        super().__init__(message)
        self.caveats = tuple(caveats)

    @classmethod
    def of(cls, caveats: Sequence[Caveat]) -> CaveatWarning:
        """Return a warning of these caveats."""
        listed = "; ".join(map(str, caveats[:_SHOWN]))
        more = f"; and {len(caveats) - _SHOWN} more" if len(caveats) > _SHOWN else ""
        advice = []
        if any(caveat.is_unchecked for caveat in caveats):
            advice.append("validate the finished text against the schema")
        if not all(caveat.is_unchecked for caveat in caveats):
            advice.append("longer budgets are refused")
        return cls(
            f"the automaton does not hold all of the schema: {listed}{more}; {', '.join(advice)}. "
            'All of it is in the automaton\'s `caveats`; unsupported="ignore" leaves it to a check '
            'and keeps silent, unsupported="refuse" refuses it',
            caveats,
        )


def warn_of_caveats(caveats: Sequence[Caveat]) -> None:
    """Issue one warning, in the name of whoever called the caller, if there are caveats."""
    if caveats:
        warnings.warn(CaveatWarning.of(caveats), stacklevel=3)


def refuse_unchecked(
    caveats: Sequence[Caveat],
    why: str = "what is taken away from a language must be held exactly",
    remedy: str = 'compile it with unsupported="refuse"',
) -> None:
    """Raise `ConstraintError` if something is left to a check, where there is none.

    Args:
        why: what must not have such caveats.
        remedy: what to do about it.
    """
    for caveat in caveats:
        if caveat.is_unchecked:
            raise ConstraintError(f"{why}, but {caveat}; {remedy}")


def holds_as_far_as_its_parts(operation: Callable[P, Result]) -> Callable[P, Result]:
    """Give the result of an operation the caveats, and the smallest `max_bytes`, of its parts."""

    @wraps(operation)
    def bounded(*args: P.args, **kwargs: P.kwargs) -> Result:
        result: Any = operation(*args, **kwargs)
        limited = [part for part in _parts(args) if part.max_bytes is not None or part.caveats]
        if not limited:
            return result
        known = [part.max_bytes for part in limited if part.max_bytes is not None]
        caveats = dict.fromkeys(caveat for part in limited for caveat in part.caveats)
        return replace(result, max_bytes=min(known, default=None), caveats=tuple(caveats))

    return bounded


def _parts(arguments: Any) -> Iterator[Any]:
    """The automata among some arguments, and in sequences among them."""
    for argument in arguments:
        parts = argument if isinstance(argument, (list, tuple)) else (argument,)
        if parts and hasattr(parts[0], "max_bytes"):
            yield from parts

"""Caveats: the parts of a constraint that an automaton does not enforce in every text.

There are two kinds of caveats, and `Automaton.caveats` lists both. An automaton that is combined
from other automata has all of their caveats.

1. Parts that are enforced only in texts up to a length. Counting up to 32,767 characters, for
   example, takes hundreds of thousands of states, and no answer of a few hundred tokens is that
   long. Such an automaton has `max_bytes`. It accepts exactly the strings of its language that have
   at most that many bytes; its transitions are meaningless for longer strings. An operation such as
   a union or a concatenation decides about a string of n bytes from strings of at most n bytes. So
   its result is exact up to the smallest `max_bytes` of the operands
   (`holds_as_far_as_its_parts`). Budgets that allow longer texts are refused
   (`gcd._tokens.token_automaton.TokenAutomaton.max_budget`).
2. Parts that are not enforced at all. They have to be checked in the finished text.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import wraps
from typing import Any, NamedTuple, ParamSpec, TypeVar

from gcd._errors import ConstraintError, at, show_first

P = ParamSpec("P")
Result = TypeVar("Result")  # an automaton


class Caveat(NamedTuple):
    """Part of a constraint that an automaton does not enforce in every text.

    Attributes:
        keyword: the schema keyword.
        pointer: JSON pointer (RFC 6901) of the schema with the keyword, `""` for the root.
        value: the value of the keyword.
        max_bytes: the keyword is enforced in texts of at most this many bytes, and budgets that
            allow longer texts are refused. None: the keyword is not enforced, so check it in the
            finished text.
    """

    keyword: str
    pointer: str
    value: Any
    max_bytes: int | None

    @property
    def is_unchecked(self) -> bool:
        """True if the keyword is not enforced, and has to be checked in the finished text."""
        return self.max_bytes is None

    def __str__(self) -> str:
        said = f"{self.keyword} {self.value} {at(self.pointer)}"
        if self.max_bytes is None:
            return f"{said} is not enforced"
        return f"{said} is only enforced in texts of at most {self.max_bytes} bytes"


class CaveatWarning(UserWarning):
    """Warning that an automaton enforces some keywords only in short texts, or not at all.

    Attributes:
        caveats: one caveat for each of these keywords.
    """

    def __init__(self, message: str, caveats: Sequence[Caveat] = ()) -> None:
        super().__init__(message)
        self.caveats = tuple(caveats)

    @classmethod
    def of(cls, caveats: Sequence[Caveat]) -> CaveatWarning:
        """Return a warning that lists the given caveats."""
        advice = []
        if any(caveat.is_unchecked for caveat in caveats):
            advice.append("validate the finished text against the schema")
        if not all(caveat.is_unchecked for caveat in caveats):
            advice.append("longer budgets are refused")
        return cls(
            f"the automaton does not enforce every keyword of the schema: {show_first(caveats)}; "
            f"{', '.join(advice)}. The automaton's `caveats` lists all of these keywords; pass "
            'unsupported="ignore" to hide this warning and enforce none of them, or '
            'unsupported="refuse" to raise an error',
            caveats,
        )


def warn_of_caveats(caveats: Sequence[Caveat]) -> None:
    """Issue a warning that lists the caveats, if any, on behalf of the caller's caller."""
    if caveats:
        warnings.warn(CaveatWarning.of(caveats), stacklevel=3)


def refuse_unchecked(
    caveats: Sequence[Caveat],
    why: str = "the language is subtracted from another",
    remedy: str = 'compile it with unsupported="refuse"',
) -> None:
    """Raise `ConstraintError` with the reason and the remedy if some part isn't enforced."""
    for caveat in caveats:
        if caveat.is_unchecked:
            raise ConstraintError(
                f"expected only enforced keywords, because {why}; but {caveat}: {remedy}"
            )


def holds_as_far_as_its_parts(operation: Callable[P, Result]) -> Callable[P, Result]:
    """Decorate an operation: its result has the parts' caveats and smallest `max_bytes`."""

    @wraps(operation)
    def run(*args: P.args, **kwargs: P.kwargs) -> Result:
        result: Any = operation(*args, **kwargs)
        limited = [
            part
            for part in _parts(args)
            if part.max_bytes is not None or part.caveats or part.specials
        ]
        if not limited:
            return result
        known = [part.max_bytes for part in limited if part.max_bytes is not None]
        caveats = dict.fromkeys(caveat for part in limited for caveat in part.caveats)
        specials = dict.fromkeys(text for part in limited for text in part.specials)
        return replace(
            result,
            max_bytes=min(known, default=None),
            caveats=tuple(caveats),
            specials=tuple(specials),
        )

    return run


def _parts(arguments: Any) -> Iterator[Any]:
    """Yield the automata among the arguments, including the elements of sequences."""
    for argument in arguments:
        parts = argument if isinstance(argument, (list, tuple)) else (argument,)
        if parts and hasattr(parts[0], "max_bytes"):
            yield from parts

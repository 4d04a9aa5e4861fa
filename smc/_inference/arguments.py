"""Checks of arguments that several calls share."""

from __future__ import annotations

import inspect
import math
import reprlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from difflib import get_close_matches
from numbers import Integral
from typing import Any

from smc._removed import REMOVED

LARGEST_ID = 1 << 53
"""Largest number of an example; numbers of its parts fit into 64 bits, too."""
COLDEST = 1e-6
"""Minimum temperature, by which the logits of any model can be divided without overflow."""


def check_options(name: str, options: Mapping[str, Any], *calls: Callable[..., Any]) -> None:
    """Raise ValueError for an option that none of some functions has."""
    known: set[str] = set()
    for call in calls:
        parameters = inspect.signature(call).parameters.values()
        known |= {each.name for each in parameters if each.kind is each.KEYWORD_ONLY}
    for option, value in options.items():
        if option not in known and f"{option}=" not in REMOVED:  # `smc.sample` refuses those
            near = get_close_matches(option, known, n=1)
            remedy = f"did you mean {near[0]}?" if near else f"help({name}) lists the options"
            raise ValueError(
                f"expected an option of {name}, got {option}={reprlib.repr(value)}; {remedy}"
            )


def per_prompt(
    count: int, constraint: Any, max_tokens: object, example_ids: Iterable[object] | None
) -> tuple[list[int], list[Any], list[int]]:
    """Return the number, constraint and budget of each of `count` prompts.

    Constraint and budget are given for all prompts, or one for each.
    """
    ids = range(count) if example_ids is None else example_ids
    if not isinstance(ids, Iterable):
        raise ValueError(f"expected example_ids to be a list of numbers, got {ids!r}")
    names = [whole("example_ids", each) for each in ids]
    if any(abs(name) > LARGEST_ID for name in names):
        raise ValueError(f"expected example_ids of at most {LARGEST_ID}, got {names}")
    constraints, budgets = (
        [*given] if isinstance(given, kind) and not isinstance(given, str) else [given] * count
        for given, kind in ((constraint, Sequence), (max_tokens, Iterable))
    )
    for what, given in (
        ("constraints", constraints), ("max_tokens", budgets), ("example_ids", names)
    ):  # fmt: skip
        if len(given) != count:
            raise ValueError(f"expected as many {what} as prompts ({count}), got {len(given)}")
    return names, constraints, [whole("max_tokens", each) for each in budgets]


def whole(what: str, value: object) -> int:
    """Return a whole number as an int; raise an error for other values."""
    if not isinstance(value, Integral) or isinstance(value, bool):
        raise ValueError(f"expected {what} to be a whole number, got {value!r}")
    return int(value)


def check_temperature(temperature: float) -> float:
    """Return the temperature if it is valid; raise an error otherwise."""
    if not (math.isfinite(temperature) and temperature > 0):
        raise ValueError(
            f"expected temperature to be positive and finite, got {temperature}; for answers close "
            "to the most probable one, use a small temperature, such as 0.1"
        )
    if temperature < COLDEST:
        raise ValueError(
            f"expected temperature to be at least {COLDEST}, below which logits overflow, got "
            f"{temperature}; use a larger temperature, such as 0.1"
        )
    return temperature


def real(what: str, value: Any) -> float:
    """Return a number as a float; raise an error for other values."""
    try:
        if not isinstance(value, bool | str | bytes):
            return float(value)
    except (TypeError, ValueError, OverflowError):
        pass
    raise ValueError(f"expected {what} to be a number, got {value!r}")

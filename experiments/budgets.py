"""Token budgets given by a number, a name or a multiple, and the names of the rows that they make.

A budget counts generated tokens, EOS included. A named budget is a linear function of
the fewest tokens that any answer needs, so it adapts to long tool names and to terse notations. It
doesn't depend on the gold answer.

                                   gold answers of xLAM records 500 to 599 that fit, in
    name      tokens               SmolLM2's tokens, in JSON and in Python style
    tight     1 x fewest + 16           20%,  29%
    default   2 x fewest + 32           72%,  82%
    loose     4 x fewest + 96          100%, 100%

The figures are of 99 records, as one record has two tools of the same name and is refused. They
were measured with `task.literals=all`. With canonical tokenization the fewest tokens in JSON are
0.4% more, and one more answer fits `tight`.

`gold:1.25` models users who know roughly how long answers are and leave some room in `max_tokens`.
It is 1.25 times the number of tokens of the gold answer, EOS included, rounded up. A record whose
gold answer isn't in its language is refused. `fewest:1.25` is 1.25 times the fewest tokens of any
answer. With a list of budgets, each record becomes one example per budget.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from omegaconf import ListConfig

from experiments.config import at_least
from gcd import ConstraintError, TokenAutomaton

LINEAR = {"tight": (1, 16), "default": (2, 32), "loose": (4, 96)}  # factor, tokens on top
FACTORS = {"gold": "tokens of the gold answer", "fewest": "fewest tokens of any answer"}
"""Kinds of multiples, with a description of what is multiplied."""


def budget_of(
    spec: int | str,
    automaton: TokenAutomaton,
    gold: Sequence[int] | None = None,
) -> int:
    """Compute a budget in tokens.

    Args:
        spec: tokens; a name of `LINEAR`; or a multiple such as `gold:1.25`.
        automaton: the constraint, for the fewest tokens of an answer.
        gold: tokens of the gold answer without EOS, if there is one.

    Raises:
        ConstraintError: `spec` is a multiple of a gold answer that the constraint excludes.
        ValueError: `spec` is a multiple of a gold answer and there is none.
    """
    if isinstance(spec, int):
        return spec
    fewest = automaton.fewest_tokens
    if isinstance(spec, str) and ":" in spec:
        name, factor = multiple_of(spec)
        if name == "fewest":
            return math.ceil(factor * fewest)
        if gold is None:
            raise ValueError(
                f"expected a task whose records have a gold answer for task.budget={spec}, got one "
                f"without; give fewest:{factor:g}, or a number of tokens"
            )
        if not automaton.accepts(gold):
            raise ConstraintError("expected a gold answer that satisfies the record's constraint")
        return math.ceil(factor * (len(gold) + 1))
    times, extra = LINEAR[spec]
    return times * fewest + extra


def multiple_of(spec: str) -> tuple[str, float]:
    """Parse `gold:1.25` as ("gold", 1.25).

    Raises:
        ValueError: `spec` isn't of this form.
    """
    name, _, factor = spec.partition(":")
    try:
        value = float(factor)
    except ValueError:
        value = 0.0
    if name not in FACTORS or not 1 <= value < math.inf:
        raise ValueError(f"expected a multiple such as gold:1.25 or fewest:1.25, got {spec!r}")
    return name, value


def budgets_in(spec: Any) -> list[Any]:
    """Return the budgets of a run as a list."""
    return list(spec) if isinstance(spec, ListConfig | list) else [spec]


def title_of_budgets(spec: Any) -> str:
    """Describe the budgets of a run."""
    budgets = budgets_in(spec)
    if len(budgets) > 1 and all(":" in str(each) for each in budgets):
        name, _ = multiple_of(budgets[0])
        *first, last = (f"{multiple_of(each)[1]:g}" for each in budgets)
        return f"{', '.join(first)} and {last} times the {FACTORS[name]}"
    return " and ".join(map(str, budgets))


def part_of(style: str, spec: Any) -> str:
    """Return a name for the rows of a run that have this style of answers and this budget."""
    return f"{style}, {spec}" if style else f"{spec}"


def multiple_in(part: str) -> tuple[str, float] | None:
    """Return the style and the factor in a name by `part_of`; None if the budget has no factor."""
    style, _, spec = part.rpartition(", ")
    try:
        return style, multiple_of(spec)[1]
    except ValueError:
        return None


def check_budget(key: str, spec: Any) -> None:
    """Refuse a setting that is neither a budget nor a list of distinct budgets."""
    if isinstance(spec, ListConfig):
        for each in spec:
            check_budget(key, each)
        multiples = [multiple_of(each) for each in spec if ":" in str(each)]
        others = [each for each in spec if ":" not in str(each)]
        different = len(set(multiples)) == len(multiples) and len(set(others)) == len(others)
        if not spec or not different:
            raise ValueError(f"expected {key} to be one or several different budgets, got {spec!r}")
        if len({name for name, _ in multiples}) > 1:
            raise ValueError(
                f"expected multiples of either gold or fewest in {key}, because they share a "
                f"figure; got {spec!r}; make two runs"
            )
        return
    if isinstance(spec, bool) or not isinstance(spec, int | str):
        raise ValueError(f"expected {key} to be a whole number or a name, got {spec!r}")
    if isinstance(spec, int):
        at_least(key, spec, 1)
    elif ":" in spec:
        multiple_of(spec)
    elif spec not in LINEAR:
        raise ValueError(
            f"expected {key} to be a number of tokens, one of {', '.join(LINEAR)}, or a multiple "
            f"such as gold:1.25, got {spec!r}"
        )

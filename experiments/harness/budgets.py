"""A name stands for a token budget that depends on the constraint, or on the right answer.

A budget counts generated tokens, EOS included. A name stands for a linear function of the fewest
tokens that any answer needs, so that a request is not punished for the length of its tools' names,
nor a terse notation for being terse; the gold answer is not looked at.

                                   gold answers of xLAM records 500 to 599 that fit, in the
    name      tokens               tokens of SmolLM2, in JSON and in Python style
    tight     1 x fewest + 16           20 %,  29 %
    default   2 x fewest + 32           72 %,  82 %
    loose     4 x fewest + 96          100 %, 100 %

Of 99 records: one has two tools of one name, and is refused. Measured with `task.literals=all`;
with canonical spellings the fewest tokens in JSON are 0.4 % more, and one answer more fits `tight`.

`gold:1.25` is what people do who set `max_tokens`: they know about how long answers are, and leave
some room. It is 1.25 times the tokens of the gold answer as the tokenizer spells it, EOS included,
rounded up. A record whose gold answer is not in its language is refused. `fewest:1.25` is as many
times the fewest tokens of any answer. Several budgets in a list make an example of each record
under each of them.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from omegaconf import ListConfig

from experiments.harness.checks import at_least
from gcd.errors import ConstraintError
from gcd.tokens.token_automaton import TokenAutomaton

LINEAR = {"tight": (1, 16), "default": (2, 32), "loose": (4, 96)}  # factor, tokens on top
FACTORS = {"gold": "tokens of the gold answer", "fewest": "fewest tokens of any answer"}
"""Of whose tokens `gold:1.25` is a multiple, in words."""


def budget_of(
    spec: int | str,
    automaton: TokenAutomaton,
    gold: Sequence[int] | None = None,
) -> int:
    """Compute the budget in tokens that a number or a name means here.

    Args:
        spec: tokens; a name of `LINEAR`; or a multiple, as `gold:1.25`.
        automaton: the constraint, whose fewest tokens count.
        gold: tokens of the right answer without EOS, if there is one.

    Raises:
        ConstraintError: the budget is a multiple of the gold answer, which the constraint excludes.
        ValueError: there is no gold answer.
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
                f"task.budget={spec}: the records of this task have no gold answer; give "
                f"fewest:{factor:g}, or a number of tokens"
            )
        if not automaton.accepts(gold):
            raise ConstraintError("its gold answer is not an answer that the constraint allows")
        return math.ceil(factor * (len(gold) + 1))
    times, extra = LINEAR[spec]
    return times * fewest + extra


def multiple_of(spec: str) -> tuple[str, float]:
    """Read `gold:1.25` as ("gold", 1.25).

    Raises:
        ValueError: it is something else.
    """
    name, _, factor = spec.partition(":")
    try:
        value = float(factor)
    except ValueError:
        value = 0.0
    if name not in FACTORS or not 1 <= value < math.inf:
        raise ValueError(f"{spec!r} is no budget; multiples are written gold:1.25 or fewest:1.25")
    return name, value


def budgets_in(spec: Any) -> list[Any]:
    """Give the budgets of a run; several if they are a list."""
    return list(spec) if isinstance(spec, ListConfig | list) else [spec]


def title_of_budgets(spec: Any) -> str:
    """Say what the budget of a run is, or what its budgets are."""
    budgets = budgets_in(spec)
    if len(budgets) > 1 and all(":" in str(each) for each in budgets):
        name, _ = multiple_of(budgets[0])
        *first, last = (f"{multiple_of(each)[1]:g}" for each in budgets)
        return f"{', '.join(first)} and {last} times the {FACTORS[name]}"
    return " and ".join(map(str, budgets))


def part_of(style: str, spec: Any) -> str:
    """Name the part of a run that has one style of answers, and one budget of several."""
    return f"{style}, {spec}" if style else f"{spec}"


def multiple_in(part: str) -> tuple[str, float] | None:
    """Give style and factor of a part that `part_of` has named; None for a budget in tokens."""
    style, _, spec = part.rpartition(", ")
    try:
        return style, multiple_of(spec)[1]
    except ValueError:
        return None


def check_budget(key: str, spec: Any) -> None:
    """Refuse a setting that is no budget and no list of different ones, with a `ValueError`."""
    if isinstance(spec, ListConfig):
        for each in spec:
            check_budget(key, each)
        multiples = [multiple_of(each) for each in spec if ":" in str(each)]
        others = [each for each in spec if ":" not in str(each)]
        different = len(set(multiples)) == len(multiples) and len(set(others)) == len(others)
        if not spec or not different:
            raise ValueError(f"{key} must be one budget or several different ones, got {spec!r}")
        if len({name for name, _ in multiples}) > 1:
            raise ValueError(
                f"{key}={spec!r} has multiples of two things, which no figure could show side by "
                "side: give those of gold and of fewest in two runs"
            )
        return
    if isinstance(spec, bool) or not isinstance(spec, int | str):
        raise ValueError(f"{key} must be a whole number or a name, got {spec!r}")
    if isinstance(spec, int):
        at_least(key, spec, 1)
    elif ":" in spec:
        multiple_of(spec)
    elif spec not in LINEAR:
        raise ValueError(
            f"unknown value {spec!r} for {key}: use a number of tokens, one of "
            f"{', '.join(LINEAR)}, or a multiple such as gold:1.25"
        )

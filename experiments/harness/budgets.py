"""A name stands for a token budget that depends on the constraint.

A budget counts generated tokens, EOS included. A name stands for a linear function of the fewest
tokens that any answer needs, so that a request is not punished for the length of its tools' names,
nor a terse notation for being terse; the gold answer is never looked at.

                                   gold answers of xLAM records 500 to 599 that fit, in the
    name      tokens               tokens of SmolLM2, in JSON and in Python style
    tight     1 x fewest + 16           20 %,  29 %
    default   2 x fewest + 32           72 %,  82 %
    loose     4 x fewest + 96          100 %, 100 %

Of 99 records: one has two tools of one name, and is refused. Measured with `task.literals=all`;
with canonical spellings the fewest tokens in JSON are 0.4 % more, and one answer more fits `tight`.
"""

from __future__ import annotations

from typing import Any

from experiments.harness.checks import at_least
from gcd.tokens.token_automaton import TokenAutomaton

LINEAR = {"tight": (1, 16), "default": (2, 32), "loose": (4, 96)}  # factor, tokens on top


def budget_of(spec: int | str | tuple[int, int], automaton: TokenAutomaton) -> int:
    """Compute the budget in tokens that a number, a name or a linear function means here.

    Args:
        spec: tokens; a name of `LINEAR`; or a factor and the tokens on top of it.
        automaton: the constraint, whose fewest tokens count.
    """
    if isinstance(spec, int):
        return spec
    factor, extra = LINEAR[spec] if isinstance(spec, str) else spec
    return factor * int(automaton.steps_to_accept[automaton.initial]) + extra


def check_budget(key: str, spec: Any) -> None:
    """Refuse a setting that is neither a number of tokens nor a name, with a `ValueError`."""
    if isinstance(spec, bool) or not isinstance(spec, int | str):
        raise ValueError(f"{key} must be a whole number or a name, got {spec!r}")
    if isinstance(spec, int):
        at_least(key, spec, 1)
    elif spec not in LINEAR:
        raise ValueError(
            f"unknown value {spec!r} for {key}: use a number of tokens, or one of "
            f"{', '.join(LINEAR)}"
        )

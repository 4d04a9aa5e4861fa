"""Token budgets by name.

A budget counts generated tokens, EOS included. A name stands for a multiple of the fewest tokens
that any answer to the request needs, so that requests with long tool names are not punished:

    tight     1.5 x      barely room for one short call
    default   2.5 x      room for one usual call, or two short ones
    loose     6 x        room for several calls
"""

from __future__ import annotations

import math

from gcd.lift import TokenAutomaton

FACTORS = {"tight": 1.5, "default": 2.5, "loose": 6.0}


def budget_of(spec: int | str, automaton: TokenAutomaton) -> int:
    """The budget in tokens that `spec` (a number or a name) means for this constraint."""
    if isinstance(spec, int):
        return spec
    shortest = int(automaton.steps_to_accept[automaton.initial])
    return math.ceil(FACTORS[spec] * shortest)

"""Languages of arbitrary values, nested up to a depth."""

from __future__ import annotations

from gcd._automata.automaton import Automaton
from gcd._automata.limits import cache_with_price, max_states
from gcd._errors import StateLimitError
from gcd._languages.values.arrays import array
from gcd._languages.values.notation import Notation
from gcd._languages.values.numbers import numbers
from gcd._languages.values.objects import Member, mapping


@cache_with_price(maxsize=64)
def any_value(notation: Notation, depth: int) -> Automaton:
    """Return all values whose arrays and objects are nested at most `depth` levels deep.

    The automaton tracks which brackets are open, so its size doubles with each level.
    """
    scalars = [
        notation.null,
        notation.true,
        notation.false,
        numbers(),
        notation.string(0, None),
    ]
    if depth == 0:
        return Automaton.union(scalars)
    if 10 * 2**depth * scalars[-1].num_states > max_states():  # approximate size of the result
        raise StateLimitError(max_states(), what=f"any value nested to a depth of {depth}")
    inner = any_value(notation, depth - 1)
    return Automaton.union([*scalars, array(notation, inner), any_object(notation, inner)])


def any_object(notation: Notation, value: Automaton) -> Automaton:
    """Return the objects with any keys, whose values are in the language `value`."""
    return mapping(notation, (), [Member(notation.string(0, None), value, False)])

"""Texts with limits on the number of their code points."""

from __future__ import annotations

from gcd._automata.automaton import Automaton
from gcd._automata.limits import max_states, priced_cache
from gcd._errors import StateLimitError, shown_count
from gcd._languages.text.code_points import SCALARS, one_of


@priced_cache(maxsize=1)
def characters() -> Automaton:
    """Return the language of one code point in UTF-8: no overlong forms, no surrogates."""
    return one_of(SCALARS)


@priced_cache(maxsize=256)
def texts(minimum: int = 0, maximum: int | None = None) -> Automaton:
    """Return all UTF-8 texts of `minimum` to `maximum` code points (None: no upper bound).

    Raises:
        StateLimitError: before any work, if there would be far too many states.
    """
    return repeated(characters(), minimum, maximum)


def anything() -> Automaton:
    """Return free text: every UTF-8 text, including the empty one."""
    return texts()


def repeated(character: Automaton, minimum: int, maximum: int | None) -> Automaton:
    """Repeat a character; raise `StateLimitError` before any work for far too many states."""
    longest = max(minimum, maximum or 0)
    if longest * character.num_states > max_states():
        raise StateLimitError(
            max_states(), f"a string with a length limit of {shown_count(longest)}"
        )
    return character.repeat(minimum, maximum)

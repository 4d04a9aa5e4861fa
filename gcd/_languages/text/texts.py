"""Languages of texts with limits on the number of code points."""

from __future__ import annotations

from gcd._automata.automaton import Automaton
from gcd._automata.limits import cache_with_price, max_states
from gcd._errors import StateLimitError, show_count
from gcd._languages.text.code_points import SCALARS, one_of


@cache_with_price(maxsize=1)
def characters() -> Automaton:
    """Return the language of one code point in UTF-8, without overlong forms and surrogates."""
    return one_of(SCALARS)


@cache_with_price(maxsize=256)
def texts(minimum: int = 0, maximum: int | None = None) -> Automaton:
    """Return all UTF-8 texts of `minimum` to `maximum` code points (None: no upper bound).

    Raises:
        StateLimitError: there would be far too many states; raised before any work.
    """
    return repeat(characters(), minimum, maximum)


def anything() -> Automaton:
    """Return the language of all UTF-8 texts, including the empty one."""
    return texts()


def repeat(character: Automaton, minimum: int, maximum: int | None) -> Automaton:
    """Return `minimum` to `maximum` repetitions of a character (None: no upper bound).

    Raises:
        StateLimitError: there would be far too many states; raised before any work.
    """
    longest = max(minimum, maximum or 0)
    if longest * character.num_states > max_states():
        raise StateLimitError(
            max_states(), what=f"a string with a length limit of {show_count(longest)}"
        )
    return character.repeat(minimum, maximum)

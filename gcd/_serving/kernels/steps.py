"""Interface between constraints and the token sequences under them.

`gcd._serving.kernels.table` implements it for lifted constraints, and `gcd._serving.kernels.lazy`
for constraints that are not lifted yet. Sequences (`gcd._serving.kernels.sequences`) only use these
methods.
"""

from __future__ import annotations

from typing import NoReturn

import cython
import numpy as np


def refuse_to_pickle() -> NoReturn:
    """Raise the error of objects that cannot be pickled or copied."""
    raise TypeError(
        "expected an object that can be pickled, got a served constraint or one of its matchers; "
        "pickle the TokenAutomaton instead, and make a new matcher from it"
    )


@cython.cclass
class Steps:
    """Transitions and masks of one constraint.

    Args:
        final: the state after the end of a text.
        vocabulary_size: number of token ids.
        num_words: words in a mask.

    Attributes:
        successor: the form of the constraint that sequences switch to after their next token; None
            if they keep this form.
    """

    def __init__(self, final: int, vocabulary_size: int, num_words: int) -> None:
        self.final, self.vocabulary_size, self.num_words = final, vocabulary_size, num_words
        self.successor = None

    def __reduce__(self) -> NoReturn:
        refuse_to_pickle()

    def hand_over(self, successor: Steps, number: np.ndarray) -> None:
        """Set another form of the constraint, to which sequences switch after their next token.

        Args:
            successor: the other form; it allows at least the tokens that this form allows.
            number: for each state of this form, the state of the other form; S + 1 including the
                final state, int32.

        Raises:
            ValueError: there are not as many numbers as states.
        """
        if number.shape != (self.final + 1,):
            raise ValueError(
                f"expected {self.final + 1} state numbers, one per state, got shape {number.shape}"
            )
        self.number = number
        self.successor = successor

    @cython.cfunc
    @cython.exceptval(check=False)
    def next_state(
        self, state: cython.int, remaining: cython.longlong, token: cython.longlong
    ) -> cython.int:
        """Return the state after a token, -1 if the language or the budget refuses it."""
        return -1

    @cython.cfunc
    @cython.exceptval(-1, check=True)
    def write_row(
        self, state: cython.int, remaining: cython.longlong, out: cython.p_int
    ) -> cython.int:
        """Write the packed mask of a state with `remaining` tokens left; state -1 allows none."""
        return 0

    @cython.cfunc
    @cython.exceptval(-1, check=True)
    def num_allowed(self, state: cython.int, remaining: cython.longlong) -> cython.longlong:
        """Count the tokens of a state's mask."""
        return 0

    @cython.cfunc
    @cython.exceptval(-1, check=True)
    def only_token(self, state: cython.int, remaining: cython.longlong) -> cython.longlong:
        """Return the only token of a state's mask; -1 if it has none or several."""
        return -1


def fill_row(steps: Steps, state: cython.int, remaining: cython.longlong, out: np.ndarray) -> None:
    """Write the packed mask of a state with `remaining` tokens left; state -1 allows none."""
    words: cython.int[::1] = out
    if cython.compiled:
        steps.write_row(state, remaining, cython.address(words[0]))
    else:
        steps.write_row(state, remaining, words)

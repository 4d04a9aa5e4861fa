"""Both readings of a format, and many verdicts at once."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from gcd import Automaton
from gcd._languages.text.formats import text_format

READINGS = pytest.mark.parametrize("widest", [False, True], ids=["narrow", "wide"])


def known(name: str, *, widest: bool = False) -> Automaton:
    automaton = text_format(name, widest=widest)
    assert automaton is not None
    return automaton


def agrees(name: str, oracle: Callable[[str], bool], texts: list[str]) -> None:
    """Assert that the verdicts equal the oracle's, and that both verdicts occur."""
    verdicts = np.array([oracle(text) for text in texts])
    assert verdicts.any()
    assert not verdicts.all()
    encoded = np.array([text.encode() for text in texts])
    wrong = accepted(known(name), encoded, [len(text.encode()) for text in texts]) != verdicts
    assert not [(texts[i], verdicts[i]) for i in np.flatnonzero(wrong)]


def accepted(automaton: Automaton, texts: np.ndarray, lengths: object) -> np.ndarray:
    """Run `accepts` on many texts (numpy's `S` type) at once, one byte of each per step."""
    letters = texts.view(np.uint8).reshape(len(texts), -1)
    table = np.vstack([automaton.transitions, np.full(256, -1)])  # the row of -1 is the last
    states = np.zeros(len(texts), np.int64)
    for column in range(letters.shape[1]):
        after = table[states, letters[:, column]]
        states = np.where(column < np.asarray(lengths), after, states)
    return np.append(automaton.accepting, False)[states]

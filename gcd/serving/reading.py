"""The state of an automaton after a list of tokens that belongs to somebody else.

Engines hand over the tokens of a request at each step, and may have cut them back meanwhile
(preemption, refused drafts, discarded steps). What was read stays read as long as it still stands
there.
"""

from __future__ import annotations

from collections.abc import Sequence

from gcd.serving.pool import DEAD
from gcd.tokens.token_automaton import TokenAutomaton


class TokenReader:
    """The state after tokens that usually go on where the call before ended.

    Args:
        automaton: the constraint.
    """

    def __init__(self, automaton: TokenAutomaton) -> None:
        self._automaton = automaton
        self._read: list[int] = []
        self._state = automaton.initial

    def state(self, tokens: Sequence[int]) -> int:
        """Return the state after all tokens; `DEAD` if one is not allowed, or is no id."""
        automaton, count = self._automaton, len(self._read)
        if list(tokens[:count]) != self._read:
            self._read, self._state, count = [], automaton.initial, 0
        for token in tokens[count:]:
            if not 0 <= token < automaton.vocabulary.size:
                return DEAD  # it may be a placeholder, so what follows it is not read
            if self._state != DEAD:
                self._state = int(automaton.delta[self._state, automaton.class_of[token]])
            self._read.append(token)
        return self._state

"""States and masks after a list of tokens that the caller passes at each step.

Engines pass all tokens of a request at each step, and may have removed some of the previous tokens
(preemption, refused drafts, discarded steps). The prefix that equals the previous call's is not
processed again.
"""

from __future__ import annotations

from collections.abc import Sequence

from gcd import TokenAutomaton
from gcd_vllm._pool import DEAD


class TokenReader:
    """Computes the state after a list of tokens, which usually continues the previous call's list.

    Args:
        automaton: the constraint.
        prefix: tokens of the text before the lists that are passed to `state`.
    """

    def __init__(self, automaton: TokenAutomaton, prefix: Sequence[int] = ()) -> None:
        self._automaton = automaton
        self._read: list[int] = []
        self._state = self._initial = automaton.initial
        self._state = self._initial = self.state(prefix)
        self._read = []

    def state(self, tokens: Sequence[int]) -> int:
        """Return the state after all tokens; -1 if a token is not allowed or is not an id."""
        automaton, count = self._automaton, len(self._read)
        if list(tokens[:count]) != self._read:
            self._read, self._state, count = [], self._initial, 0
        for token in tokens[count:]:
            if not 0 <= token < automaton.vocabulary.size:
                return DEAD  # possibly a placeholder, so it and later tokens are not cached
            self._state = automaton.step(self._state, token)
            self._read.append(token)
        return self._state

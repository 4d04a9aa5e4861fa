"""States and masks after a list of tokens that the caller passes at each step.

Engines pass all tokens of a request at each step, and may have removed some of the previous tokens
(preemption, refused drafts, discarded steps). The prefix that equals the previous call's is not
processed again.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from jaxtyping import Int32

from gcd._serving.matcher import Matcher, follow
from gcd._serving.pool import DEAD
from gcd._tokens.token_automaton import TokenAutomaton
from gcd._tokens.vocabulary import BITS


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
            if self._state != DEAD:
                self._state = int(automaton.delta[self._state, automaton.class_of[token]])
            self._read.append(token)
        return self._state


class LazyReader:
    """Computes the mask after a list of tokens, which usually continues the previous call's list.

    Args:
        matcher: a matcher at the beginning of a text; the reader owns it from now on.
    """

    def __init__(self, matcher: Matcher) -> None:
        self._matcher = matcher
        self._read: list[int] = []

    def fill_mask(
        self, tokens: Sequence[int], out: Int32[np.ndarray, "W"], fit: int | None = None
    ) -> None:
        """Write the packed mask of the next token after all tokens.

        After tokens that are not allowed, or are not ids, such as placeholders, only EOS is
        allowed.

        Args:
            tokens: the text so far.
            out: the array that the mask is written to.
            fit: number of further tokens that fit before the deadline. The text ends within them,
                or with a shortest completion if that needs more.
        """
        if not follow(self._matcher, self._read, tokens):
            self._allow_end(out)
            return
        left = self._matcher.remaining
        if fit is not None and (left is None or fit < left):
            self._matcher.finish_within(max(0, fit))
        self._matcher.fill_mask(out)

    def _allow_end(self, out: Int32[np.ndarray, "W"]) -> None:
        words, out[:] = out.view(np.uint32), 0
        for token in self._matcher.automaton.vocabulary.eos_ids:
            words[token // BITS] |= np.uint32(1 << token % BITS)

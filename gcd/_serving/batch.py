"""Batches of matchers: several sequences in one compiled call, each with its own constraint."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from jaxtyping import Bool, Int32, Integer

from gcd._arguments import rows, whole_numbers
from gcd._errors import ConstraintError
from gcd._serving.kernels import sequences as kernels
from gcd._serving.matcher import Matcher, Membership


class MatcherBatch:
    """Batch of matchers, possibly of different automata, that advance in one call.

    The matchers can still be used individually. A matcher belongs to one batch at a time: once it
    joins another batch, using its previous batch raises an error. `batch[i] = matcher` replaces a
    matcher.

    Args:
        matchers: distinct matchers, whose vocabularies have the same size.

    Raises:
        ConstraintError: if there are no matchers, a matcher occurs twice, or the vocabularies'
            sizes differ.
    """

    def __init__(self, matchers: Sequence[Matcher]) -> None:
        if not matchers:
            raise ConstraintError("expected at least one matcher in a batch, got none")
        if len({id(matcher) for matcher in matchers}) < len(matchers):
            raise ConstraintError(
                "expected distinct matchers in a batch, got one twice; make one for each sequence"
            )
        self.matchers: list[Matcher] = list(matchers)
        self.vocabulary_size = matchers[0].automaton.vocabulary.size
        self._shape = (len(matchers), matchers[0].automaton.num_words)
        for matcher in matchers:
            self._check_size(matcher)
        self._membership = Membership()
        for matcher in matchers:
            self._take(matcher)
        self._sequences = [matcher._sequence for matcher in matchers]

    def _check_size(self, matcher: Matcher) -> None:
        size = matcher.automaton.vocabulary.size
        if size != self.vocabulary_size:
            raise ConstraintError(
                f"expected matchers over vocabularies of size {self.vocabulary_size}, got {size}; "
                "use one vocabulary size in a batch"
            )

    def _take(self, matcher: Matcher) -> None:
        if matcher._membership is not None:
            matcher._membership.is_current = False
        matcher._membership = self._membership

    def __setitem__(self, row: int, matcher: Matcher) -> None:
        """Replace a matcher; the previous matcher can be used individually."""
        self._check()
        if matcher in self.matchers:
            raise ConstraintError(
                "expected a matcher that isn't in this batch yet, got one of its matchers; make "
                "one for each row"
            )
        self._check_size(matcher)
        self.matchers[row]._membership = None
        self._take(matcher)
        self.matchers[row] = matcher
        self._sequences[row] = matcher._sequence

    def __getitem__(self, row: int) -> Matcher:
        return self.matchers[row]

    def __len__(self) -> int:
        return len(self.matchers)

    def _check(self) -> None:
        if not self._membership.is_current:
            raise ConstraintError(
                "expected matchers that only belong to this batch, but one has joined another "
                "batch; make a new batch"
            )

    def advance(self, tokens: Sequence[int] | Integer[Any, "N"]) -> Bool[np.ndarray, "N"]:
        """Advance each matcher by its token; return which matchers accepted their token.

        Raises:
            ValueError: if there are not as many tokens as matchers, or a token is not an id. No
                matcher changes in this case.
        """
        self._check()
        ids = whole_numbers(tokens)
        if ids.shape != (len(self.matchers),):
            raise ValueError(
                f"expected {len(self.matchers)} tokens, one per matcher, got shape {ids.shape}"
            )
        taken = np.empty(len(self.matchers), np.bool_)
        wrong = kernels.advance_all(self._sequences, ids, taken)
        if wrong >= 0:
            raise ValueError(
                f"expected token ids in 0..{self.vocabulary_size - 1}, got {ids[wrong]} for "
                f"matcher {wrong}"
            )
        return taken

    def rollback(self, num_tokens: int | Sequence[int] | Integer[Any, "*N"] = 1) -> None:
        """Roll back the matchers, by one number of tokens for all or by one number for each.

        Raises:
            ValueError: if there are not as many numbers as matchers, or a number is negative or
                exceeds the tokens of its matcher. No matcher changes in this case.
        """
        self._check()
        counts = whole_numbers(num_tokens, "number of tokens")
        if counts.ndim == 0:
            counts = np.full(len(self.matchers), counts)
        if counts.shape != (len(self.matchers),):
            raise ValueError(
                f"expected {len(self.matchers)} numbers of tokens, one per matcher, got shape "
                f"{counts.shape}"
            )
        have = np.array([matcher.num_tokens for matcher in self.matchers])
        for row in np.flatnonzero((counts < 0) | (counts > have)):
            raise ValueError(
                f"expected at most {have[row]} tokens to roll back, as many as matcher {row} has, "
                f"got {counts[row]}"
            )
        for matcher, count in zip(self.matchers, counts.tolist(), strict=True):
            matcher.rollback(count)

    def fill_masks(self, out: Int32[Any, "N W"]) -> None:
        """Write the packed mask of matcher i to `out[i]`, for all matchers of the batch."""
        self._check()
        kernels.fill_all(self._sequences, rows(out, self._shape))

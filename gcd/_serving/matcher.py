"""Matchers: constraints for serving engines, one token and one packed mask at a time.

An engine keeps a **matcher** for each sequence. In each step it gets the mask of next tokens
(`fill_mask`), samples a token, and appends it (`advance`). With speculative decoding it gets the
masks along a draft (`fill_draft_masks`), or the length of a draft's allowed prefix (`validate`),
and rolls tokens back (`rollback`). The mask, with r tokens left of the budget, is

    mask(s, r) = { v : steps_to_accept[ delta(s, v) ] <= r - 1 }

as packed words (`gcd._tokens.bitmask`). A lifted constraint is served as a
`gcd._serving.served.ServedAutomaton`, whose masks take microseconds. A constraint that isn't lifted
yet is served at once as a `gcd._serving.lazy.LazyAutomaton`, with upper bounds instead of
`steps_to_accept`. Its lifted form replaces it between two tokens.

A `MatcherBatch` (`gcd._serving.batch`) serves many matchers, of different automata, in one compiled
call.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np
from jaxtyping import Int32, Int64, Integer

from gcd._arguments import check_budget_of, check_whole, rows, whole_number, whole_numbers
from gcd._automata.automaton import Automaton
from gcd._errors import ConstraintError
from gcd._serving.kernels.sequences import TokenSequence
from gcd._serving.kernels.steps import fill_row
from gcd._serving.lazy import LazyAutomaton, lazy
from gcd._serving.served import ServedAutomaton, tokens_left
from gcd._tokens.lifting import lift
from gcd._tokens.segments import Segments
from gcd._tokens.token_automaton import TokenAutomaton
from gcd._tokens.vocabulary import Vocabulary

Constraint = TokenAutomaton | ServedAutomaton | LazyAutomaton | Automaton | Segments
"""Constraints that a matcher accepts."""

_SERVED: WeakKeyDictionary[TokenAutomaton, ServedAutomaton] = WeakKeyDictionary()
_SEGMENTS: WeakKeyDictionary[Segments, dict[Vocabulary, TokenAutomaton]] = WeakKeyDictionary()


def serve(
    automaton: Constraint, vocabulary: Vocabulary | None = None, exact: str = "when_ready"
) -> ServedAutomaton | LazyAutomaton:
    """Return the form in which a constraint is served; it is created once per constraint.

    Args:
        automaton: the constraint, lifted or not.
        vocabulary: the tokens, for a constraint that is not lifted.
        exact: when such a constraint is replaced by its lifted form, as in `Matcher`.

    Raises:
        ConstraintError: the vocabulary is missing for a constraint that is not lifted, or is given
            for a lifted constraint.
    """
    if isinstance(automaton, Automaton | Segments):
        if vocabulary is None:
            raise ConstraintError(
                f"expected a vocabulary for {type(automaton).__name__}, got none; "
                "pass vocabulary=, or lift it with gcd.lift(language, vocabulary)"
            )
        if isinstance(automaton, Automaton):
            return lazy(automaton, vocabulary, exact)
        known = _SEGMENTS.setdefault(automaton, {})
        if vocabulary not in known:
            known[vocabulary] = lift(automaton, vocabulary)
        return serve(known[vocabulary])
    if vocabulary is not None:
        raise ConstraintError(
            f"expected no vocabulary for {type(automaton).__name__}, which already has one; omit it"
        )
    if isinstance(automaton, ServedAutomaton | LazyAutomaton):
        return automaton
    if not isinstance(automaton, TokenAutomaton):
        raise ConstraintError(
            f"expected a constraint over tokens, got {type(automaton).__name__}; lift a language "
            "with gcd.lift(language, vocabulary)"
        )
    if automaton not in _SERVED:
        _SERVED[automaton] = ServedAutomaton(automaton)
    return _SERVED[automaton]


class Membership:
    """Marker that shows which batch a matcher belongs to; a batch's matchers share one.

    Attributes:
        is_current: False once one of the matchers has joined another batch.
    """

    __slots__ = ("is_current",)

    def __init__(self) -> None:
        self.is_current = True


class Matcher:
    """Matcher of one sequence: its state in a constraint's automaton, and its remaining budget.

    Args:
        automaton: the constraint, as `gcd.lift` returns it. Matchers of one automaton share its
            masks. It may also be a language that is not lifted; its masks are available at once
            (`gcd._serving.lazy`).
        vocabulary: the tokens, for a language that is not lifted.
        budget: maximum number of tokens of a whole text, EOS included; None for no budget.
        exact: when a language is replaced by its lifted form: `"when_ready"` (between two tokens),
            `"wait"` (before the first token) or `"never"`.

    Raises:
        ConstraintError: if the budget is not a whole number, or the vocabulary is missing for a
            language that is not lifted.
        InfeasibleBudgetError: if no text of the language fits into the budget.
        UndecidedBudgetError: if it is unknown whether a text fits, because the language could not
            be lifted.
        OverlongBudgetError: if a text of this many tokens may be longer than the `max_bytes` that
            the constraint was compiled for.

    After the end (`is_finished`), EOS may be appended any number of times, because engines pad with
    it; it doesn't count toward the budget.

    Attributes:
        budget: the current budget, which `finish_within` may reduce.
    """

    __slots__ = ("_given_budget", "_membership", "_sequence", "_shared", "budget")

    def __init__(
        self,
        automaton: Constraint,
        vocabulary: Vocabulary | None = None,
        *,
        budget: int | None = None,
        exact: str = "when_ready",
    ) -> None:
        if budget is not None:
            check_whole(budget)
        shared = serve(automaton, vocabulary, exact)
        self._shared = shared.form(budget) if isinstance(shared, LazyAutomaton) else shared
        check_budget_of(self._shared, self._shared.steps_to_accept(self._shared.initial), budget)
        self.budget = self._given_budget = budget
        self._membership: Membership | None = None
        self._sequence = TokenSequence(
            self._shared._table, tokens_left(budget), self._shared.initial
        )

    @property
    def automaton(self) -> ServedAutomaton | LazyAutomaton:
        """Current form of the constraint, lifted or not; `state` is a state of this form."""
        shared = self._shared
        if isinstance(shared, LazyAutomaton) and self._sequence.table is not shared._table:
            assert shared.exact is not None, "the sequence has switched to the lifted form"
            self._shared = shared.exact
        return self._shared

    @property
    def is_exact(self) -> bool:
        """True if masks are computed from exact distances to the end, instead of upper bounds."""
        return isinstance(self.automaton, ServedAutomaton)

    def reset(self) -> None:
        """Reset to the beginning of a text, and to the budget passed to the constructor."""
        self._sequence.reset(self.automaton.initial)
        self.budget = self._given_budget
        self._sequence.limit(tokens_left(self.budget))

    def finish_within(self, tokens: int) -> int:
        """Limit the rest of the text to `tokens`, or to a shortest completion if that needs more.

        The limit never increases the budget. `rollback` doesn't undo it; `reset` restores the
        budget.

        Args:
            tokens: maximum number of further tokens, EOS included.

        Returns:
            The new value of `remaining`; 0 after the end.

        Raises:
            ValueError: if `tokens` is not a whole number, or negative.
        """
        tokens = whole_number(tokens, "number of tokens")
        if tokens < 0:
            raise ValueError(f"expected a number of tokens of at least 0, got {tokens}")
        if self.is_finished:
            return 0
        needed = self.automaton.steps_to_accept(self.state)
        left = max(needed, tokens if self.remaining is None else min(tokens, self.remaining))
        self.budget = self.num_tokens + left
        self._sequence.limit(tokens_left(left))
        return left

    def finish(self) -> int:
        """Allow only shortest completions from now on; return how many tokens they take.

        If several completions are shortest, the mask allows all of them.
        """
        return self.finish_within(0)

    @property
    def budget_binds(self) -> bool:
        """True if the budget excludes tokens that the constraint would allow next."""
        if self.budget is None or self.is_finished:
            return False
        automaton = self.automaton
        if isinstance(automaton, ServedAutomaton):
            return bool(automaton._table.arrays.reach[self.state] >= self.remaining)
        within, without = (np.empty(automaton.num_words, np.int32) for _ in range(2))
        self.fill_mask(within)
        fill_row(automaton._table, self.state, tokens_left(None), without)
        return not np.array_equal(within, without)

    @property
    def state(self) -> int:
        """State of `automaton` after the tokens so far."""
        return self._sequence.state

    @property
    def num_tokens(self) -> int:
        """Number of tokens so far, padding included."""
        return self._sequence.count

    @property
    def is_finished(self) -> bool:
        """True if the text has ended."""
        return self._sequence.end >= 0

    @property
    def remaining(self) -> int | None:
        """Tokens left of the budget; None without a budget."""
        if self.budget is None:
            return None
        end = self._sequence.end
        return self.budget - (end if end >= 0 else self.num_tokens)

    def advance(self, token: int) -> bool:
        """Append a token; if the mask doesn't allow it, change nothing and return False.

        Raises:
            ValueError: if the token is not an id of the vocabulary; 1.0 and True are refused.
        """
        if type(token) is not int:  # inlined, because a call for every token would cost a fifth
            token = whole_number(token)
        try:
            return self._sequence.advance(token)
        except OverflowError:
            raise ValueError(
                f"expected a token id in 0..{self._shared.vocabulary.size - 1}, got {token}"
            ) from None

    def rollback(self, num_tokens: int = 1) -> None:
        """Roll back the last tokens.

        Raises:
            ValueError: if there are fewer tokens, or the number is not a whole number.
        """
        num_tokens = whole_number(num_tokens, "number of tokens")
        if not 0 <= num_tokens <= self.num_tokens:
            raise ValueError(
                f"expected at most {self.num_tokens} tokens to roll back, got {num_tokens}"
            )
        self._sequence.rollback(num_tokens)

    def fill_mask(self, out: Int32[Any, "W"]) -> None:
        """Write the packed mask of next tokens to an array.

        Args:
            out: a contiguous int32 array or CPU tensor of W words.

        Raises:
            ValueError: if `out` has another shape, type or device.
        """
        self._sequence.fill_mask(rows(out, (self._shared.num_words,)))

    def mask(self) -> Int32[np.ndarray, "W"]:
        """Return the packed mask of next tokens, as a new array."""
        out = np.empty(self._shared.num_words, np.int32)
        self._sequence.fill_mask(out)
        return out

    def validate(self, tokens: Sequence[int] | Integer[Any, "n"]) -> int:
        """Return how many of these tokens are allowed, starting with the first; don't append them.

        Raises:
            ValueError: if a token is not an id of the vocabulary.
        """
        return self._follow(
            whole_numbers(tokens), np.empty((0, self.automaton.num_words), np.int32)
        )

    def fill_draft_masks(
        self, draft: Sequence[int] | Integer[Any, "n"], out: Int32[Any, "rows W"]
    ) -> int:
        """Write the packed masks along a draft, for speculative decoding, in one call.

        Args:
            draft: tokens proposed by a cheaper model; they are not appended.
            out: a contiguous int32 array or CPU tensor. Row i receives the mask after the first i
                tokens of the draft. Rows after a refused token become 0.

        Returns:
            The number of tokens at the beginning of the draft that are allowed.

        Raises:
            ValueError: if a token is not an id of the vocabulary, or `out` has another shape, type
                or device.
        """
        tokens = whole_numbers(draft)
        return self._follow(tokens, rows(out, (tokens.size + 1, self.automaton.num_words)))

    def _follow(self, tokens: Int64[np.ndarray, "..."], out: Int32[np.ndarray, "rows W"]) -> int:
        if tokens.ndim != 1:
            raise ValueError(f"expected a one-dimensional draft, got shape {tokens.shape}")
        return self._sequence.follow(tokens, out)

    @property
    def num_allowed(self) -> int:
        """Number of allowed token ids, without computing the mask."""
        return self._sequence.num_allowed()

    @property
    def restricts(self) -> bool:
        """True if the mask excludes any id; if it doesn't, you can skip the mask.

        Ids without bytes are always excluded, so this is always True for a vocabulary with padding
        or special tokens.
        """
        return self.num_allowed < self.automaton.vocabulary.size

    def forced(self, limit: int = 256) -> list[int]:
        """Return up to `limit` next tokens that are forced, because no other token is allowed.

        The list ends before a position where several tokens are allowed, or with EOS.

        Raises:
            ValueError: if the limit is negative.
        """
        if whole_number(limit, "limit") < 0:
            raise ValueError(f"expected a limit of at least 0 tokens, got {limit}")
        # A forced token is on the shortest completion, so each forced token reduces the distance to
        # the end by one.
        return self._sequence.forced(min(limit, self.automaton.num_states))

    def copy(self) -> Matcher:
        """Return an independent copy in the same state, which doesn't belong to a batch."""
        other = object.__new__(Matcher)
        other._shared, other.budget = self._shared, self.budget
        other._given_budget = self._given_budget
        other._membership, other._sequence = None, self._sequence.copy()
        return other

    def __copy__(self) -> Matcher:
        return self.copy()

    def __deepcopy__(self, memo: dict[int, object]) -> Matcher:
        return self.copy()

    def __repr__(self) -> str:
        return f"Matcher(state {self.state}, {self.num_tokens} tokens, remaining {self.remaining})"


def follow(matcher: Matcher, read: list[int], tokens: Sequence[int]) -> bool:
    """Roll back and advance a matcher from the tokens `read` to `tokens`; False at a refused token.

    `read` becomes the tokens that the matcher has read.
    """
    same = 0
    while same < min(len(read), len(tokens)) and read[same] == tokens[same]:
        same += 1
    matcher.rollback(len(read) - same)
    del read[same:]
    size = matcher.automaton.vocabulary.size
    for token in tokens[same:]:
        if not 0 <= token < size or not matcher.advance(token):
            return False
        read.append(token)
    return True

"""Matchers: a constraint as serving engines call it, one token and one packed mask at a time.

An engine keeps a **matcher** for each sequence. In each step it asks for the mask of next tokens
(`fill_mask`), samples, and tells the matcher which token came (`advance`); with speculation it
asks for the masks along a draft (`fill_draft_masks`) or how much of one is allowed (`validate`),
and takes tokens back (`rollback`). The mask, with r tokens left of the budget, is

    mask(s, r) = { v : steps_to_accept[ delta(s, v) ] <= r - 1 }

as packed words (`gcd.tokens.bitmask`). A constraint that is lifted is served as a
`gcd.serving.served.ServedAutomaton`, whose masks take microseconds. One that is not lifted yet is
served at once as a `gcd.serving.lazy.LazyAutomaton`, with upper bounds in place of
`steps_to_accept`, and its lifted form takes over between two tokens.

A `MatcherBatch` (`gcd.serving.batch`) serves many matchers, of different automata, in one call of
compiled code.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np
from jaxtyping import Int32, Int64, Integer

from gcd.automata.automaton import Automaton
from gcd.errors import ConstraintError, InfeasibleBudgetError, OverlongBudgetError
from gcd.serving.arguments import rows, whole_number, whole_numbers
from gcd.serving.kernels.sequences import TokenSequence
from gcd.serving.kernels.steps import fill_row
from gcd.serving.lazy import LazyAutomaton, lazy
from gcd.serving.served import ServedAutomaton, tokens_left
from gcd.tokens.distances import check_whole
from gcd.tokens.lifting import lift
from gcd.tokens.segments import Segments
from gcd.tokens.token_automaton import TokenAutomaton
from gcd.tokens.vocabulary import Vocabulary

Constraint = TokenAutomaton | ServedAutomaton | LazyAutomaton | Automaton | Segments
"""What a matcher is made of."""

_SERVED: WeakKeyDictionary[TokenAutomaton, ServedAutomaton] = WeakKeyDictionary()
_SEGMENTS: WeakKeyDictionary[Segments, dict[Vocabulary, TokenAutomaton]] = WeakKeyDictionary()


def served(
    automaton: Constraint, vocabulary: Vocabulary | None = None, exact: str = "when_ready"
) -> ServedAutomaton | LazyAutomaton:
    """Return the form in which a constraint is served; made once for each constraint.

    Args:
        automaton: the constraint, lifted or not.
        vocabulary: the tokens, for a constraint that is not lifted.
        exact: when the lifted form of such a constraint takes over.

    Raises:
        ConstraintError: a constraint that is not lifted has no vocabulary, or another one has one.
    """
    if isinstance(automaton, Automaton | Segments):
        if vocabulary is None:
            raise ConstraintError(
                f"a matcher reads tokens, got {type(automaton).__name__} without a vocabulary; "
                "give vocabulary=, or lift it with gcd.lift(language, vocabulary)"
            )
        if isinstance(automaton, Automaton):
            return lazy(automaton, vocabulary, exact)
        known = _SEGMENTS.setdefault(automaton, {})
        if vocabulary not in known:
            known[vocabulary] = lift(automaton, vocabulary)
        return served(known[vocabulary])
    if vocabulary is not None:
        raise ConstraintError(
            f"expected no vocabulary beside a {type(automaton).__name__}, which has one; leave it "
            "out"
        )
    if isinstance(automaton, ServedAutomaton | LazyAutomaton):
        return automaton
    if not isinstance(automaton, TokenAutomaton):
        raise ConstraintError(
            f"a matcher reads tokens, got {type(automaton).__name__}; lift a language to them with "
            "gcd.lift(language, vocabulary)"
        )
    if automaton not in _SERVED:
        _SERVED[automaton] = ServedAutomaton(automaton)
    return _SERVED[automaton]


class Membership:
    """The matchers of one batch, as each of them holds it.

    Attributes:
        is_current: False once one of the matchers has joined another batch.
    """

    __slots__ = ("is_current",)

    def __init__(self) -> None:
        self.is_current = True


class Matcher:
    """The state of one sequence under a constraint and a budget.

    Args:
        automaton: the constraint. Matchers of one automaton share its rows. A language that is not
            lifted gives masks at once: see `gcd.serving.lazy`.
        vocabulary: the tokens, for a language that is not lifted.
        budget: tokens of a whole text, EOS included; None for no budget.
        exact: when the lifted form of such a language takes over: `"when_ready"`, `"wait"` (before
            the first token) or `"never"`.

    Raises:
        ConstraintError: if the budget is no whole number, or a constraint that is not lifted has
            no vocabulary.
        InfeasibleBudgetError: if no text of the language fits into the budget.
        UndecidedBudgetError: if that is not known, as the language could not be lifted.
        OverlongBudgetError: if a text of so many tokens may be longer than the `max_bytes` that
            the constraint was compiled for.

    After the end (`is_finished`), EOS may come again and again, as engines pad with it; it costs
    nothing.

    Attributes:
        budget: the budget that is in force, which `finish_within` makes smaller.
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
        shared = served(automaton, vocabulary, exact)
        self._shared = shared.form(budget) if isinstance(shared, LazyAutomaton) else shared
        needed = self._shared.steps_to_accept(self._shared.initial)
        if budget is not None and budget < needed:
            raise InfeasibleBudgetError(needed, budget)
        longest = self._shared.max_budget
        if longest is not None and (budget is None or budget > longest):
            at_most = self._shared.max_bytes or 0
            raise OverlongBudgetError(longest, budget, at_most, caveats=self._shared.caveats)
        self.budget = self._given_budget = budget
        self._membership: Membership | None = None
        self._sequence = TokenSequence(
            self._shared._table, tokens_left(budget), self._shared.initial
        )

    @property
    def automaton(self) -> ServedAutomaton | LazyAutomaton:
        """The form of the constraint that `state` is a state of."""
        shared = self._shared
        if isinstance(shared, LazyAutomaton) and self._sequence.table is not shared._table:
            assert shared.exact is not None, "the sequence goes on with it"
            self._shared = shared.exact
        return self._shared

    @property
    def is_exact(self) -> bool:
        """Whether masks are those of the exact distances, not of upper bounds."""
        return isinstance(self.automaton, ServedAutomaton)

    def reset(self) -> None:
        """Go back to the beginning of a text, and to the budget that the matcher was made with."""
        self._sequence.reset(self.automaton.initial)
        self.budget = self._given_budget
        self._sequence.limit(tokens_left(self.budget))

    def finish_within(self, tokens: int) -> int:
        """Leave so many tokens for the rest of the text, or as few more as its end takes.

        A budget never grows by this, and stays after a `rollback`; `reset` restores it.

        Args:
            tokens: most tokens from here on, EOS included.

        Returns:
            The tokens that are left now: the smaller one of `tokens` and `remaining`, but at least
            those of a shortest way to the end. 0 after the end.

        Raises:
            ValueError: if it is no whole number, or negative.
        """
        tokens = whole_number(tokens, "number of tokens")
        if tokens < 0:
            raise ValueError(f"expected a number of tokens to finish within, got {tokens}")
        if self.is_finished:
            return 0
        needed = self.automaton.steps_to_accept(self.state)
        left = max(needed, tokens if self.remaining is None else min(tokens, self.remaining))
        self.budget = self.num_tokens + left
        self._sequence.limit(tokens_left(left))
        return left

    def finish(self) -> int:
        """Allow nothing but shortest ways to the end; return how many tokens they take.

        A choice among several shortest ways is left to the language model.
        """
        return self.finish_within(0)

    @property
    def budget_binds(self) -> bool:
        """Whether the mask of next tokens is another one than without a budget."""
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
        """The state of the automaton."""
        return self._sequence.state

    @property
    def num_tokens(self) -> int:
        """Tokens so far, padding included."""
        return self._sequence.count

    @property
    def is_finished(self) -> bool:
        """Whether the text has ended."""
        return self._sequence.end >= 0

    @property
    def remaining(self) -> int | None:
        """Tokens left of the budget; None if there is none."""
        if self.budget is None:
            return None
        end = self._sequence.end
        return self.budget - (end if end >= 0 else self.num_tokens)

    def advance(self, token: int) -> bool:
        """Append a token; False, and nothing changes, if the mask does not allow it.

        Raises:
            ValueError: if the token is not an id of the vocabulary; 1.0 and True are none.
        """
        if type(token) is not int:  # every token comes by here: a call would cost a fifth
            token = whole_number(token)
        try:
            return self._sequence.advance(token)
        except OverflowError:
            raise ValueError(
                f"token {token} is not one of the {self._shared.vocabulary.size} ids"
            ) from None

    def rollback(self, num_tokens: int = 1) -> None:
        """Take back the last tokens.

        Raises:
            ValueError: if there are not as many, or it is no whole number.
        """
        num_tokens = whole_number(num_tokens, "number of tokens")
        if not 0 <= num_tokens <= self.num_tokens:
            raise ValueError(f"cannot take back {num_tokens} tokens, there are {self.num_tokens}")
        self._sequence.rollback(num_tokens)

    def fill_mask(self, out: Int32[Any, "W"]) -> None:
        """Write the packed mask of next tokens into a row, in place.

        Args:
            out: contiguous int32, an array or a tensor on the CPU.

        Raises:
            ValueError: if it has another form.
        """
        self._sequence.fill_mask(rows(out, (self._shared.num_words,)))

    def mask(self) -> Int32[np.ndarray, "W"]:
        """Return the packed mask of next tokens, as a new row."""
        out = np.empty(self._shared.num_words, np.int32)
        self._sequence.fill_mask(out)
        return out

    def validate(self, tokens: Sequence[int] | Integer[Any, "n"]) -> int:
        """Return how many of these tokens, from the first on, could be taken; none is.

        Raises:
            ValueError: if one of them is not an id of the vocabulary.
        """
        return self._follow(
            whole_numbers(tokens), np.empty((0, self.automaton.num_words), np.int32)
        )

    def fill_draft_masks(
        self, draft: Sequence[int] | Integer[Any, "n"], out: Int32[Any, "rows W"]
    ) -> int:
        """Write the packed masks along a draft, as speculative decoding needs them, in one call.

        Args:
            draft: tokens that a cheaper model proposes; none is taken.
            out: row i becomes the mask after the first i of them (contiguous int32, an array or a
                tensor on the CPU, in place).
                Rows after a token that is refused are 0, as nothing may follow it.

        Returns:
            How many of the draft's tokens, from the first on, are allowed.

        Raises:
            ValueError: if a token is not an id of the vocabulary, or `out` has another form.
        """
        tokens = whole_numbers(draft)
        return self._follow(tokens, rows(out, (tokens.size + 1, self.automaton.num_words)))

    def _follow(self, tokens: Int64[np.ndarray, "..."], out: Int32[np.ndarray, "rows W"]) -> int:
        if tokens.ndim != 1:
            raise ValueError(f"one row of tokens is needed, got shape {tokens.shape}")
        return self._sequence.follow(tokens, out)

    @property
    def num_allowed(self) -> int:
        """How many token ids may come next: the number of bits in the mask, without a mask."""
        return self._sequence.num_allowed()

    @property
    def restricts(self) -> bool:
        """Whether the mask forbids any id; where it does not, there is no need to apply it.

        Ids without bytes (padding, special tokens) are ids, and always forbidden: over a
        vocabulary that has some, every mask restricts.
        """
        return self.num_allowed < self.automaton.vocabulary.size

    def forced(self, limit: int = 256) -> list[int]:
        """Return the tokens, at most `limit`, that must come next because no others are allowed.

        The run ends before the first token there is a choice for, and after EOS. `ValueError` for
        a limit under zero.
        """
        if whole_number(limit, "limit") < 0:
            raise ValueError(f"limit is a number of tokens, at least 0, got {limit}")
        # A lone way on is the shortest, so each forced token comes one token nearer to the end.
        return self._sequence.forced(min(limit, self.automaton.num_states))

    def copy(self) -> Matcher:
        """Return a matcher in the same state that goes on by itself, in no batch."""
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

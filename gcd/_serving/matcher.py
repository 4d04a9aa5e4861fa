"""Matchers: constraints for serving engines, one token and one packed mask at a time.

An engine keeps a **matcher** for each sequence. In each step it gets the mask of next tokens
(`fill_mask`), samples a token, and appends it (`advance`). With speculative decoding it gets the
masks along a draft (`fill_draft_masks`), or the length of a draft's allowed prefix (`validate`),
and rolls tokens back (`rollback`). The mask, with r tokens left of the budget, is

    mask(s, r) = { v : steps_to_accept[ delta(s, v) ] <= r - 1 }

as packed words (`gcd._tokens.batch.pack`), which take microseconds (`gcd._serving.kernels.masks`).

A `MatcherBatch` serves many matchers, of different automata, in one compiled call.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np
from jaxtyping import Bool, Int32, Int64, Integer

from gcd._arguments import check_whole, rows, whole_number, whole_numbers
from gcd._automata.automaton import Automaton
from gcd._errors import ConstraintError
from gcd._serving.kernels import masks as kernels
from gcd._serving.kernels.masks import NO_BUDGET, Masks, TokenSequence
from gcd._tokens.lifting import lift
from gcd._tokens.segments import Segments
from gcd._tokens.token_automaton import TokenAutomaton, check_budget
from gcd._tokens.vocabulary import Vocabulary

Constraint = TokenAutomaton | Automaton | Segments
"""Constraints that a matcher accepts."""

CACHE_BYTES = 3 << 19
"""Maximum size in bytes of the masks that are cached for one automaton."""
_MASKS: WeakKeyDictionary[TokenAutomaton, Masks] = WeakKeyDictionary()
_LIFTED: WeakKeyDictionary[Automaton | Segments, dict[Vocabulary, TokenAutomaton]] = (
    WeakKeyDictionary()
)


def masks_of(automaton: TokenAutomaton) -> Masks:
    """Return the masks of an automaton, which its matchers share."""
    found = _MASKS.get(automaton)
    if found is None:
        found = _MASKS[automaton] = Masks(automaton, CACHE_BYTES)
    return found


def _lift_once(constraint: Constraint, vocabulary: Vocabulary | None) -> TokenAutomaton:
    """Return the lifted form of a constraint; a language is lifted once for each vocabulary."""
    if isinstance(constraint, Automaton | Segments):
        if vocabulary is None:
            raise ConstraintError(
                f"expected a vocabulary for {type(constraint).__name__}, got none; "
                "pass vocabulary=, or lift it with gcd.lift(language, vocabulary)"
            )
        known = _LIFTED.setdefault(constraint, {})
        found = known.get(vocabulary)
        # Languages are equal whatever their caveats.
        if found is None or found.caveats != constraint.caveats:
            found = known[vocabulary] = lift(constraint, vocabulary)
        return found
    if not isinstance(constraint, TokenAutomaton):
        raise ConstraintError(
            f"expected a constraint over tokens, got {type(constraint).__name__}; lift a language "
            "with gcd.lift(language, vocabulary)"
        )
    if vocabulary is not None:
        raise ConstraintError(
            "expected no vocabulary for TokenAutomaton, which already has one; omit it"
        )
    return constraint


class Membership:
    """Marker that shows which batch a matcher belongs to; a batch's matchers share one."""

    def __init__(self) -> None:
        self.is_current = True  # until one of the matchers joins another batch


class Matcher:
    """Matcher of one sequence: its state in a constraint's automaton, and its remaining budget.

    Args:
        automaton: the constraint, as `gcd.lift` returns it. Matchers of one automaton share its
            masks. It may also be a language, which the first matcher lifts.
        vocabulary: the tokens, for a language that is not lifted.
        budget: maximum number of tokens of a whole text, EOS included; None for no budget.

    Raises:
        ConstraintError: if the budget is not a whole number, or the vocabulary is missing for a
            language that is not lifted.
        InfeasibleBudgetError: if no text of the language fits into the budget.
        OverlongBudgetError: if a text of this many tokens may be longer than the `max_bytes` that
            the constraint was compiled for.

    After the end (`is_finished`), EOS may be appended any number of times, because engines pad with
    it; it doesn't count toward the budget.

    Attributes:
        automaton: the lifted constraint.
        budget: the current budget, which `finish_within` may reduce.
    """

    __slots__ = ("_given_budget", "_membership", "_sequence", "automaton", "budget")

    def __init__(
        self,
        automaton: Constraint,
        vocabulary: Vocabulary | None = None,
        *,
        budget: int | None = None,
    ) -> None:
        if budget is not None:
            check_whole(budget)  # before the language is lifted
        self.automaton = _lift_once(automaton, vocabulary)
        check_budget(self.automaton, budget)
        self.budget = self._given_budget = budget
        self._membership: Membership | None = None
        masks = masks_of(self.automaton)
        self._sequence = TokenSequence(masks, _tokens_left(budget), self.automaton.initial)

    def reset(self) -> None:
        """Reset to the beginning of a text, and to the budget passed to the constructor."""
        self._sequence.reset(self.automaton.initial)
        self.budget = self._given_budget
        self._sequence.limit(_tokens_left(self.budget))

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
        needed = int(self.automaton.steps_to_accept[self.state])
        left = max(needed, tokens if self.remaining is None else min(tokens, self.remaining))
        self.budget = self.num_tokens + left
        self._sequence.limit(_tokens_left(left))
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
        return bool(self.automaton.reach[self.state] >= self.remaining)

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
                f"expected a token id in 0..{self.automaton.vocabulary.size - 1}, got {token}"
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
        self._sequence.fill_mask(rows(out, (self.automaton.num_words,)))

    def mask(self) -> Int32[np.ndarray, "W"]:
        """Return the packed mask of next tokens, as a new array."""
        out = np.empty(self.automaton.num_words, np.int32)
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
        other.automaton, other.budget = self.automaton, self.budget
        other._given_budget = self._given_budget
        other._membership, other._sequence = None, self._sequence.copy()
        return other

    def __copy__(self) -> Matcher:
        return self.copy()

    def __deepcopy__(self, memo: dict[int, object]) -> Matcher:
        return self.copy()

    def __repr__(self) -> str:
        return f"Matcher(state {self.state}, {self.num_tokens} tokens, remaining {self.remaining})"


def _tokens_left(remaining: int | None) -> int:
    """Return the number of tokens left as compiled code expects it; None is for no budget."""
    return NO_BUDGET if remaining is None else min(remaining, NO_BUDGET)


def follow(matcher: Matcher, read: list[int], tokens: Sequence[int]) -> bool:
    """Move a matcher from the tokens `read`, which change, to `tokens`; False if refused."""
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

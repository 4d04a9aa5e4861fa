"""Matchers: a constraint as serving engines call it, one token and one packed mask at a time.

An engine keeps a **matcher** for each sequence. In each step it asks for the mask of next tokens
(`fill_mask`), samples, and tells the matcher which token came (`advance`); with speculation it
asks for the masks along a draft (`fill_draft_masks`) or how much of one is allowed (`validate`),
and takes tokens back (`rollback`). The mask, with r tokens left of the budget, is

    mask(s, r) = { v : steps_to_accept[ delta(s, v) ] <= r - 1 }

as packed words (`gcd.tokens.bitmask`), 19 kB for 152 000 tokens. It never looks at the tokens one
by one:

* A `ServedAutomaton` holds a token automaton the way steps need it, some megabytes where the
  dense table has hundreds. Rows of transitions that differ in their targets only, as those of the
  positions in a bounded string do, share one **pattern**.
* A row is put together from the tokens of its classes: classes of many tokens are kept as whole
  rows, the others as (word, bits) pairs. Rows of few tokens are written directly, always.
* Wide rows are kept, at most `cache_bytes` of them, and thrown out when they have not been used
  for longest (approximately: second chance). What identifies one is its set of classes, which is
  the state's pattern and which successors r still reaches; once r exceeds the longest distance,
  the pattern alone. A new wide row starts from a recent one that is similar, or from the row of
  most tokens, which is made beforehand.

The first visit to a state therefore costs some microseconds, later ones a copy. A `MatcherBatch`
(`gcd.serving.batch`) serves many matchers, of different automata, in one call of compiled code.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np
from jaxtyping import Int32, Int64, Integer

from gcd.automata.horizon import Caveat
from gcd.errors import ConstraintError, InfeasibleBudgetError, OverlongBudgetError
from gcd.serving.arguments import rows, whole_number, whole_numbers
from gcd.serving.kernels import served as kernels
from gcd.serving.kernels.masks import NARROW_PART, fill_row
from gcd.serving.kernels.sequences import NO_BUDGET, TokenSequence
from gcd.serving.kernels.table import TableArrays
from gcd.serving.table import make_table
from gcd.tokens.distances import check_whole
from gcd.tokens.token_automaton import TokenAutomaton
from gcd.tokens.vocabulary import Vocabulary, num_words

CACHE_BYTES = 3 << 19
_MAX_ROWS = 1024  # in the cache, where rows are short; they are searched one by one


class ServedAutomaton:
    """A token automaton in the form that matchers share: transitions and rows of masks.

    It keeps nothing of the `TokenAutomaton` but its vocabulary and its map to classes.

    Args:
        cache_bytes: most bytes of cached rows.

    Attributes:
        vocabulary: the tokens.
        initial: the state where a text starts.
        final: the state after the end of a text.
        num_words: int32 words in a row of the mask.
        max_bytes, max_budget, caveats: as of the `TokenAutomaton`.
    """

    vocabulary: Vocabulary
    initial: int
    final: int
    num_words: int
    max_bytes: int | None
    max_budget: int | None
    caveats: tuple[Caveat, ...]

    def __init__(self, automaton: TokenAutomaton, *, cache_bytes: int = CACHE_BYTES) -> None:
        if whole_number(cache_bytes, "number of bytes") < 0:
            raise ConstraintError(f"cache_bytes must be at least 0, got {cache_bytes}")
        self.vocabulary = automaton.vocabulary
        self.initial, self.final = automaton.initial, automaton.final
        self.num_words = num_words(automaton.vocabulary.size)
        self.max_bytes, self.max_budget = automaton.max_bytes, automaton.max_budget
        self.caveats = automaton.caveats
        num_classes = automaton.num_classes
        num_keys = (num_classes + 63) // 64
        pattern_of, target_start, targets, pattern_start, pattern_class, pattern_target, reach = (
            kernels.patterns(automaton.delta, automaton.steps_to_accept)
        )
        alive = np.zeros(num_classes, np.bool_)
        alive[pattern_class] = True
        start, word, bits, size, token = kernels.pairs_of_classes(automaton.class_of, num_classes)
        pair_start, pair_word, pair_bits, dense_of, dense = kernels.spread(
            start, word, bits, alive, self.num_words
        )
        # A whole row counts less than its words, as it runs in vectors.
        cost = np.where(dense_of >= 0, self.num_words // NARROW_PART, np.diff(pair_start))
        num_patterns = pattern_start.size - 1
        num_slots = min(_MAX_ROWS, cache_bytes // (4 * self.num_words + 8 * num_keys + 24))
        self._table = make_table(
            TableArrays(
                class_of=automaton.class_of,
                steps=automaton.steps_to_accept,
                reach=reach,
                pattern_of=pattern_of,
                target_start=target_start,
                targets=targets,
                pattern_start=pattern_start,
                pattern_class=pattern_class,
                pattern_target=pattern_target,
                class_size=size,
                class_token=token,
                pair_start=pair_start,
                pair_word=pair_word,
                pair_bits=pair_bits,
                dense_of=dense_of,
                dense=dense,
                cost=cost.astype(np.int32),
                row=np.empty((num_slots, self.num_words), np.int32),
                chosen=np.empty(num_classes, np.int32),
                known_slot=np.full(num_patterns, -1, np.int32),
                key=np.empty((num_slots, num_keys), np.uint64),
                bits=np.empty(num_keys, np.uint64),
                tag=np.empty(num_slots, np.uint64),
                serial=np.full(num_slots, -1, np.int64),
                used=np.zeros(num_slots, np.int64),
                known_serial=np.full(num_patterns, -1, np.int64),
                clock=np.zeros(2, np.int64),
            ),
            self.num_words,
        )
        # The row of most tokens comes first, for others to start from.
        num_tokens = np.add.reduceat(size[pattern_class], pattern_start[:-1])
        self.row(int(np.flatnonzero(pattern_of == num_tokens.argmax())[0]))

    @property
    def num_states(self) -> int:
        return int(self._table.arrays.steps.size)

    @property
    def num_patterns(self) -> int:
        """Rows of transitions that differ in more than their targets."""
        return int(self._table.arrays.known_slot.size)

    @property
    def nbytes(self) -> int:
        """Bytes of all arrays, the whole cache and the map from tokens to classes included."""
        return sum(array.nbytes for array in self._table.arrays)

    @property
    def num_cached(self) -> int:
        """Rows in the cache."""
        return int((self._table.arrays.serial >= 0).sum())

    def steps_to_accept(self, state: int) -> int:
        """Fewest tokens, EOS included, from a state to the end."""
        return int(self._table.arrays.steps[state])

    def forget(self) -> None:
        """Empty the cache, so that the next visit to each state is a first one again.

        The row of most tokens stays, as it was there before the first visit.
        """
        self._table.arrays.serial[1:] = -1
        self._table.arrays.known_slot[:] = -1

    def row(self, state: int, remaining: int | None = None) -> Int32[np.ndarray, "W"]:
        """Return the packed mask of a state with `remaining` tokens left (None: no budget).

        Raises:
            ValueError: if there is no such state. -1, where no token is allowed, is one.
        """
        state = whole_number(state, "state")
        if remaining is not None:
            remaining = whole_number(remaining, "number of tokens")
        if not -1 <= state < self.num_states:
            raise ValueError(f"state {state} is not one of the {self.num_states} states, nor -1")
        out = np.empty(self.num_words, np.int32)
        fill_row(self._table, state, _tokens_left(remaining), out)
        return out

    def __repr__(self) -> str:
        return (
            f"ServedAutomaton({self.num_states} states, {self.num_patterns} patterns, "
            f"{self.nbytes} bytes)"
        )


_SERVED: WeakKeyDictionary[TokenAutomaton, ServedAutomaton] = WeakKeyDictionary()


def served(automaton: TokenAutomaton | ServedAutomaton) -> ServedAutomaton:
    """Return the form in which an automaton is served; made once for each `TokenAutomaton`."""
    if isinstance(automaton, ServedAutomaton):
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
        automaton: the constraint. Matchers of one automaton share its rows.
        budget: tokens of a whole text, EOS included; None for no budget.

    Raises:
        ConstraintError: if the budget is no whole number, or the constraint is not lifted.
        InfeasibleBudgetError: if no text of the language fits into the budget.
        OverlongBudgetError: if a text of so many tokens may be longer than the `max_bytes` that
            the constraint was compiled for.

    After the end (`is_finished`), EOS may come again and again, as engines pad with it; it costs
    nothing.

    Attributes:
        budget: the budget that is in force, which `finish_within` makes smaller.
    """

    __slots__ = ("_given_budget", "_membership", "_sequence", "automaton", "budget")

    def __init__(
        self, automaton: TokenAutomaton | ServedAutomaton, *, budget: int | None = None
    ) -> None:
        self.automaton = served(automaton)
        needed = self.automaton.steps_to_accept(self.automaton.initial)
        if budget is not None:
            check_whole(budget)
        if budget is not None and budget < needed:
            raise InfeasibleBudgetError(needed, budget)
        longest = self.automaton.max_budget
        if longest is not None and (budget is None or budget > longest):
            at_most = self.automaton.max_bytes or 0
            raise OverlongBudgetError(longest, budget, at_most, caveats=self.automaton.caveats)
        self.budget = self._given_budget = budget
        self._membership: Membership | None = None
        self._sequence = TokenSequence(
            self.automaton._table, _tokens_left(budget), self.automaton.initial
        )

    def reset(self) -> None:
        """Go back to the beginning of a text, and to the budget that the matcher was made with."""
        self._sequence.reset(self.automaton.initial)
        self.budget = self._given_budget
        self._sequence.limit(_tokens_left(self.budget))

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
        self._sequence.limit(_tokens_left(left))
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
        return bool(self.automaton._table.arrays.reach[self.state] >= self.remaining)

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
                f"token {token} is not one of the {self.automaton.vocabulary.size} ids"
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
        self._sequence.fill_mask(rows(out, (self.automaton.num_words,)))

    def mask(self) -> Int32[np.ndarray, "W"]:
        """Return the packed mask of next tokens, as a new row."""
        out = np.empty(self.automaton.num_words, np.int32)
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
    return NO_BUDGET if remaining is None else min(remaining, NO_BUDGET)

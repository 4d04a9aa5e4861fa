"""Matchers: a constraint as serving engines call it, one token and one packed mask at a time.

An engine keeps a **matcher** for each sequence. In each step it asks for the mask of next tokens
(`fill_mask`), samples, and tells the matcher which token came (`advance`); with speculation it
takes tokens back (`rollback`). The mask, with r tokens left of the budget, is

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
serves many matchers, of different automata, in one call of compiled code.
"""

from __future__ import annotations

from collections.abc import Sequence
from weakref import WeakKeyDictionary

import numpy as np
from jaxtyping import Bool, Int32, Int64

from gcd.errors import ConstraintError, InfeasibleBudgetError, OverlongBudgetError
from gcd.serving.kernels import masks as kernels
from gcd.serving.kernels import served as served_kernels
from gcd.serving.kernels.table import Table
from gcd.serving.places import Places
from gcd.serving.table import ServedTable
from gcd.tokens.distances import UNREACHABLE, check_whole
from gcd.tokens.token_automaton import TokenAutomaton
from gcd.tokens.vocabulary import Vocabulary, num_words

CACHE_BYTES = 3 << 19
_MAX_ROWS = 1024  # in the cache, where rows are short; they are searched one by one


class ServedAutomaton:
    """A token automaton in the form that matchers share: transitions and rows of masks.

    It keeps nothing of the `TokenAutomaton` but its vocabulary and its map to classes.

    Args:
        automaton: the token automaton.
        cache_bytes: most bytes of cached rows.

    Attributes:
        vocabulary: the tokens.
        initial: the state where a text starts.
        final: the state after the end of a text.
        num_words: int32 words in a row of the mask.
        max_bytes, max_budget: as of the `TokenAutomaton`.
    """

    vocabulary: Vocabulary
    initial: int
    final: int
    num_words: int
    max_bytes: int | None
    max_budget: int | None

    def __init__(self, automaton: TokenAutomaton, *, cache_bytes: int = CACHE_BYTES) -> None:
        if cache_bytes < 0:
            raise ConstraintError(f"cache_bytes must be at least 0, got {cache_bytes}")
        self.vocabulary = automaton.vocabulary
        self.initial, self.final = automaton.initial, automaton.final
        self.num_words = num_words(automaton.vocabulary.size)
        self.max_bytes, self.max_budget = automaton.max_bytes, automaton.max_budget
        num_classes = automaton.num_classes
        num_keys = (num_classes + 63) // 64
        pattern_of, target_start, targets, pattern_start, pattern_class, pattern_target, reach = (
            served_kernels.patterns(automaton.delta, automaton.steps_to_accept)
        )
        alive = np.zeros(num_classes, np.bool_)
        alive[pattern_class] = True
        start, word, bits, self._size, self._token = served_kernels.pairs_of_classes(
            automaton.class_of, num_classes
        )
        pair_start, pair_word, pair_bits, dense_of, dense = served_kernels.spread(
            start, word, bits, alive, self.num_words
        )
        num_patterns = pattern_start.size - 1
        num_slots = min(_MAX_ROWS, cache_bytes // (4 * self.num_words + 8 * num_keys + 24))
        self._table = ServedTable(
            Table(
                class_of=automaton.class_of,
                steps=automaton.steps_to_accept,
                reach=reach,
                pattern_of=pattern_of,
                target_start=target_start,
                targets=targets,
                pattern_start=pattern_start,
                pattern_class=pattern_class,
                pattern_target=pattern_target,
                pair_start=pair_start,
                pair_word=pair_word,
                pair_bits=pair_bits,
                dense_of=dense_of,
                dense=dense,
                cost=served_kernels.costs(pair_start, dense_of, self.num_words),
                row=np.empty((num_slots, self.num_words), np.int32),
                chosen=np.empty(num_classes, np.int32),
                known_slot=np.full(num_patterns, -1, np.int32),
                key=np.empty((num_slots, num_keys), np.int64),
                bits=np.empty(num_keys, np.int64),
                tag=np.empty(num_slots, np.int64),
                serial=np.full(num_slots, -1, np.int64),
                used=np.zeros(num_slots, np.int64),
                known_serial=np.full(num_patterns, -1, np.int64),
                clock=np.zeros(2, np.int64),
            ),
            self.num_words,
        )
        self.address: int = self._table.address
        # The row of most tokens comes first, for others to start from.
        num_tokens = np.add.reduceat(self._size[pattern_class], pattern_start[:-1])
        self.row(int(np.flatnonzero(pattern_of == num_tokens.argmax())[0]))

    @property
    def num_states(self) -> int:
        return self._table.arrays.steps.size

    @property
    def num_patterns(self) -> int:
        """Rows of transitions that differ in more than their targets."""
        return self._table.arrays.known_slot.size

    @property
    def nbytes(self) -> int:
        """Bytes of all arrays, the whole cache and the map from tokens to classes included."""
        return self._table.nbytes + self._size.nbytes + self._token.nbytes

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
        if not -1 <= state < self.num_states:
            raise ValueError(f"state {state} is not one of the {self.num_states} states, nor -1")
        out = np.empty(self.num_words, np.int32)
        kernels.fill_row(self.address, state, _tokens_left(remaining), out)
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
    if automaton not in _SERVED:
        _SERVED[automaton] = ServedAutomaton(automaton)
    return _SERVED[automaton]


class Matcher:
    """The state of one sequence under a constraint and a budget.

    Args:
        automaton: the constraint. Matchers of one automaton share its rows.
        budget: tokens of a whole text, EOS included; None for no budget.

    Raises:
        ConstraintError: if the budget is no whole number.
        InfeasibleBudgetError: if no text of the language fits into the budget.
        OverlongBudgetError: if a text of so many tokens may be longer than the `max_bytes` that
            the constraint was compiled for.

    After the end (`is_finished`), EOS may come again and again, as engines pad with it; it costs
    nothing.
    """

    __slots__ = ("_places", "_row", "automaton", "budget")

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
            raise OverlongBudgetError(longest, budget, self.automaton.max_bytes or 0)
        self.budget = budget
        self._places, self._row = Places(1), 0
        self.reset()

    @property
    def _cell(self) -> Int64[np.ndarray, "fields"]:
        return self._places.cells[self._row]

    def reset(self) -> None:
        """Go back to the beginning of a text."""
        cell = self._cell
        cell[kernels.ADDRESS] = self.automaton.address
        cell[kernels.NO_BUDGET] = UNREACHABLE
        cell[kernels.COUNT], cell[kernels.END] = 0, -1
        self._move(self.automaton.initial)

    def _move(self, state: int) -> None:
        """Go to a state; the number of tokens is right already."""
        cell = self._cell
        cell[kernels.STATE] = state
        if state == self.automaton.final and cell[kernels.END] < 0:
            cell[kernels.END] = cell[kernels.COUNT]
        cell[kernels.LEFT] = UNREACHABLE if self.is_finished else _tokens_left(self.remaining)

    @property
    def state(self) -> int:
        """The state of the automaton."""
        return int(self._cell[kernels.STATE])

    @property
    def num_tokens(self) -> int:
        """Tokens so far, padding included."""
        return int(self._cell[kernels.COUNT])

    @property
    def is_finished(self) -> bool:
        """Whether the text has ended."""
        return self.state == self.automaton.final

    @property
    def remaining(self) -> int | None:
        """Tokens left of the budget; None if there is none."""
        if self.budget is None:
            return None
        end = int(self._cell[kernels.END])
        return self.budget - (end if end >= 0 else self.num_tokens)

    def advance(self, token: int) -> bool:
        """Append a token; False, and nothing changes, if the mask does not allow it.

        Raises:
            ValueError: if the token is not an id of the vocabulary.
        """
        places = self._places
        outcome = kernels.advance(places.cells, places.history, self._row, token)
        if outcome == kernels.NO_ROOM:
            places.grow()
            outcome = kernels.advance(places.cells, places.history, self._row, token)
        if outcome == kernels.NO_TOKEN:
            raise ValueError(
                f"token {token} is not one of the {self.automaton.vocabulary.size} ids"
            )
        return bool(outcome == kernels.TAKEN)

    def rollback(self, num_tokens: int = 1) -> None:
        """Take back the last tokens.

        Raises:
            ValueError: if there are not as many.
        """
        cell = self._cell
        count = self.num_tokens
        if not 0 <= num_tokens <= count:
            raise ValueError(f"cannot take back {num_tokens} tokens, there are {count}")
        if num_tokens == 0:
            return
        count -= num_tokens
        cell[kernels.COUNT] = count
        if count < cell[kernels.END]:
            cell[kernels.END] = -1
        self._move(int(self._places.history[self._row, count]))

    def fill_mask(self, out: Int32[np.ndarray, "W"]) -> None:
        """Write the packed mask of next tokens into a row (contiguous int32, in place)."""
        _check_rows(out, (self.automaton.num_words,))
        kernels.fill_mask(self._places.cells, self._row, out)

    def mask(self) -> Int32[np.ndarray, "W"]:
        """Return the packed mask of next tokens, as a new row."""
        out = np.empty(self.automaton.num_words, np.int32)
        kernels.fill_mask(self._places.cells, self._row, out)
        return out

    def forced(self, limit: int = 256) -> list[int]:
        """Return the tokens, at most `limit`, that must come next because no others are allowed.

        The run ends before the first token there is a choice for, and after EOS. `ValueError` for
        a limit under zero.
        """
        if limit < 0:
            raise ValueError(f"limit is a number of tokens, at least 0, got {limit}")
        # A lone way on is the shortest, so each forced token comes one token nearer to the end.
        tokens = np.empty(min(limit, self.automaton.num_states), np.int64)
        automaton = self.automaton
        count = kernels.forced(
            automaton.address,
            self.state,
            int(self._cell[kernels.LEFT]),
            automaton._size,
            automaton._token,
            tokens,
        )
        found: list[int] = tokens[:count].tolist()
        return found

    def __copy__(self) -> Matcher:
        """Return a matcher in the same state that goes on by itself, in no batch."""
        other = object.__new__(Matcher)
        other.automaton, other.budget = self.automaton, self.budget
        other._places, other._row = self._places.alone(self._row), 0
        return other

    def __deepcopy__(self, memo: dict[int, object]) -> Matcher:
        return self.__copy__()

    def __repr__(self) -> str:
        return f"Matcher(state {self.state}, {self.num_tokens} tokens, remaining {self.remaining})"


class MatcherBatch:
    """Matchers, of different automata if need be, that are served in one call.

    They stay usable one by one. A matcher is in one batch at a time: a batch that one of its
    matchers has left for another is refused. `batch[i] = matcher` puts another into a place.

    Args:
        matchers: the matchers, all over vocabularies of one size, none of them twice.

    Raises:
        ConstraintError: if the sizes differ, or there are no matchers, or one occurs twice.
    """

    def __init__(self, matchers: Sequence[Matcher]) -> None:
        if not matchers:
            raise ConstraintError("a batch needs at least one matcher, got none")
        if len({id(matcher) for matcher in matchers}) < len(matchers):
            raise ConstraintError("a matcher occurs twice in a batch; make one for each sequence")
        self.matchers: list[Matcher] = list(matchers)
        self.vocabulary_size = matchers[0].automaton.vocabulary.size
        longest = max(matcher.num_tokens for matcher in matchers)
        self._places = Places(len(matchers), max(64, 2 * longest))
        self._most = longest  # no row has more tokens than this
        self._shape = (len(matchers), matchers[0].automaton.num_words)
        for row, matcher in enumerate(matchers):
            self._check_size(matcher)
            self._take(row, matcher)

    def _check_size(self, matcher: Matcher) -> None:
        size = matcher.automaton.vocabulary.size
        if size != self.vocabulary_size:
            raise ConstraintError(
                f"matchers of one batch need vocabularies of one size, got {size} beside "
                f"{self.vocabulary_size}"
            )

    def _take(self, row: int, matcher: Matcher) -> None:
        count = matcher.num_tokens
        while count >= self._places.history.shape[1]:
            self._places.grow()
        self._places.cells[row] = matcher._cell
        self._places.history[row, :count] = matcher._places.history[matcher._row, :count]
        self._most = max(self._most, count)
        matcher._places.is_current = False
        matcher._places, matcher._row = self._places, row

    def __setitem__(self, row: int, matcher: Matcher) -> None:
        """Put another matcher into a place; the one that was there goes on alone."""
        self._check()
        if matcher in self.matchers:
            raise ConstraintError("the matcher is in this batch already")
        self._check_size(matcher)
        left = self.matchers[row]
        row = left._row
        left._places, left._row = self._places.alone(row), 0
        self._take(row, matcher)
        self.matchers[row] = matcher

    def __getitem__(self, row: int) -> Matcher:
        return self.matchers[row]

    def __len__(self) -> int:
        return len(self.matchers)

    def _check(self) -> None:
        if not self._places.is_current:
            raise ConstraintError("a matcher of this batch has joined another one since")

    def advance(self, tokens: Sequence[int] | Int64[np.ndarray, "N"]) -> Bool[np.ndarray, "N"]:
        """`Matcher.advance` of each with its token; which of them took theirs.

        Raises:
            ValueError: if there are not as many tokens as matchers, or one is no id; nothing
                changes then.
        """
        self._check()
        ids = np.asarray(tokens, np.int64)
        taken = np.empty(len(self.matchers), np.bool_)
        if ids.shape != taken.shape:
            raise ValueError(f"{taken.size} matchers need as many tokens, got shape {ids.shape}")
        places = self._places
        if self._most == places.history.shape[1]:
            # The count is an upper bound: rows that were reset or refused a token have fewer.
            self._most = int(places.cells[:, kernels.COUNT].max())
            if self._most == places.history.shape[1]:
                places.grow()
        wrong = kernels.advance_rows(places.cells, places.history, ids, taken)
        if wrong >= 0:
            raise ValueError(
                f"token {ids[wrong]} of matcher {wrong} is not one of the "
                f"{self.vocabulary_size} ids"
            )
        self._most += 1
        return taken

    def fill_masks(self, out: Int32[np.ndarray, "N W"]) -> None:
        """`Matcher.fill_mask` of each into its row (contiguous int32, in place)."""
        self._check()
        _check_rows(out, self._shape)
        kernels.fill_masks(self._places.cells, out)


def _tokens_left(remaining: int | None) -> int:
    return UNREACHABLE if remaining is None else min(remaining, UNREACHABLE)


def _check_rows(out: np.ndarray, shape: tuple[int, ...]) -> None:
    if out.shape != shape or out.dtype != np.int32 or not out.flags.c_contiguous:
        raise ValueError(
            f"masks are written into contiguous int32 of shape {shape}, got {out.dtype} of shape "
            f"{out.shape}{'' if out.flags.c_contiguous else ', not contiguous'}"
        )

"""Lifted constraints in the compact form that matchers share, with packed masks.

The mask of state s with r tokens left of the budget is

    mask(s, r) = { v : steps_to_accept[ delta(s, v) ] <= r - 1 }

as packed words (`gcd._tokens.bitmask`), 19 kB for 152,000 tokens. It is not computed token by
token:

* A `ServedAutomaton` stores a token automaton in a few megabytes, whereas its dense table may take
  hundreds. Rows of transitions that only differ in their targets, such as the rows of the positions
  in a bounded string, share one **pattern**.
* A mask is assembled from its token classes. A class of many tokens is stored as a whole mask, any
  other class as pairs (word, bits). Masks of few tokens are always written directly.
* Masks of many tokens are cached, in at most `cache_bytes`. If the cache is full, a mask that
  wasn't used recently is evicted (second-chance algorithm). The key of a mask is its set of
  classes. A new mask is computed from a similar recent one, or from the mask with the most tokens,
  which is computed in advance.

So the first mask of a state takes some microseconds, and later masks of it are copied.
"""

from __future__ import annotations

import numpy as np
from jaxtyping import Int32

from gcd._arguments import whole_number
from gcd._automata.horizon import Caveat
from gcd._errors import ConstraintError
from gcd._serving.kernels import served as kernels
from gcd._serving.kernels.masks import NARROW_PART
from gcd._serving.kernels.sequences import NO_BUDGET
from gcd._serving.kernels.steps import Steps, fill_row
from gcd._serving.kernels.table import TableArrays
from gcd._serving.table import make_table
from gcd._tokens.token_automaton import TokenAutomaton
from gcd._tokens.vocabulary import Vocabulary, num_words

CACHE_BYTES = 3 << 19
_MAX_ROWS = 1024  # in the cache, if masks are short; they are searched linearly


class ServedAutomaton:
    """Transitions and cached masks of a token automaton, shared by its matchers.

    It doesn't reference the `TokenAutomaton`, only its vocabulary and its map from tokens to
    classes.

    Args:
        automaton: the token automaton.
        cache_bytes: maximum size of the cached masks in bytes.

    Attributes:
        vocabulary: the tokens.
        initial: state in which a text starts.
        final: the state after the end of a text.
        num_words: int32 words in a mask.
        max_bytes, max_budget, caveats: the attributes of the `TokenAutomaton`.
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
            raise ConstraintError(f"expected cache_bytes of at least 0, got {cache_bytes}")
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
        # A whole mask costs less than its number of words, because copying it is vectorized.
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
        # The mask with the most tokens is computed first, as a starting point for others.
        num_tokens = np.add.reduceat(size[pattern_class], pattern_start[:-1])
        self.row(int(np.flatnonzero(pattern_of == num_tokens.argmax())[0]))

    @property
    def num_states(self) -> int:
        return int(self._table.arrays.steps.size)

    @property
    def num_patterns(self) -> int:
        """Number of patterns; a pattern groups the token classes of a state by their next states.

        States that group their classes alike share one pattern, whatever their next states are.
        """
        return int(self._table.arrays.known_slot.size)

    @property
    def nbytes(self) -> int:
        """Size in bytes of all arrays, including the cache and the map from tokens to classes."""
        return sum(array.nbytes for array in self._table.arrays)

    @property
    def num_cached(self) -> int:
        """Number of masks in the cache."""
        return int((self._table.arrays.serial >= 0).sum())

    def steps_to_accept(self, state: int) -> int:
        """Return the fewest tokens, EOS included, from a state to the end."""
        return int(self._table.arrays.steps[state])

    def forget(self) -> None:
        """Empty the cache, so that the next visit to each state computes its mask again.

        The mask with the most tokens stays cached.
        """
        self._table.arrays.serial[1:] = -1
        self._table.arrays.known_slot[:] = -1

    def row(self, state: int, remaining: int | None = None) -> Int32[np.ndarray, "W"]:
        """Return the packed mask of a state with `remaining` tokens left (None: no budget).

        Raises:
            ValueError: if the state is out of range. State -1, which allows no token, is valid.
        """
        return make_row(self._table, state, remaining)

    def __repr__(self) -> str:
        return (
            f"ServedAutomaton({self.num_states} states, {self.num_patterns} patterns, "
            f"{self.nbytes} bytes)"
        )


def tokens_left(remaining: int | None) -> int:
    """Return the number of tokens left as compiled code expects it; None is for no budget."""
    return NO_BUDGET if remaining is None else min(remaining, NO_BUDGET)


def make_row(steps: Steps, state: int, remaining: int | None) -> Int32[np.ndarray, "W"]:
    """Return the packed mask of a state with `remaining` tokens left (None: no budget).

    Raises:
        ValueError: if the state is out of range. State -1, which allows no token, is valid.
    """
    state = whole_number(state, "state")
    if remaining is not None:
        remaining = whole_number(remaining, "number of tokens")
    if not -1 <= state <= steps.final:
        raise ValueError(f"expected a state in -1..{steps.final}, got {state}")
    out = np.empty(steps.num_words, np.int32)
    fill_row(steps, state, tokens_left(remaining), out)
    return out

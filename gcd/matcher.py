"""Matchers: a constraint as serving engines call it, one token and one packed mask at a time.

An engine keeps a **matcher** for each sequence. In each step it asks for the mask of next tokens
(`fill_mask`), samples, and tells the matcher which token came (`advance`); with speculation it
takes tokens back (`rollback`). The mask, with r tokens left of the budget, is

    mask(s, r) = { v : steps_to_accept[ delta(s, v) ] <= r - 1 }

as packed words (`gcd.bitmask`), 19 kB for 152 000 tokens. It never looks at the tokens one by one:

* A `ServedAutomaton` holds a token automaton the way steps need it, some megabytes where the
  dense table has hundreds. Rows of transitions that differ in their targets only, as those of the
  positions in a bounded string do, share one **pattern**.
* A row is put together from the tokens of its classes: classes of many tokens are kept as whole
  rows, the others as (word, bits) pairs. Rows of few tokens are written directly, always.
* Wide rows are kept, at most `cache_bytes` of them, and thrown out when they have not been used
  for longest (approximately: second chance). What identifies one is its set of classes, which is
  the state's pattern and which successors r still reaches; once r exceeds the longest distance,
  the pattern alone. A new wide row starts from the most similar recent one.

The first visit to a state therefore costs some microseconds, later ones a copy. `fill_masks` and
`advance_all` serve many matchers, of different automata, in one call of compiled code.
"""

from __future__ import annotations

from collections.abc import Sequence
from weakref import WeakKeyDictionary

import numpy as np
from jaxtyping import Bool, Int32, Int64

from gcd.bitmask import num_words
from gcd.errors import ConstraintError, InfeasibleBudgetError
from gcd.kernels import masks as kernels
from gcd.token_automaton import UNREACHABLE, TokenAutomaton
from gcd.vocabulary import Vocabulary

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
    """

    vocabulary: Vocabulary
    initial: int
    final: int
    num_words: int

    def __init__(self, automaton: TokenAutomaton, *, cache_bytes: int = CACHE_BYTES) -> None:
        if cache_bytes < 0:
            raise ConstraintError(f"cache_bytes must be at least 0, got {cache_bytes}")
        self.vocabulary = automaton.vocabulary
        self.initial, self.final = automaton.initial, automaton.final
        self.num_words = num_words(automaton.vocabulary.size)
        num_classes = automaton.num_classes
        num_keys = (num_classes + 63) // 64
        pattern_of, target_start, targets, pattern_start, pattern_class, pattern_target, reach = (
            kernels.patterns(automaton.delta, automaton.steps_to_accept)
        )
        alive = np.zeros(num_classes, np.bool_)
        alive[pattern_class] = True
        pairs = kernels.pairs_of_classes(automaton.class_of, num_classes)
        pair_start, pair_word, pair_bits, dense_of, dense = kernels.spread(
            *pairs, alive, self.num_words
        )
        num_patterns = pattern_start.size - 1
        num_slots = min(_MAX_ROWS, cache_bytes // (4 * self.num_words + 8 * num_keys + 24))
        self._size = automaton.tokens_per_class
        self._token = np.zeros(num_classes, np.int64)
        self._token[automaton.class_of] = np.arange(automaton.vocabulary.size)
        self._arrays: dict[int, np.ndarray] = {
            kernels.CLASS_OF: automaton.class_of,
            kernels.STEPS: automaton.steps_to_accept,
            kernels.REACH: reach,
            kernels.PATTERN_OF: pattern_of,
            kernels.TARGET_START: target_start,
            kernels.TARGETS: targets,
            kernels.PATTERN_START: pattern_start,
            kernels.PATTERN_CLASS: pattern_class,
            kernels.PATTERN_TARGET: pattern_target,
            kernels.PAIR_START: pair_start,
            kernels.PAIR_WORD: pair_word,
            kernels.PAIR_BITS: pair_bits,
            kernels.DENSE_OF: dense_of,
            kernels.DENSE: dense,
            kernels.ROW: np.empty((num_slots, self.num_words), np.int32),
            kernels.KEY: np.empty((num_slots, num_keys), np.int64),
            kernels.TAG: np.empty(num_slots, np.int64),
            kernels.SERIAL: np.full(num_slots, -1, np.int64),
            kernels.USED: np.zeros(num_slots, np.int64),
            kernels.KNOWN_SLOT: np.full(num_patterns, -1, np.int32),
            kernels.KNOWN_SERIAL: np.full(num_patterns, -1, np.int64),
            kernels.CLOCK: np.zeros(2, np.int64),
            kernels.CHOSEN: np.empty(num_classes, np.int32),
            kernels.BITS: np.empty(num_keys, np.int64),
        }
        header = np.zeros(kernels.HEADER_SIZE, np.int64)
        header[kernels.NUM_CLASSES] = num_classes
        header[kernels.NUM_WORDS] = self.num_words
        header[kernels.NUM_SLOTS] = num_slots
        header[kernels.NUM_STATES] = automaton.num_states
        header[kernels.NUM_PATTERNS] = num_patterns
        header[kernels.NUM_TOKENS] = automaton.vocabulary.size
        for field, array in self._arrays.items():
            assert array.flags.c_contiguous, "compiled code reads plain memory"
            header[field] = array.ctypes.data
        self._header = header
        self.address: int = header.ctypes.data

    @property
    def num_states(self) -> int:
        return self._arrays[kernels.STEPS].size

    @property
    def num_patterns(self) -> int:
        """Rows of transitions that differ in more than their targets."""
        return self._arrays[kernels.KNOWN_SLOT].size

    @property
    def nbytes(self) -> int:
        """Bytes of all arrays, the whole cache and the map from tokens to classes included."""
        own = [self._header, self._size, self._token]
        return sum(array.nbytes for array in [*own, *self._arrays.values()])

    @property
    def num_cached(self) -> int:
        """Rows in the cache."""
        return int((self._arrays[kernels.SERIAL] >= 0).sum())

    def steps_to_accept(self, state: int) -> int:
        """Fewest tokens, EOS included, from a state to the end."""
        return int(self._arrays[kernels.STEPS][state])

    def forget(self) -> None:
        """Empty the cache: the next visit to each state is a first one again."""
        for field, value in [
            (kernels.SERIAL, -1),
            (kernels.USED, 0),
            (kernels.KNOWN_SLOT, -1),
            (kernels.CLOCK, 0),
        ]:
            self._arrays[field].fill(value)

    def row(self, state: int, remaining: int | None = None) -> Int32[np.ndarray, "W"]:
        """The packed mask of a state with `remaining` tokens left (None: no budget)."""
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
    """The form in which an automaton is served; made once for each `TokenAutomaton`."""
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
        InfeasibleBudgetError: if no text of the language fits into the budget.

    After the end (`is_finished`), EOS may come again and again, as engines pad with it; it costs
    nothing.
    """

    __slots__ = ("_address", "_end", "_history", "_left", "_state", "automaton", "budget")

    def __init__(
        self, automaton: TokenAutomaton | ServedAutomaton, *, budget: int | None = None
    ) -> None:
        self.automaton = served(automaton)
        needed = self.automaton.steps_to_accept(self.automaton.initial)
        if budget is not None and budget < needed:
            raise InfeasibleBudgetError(needed, budget)
        self.budget = budget
        self._address = self.automaton.address
        self.reset()

    def reset(self) -> None:
        """Back to the beginning of a text."""
        self._history: list[int] = []  # states before each token
        self._end = -1  # tokens up to the end, EOS included, once there
        self._move(self.automaton.initial)

    def _move(self, state: int) -> None:
        self._state = state
        if state == self.automaton.final:
            if self._end < 0:
                self._end = len(self._history)
            self._left = UNREACHABLE  # what follows the end is padding
        else:
            self._left = _tokens_left(self.remaining)

    @property
    def state(self) -> int:
        """The state of the automaton."""
        return self._state

    @property
    def num_tokens(self) -> int:
        """Tokens so far, padding included."""
        return len(self._history)

    @property
    def is_finished(self) -> bool:
        """Whether the text has ended."""
        return self._state == self.automaton.final

    @property
    def remaining(self) -> int | None:
        """Tokens left of the budget; None if there is none."""
        if self.budget is None:
            return None
        return self.budget - (self._end if self._end >= 0 else len(self._history))

    def advance(self, token: int) -> bool:
        """Append a token; False, and nothing changes, if the mask does not allow it.

        Raises:
            ValueError: if the token is not an id of the vocabulary.
        """
        if not 0 <= token < self.automaton.vocabulary.size:
            raise ValueError(
                f"token {token} is not one of the {self.automaton.vocabulary.size} ids"
            )
        after = kernels.next_state(self._address, self._state, self._left, token)
        if after < 0:
            return False
        self._follow(after)
        return True

    def _follow(self, after: int) -> None:
        self._history.append(self._state)
        self._state = after
        if self._end >= 0:
            return
        if after == self.automaton.final:
            self._end = len(self._history)
            self._left = UNREACHABLE
        elif self.budget is not None:
            self._left -= 1

    def rollback(self, num_tokens: int = 1) -> None:
        """Take back the last tokens.

        Raises:
            ValueError: if there are not as many.
        """
        if not 0 <= num_tokens <= len(self._history):
            raise ValueError(
                f"cannot take back {num_tokens} tokens, there are {len(self._history)}"
            )
        if num_tokens == 0:
            return
        state = self._history[-num_tokens]
        del self._history[-num_tokens:]
        if len(self._history) < self._end:
            self._end = -1
        self._move(state)

    def fill_mask(self, out: Int32[np.ndarray, "W"]) -> None:
        """Write the packed mask of next tokens into a row (contiguous int32, in place)."""
        _check_rows(out, (self.automaton.num_words,))
        kernels.fill_row(self._address, self._state, self._left, out)

    def mask(self) -> Int32[np.ndarray, "W"]:
        """The packed mask of next tokens, as a new row."""
        out = np.empty(self.automaton.num_words, np.int32)
        kernels.fill_row(self._address, self._state, self._left, out)
        return out

    def forced(self, limit: int = 256) -> list[int]:
        """The tokens, at most `limit`, that must come next because no others are allowed.

        The run ends before the first token there is a choice for, and after EOS.
        """
        tokens = np.empty(limit, np.int64)
        automaton = self.automaton
        count = kernels.forced(
            self._address,
            self._state,
            self._left,
            automaton.final,
            automaton._size,
            automaton._token,
            tokens,
        )
        found: list[int] = tokens[:count].tolist()
        return found

    def __repr__(self) -> str:
        return f"Matcher(state {self._state}, {self.num_tokens} tokens, remaining {self.remaining})"


def fill_masks(matchers: Sequence[Matcher], out: Int32[np.ndarray, "N W"]) -> None:
    """`fill_mask` of each matcher into its row of `out`, in one call.

    Automata may differ; a row must be as wide as all their masks.

    Raises:
        ValueError: if `out` has other dimensions or is not contiguous int32.
    """
    width = max((m.automaton.num_words for m in matchers), default=out.shape[-1])
    _check_rows(out, (len(matchers), width))
    kernels.fill_rows(*_places(matchers), out)


def advance_all(
    matchers: Sequence[Matcher], tokens: Sequence[int] | Int64[np.ndarray, "N"]
) -> Bool[np.ndarray, "N"]:
    """`advance` of each matcher with its token, in one call; which of them took theirs.

    Raises:
        ValueError: if there are not as many tokens as matchers, or one is no id.
    """
    ids = np.asarray(tokens, np.int64)
    if ids.shape != (len(matchers),):
        raise ValueError(f"{len(matchers)} matchers need as many tokens, got shape {ids.shape}")
    if ids.size == 0:
        return np.zeros(0, np.bool_)
    size = min(m.automaton.vocabulary.size for m in matchers)
    if ids.min() < 0 or ids.max() >= size:
        raise ValueError(f"tokens must be ids in 0..{size - 1}, got {ids.tolist()}")
    after = kernels.next_states(*_places(matchers), ids)
    for matcher, state in zip(matchers, after.tolist(), strict=True):
        if state >= 0:
            matcher._follow(state)
    return after >= 0


def _places(
    matchers: Sequence[Matcher],
) -> tuple[Int64[np.ndarray, "N"], Int64[np.ndarray, "N 2"]]:
    """Addresses of the tables, and (state, tokens left) in them."""
    rows = np.array([(m._address, m._state, m._left) for m in matchers], np.int64).reshape(-1, 3)
    return np.ascontiguousarray(rows[:, 0]), np.ascontiguousarray(rows[:, 1:])


def _tokens_left(remaining: int | None) -> int:
    return UNREACHABLE if remaining is None else min(remaining, UNREACHABLE)


def _check_rows(out: np.ndarray, shape: tuple[int, ...]) -> None:
    if out.shape != shape or out.dtype != np.int32 or not out.flags.c_contiguous:
        raise ValueError(
            f"masks are written into contiguous int32 of shape {shape}, got {out.dtype} of shape "
            f"{out.shape}{'' if out.flags.c_contiguous else ', not contiguous'}"
        )

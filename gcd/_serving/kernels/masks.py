"""Packed masks of a token automaton, and token sequences, for engines that mask on the host.

The mask of state s with r tokens left of the budget is

    mask(s, r) = { v : steps_to_accept[ delta(s, v) ] <= r - 1 }

as packed words (`gcd._tokens.batch.pack`), 19 kB for 152,000 tokens. It is assembled from the
token classes that the state allows. A class of many tokens is stored as a whole mask, any other
class as pairs (index of a word, bits in it). Masks of many tokens from which the budget excludes
nothing are cached by the pattern of the state's row (`gcd._tokens.rows`); a full cache replaces the
oldest one. Another mask is computed from a cached mask if that takes fewer changes: inside a string
of bounded length, the masks before and after a character differ little.

A mask is passed as a pointer to its first word or, if the code isn't compiled, as an array. Indices
in the arrays of a `TokenAutomaton` are valid. Token ids and states from outside are checked before
they are used. Compiled steps hold the interpreter's lock, so there is one writer at a time.
"""

from __future__ import annotations

from typing import NoReturn

import cython
import numpy as np

from gcd._tokens.distances import UNREACHABLE
from gcd._tokens.token_automaton import TokenAutomaton

if cython.compiled:
    from cython.cimports.libc.string import memcpy, memset

NO_BUDGET = UNREACHABLE
_UNLIMITED = cython.declare(cython.longlong, NO_BUDGET)
# A class is stored as a whole mask if its pairs would take more than this fraction of a mask's
# words (a half), because pairs then take as much memory.
_DENSE_PART = cython.declare(cython.int, 2)
# A mask is cached if writing it takes more than this fraction of its words (a quarter), because
# copying is vectorized.
_NARROW_PART = cython.declare(cython.int, 4)
_NEIGHBORS = cython.declare(cython.int, 4)  # latest cached masks that a new one is compared with

_ONE = cython.declare(cython.uint, 1)


def pairs_of_classes(
    classes: cython.const[cython.int][::1], num_classes: cython.Py_ssize_t
) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Return each class's tokens as pairs (word of a mask, bits in it), in O(V).

    The result has the start of each class in the next two arrays, the indices of words, the bits in
    them, and for each class the number of its tokens and one of them.
    """
    start: cython.int[::1] = np.zeros(num_classes + 1, np.int32)
    size: cython.longlong[::1] = np.zeros(num_classes, np.int64)
    a_token: cython.longlong[::1] = np.zeros(num_classes, np.int64)
    last: cython.int[::1] = np.full(num_classes, -1, np.int32)  # the latest word of each class
    pair: cython.int[::1] = np.empty(num_classes, np.int32)  # the latest pair of each class
    num_tokens: cython.Py_ssize_t = classes.shape[0]
    token: cython.Py_ssize_t = 0
    cython.declare(word=cython.int, c=cython.int, i=cython.Py_ssize_t)
    # Most successive tokens are in one class, so a run of them in a word is processed at once.
    while token < num_tokens:
        c = classes[token]
        word = token >> 5
        end = token + 1
        while end & 31 and end < num_tokens and classes[end] == c:
            end += 1
        start[c + 1] += last[c] != word
        last[c] = word
        size[c] += end - token
        a_token[c] = token
        token = end
    for c in range(num_classes):
        start[c + 1] += start[c]
        last[c] = -1
        pair[c] = start[c] - 1
    words: cython.int[::1] = np.empty(start[num_classes], np.int32)
    bits_array = np.zeros(start[num_classes], np.uint32)
    bits: cython.uint[::1] = bits_array
    token = 0
    while token < num_tokens:
        c = classes[token]
        word = token >> 5
        i = pair[c] + (last[c] != word)
        last[c] = word
        pair[c] = i
        words[i] = word
        while True:
            bits[i] |= _ONE << (token & 31)
            token += 1
            if not token & 31 or token >= num_tokens or classes[token] != c:
                break
    return (
        np.asarray(start),
        np.asarray(words),
        bits_array.view(np.int32),
        np.asarray(size),
        np.asarray(a_token),
    )


def spread(
    start: np.ndarray, words: np.ndarray, bits: np.ndarray, alive: np.ndarray, num_words: int
) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Convert token classes with tokens in many words of a mask to whole masks.

    Other classes remain pairs (index of a word, bits in it), as given. Classes that no state allows
    (`alive` is false) are stored in neither form.
    """
    count = np.diff(start)
    is_dense = alive & (_DENSE_PART * count >= num_words)
    dense_of = np.where(is_dense, np.cumsum(is_dense) - 1, -1).astype(np.int32)
    dense = np.zeros((int(is_dense.sum()), num_words), np.int32)
    for c in np.flatnonzero(is_dense).tolist():
        here = slice(int(start[c]), int(start[c + 1]))
        dense[dense_of[c], words[here]] = bits[here]
    is_kept = alive & ~is_dense
    kept = np.repeat(is_kept, count)
    kept_start = np.append(0, np.cumsum(np.where(is_kept, count, 0))).astype(np.int32)
    return kept_start, words[kept], bits[kept], dense_of, dense


def refuse_to_pickle() -> NoReturn:
    """Raise the error of objects that cannot be pickled or copied."""
    raise TypeError(
        "expected an object that can be pickled, got the masks of a constraint or one of its "
        "matchers; pickle the TokenAutomaton instead, and make a new matcher from it"
    )


@cython.final
@cython.cclass
class Masks:
    """Transitions and masks of a token automaton, shared by its matchers."""

    final = cython.declare(cython.int, visibility="readonly")
    vocabulary_size = cython.declare(cython.Py_ssize_t, visibility="readonly")
    num_words = cython.declare(cython.Py_ssize_t, visibility="readonly")
    arrays = cython.declare(tuple, visibility="readonly")
    class_of: cython.const[cython.int][::1]
    steps: cython.const[cython.int][::1]
    reach: cython.const[cython.int][::1]
    pattern_of: cython.const[cython.int][::1]
    target_start: cython.const[cython.int][::1]
    targets: cython.const[cython.int][::1]
    pattern_start: cython.const[cython.int][::1]
    pattern_class: cython.const[cython.int][::1]
    pattern_target: cython.const[cython.int][::1]
    class_size: cython.const[cython.longlong][::1]
    class_token: cython.const[cython.longlong][::1]
    pair_start: cython.const[cython.int][::1]
    pair_word: cython.const[cython.int][::1]
    pair_bits: cython.const[cython.int][::1]
    dense_of: cython.const[cython.int][::1]
    dense: cython.const[cython.int][:, ::1]
    cached: cython.int[:, ::1]
    owner: cython.int[::1]
    slot_of: cython.int[::1]
    next_slot: cython.Py_ssize_t

    def __init__(self, automaton: TokenAutomaton, cache_bytes: int) -> None:
        class_of, rows = automaton.class_of, automaton.rows
        num_classes = automaton.num_classes
        self.final = automaton.final
        self.vocabulary_size = class_of.size
        self.num_words = automaton.num_words
        alive = np.zeros(num_classes, np.bool_)
        alive[rows.pattern_class] = True
        start, word, bits, size, token = pairs_of_classes(class_of, num_classes)
        pairs = spread(start, word, bits, alive, self.num_words)
        num_slots = cache_bytes // (4 * self.num_words + 4)
        slots = (
            np.empty((num_slots, self.num_words), np.int32),
            np.full(num_slots, -1, np.int32),
            np.full(rows.pattern_start.size - 1, -1, np.int32),
        )
        distances = automaton.steps_to_accept, automaton.reach
        self.arrays = (class_of, *distances, *rows, size, token, *pairs, *slots)
        self.class_of = class_of
        self.steps, self.reach = distances
        self.pattern_of, self.target_start, self.targets = rows[:3]
        self.pattern_start, self.pattern_class, self.pattern_target = rows[3:]
        self.class_size, self.class_token = size, token
        self.pair_start, self.pair_word, self.pair_bits, self.dense_of, self.dense = pairs
        self.cached, self.owner, self.slot_of = slots
        self.next_slot = 0

    def __reduce__(self) -> NoReturn:
        refuse_to_pickle()

    @property
    def nbytes(self) -> int:
        """Size in bytes of all arrays, including the cache and those of the automaton."""
        return sum(array.nbytes for array in self.arrays)

    def forget(self) -> None:
        """Empty the cache, so that the next visit to each state computes its mask again."""
        self.owner[:] = -1
        self.slot_of[:] = -1

    def row(self, state: cython.int, remaining: cython.longlong = NO_BUDGET) -> np.ndarray:
        """Return the packed mask of a valid state, or -1, with `remaining` tokens left."""
        out = np.empty(self.num_words, np.int32)
        words: cython.int[::1] = out
        if cython.compiled:
            self.write_row(state, remaining, cython.address(words[0]))
        else:
            self.write_row(state, remaining, words)
        return out

    @cython.cfunc
    @cython.exceptval(check=False)
    def next_state(
        self, state: cython.int, remaining: cython.longlong, token: cython.longlong
    ) -> cython.int:
        """Return the state after a token; -1 if the language or the budget refuses the token."""
        cython.declare(pattern=cython.Py_ssize_t, low=cython.Py_ssize_t, high=cython.Py_ssize_t)
        cython.declare(end=cython.Py_ssize_t, middle=cython.Py_ssize_t)
        if state < 0:
            return -1
        token_class = self.class_of[token]
        pattern = self.pattern_of[state]
        low = self.pattern_start[pattern]
        high = end = self.pattern_start[pattern + 1]
        while low < high:
            middle = (low + high) // 2
            if self.pattern_class[middle] < token_class:
                low = middle + 1
            else:
                high = middle
        if low == end or self.pattern_class[low] != token_class:
            return -1
        after = self.target(state, low)
        # The rule of `gcd._tokens.distances.fits`.
        return after if self.steps[after] < remaining else -1

    @cython.cfunc
    @cython.inline
    @cython.exceptval(check=False)
    def target(self, state: cython.int, place: cython.Py_ssize_t) -> cython.int:
        """Return the next state of a state under the class at `place` in its pattern."""
        after: cython.int = self.targets[self.target_start[state] + self.pattern_target[place]]
        return after

    @cython.cfunc
    @cython.exceptval(check=False)
    def num_allowed(self, state: cython.int, remaining: cython.longlong) -> cython.longlong:
        """Count the tokens of a state's mask."""
        pattern: cython.Py_ssize_t = self.pattern_of[state]
        count: cython.longlong = 0
        i: cython.Py_ssize_t
        for i in range(self.pattern_start[pattern], self.pattern_start[pattern + 1]):
            if self.steps[self.target(state, i)] < remaining:
                count += self.class_size[self.pattern_class[i]]
        return count

    @cython.cfunc
    @cython.exceptval(check=False)
    def only_token(self, state: cython.int, remaining: cython.longlong) -> cython.longlong:
        """Return the only token of a state's mask; -1 if it has none or several."""
        pattern: cython.Py_ssize_t = self.pattern_of[state]
        allowed: cython.longlong = 0
        token: cython.longlong = -1
        i: cython.Py_ssize_t
        for i in range(self.pattern_start[pattern], self.pattern_start[pattern + 1]):
            if self.steps[self.target(state, i)] < remaining:
                allowed += self.class_size[self.pattern_class[i]]
                token = self.class_token[self.pattern_class[i]]
                if allowed > 1:
                    return -1
        return token

    @cython.cfunc
    @cython.exceptval(check=False)
    def write_row(
        self, state: cython.int, remaining: cython.longlong, out: cython.p_int
    ) -> cython.void:
        """Write the packed mask of a state with `remaining` tokens left; state -1 allows none."""
        cython.declare(pattern=cython.Py_ssize_t, turn=cython.int, free=cython.bint)
        base: cython.Py_ssize_t = -1
        if state < 0:
            self.clear(out)
            return
        pattern = self.pattern_of[state]
        free = self.reach[state] < remaining
        slot = self.slot_of[pattern]
        if free and slot >= 0:
            self.copy(out, self.address(slot))
            return
        cost = self.change(state, remaining, -1, self.vocabulary_size, False, out)
        if _NARROW_PART * cost < self.num_words or self.owner.shape[0] == 0:
            self.clear(out)
            self.change(state, remaining, -1, self.vocabulary_size, True, out)
            return
        # Start from a similar mask: that of the same pattern, or one of the latest.
        for turn in range(_NEIGHBORS + 1):
            if turn:
                slot = self.next_slot - turn
                if slot < 0:
                    slot += self.owner.shape[0]
            if slot < 0 or self.owner[slot] < 0:
                continue
            copying = self.num_words // _NARROW_PART
            price = self.change(state, remaining, self.owner[slot], cost - copying, False, out)
            if price + copying < cost:
                cost = price + copying
                base = slot
        if base < 0:
            self.clear(out)
            self.change(state, remaining, -1, self.vocabulary_size, True, out)
        else:
            self.copy(out, self.address(base))
            self.change(state, remaining, self.owner[base], self.vocabulary_size, True, out)
        if not free:
            return
        slot = self.next_slot
        self.next_slot = (slot + 1) % self.owner.shape[0]
        if self.owner[slot] >= 0:
            self.slot_of[self.owner[slot]] = -1
        self.copy(self.address(slot), out)
        self.owner[slot] = pattern
        self.slot_of[pattern] = slot

    @cython.cfunc
    @cython.exceptval(check=False)
    def change(
        self,
        state: cython.int,
        remaining: cython.longlong,
        base: cython.Py_ssize_t,
        most: cython.Py_ssize_t,
        write: cython.bint,
        row: cython.p_int,
    ) -> cython.Py_ssize_t:
        """Turn the mask of all classes of a pattern (`base`; -1 for none) into a state's mask.

        Return the cost in words, or a part of it that is at least `most`. Only change the mask if
        `write` is true.
        """
        pattern: cython.Py_ssize_t = self.pattern_of[state]
        i: cython.Py_ssize_t = self.pattern_start[pattern]
        end: cython.Py_ssize_t = self.pattern_start[pattern + 1]
        j: cython.Py_ssize_t = self.pattern_start[base] if base >= 0 else 0
        last: cython.Py_ssize_t = self.pattern_start[base + 1] if base >= 0 else 0
        cost: cython.Py_ssize_t = 0
        cython.declare(wanted=cython.bint, had=cython.bint)
        while cost < most and (i < end or j < last):
            wanted = i < end and (j == last or self.pattern_class[i] <= self.pattern_class[j])
            had = j < last and (i == end or self.pattern_class[j] <= self.pattern_class[i])
            c = self.pattern_class[i] if wanted else self.pattern_class[j]
            if wanted:
                wanted = self.steps[self.target(state, i)] < remaining
                i += 1
            if had:
                j += 1
            if wanted == had:
                continue
            if self.dense_of[c] >= 0:
                cost += self.num_words // _NARROW_PART
            else:
                cost += self.pair_start[c + 1] - self.pair_start[c]
            if write:
                self.toggle(c, row)
        return cost

    @cython.cfunc
    @cython.inline
    @cython.exceptval(check=False)
    def toggle(self, token_class: cython.int, row: cython.p_int) -> cython.void:
        """Allow the tokens of a class in a mask that excludes them, or the other way round."""
        dense: cython.Py_ssize_t = self.dense_of[token_class]
        if dense >= 0:
            for i in range(self.num_words):
                row[i] = row[i] ^ self.dense[dense, i]
            return
        for i in range(self.pair_start[token_class], self.pair_start[token_class + 1]):
            row[self.pair_word[i]] = row[self.pair_word[i]] ^ self.pair_bits[i]

    @cython.cfunc
    @cython.inline
    @cython.exceptval(check=False)
    def address(self, slot: cython.Py_ssize_t) -> cython.p_int:
        """Return the cached mask with this index."""
        if cython.compiled:
            return cython.address(self.cached[slot, 0])
        return self.cached[slot]

    @cython.cfunc
    @cython.inline
    @cython.exceptval(check=False)
    def copy(self, out: cython.p_int, source: cython.p_int) -> cython.void:
        """Copy a mask."""
        if cython.compiled:
            memcpy(out, source, self.num_words * cython.sizeof(cython.int))
        else:
            out[:] = source

    @cython.cfunc
    @cython.inline
    @cython.exceptval(check=False)
    def clear(self, out: cython.p_int) -> cython.void:
        """Write a mask that doesn't allow any token."""
        if cython.compiled:
            memset(out, 0, self.num_words * cython.sizeof(cython.int))
        else:
            out[:] = 0


@cython.final
@cython.cclass
class TokenSequence:
    """One sequence of tokens under a constraint and a budget."""

    table = cython.declare(Masks, visibility="readonly")
    budget: cython.longlong  # most tokens of a whole text, or `NO_BUDGET`
    history: cython.int[::1]  # state before each token
    state = cython.declare(cython.int, visibility="readonly")
    count = cython.declare(cython.Py_ssize_t, visibility="readonly")  # of tokens, with padding
    end = cython.declare(cython.Py_ssize_t, visibility="readonly")  # of the text, in tokens, or -1

    def __init__(self, table: Masks, budget: cython.longlong, initial: cython.int) -> None:
        self.table = table
        self.budget = budget
        self.history = np.empty(64, np.int32)
        self.reset(initial)

    def __reduce__(self) -> NoReturn:
        refuse_to_pickle()

    def reset(self, initial: cython.int) -> None:
        """Reset to the beginning of a text."""
        self.state = initial
        self.count = 0
        self.end = 0 if initial == self.table.final else -1

    def limit(self, left: cython.longlong) -> None:
        """Limit further tokens to a number, which the caller checks (`NO_BUDGET`: no limit)."""
        self.budget = left if left == _UNLIMITED else self.count + left

    def copy(self) -> TokenSequence:
        """Return an independent copy in the same state."""
        other: TokenSequence = TokenSequence.__new__(TokenSequence)
        other.table = self.table
        other.budget = self.budget
        other.state = self.state
        other.count = self.count
        other.end = self.end
        other.history = self.history.copy()
        return other

    @cython.cfunc
    @cython.exceptval(check=False)
    def left(self) -> cython.longlong:
        """Return the tokens left; `NO_BUDGET` without a budget and after the end of the text."""
        if self.budget == _UNLIMITED or self.end >= 0:
            return _UNLIMITED
        return self.budget - self.count

    @cython.cfunc
    def take(self, token: cython.longlong) -> cython.bint:
        """Append a valid token id; return False, without a change, if the mask refuses it."""
        longer: cython.int[::1]
        after: cython.int = self.table.next_state(self.state, self.left(), token)
        if after < 0:
            return False
        if self.count == self.history.shape[0]:
            longer = np.empty(2 * self.count, np.int32)
            longer[: self.count] = self.history
            self.history = longer
        self.history[self.count] = self.state
        self.count += 1
        self.state = after
        if self.end < 0 and after == self.table.final:
            self.end = self.count
        return True

    def advance(self, token: cython.longlong) -> bool:
        """Append a token; return False, without a change, if the mask refuses it."""
        if not 0 <= token < self.table.vocabulary_size:
            most = self.table.vocabulary_size - 1
            raise ValueError(f"expected a token id in 0..{most}, got {token}")
        return self.take(token)

    def rollback(self, num_tokens: cython.Py_ssize_t) -> None:
        """Roll back the last `num_tokens` tokens; the caller checks that there are as many."""
        if num_tokens == 0:
            return
        self.count -= num_tokens
        self.state = cython.cast(cython.int, self.history[self.count])
        if self.count < self.end:
            self.end = -1

    @cython.cfunc
    @cython.exceptval(check=False)
    def write(self, out: cython.p_int) -> cython.void:
        """Write the mask of next tokens to a pointer; for compiled callers."""
        self.table.write_row(self.state, self.left(), out)

    def fill_mask(self, words: cython.int[::1]) -> None:
        """Write the packed mask of next tokens to an array of W words."""
        if cython.compiled:
            self.write(cython.address(words[0]))
        else:
            self.write(words)

    def follow(self, tokens: cython.const[cython.longlong][::1], rows: cython.int[:, ::1]) -> int:
        """Write the masks along a draft, and return how many of its tokens are allowed."""
        table: Masks = self.table
        state: cython.int = self.state
        left: cython.longlong = self.left()
        accepted: cython.Py_ssize_t = 0
        for i in range(tokens.shape[0]):
            if not 0 <= tokens[i] < table.vocabulary_size:
                raise ValueError(
                    f"expected token ids in 0..{table.vocabulary_size - 1}, got {tokens[i]}"
                )
        for i in range(tokens.shape[0] + 1):
            if i < rows.shape[0]:
                if cython.compiled:
                    table.write_row(state, left, cython.address(rows[i, 0]))
                else:
                    table.write_row(state, left, rows[i])
            if i == tokens.shape[0] or state < 0:
                continue
            state = table.next_state(state, left, tokens[i])
            if state < 0:
                continue
            accepted += 1
            if state == table.final:
                left = _UNLIMITED
            elif left != _UNLIMITED:
                left -= 1
        return accepted

    def num_allowed(self) -> int:
        """Count the tokens of the mask."""
        return int(self.table.num_allowed(self.state, self.left()))

    def forced(self, limit: cython.Py_ssize_t) -> list[int]:
        """Return at most `limit` next tokens that are forced: no other token is allowed."""
        table: Masks = self.table
        found: list = []
        state: cython.int = self.state
        left: cython.longlong = self.left()
        while state != table.final and len(found) < limit:
            token = table.only_token(state, left)
            if token < 0:
                break
            found.append(int(token))
            state = table.next_state(state, left, token)
            left -= 1
        return found


def advance_all(
    sequences: list, token: cython.const[cython.longlong][::1], taken: np.ndarray
) -> int:
    """Advance all sequences and return -1; or advance none if a token isn't an id."""
    result: cython.uchar[::1] = taken
    sequence: TokenSequence
    for i in range(len(sequences)):
        sequence = sequences[i]
        if not 0 <= token[i] < sequence.table.vocabulary_size:
            return i
    for i in range(len(sequences)):
        sequence = sequences[i]
        result[i] = sequence.take(token[i])
    return -1


def fill_all(sequences: list, rows: cython.int[:, ::1]) -> None:
    """Write the packed mask of sequence i to `rows[i]`, for all sequences."""
    sequence: TokenSequence
    for i in range(len(sequences)):
        sequence = sequences[i]
        if cython.compiled:
            sequence.write(cython.address(rows[i, 0]))
        else:
            sequence.write(rows[i])

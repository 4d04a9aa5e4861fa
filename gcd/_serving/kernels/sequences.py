"""Token sequences under constraints: their tokens' states, and the masks of next tokens."""

from __future__ import annotations

from typing import NoReturn

import cython
import numpy as np

from gcd._serving.kernels.masks import NO_BUDGET, refuse_to_pickle

if cython.compiled:
    from cython.cimports.gcd._serving.kernels.masks import Masks
else:
    from gcd._serving.kernels.masks import Masks

_NO_BUDGET = cython.declare(cython.longlong, NO_BUDGET)


@cython.final
@cython.cclass
class TokenSequence:
    """One sequence of tokens under a constraint and a budget.

    Args:
        table: the constraint.
        budget: maximum number of tokens of a whole text, or `NO_BUDGET`.
        initial: state in which a text starts.

    Attributes:
        state: state of the constraint after the last token.
        count: number of tokens so far, padding after the end included.
        end: number of tokens up to the end of the text; -1 if the text hasn't ended.
    """

    table = cython.declare(Masks, visibility="readonly")
    budget: cython.longlong
    history: cython.int[::1]  # state before each token
    state = cython.declare(cython.int, visibility="readonly")
    count = cython.declare(cython.Py_ssize_t, visibility="readonly")
    end = cython.declare(cython.Py_ssize_t, visibility="readonly")

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
        self.budget = left if left == _NO_BUDGET else self.count + left

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
        if self.budget == _NO_BUDGET or self.end >= 0:
            return _NO_BUDGET
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
        """Append a token; return False, without a change, if the mask refuses it.

        Raises:
            ValueError: the token isn't an id of the vocabulary.
        """
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

    def fill_mask(self, out: np.ndarray) -> None:
        """Write the packed mask of next tokens to `out`, an array of W words."""
        words: cython.int[::1] = out
        if cython.compiled:
            self.write(cython.address(words[0]))
        else:
            self.write(words)

    def follow(self, draft: np.ndarray, out: np.ndarray) -> int:
        """Write the masks along a draft, and return how many of its tokens are allowed.

        The draft is not appended. `out` has a row for every prefix of the draft, or no rows.
        Calling `advance` and `fill_mask` for each token gives the same results.

        Raises:
            ValueError: a token isn't an id of the vocabulary. Nothing is written in this case.
        """
        tokens: cython.const[cython.longlong][::1] = draft
        rows: cython.int[:, ::1] = out
        table: Masks = self.table
        state: cython.int = self.state
        left: cython.longlong = self.left()
        accepted: cython.Py_ssize_t = 0
        i: cython.Py_ssize_t
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
                left = _NO_BUDGET
            elif left != _NO_BUDGET:
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
        token: cython.longlong
        left: cython.longlong = self.left()
        while state != table.final and len(found) < limit:
            token = table.only_token(state, left)
            if token < 0:
                break
            found.append(int(token))
            state = table.next_state(state, left, token)
            left -= 1
        return found


def advance_all(sequences: list, tokens: np.ndarray, taken: np.ndarray) -> int:
    """Advance all sequences and return -1; or advance none if a token isn't an id.

    In the second case, return the index of the first such token.

    Args:
        sequences: N objects of class `TokenSequence`.
        tokens: the token of each sequence; N, int64.
        taken: receives whether each sequence accepted its token; N, bool.
    """
    token: cython.const[cython.longlong][::1] = tokens
    result: cython.uchar[::1] = taken
    sequence: TokenSequence
    i: cython.Py_ssize_t
    for i in range(len(sequences)):
        sequence = sequences[i]
        if not 0 <= token[i] < sequence.table.vocabulary_size:
            return i
    for i in range(len(sequences)):
        sequence = sequences[i]
        result[i] = sequence.take(token[i])
    return -1


def fill_all(sequences: list, out: np.ndarray) -> None:
    """Write the packed mask of sequence i to `out[i]`, for all sequences."""
    rows: cython.int[:, ::1] = out
    sequence: TokenSequence
    i: cython.Py_ssize_t
    for i in range(len(sequences)):
        sequence = sequences[i]
        if cython.compiled:
            sequence.write(cython.address(rows[i, 0]))
        else:
            sequence.write(rows[i])

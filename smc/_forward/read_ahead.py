"""Reading ahead: the language model computes draft tokens in passes that are needed anyway.

When prefixes need a forward pass, a drafter guesses their continuations (`smc._forward.drafters`),
and the same pass computes the guesses. The log-probabilities after each draft token are stored. The
sampler chooses tokens as without drafts: the draw, the weights and the selection never depend on a
draft. When a prefix has been extended, it is compared with its draft. If the tokens match, the
log-probabilities after them are already known. Tokens that don't match are removed from the model's
cache before its next pass.

So the distribution is p_lm(x | x in C, |x| <= n) for any drafter. In contrast, speculative decoding
in serving engines verifies drafts with local masks, and samples from LCD's distribution (arXiv
2605.07698).

A draft has one guess wherever several tokens are allowed, and the forced tokens after each guess.
It obeys the constraint and the budget, and therefore fits into the model's context. A draft never
ends an answer.
"""

from __future__ import annotations

import logging
import operator
from collections.abc import Sequence
from itertools import islice
from typing import NamedTuple

import torch
from jaxtyping import Bool, Float, Int64
from torch import Tensor

from gcd import Vocabulary
from smc._forward.drafters import Drafter
from smc._proposals import GCD, AutomatonPosition, Batch, start_position

_LOG = logging.getLogger(__name__)

BY_ITSELF = 4
"""Number of draft tokens with "auto" in a pass over one row, on a CPU.

With more rows there are none. On a CPU every token of every row takes time, and a pass is saved
only if all rows match their drafts.
"""
MOST_GUESSES = 64
"""Maximum number of guesses of a drafter per text that are checked."""


def ahead_of(read_ahead: int | str, rows: int) -> int:
    """Return the number of tokens to guess for each row of a forward pass.

    The forced tokens after the last guess are not counted.

    Args:
        read_ahead: the number, or "auto" for the best number on a CPU.
        rows: number of rows in the pass, which are padded to the longest row.
    """
    if isinstance(read_ahead, str):
        return BY_ITSELF if rows == 1 else 0
    return read_ahead


class Drafts(NamedTuple):
    """The computed draft tokens after each of R prefixes.

    Attributes:
        tokens: tokens of each draft; -1 beyond its last token.
        after: for each draft token, the row of `log_p` for the next token after it.
        log_p: log-probabilities of the next token, at the sampling temperature.
    """

    tokens: Int64[Tensor, "R D"]
    after: Int64[Tensor, "R D"]
    log_p: Float[Tensor, "M V"]

    @classmethod
    def none(cls, log_p: Float[Tensor, "R V"]) -> Drafts:
        """Return an empty draft for each row of `log_p`."""
        empty = torch.zeros(len(log_p), 0, dtype=torch.int64, device=log_p.device)
        return cls(empty, empty, log_p[:0])

    @property
    def length(self) -> Int64[Tensor, "R"]:
        """Number of tokens in each draft."""
        return (self.tokens >= 0).sum(dim=1)

    def take(self, rows: Int64[Tensor, "Q"]) -> Drafts:
        """Return the drafts of the prefixes with these indices, which may repeat."""
        return self._replace(tokens=self.tokens[rows], after=self.after[rows])

    def cover(self, tokens: Int64[Tensor, "R K"], count: Int64[Tensor, "R"]) -> Bool[Tensor, "R"]:
        """Return whether each draft begins with the first `count` of its prefix's `tokens`.

        If a count is zero, the result is False.
        """
        D, K = self.tokens.shape[1], tokens.shape[1]
        mine = torch.nn.functional.pad(self.tokens, (0, max(0, K - D)), value=-1)[:, :K]
        asked = torch.arange(K, device=count.device) < count.unsqueeze(1)
        return ((mine == tokens) | ~asked).all(dim=1) & (count > 0)

    def behind(self, count: Int64[Tensor, "R"]) -> Drafts:
        """Return the remaining tokens of each draft after its first `count` tokens."""
        D = self.tokens.shape[1]
        column = torch.arange(D, device=count.device) + count.unsqueeze(1)
        at = column.clamp(max=max(D - 1, 0))
        tokens = torch.where(column < D, self.tokens.gather(1, at), -1)
        longest = int((tokens >= 0).sum(dim=1).max()) if len(tokens) else 0
        return self._replace(
            tokens=tokens[:, :longest], after=self.after.gather(1, at)[:, :longest]
        )

    def join(self, rows: Int64[Tensor, "U"], new: Drafts) -> Drafts:
        """Replace the drafts of the given rows; the other drafts stay the same."""
        tokens, after = self.tokens.index_fill(0, rows, -1), torch.zeros_like(self.after)
        needed = tokens >= 0
        kept = self.log_p[self.after[needed]]
        after[needed] = torch.arange(len(kept), device=after.device)
        width = new.tokens.shape[1]
        wider = 0, max(0, width - tokens.shape[1])
        tokens = torch.nn.functional.pad(tokens, wider, value=-1)
        after = torch.nn.functional.pad(after, wider)
        tokens[rows, :width] = new.tokens
        after[rows, :width] = new.after + len(kept)
        return Drafts(tokens, after, torch.cat([kept, new.log_p]) if len(kept) else new.log_p)


class ReadAhead:
    """Generator of drafts for the examples of a batch.

    Args:
        drafter: object that guesses single tokens.
        most: maximum number of guessed tokens in a draft, or "auto"; see `ahead_of`.
        batch: automata and budgets.
        vocabulary: vocabulary of the language model.
    """

    def __init__(
        self, drafter: Drafter, most: int | str, batch: Batch, vocabulary: Vocabulary
    ) -> None:
        self._drafter = drafter
        self._most = most
        self._start = start_position(batch)
        self._vocabulary = vocabulary
        self._failed = False

    def text(self, tokens: Sequence[int]) -> bytes:
        """Return the bytes of tokens; -1 and special tokens have no bytes."""
        known = self._vocabulary.token_bytes
        return b"".join(known[token] or b"" for token in tokens if token >= 0)

    def draft(
        self,
        texts: Sequence[bytes],
        states: Int64[Tensor, "U"],
        remaining: Int64[Tensor, "U"],
        read: Int64[Tensor, "U"],
        rows: int,
    ) -> Int64[Tensor, "U D"]:
        """Return drafts for prefixes that the model is about to compute.

        Args:
            texts: prompt and answer so far of each prefix.
            states: automaton state of each prefix; -1 for an ended prefix.
            remaining: number of tokens that each prefix may still take.
            read: number of tokens at the end of each text that the pass computes anyway.
            rows: number of rows in the pass, which may include other prefixes.

        Returns:
            The tokens of each draft; -1 beyond its last token. A draft may have more guesses than
            `ahead_of` if its row is shorter than the longest row, because rows are padded. The
            forced tokens after the last guess are added.
        """
        most = ahead_of(self._most, rows)
        empty = torch.zeros(len(texts), 0, dtype=torch.int64, device=states.device)
        if self._failed or not most or not len(texts):
            return empty
        # All rows are padded to the longest row, so shorter rows have more draft tokens at no cost.
        limit = read.max() + most - read
        position = self._start._replace(states=states, remaining=remaining)
        written, columns = list(texts), [empty]
        length, going = torch.zeros_like(read), position.running
        while bool(going.any()):
            forced = GCD().forced(position)
            chooses = going & (forced < 0) & (length < limit)
            token = torch.where(going, forced, -1)
            token[chooses] = self._guesses(position.take(chooses.nonzero().squeeze(1)), [
                text for text, asks in zip(written, chooses.tolist(), strict=True) if asks
            ])  # fmt: skip
            after = position.advance(token.unsqueeze(1))
            going = (token >= 0) & after.running
            token = torch.where(going, token, -1)
            if not bool(going.any()):
                break
            position, length = after, length + going.long()
            columns.append(token.unsqueeze(1))
            written = [
                text + self.text([each]) for text, each in zip(written, token.tolist(), strict=True)
            ]
        return torch.cat(columns, dim=1)

    def _guesses(self, position: AutomatonPosition, texts: Sequence[bytes]) -> Int64[Tensor, "U"]:
        """Return the first guess for each text that the constraint allows; -1 if there is none."""
        none = torch.full_like(position.states, -1)
        if not len(texts) or self._failed:
            return none
        try:
            found = self._drafter.propose(tuple(texts), self._vocabulary)
            rows = [[*map(operator.index, islice(each, MOST_GUESSES))] for each in found]
            width = max(map(len, rows), default=0)
            rows = [[*row, *[-1] * (width - len(row))] for row in rows]
            guesses = torch.tensor(rows, dtype=torch.int64, device="cpu").view(len(texts), width)
        except Exception as error:  # an error of the drafter must not prevent answers
            _LOG.warning(
                "expected guesses from %s, got an error; reading ahead is disabled for these "
                "examples: %s: %s",
                type(self._drafter).__name__, type(error).__name__, error,
            )  # fmt: skip
            self._failed = True
            return none
        guesses = guesses.to(none.device)
        known = (guesses >= 0) & (guesses < self._vocabulary.size)
        if not width or not bool(known.any()):
            return none
        steps = position.steps_after_tokens(torch.where(known, guesses, 0))
        allowed = known & (steps < position.remaining.unsqueeze(1))
        first = allowed.long().argmax(dim=1, keepdim=True)
        return torch.where(allowed.any(dim=1), guesses.gather(1, first).squeeze(1), -1)

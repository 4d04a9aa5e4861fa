"""Prefixes of one prompt are read in any order, each from where it parts from those read last.

A search goes on now here, now there in the tree of prefixes. The language model's rows are those
that were read last; a prefix that is wanted becomes a copy of the row that has the longest
beginning of it, cut back to that, and the rest is read in one pass. Where every prefix goes on from
one that was read just before, that is one token each.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from jaxtyping import Float, Float64
from torch import Tensor

from smc.eager import MOST_READ
from smc.models.protocol import LanguageModel
from smc.prefixes import at_temperature, check_log_p, refusing_nan


class PrefixReader:
    """A language model that reads any prefixes behind one prompt.

    Args:
        lm: the language model.
        prompt: token ids; they are read at once.
        temperature: of the log-probabilities that are returned.

    Attributes:
        device: of the language model.
        tokens: tokens read beyond the prompt.

    Raises:
        FloatingPointError: log-probabilities are not numbers.
    """

    def __init__(self, lm: LanguageModel, prompt: Sequence[int], temperature: float) -> None:
        self.device = lm.device
        self.tokens = 0
        self._temperature = temperature
        self._size = lm.vocabulary.size
        self._rows, first = lm.prefill([prompt])
        check_log_p(first, self._size, 1)
        self._first = self._tempered(first)[0]
        self._held: list[tuple[int, ...]] = [()]

    def read(
        self, ids: Sequence[tuple[int, ...]], known: Sequence[int], finished: Sequence[bool]
    ) -> tuple[Float64[Tensor, "R"], Float[Tensor, "R V"]]:
        """Read these prefixes.

        Args:
            ids: their tokens.
            known: how many of them, from the first on, have a log-probability that is known. All of
                these but the last were read before, behind this prompt.
            finished: whether the last token ends the answer, and need not be read.

        Returns:
            The log-probability of each prefix's other tokens, and those of the token after it.
        """
        wanted = [line[: len(line) - over] for line, over in zip(ids, finished, strict=True)]
        source, shared = zip(*(self._nearest(line) for line in wanted), strict=True)
        self._rows.reorder(torch.tensor(source, device=self.device))
        if any(len(self._held[row]) > kept for row, kept in zip(source, shared, strict=True)):
            self._rows.truncate(torch.tensor(shared, device=self.device))
        self._held = list(wanted)
        gained = torch.zeros(len(ids), dtype=torch.float64, device=self.device)
        after = self._first.repeat(len(ids), 1)
        for row, line in enumerate(ids):
            if line and not known[row]:
                gained[row] += self._first[line[0]]
        most = max(1, MOST_READ // after.numel())
        longest = max(len(line) - begin for line, begin in zip(wanted, shared, strict=True))
        for offset in range(0, longest, most):
            runs = [
                line[begin + offset : begin + offset + most]
                for line, begin in zip(wanted, shared, strict=True)
            ]
            lengths = [len(run) for run in runs]
            self.tokens += sum(lengths)
            padded = [(*run, *[0] * (max(lengths) - len(run))) for run in runs]
            out = self._rows.extend(
                torch.tensor(padded, device=self.device), torch.tensor(lengths, device=self.device)
            )
            check_log_p(out, self._size, len(ids), max(lengths))
            for row, (line, length) in enumerate(zip(ids, lengths, strict=True)):
                if not length:
                    continue
                log_p = self._tempered(out[row, :length])
                after[row] = log_p[-1]
                # After so many tokens each of these rows has log-probabilities of the next one.
                places = range(shared[row] + offset + 1, shared[row] + offset + length + 1)
                new = [(t, i) for t, i in enumerate(places) if known[row] <= i < len(line)]
                if new:
                    at = torch.tensor([t for t, _ in new], device=self.device)
                    token = torch.tensor([line[i] for _, i in new], device=self.device)
                    gained[row] += log_p[at, token].double().sum()
        return gained, after

    def _nearest(self, wanted: tuple[int, ...]) -> tuple[int, int]:
        """Return the row that has the longest beginning of these tokens, and its length."""

        def common(row: int) -> int:
            pairs = enumerate(zip(self._held[row], wanted, strict=False))
            return next(
                (i for i, (a, b) in pairs if a != b), min(map(len, (self._held[row], wanted)))
            )

        row = max(range(len(self._held)), key=common)
        return row, common(row)

    def _tempered(self, log_p: Float[Tensor, "T V"]) -> Float[Tensor, "T V"]:
        """Return p_lm at the temperature; at most one, whatever rounding makes of it."""
        return refusing_nan(at_temperature(log_p, self._temperature)).clamp(max=0)

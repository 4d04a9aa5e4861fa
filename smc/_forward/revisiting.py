"""Computation of prefixes in any order, which reuses the cache of recently computed prefixes.

A search visits the tree of prefixes in no particular order. The language model's cache has a row
for each prefix of the last forward pass. To compute another prefix, the row that has the longest
beginning in common with it is copied and truncated to this beginning. The remaining tokens are then
computed in one forward pass. If each prefix extends a prefix of the last pass by one token, the
pass computes one token per prefix.

`TreeReader` does this for several prompts at once, and also keeps the rows that the caller lists.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

import numpy as np
import torch
from jaxtyping import Float, Float64, Int
from torch import Tensor

from smc._forward.reader import MOST_READ, at_temperature, check_log_p, check_nan, refuse_nan
from smc._models.protocol import LanguageModel


class Run(NamedTuple):
    """A prefix to compute, and the next tokens whose log-probabilities are needed.

    Attributes:
        example: index of the prompt.
        ids: tokens of the prefix.
        known: number of tokens at the beginning of `ids` that were computed before.
        asked: for each later position in `ids`, the tokens whose log-probabilities as the next
            token after this position are returned.
    """

    example: int
    ids: tuple[int, ...]
    known: int
    asked: list[Int[np.ndarray, "_"]]


class TreeReader:
    """A language model that computes prefixes after several prompts, and caches some of them.

    Args:
        lm: the language model.
        prompts: token ids; the model runs on them when the object is created.
        temperature: temperature of the returned log-probabilities.

    Attributes:
        tokens: number of tokens computed after each prompt.
        passes: number of forward passes with tokens of each prompt's prefixes, including the pass
            over the prompt.
        eps: machine epsilon of the model's log-probabilities.

    Raises:
        FloatingPointError: log-probabilities are NaN or +inf.
    """

    def __init__(
        self, lm: LanguageModel, prompts: Sequence[Sequence[int]], temperature: float
    ) -> None:
        self._device, self._temperature = lm.device, temperature
        self._size = lm.vocabulary.size
        self._rows, first = lm.prefill(prompts)
        check_log_p(first, self._size, len(prompts))
        self._first = check_nan(at_temperature(first, temperature))
        self._held: list[tuple[int, tuple[int, ...]]] = [
            (example, ()) for example in range(len(prompts))
        ]
        self.eps = float(torch.finfo(self._first.dtype).eps)
        self.tokens = [0] * len(prompts)
        self.passes = [1] * len(prompts)

    def first(self, asked: Sequence[Int[np.ndarray, "_"]]) -> list[Float64[np.ndarray, "_"]]:
        """Return the log-probabilities of given tokens as the first token after each prompt."""
        return _gather(self._first, asked)

    def read(
        self, runs: Sequence[Run], keep: Iterable[tuple[int, tuple[int, ...]]]
    ) -> list[list[Float64[np.ndarray, "_"]]]:
        """Compute prefixes in one forward pass, or in several if one would return too many numbers.

        Returns:
            For each run, the log-probabilities of the tokens `Run.asked`; undefined after a token
            of probability zero. The caller must check them with `numbers`.
        """
        at = {
            (example, ids[:t]): row
            for row, (example, ids) in enumerate(self._held)
            for t in range(len(ids) + 1)
        }

        def nearest(example: int, ids: tuple[int, ...]) -> tuple[int, int]:
            return next(
                (at[example, ids[:t]], t)
                for t in range(len(ids), -1, -1)
                if (example, ids[:t]) in at
            )

        in_runs = {(run.example, run.ids[:t]) for run in runs for t in range(len(run.ids))}
        kept = sorted({nearest(*each)[0] for each in keep if each not in in_runs})
        source, shared = zip(
            *(nearest(run.example, run.ids[: run.known]) for run in runs), strict=True
        )
        self._rows.reorder(torch.tensor([*kept, *source], device=self._device))
        held = [len(self._held[row][1]) for row in (*kept, *source)]
        lengths = [*held[: len(kept)], *shared]
        if lengths != held:
            self._rows.truncate(torch.tensor(lengths, device=self._device))
        self._held = [self._held[row] for row in kept] + [(run.example, run.ids) for run in runs]
        for example in {run.example for run in runs}:
            self.passes[example] += 1

        pieces = [()] * len(kept) + [
            run.ids[begin:] for run, begin in zip(runs, shared, strict=True)
        ]
        found: list[list[Float64[np.ndarray, "_"]]] = [[] for _ in runs]
        most = max(1, MOST_READ // (len(pieces) * self._size))
        for offset in range(0, max(map(len, pieces)), most):
            parts = [piece[offset : offset + most] for piece in pieces]
            self._extend(parts, len(kept), offset, shared, runs, found)
        return found

    def _extend(
        self,
        parts: Sequence[tuple[int, ...]],
        num_kept: int,
        offset: int,
        shared: Sequence[int],
        runs: Sequence[Run],
        found: Sequence[list[Float64[np.ndarray, "_"]]],
    ) -> None:
        """Append tokens to the rows, and add the log-probabilities of `Run.asked` to `found`."""
        width = max(map(len, parts))
        out = self._rows.extend(
            torch.tensor([(*part, *[0] * (width - len(part))) for part in parts],
                         device=self._device),
            torch.tensor([len(part) for part in parts], device=self._device),
        )  # fmt: skip
        check_log_p(out, self._size, len(parts), width)
        rows: list[int] = []
        columns: list[int] = []
        owner: list[int] = []
        asked: list[Int[np.ndarray, "_"]] = []
        for number, run in enumerate(runs):
            part = parts[num_kept + number]
            self.tokens[run.example] += len(part)
            begin = shared[number] + offset  # number of the run's tokens before this part
            for column in range(max(0, run.known - begin), len(part)):
                rows.append(num_kept + number)
                columns.append(column)
                owner.append(number)
                asked.append(run.asked[begin + column - run.known])
        if asked:
            index = torch.tensor([rows, columns], device=self._device)
            log_p = at_temperature(out[index[0], index[1]], self._temperature)
            for number, values in zip(owner, _gather(log_p, asked), strict=True):
                found[number].append(values)


def _gather(
    log_p: Float[Tensor, "R V"], asked: Sequence[Int[np.ndarray, "_"]]
) -> list[Float64[np.ndarray, "_"]]:
    """Copy the log-probabilities of the given tokens of each row to the host."""
    sizes = [len(each) for each in asked]
    row = np.repeat(np.arange(len(asked)), sizes)
    index = torch.from_numpy(np.stack([row, np.concatenate(asked)])).to(log_p.device)
    values = log_p[index[0], index[1]].double().cpu().numpy()
    return np.split(values, np.cumsum(sizes)[:-1])


def numbers(log_p: Float64[np.ndarray, "_"]) -> Float64[np.ndarray, "_"]:
    """Return log-probabilities; values above 0 from rounding become 0."""
    refuse_nan(torch.tensor(not bool((log_p < np.inf).all()), device="cpu"))
    return np.minimum(log_p, 0.0)

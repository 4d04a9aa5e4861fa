"""This module reads the logits of P particles once on the CPU: log Z, and what a draw needs.

One vectorised exponential and one compiled loop over a row give the sum of each block of tokens
(`smc.kernels.blocks`); a draw finds its block among these, and looks at the tokens of that block
alone. Shares are in the logits' precision, as `smc.tying` has them, sums in float64.

Against tensor operations in float64 (`smc.static.passes.TorchPass`) that is one pass over 4 bytes a
token in place of five over 8.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import torch
from jaxtyping import Float, Float64, Int64
from torch import Tensor

from gcd.support.threads import shared_out
from smc.draw import categorical
from smc.guide import Factors, unsigned
from smc.kernels import blocks as kernels
from smc.proposals import Proposal
from smc.static.passes import weighable
from smc.tying import exponentials

_LEAST = 1e-20
"""Of the greatest sum there could be: below it, shares in float32 have lost their precision."""


class BlockSums(NamedTuple):
    """The rows of P particles, summed by blocks.

    Attributes:
        sums: of the weights of the tokens of each block, over exp(scale).
        scale: of each row.
        log_all: log of the sum of exp(logit) over all tokens.
    """

    sums: Float64[Tensor, "P blocks"]
    scale: Float64[Tensor, "P"]
    log_all: Float64[Tensor, "P"]

    @property
    def log_z(self) -> Float64[Tensor, "P"]:
        """log of the share of the total that g leaves."""
        scale = torch.where(self.scale.isneginf(), 0.0, self.scale)
        return self.sums.sum(dim=1).log() + scale - self.log_all


class BlockWeighed(NamedTuple):
    """What `BlockPass` knows; see `smc.static.passes.Weighed`.

    Attributes:
        scores: logits over the temperature.
        row: the row of scores of each particle.
        log_z: log of the sum over v of p(v) g(v).
    """

    scores: Float[Tensor, "R V"]
    row: Int64[Tensor, "P"]
    factors: Factors
    sums: BlockSums
    log_z: Float64[Tensor, "P"]

    def draw(self, rows: Int64[Tensor, "P"], u: Float64[Tensor, "P"]) -> Int64[Tensor, "P"]:
        """Returns the token at u of the distribution of each of these rows."""
        out = torch.empty_like(rows)
        shared_out(_draw_rows, len(rows), self, rows.tolist(), u.tolist(), out.numpy())
        return out

    def breaks(self, rows: Int64[Tensor, "P"]) -> Float64[Tensor, "P V"]:
        """Returns where in (0, 1) the token drawn from each of these rows changes."""
        return categorical(self.factors.applied(self.scores[self.row])).breaks(rows)

    def log_g(self, rows: Int64[Tensor, "P"], tokens: Int64[Tensor, "P"]) -> Float64[Tensor, "P"]:
        """Returns log g of one token in each of these rows."""
        return self.factors.at(rows, tokens)


class BlockPass:
    """One reading of the logits, compiled for the CPU; see `smc.static.passes.Pass`."""

    def weigh(
        self,
        proposal: Proposal[Any],
        state: Any,
        logits: Float[Tensor, "R V"],
        row: Int64[Tensor, "P"],
        temperature: float,
    ) -> BlockWeighed:
        """Weighs the next tokens; see `Pass`."""
        given = weighable(proposal, state, logits, row, temperature)
        scores = given.scores.to(torch.promote_types(given.scores.dtype, torch.float32))
        scores = scores if given.temperature == 1 else scores / given.temperature
        sums = block_sums(scores, given.row, given.factors)
        log_z = sums.log_z if given.log_z is None else given.log_z
        return BlockWeighed(scores, given.row, given.factors, sums, log_z)


def block_sums(
    scores: Float[Tensor, "R V"], row: Int64[Tensor, "P"], factors: Factors
) -> BlockSums:
    """Sums up the row of each particle, by blocks of tokens."""
    P, count = len(row), -(-scores.shape[1] // kernels.BLOCK)
    sums = torch.empty(P, count, dtype=torch.float64)
    scale, log_all = (torch.empty(P, dtype=torch.float64) for _ in range(2))
    out = (sums.numpy(), scale.numpy(), log_all.numpy())
    shared_out(_sum_rows, P, scores.numpy(), row.tolist(), factors, *out)
    return BlockSums(sums, scale, log_all)


def _arguments(factors: Factors, p: int) -> tuple[np.ndarray, ...]:
    """The factors of one particle, as compiled loops take them."""
    return (
        unsigned(factors.classes.of)[int(factors.which[p])],
        factors.by_class.numpy()[p],
        factors.tokens.numpy()[p],
        factors.by_token.numpy()[p],
    )


def _sum_rows(
    first: int,
    last: int,
    scores: np.ndarray,
    row: list[int],
    factors: Factors,
    sums: np.ndarray,
    scale: np.ndarray,
    log_all: np.ndarray,
) -> None:
    """Does the work of `block_sums` for the particles first .. last - 1."""
    V = scores.shape[1]
    share, marked = np.empty(V, scores.dtype), np.zeros(V, np.bool_)
    for p in range(first, last):
        x = scores[row[p]]
        top = x.max()
        exponentials(x, top, share)
        scale[p], log_all[p] = kernels.block_sums(
            x, share, float(top), *_arguments(factors, p), marked, _LEAST, sums[p]
        )


def _draw_rows(
    first: int, last: int, weighed: BlockWeighed, rows: list[int], u: list[float], out: np.ndarray
) -> None:
    """Does the work of `BlockWeighed.draw` for the particles first .. last - 1."""
    scores, sums = weighed.scores.numpy(), weighed.sums
    marked = np.zeros(scores.shape[1], np.bool_)
    for i in range(first, last):
        p = rows[i]
        x = scores[int(weighed.row[p])]
        out[i] = kernels.draw_token(
            x, *_arguments(weighed.factors, p), marked, float(sums.scale[p]),
            sums.sums.numpy()[p], u[i],
        )  # fmt: skip

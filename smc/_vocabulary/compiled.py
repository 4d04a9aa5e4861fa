"""Passes over the vocabulary as compiled CPU loops that read every row once.

`smc._vocabulary.tensors` defines the passes, and is the reference implementation. To draw a token,
q is first summed over blocks of tokens, so that a token is found by reading one block
(`smc._vocabulary.kernels.loops`). These loops read 4 bytes per token once. Tensor operations in
float64 would read 8 bytes per token five times.

Tensor operations are used for rows of fewer than `NARROW` tokens, because compiled calls for each
row would take too long (128 prefixes of a dozen tokens: 29 s instead of 0.4 s).
"""

from __future__ import annotations

from functools import partial

import torch
from jaxtyping import Bool, Float, Float64, Int64
from torch import Tensor

from gcd._arguments import check_indices
from hmm._threads import share_out
from smc._vocabulary import tensors
from smc._vocabulary.class_sums import FEW, weigh
from smc._vocabulary.factors import Factors
from smc._vocabulary.kernels import loops
from smc._vocabulary.tensors import Best, Draws

NARROW = 1024
"""Minimum number of tokens in a row for compiled loops; shorter rows use tensor operations."""


def prepare_draws(
    factors: Factors, log_p: Float[Tensor, "R V"], needed: Bool[Tensor, "R"] | None = None
) -> Draws:
    """Prepare to draw from q proportional to p g, for R prefixes; see `tensors.prepare_draws`."""
    if log_p.shape[1] < NARROW:
        return tensors.prepare_draws(factors, log_p)
    factors.check(log_p)
    R, count = len(log_p), -(-log_p.shape[1] // loops.BLOCK)
    sums, scale = (
        torch.empty(R, count, dtype=torch.float64, device="cpu"),
        torch.empty(R, dtype=torch.float64, device="cpu"),
    )
    some = torch.ones(R, dtype=torch.bool, device="cpu") if needed is None else needed
    few, lines = log_p.shape[1] // FEW, factors.lines
    out = (sums.numpy(), scale.numpy())
    share_out(loops.sum_rows, R, log_p.numpy(), lines, some.numpy(), few, *out)
    log_z = factors.log_z
    if log_z is None:
        log_z = sums.sum(dim=1).log() + torch.where(scale.isneginf(), 0.0, scale)
    return Draws(log_z.double(), partial(_draw, log_p, lines, sums, scale))


def _draw(
    log_p: Float[Tensor, "R V"],
    lines: loops.Lines,
    sums: Float64[Tensor, "R blocks"],
    scale: Float64[Tensor, "R"],
    rows: Int64[Tensor, "M"],
    u: Float64[Tensor, "M"],
) -> Int64[Tensor, "M"]:
    """Return the token at quantile u of the distribution q of each given row.

    `sums` are the sums of p g over each block of tokens, divided by exp(scale).
    """
    check_indices(rows, len(log_p), "row")
    out = torch.empty_like(rows)
    given = (log_p, lines, sums, scale, rows, u, out)
    share_out(loops.find, len(rows), *(x.numpy() if isinstance(x, Tensor) else x for x in given))
    return out


def best(log_p: Float[Tensor, "R V"], factors: Factors, K: int) -> Best:
    """Find the K candidates with the highest scores in each row, and sum the other scores."""
    K = max(1, min(K, _most_candidates(factors)))
    if log_p.shape[1] < NARROW:
        return tensors.best(log_p, factors, K)
    factors.check(log_p)
    found = weigh(log_p, factors, K)
    return Best(
        found.tokens, found.best, found.log_mass.logsumexp(dim=1).logaddexp(found.log_listed)
    )


def _most_candidates(factors: Factors) -> int:
    """Return the number of candidates of the row that has the most."""
    size = factors.classes.start.diff(dim=1)[factors.automaton_of_row]
    inside = (size * ~factors.by_class.isneginf()).sum(dim=1)
    return int(inside.max()) + factors.tokens.shape[1] if len(inside) else 0

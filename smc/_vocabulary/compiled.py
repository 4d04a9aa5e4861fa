"""Passes over the vocabulary as compiled CPU loops that read every row once.

`smc._vocabulary.tensors` defines the passes, and is the reference implementation. To draw a token,
q is first summed over blocks of tokens, so that a token is found by reading one block. The best
candidates are collected in a buffer (`smc._vocabulary.kernels`). Exponentials exp(log p - top),
where top is the largest log p of a row, are computed in the precision of log p, eight at a time.
Sums are in float64. These loops read 4 bytes per token once. Tensor operations in float64 would
read 8 bytes per token five times.

Tensor operations are used for rows of fewer than `NARROW` tokens, because compiled calls for each
row would take too long (128 prefixes of a dozen tokens: 29 s instead of 0.4 s).
"""

from __future__ import annotations

from functools import partial

import torch
from jaxtyping import Float, Float64, Int64
from torch import Tensor

from gcd._arguments import check_indices
from gcd._support.threads import share_out
from smc._vocabulary import tensors
from smc._vocabulary.class_sums import FEW
from smc._vocabulary.factors import Factors, as_unsigned
from smc._vocabulary.kernels import blocks, selection
from smc._vocabulary.kernels.lines import Lines
from smc._vocabulary.tensors import Best, Draws, Known

NARROW = 1024
"""Minimum number of tokens in a row for compiled loops; shorter rows use tensor operations."""
_LEAST = 1e-20
"""Minimum of a row's sum as a share of the largest possible sum; smaller sums are computed again.

The second computation is in float64.
"""


def prepare_draws(factors: Factors, log_p: Float[Tensor, "R V"]) -> Draws:
    """Prepare to draw from q proportional to p g, for R prefixes."""
    if log_p.shape[1] < NARROW:
        return tensors.prepare_draws(factors, log_p)
    factors.check(log_p)
    R, count = len(log_p), -(-log_p.shape[1] // blocks.BLOCK)
    sums, scale = (
        torch.empty(R, count, dtype=torch.float64, device="cpu"),
        torch.empty(R, dtype=torch.float64, device="cpu"),
    )
    lines = _lines(factors)
    share_out(blocks.sum_rows, R, log_p.numpy(), lines, _LEAST, sums.numpy(), scale.numpy())
    log_z = factors.log_z
    if log_z is None:
        log_z = sums.sum(dim=1).log() + torch.where(scale.isneginf(), 0.0, scale)
    return Draws(log_z.double(), partial(_draw, log_p, lines, sums, scale))


def _draw(
    log_p: Float[Tensor, "R V"],
    lines: Lines,
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
    share_out(
        blocks.draw_rows, len(rows), *(x.numpy() if isinstance(x, Tensor) else x for x in given)
    )
    return out


def best(log_p: Float[Tensor, "R V"], factors: Factors, K: int) -> Best:
    """Find the K candidates with the highest scores in each row, and sum the other scores."""
    R, V = log_p.shape
    K = max(1, min(K, _most_candidates(factors)))
    if V < NARROW:
        return tensors.best(log_p, factors, K)
    factors.check(log_p)
    tokens = torch.empty(R, K, dtype=torch.int64, device="cpu")
    log_score, log_rest = (
        torch.empty(shape, dtype=torch.float64, device="cpu") for shape in ((R, K), (R,))
    )
    out = (tokens.numpy(), log_score.numpy(), log_rest.numpy())
    share_out(selection.weigh, R, log_p.numpy(), _lines(factors), V // FEW, *out)
    return Best(tokens, log_score, log_rest)


def locate(
    log_p: Float[Tensor, "R V"],
    factors: Factors,
    known: Known,
    log_c: Float64[Tensor, "R"],
    rows: Int64[Tensor, "M"],
    targets: Float64[Tensor, "M"],
) -> Int64[Tensor, "M"]:
    """Find the candidates at given points of a cumulative sum; see `tensors.locate`."""
    hit, which, count = torch.unique_consecutive(rows, return_inverse=True, return_counts=True)
    if log_p.shape[1] < NARROW:
        some = factors._replace(
            by_class=factors.by_class[hit],
            tokens=factors.tokens[hit],
            by_token=factors.by_token[hit],
            automaton_of_row=factors.automaton_of_row[hit],
        )
        known = Known(known.tokens[hit], known.kept[hit])
        return tensors.locate(log_p[hit], some, known, log_c[hit], which, targets)
    factors.check(log_p)
    check_indices(rows, len(log_p), "row")
    check_indices(known.tokens, log_p.shape[1])
    ends = torch.nn.functional.pad(count.cumsum(dim=0), (1, 0))
    out = torch.empty_like(rows)
    share_out(
        selection.locate,
        len(hit),
        log_p.numpy(),
        _lines(factors),
        log_p.shape[1] // FEW,
        known.tokens.numpy(),
        known.kept.numpy(),
        log_c.numpy(),
        hit.numpy(),
        ends.numpy(),
        targets.numpy(),
        out.numpy(),
    )
    return out


def _most_candidates(factors: Factors) -> int:
    """Return the number of candidates of the row that has the most."""
    size = factors.classes.start.diff(dim=1)[factors.automaton_of_row]
    inside = (size * ~factors.by_class.isneginf()).sum(dim=1)
    return int(inside.max()) + factors.tokens.shape[1] if len(inside) else 0


def _lines(factors: Factors) -> Lines:
    """Return the factors in the form that compiled loops use."""
    classes = factors.classes
    return Lines(
        as_unsigned(classes.of),
        classes.tokens.numpy(),
        classes.start.numpy(),
        factors.automaton_of_row.numpy(),
        factors.by_class.numpy(),
        factors.tokens.numpy(),
        factors.by_token.numpy(),
    )

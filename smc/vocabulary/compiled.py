"""Compiled loops pass over the vocabulary on the CPU, and read every row of it once.

`smc.vocabulary.tensors` says what the passes do, and is their oracle. Here a draw is prepared by
summing q over blocks of tokens, so that a token is found by looking at one block alone, and
candidates are kept in a buffer as they are met (`smc.vocabulary.kernels`). Shares exp(log p - top)
are in the precision of log p, eight lanes at a time, and sums are in float64. Against tensor
operations in float64 that is one reading of 4 bytes a token in place of five of 8.

Rows of fewer than `NARROW` tokens, and guides that are no factors of classes, go through tensor
operations: a call for each row would be most of the work (128 prefixes of a dozen tokens: 0.4 s
instead of 29 s).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from jaxtyping import Float, Float64, Int64
from torch import Tensor

from gcd.support.indices import check_indices
from gcd.support.threads import shared_out
from smc.vocabulary import tensors
from smc.vocabulary.class_mass import FEW, MaskGuide, exponentials
from smc.vocabulary.factors import Factors, Guide, unsigned
from smc.vocabulary.kernels import blocks, selection
from smc.vocabulary.tensors import Best, FactorSampler, Known, TensorSampler

NARROW = 1024
"""Rows of fewer tokens go through tensor operations, all rows together."""
_LEAST = 1e-20
"""A row whose sum is under this part of the greatest possible one is summed anew in float64."""


@dataclass(frozen=True, eq=False)
class BlockSampler(FactorSampler):
    """The distributions q of R prefixes, by sums over blocks; see `TokenSampler`.

    Attributes:
        sums: of p g over the tokens of each block, divided by exp(scale).
        scale: of each row.
    """

    sums: Float64[Tensor, "R blocks"]
    scale: Float64[Tensor, "R"]

    def draw(self, rows: Int64[Tensor, "M"], u: Float64[Tensor, "M"]) -> Int64[Tensor, "M"]:
        """Return the token at u of the distribution of each of these rows."""
        out = torch.empty_like(rows)
        shared_out(_draw_rows, len(rows), self, rows.tolist(), u.tolist(), out.numpy())
        return out


def draws(guide: Guide, log_p: Float[Tensor, "R V"]) -> BlockSampler | TensorSampler:
    """Prepare to draw from q proportional to p g, for R prefixes."""
    factors = getattr(guide, "factors", None)
    if log_p.shape[1] < NARROW or not isinstance(factors, Factors):
        return tensors.draws(guide, log_p)
    factors.check(log_p)
    R, count = len(log_p), -(-log_p.shape[1] // blocks.BLOCK)
    sums, scale = (
        torch.empty(R, count, dtype=torch.float64, device="cpu"),
        torch.empty(R, dtype=torch.float64, device="cpu"),
    )
    shared_out(_sum_rows, R, log_p.numpy(), factors, sums.numpy(), scale.numpy())
    if isinstance(guide, MaskGuide):  # whose log Z would be another reading
        log_z = sums.sum(dim=1).log() + torch.where(scale.isneginf(), 0.0, scale)
    else:
        log_z = guide.log_z.double()
    return BlockSampler(log_p, factors, log_z, sums, scale)


def best(log_p: Float[Tensor, "R V"], factors: Factors, K: int) -> Best:
    """Find the K candidates of the greatest score in each row, and sum up the others."""
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
    shared_out(_best_rows, R, log_p.numpy(), factors, *out)
    return Best(tokens, log_score, log_rest)


def locate(
    log_p: Float[Tensor, "R V"],
    factors: Factors,
    known: Known,
    log_c: Float64[Tensor, "R"],
    rows: Int64[Tensor, "M"],
    targets: Float64[Tensor, "M"],
) -> Int64[Tensor, "M"]:
    """Invert the cumulative inclusion probabilities at each target."""
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
    points = (hit.numpy(), ends.numpy(), targets.numpy())
    shared_out(
        _locate_rows, len(hit), log_p.numpy(), factors, known, log_c.numpy(), points, out.numpy()
    )
    return out


def _most_candidates(factors: Factors) -> int:
    """Return the most candidates that a row may have."""
    size = factors.classes.start.diff(dim=1)[factors.automaton_of_row]
    inside = (size * ~factors.by_class.isneginf()).sum(dim=1)
    return int(inside.max()) + factors.tokens.shape[1] if len(inside) else 0


class _Line(NamedTuple):
    """The factors of one row, as compiled loops take them."""

    klass: np.ndarray
    by_class: np.ndarray
    tokens: np.ndarray
    by_token: np.ndarray
    listed: np.ndarray
    start: np.ndarray

    @classmethod
    def of(cls, factors: Factors, row: int) -> _Line:
        number = int(factors.automaton_of_row.numpy()[row])
        classes = factors.classes
        return cls(
            unsigned(classes.of)[number],
            factors.by_class.numpy()[row],
            factors.tokens.numpy()[row],
            factors.by_token.numpy()[row],
            classes.tokens.numpy()[number],
            classes.start.numpy()[number],
        )

    @property
    def arguments(self) -> tuple[np.ndarray, ...]:
        return self[:4]

    def is_few(self, size: int) -> bool:
        """Whether so few tokens are candidates that they are looked up one by one."""
        alive = ~np.isneginf(self.by_class)
        return bool(np.diff(self.start)[: len(alive)][alive].sum() < size // FEW)


def _sum_rows(
    first: int, last: int, log_p: np.ndarray, factors: Factors, sums: np.ndarray, scale: np.ndarray
) -> None:
    """Do the work of `draws` for the rows first .. last - 1."""
    V = log_p.shape[1]
    share, marked = np.empty(V, log_p.dtype), np.zeros(V, np.bool_)
    for row in range(first, last):
        p, line = log_p[row], _Line.of(factors, row)
        top = p.max()
        if top == -np.inf:  # nothing can follow
            scale[row], sums[row] = -np.inf, 0.0
            continue
        exponentials(p, top, share)
        scale[row] = blocks.block_sums(
            p, share, float(top), *line.arguments, marked, _LEAST, sums[row]
        )


def _draw_rows(
    first: int, last: int, given: BlockSampler, rows: list[int], u: list[float], out: np.ndarray
) -> None:
    """Do the work of `BlockSampler.draw` for the draws first .. last - 1."""
    log_p, sums, scale = given.log_p.numpy(), given.sums.numpy(), given.scale.numpy()
    marked = np.zeros(log_p.shape[1], np.bool_)
    for i in range(first, last):
        row = rows[i]
        line = _Line.of(given.factors, row)
        out[i] = blocks.draw_token(log_p[row], *line.arguments, marked, scale[row], sums[row], u[i])


def _best_rows(
    first: int,
    last: int,
    log_p: Float[np.ndarray, "R V"],
    factors: Factors,
    tokens: np.ndarray,
    log_score: np.ndarray,
    log_rest: np.ndarray,
) -> None:
    """Do the work of `best` for the rows first .. last - 1."""
    V = log_p.shape[1]
    share, marked = np.empty(V, log_p.dtype), np.zeros(V, np.bool_)
    for row in range(first, last):
        line = _Line.of(factors, row)
        p, out = log_p[row], (tokens[row], log_score[row])
        if line.is_few(V):
            log_rest[row] = selection.weigh_few(p, *line.arguments, line.listed, line.start,
                                                marked, *out)  # fmt: skip
            continue
        top = p.max()
        if top == -np.inf:  # nothing can follow
            tokens[row], log_score[row], log_rest[row] = 0, -np.inf, -np.inf
            continue
        exponentials(p, top, share)
        log_rest[row] = selection.weigh_all(p, share, float(top), *line.arguments, marked, *out)


def _locate_rows(
    first: int,
    last: int,
    log_p: Float[np.ndarray, "R V"],
    factors: Factors,
    known: Known,
    log_c: Float64[np.ndarray, "R"],
    points: tuple[np.ndarray, np.ndarray, np.ndarray],
    out: Int64[np.ndarray, "M"],
) -> None:
    """Do the work of `locate` for some of the rows that are hit."""
    V = log_p.shape[1]
    rows, starts, targets = points
    share, hidden = np.empty(V, log_p.dtype), np.zeros(V, np.bool_)
    for number in range(first, last):
        row, begin, end = int(rows[number]), starts[number], starts[number + 1]
        line = _Line.of(factors, row)
        p, sure = log_p[row], known.tokens.numpy()[row, : int(known.kept[row])]
        top = -np.inf
        if not line.is_few(V):
            top = float(p.max())
            if top > -np.inf:
                exponentials(p, p.dtype.type(top), share)
        hidden[sure] = True
        selection.locate(p, share, top, *line.arguments, hidden, log_c[row],
                         targets[begin:end], out[begin:end])  # fmt: skip
        hidden[sure] = False

"""Candidates are all next tokens of a prefix; these passes over them sort and keep only a few.

A candidate's score is p(v) times a factor, that of its class or, for a few tokens, its own
(`smc.guide.Factors`). `weigh` finds the K greatest of a row and sums up the others; `locate` finds
the candidates at given points of the running sum over the others. Both are compiled on the CPU
(`smc.kernels.selection`), and a few tensor operations elsewhere; these do not wait for the device,
so that the static step has them, too (`smc.static.candidates`).
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import torch
from jaxtyping import Bool, Float, Float64, Int64
from torch import Tensor

from gcd.support.threads import shared_out
from smc import guide
from smc.draw import bisect
from smc.guide import Factors, unsigned
from smc.kernels import selection as kernels
from smc.tying import FEW, exponentials

NARROW = 1024
"""Rows of fewer tokens go through tensor operations all together: a call for each row would be most
of the work (128 prefixes of a dozen tokens: 0.4 s instead of 29 s)."""


class Weighed(NamedTuple):
    """R rows of candidates: the K of the greatest score, and the sum of the others.

    Attributes:
        tokens: the K greatest, in falling order; token 0 where there are fewer.
        log_score: theirs; -inf where there are fewer.
        log_rest: log of the sum of all other scores of the row.
    """

    tokens: Int64[Tensor, "R K"]
    log_score: Float64[Tensor, "R K"]
    log_rest: Float64[Tensor, "R"]


class Known(NamedTuple):
    """The candidates of each row that are kept for certain.

    Attributes:
        tokens: candidates in falling order of score.
        kept: how many of them, from the first.
    """

    tokens: Int64[Tensor, "R K"]
    kept: Int64[Tensor, "R"]


def unsure(
    log_p: Float[Tensor, "R V"],
    factors: Factors,
    known: Known,
    log_c: Float64[Tensor, "R"],
) -> Float64[Tensor, "R V"]:
    """pi of every candidate that is not sure; zero for all others."""
    log_pi = factors.applied(log_p) - torch.where(log_c.isneginf(), 0.0, log_c).unsqueeze(1)
    columns = torch.arange(known.tokens.shape[1], device=log_p.device)
    sure = columns < known.kept.unsqueeze(1)
    hidden = torch.zeros_like(log_pi, dtype=torch.int8)
    hidden.scatter_reduce_(1, known.tokens, sure.to(torch.int8), "amax")
    return log_pi.masked_fill(hidden.bool() | log_c.isneginf().unsqueeze(1), -torch.inf).exp()


def weigh(log_p: Float[Tensor, "R V"], factors: Factors, most: int) -> Weighed:
    """Finds the K candidates of the greatest score in each row, and sums up the others.

    Args:
        log_p: log-probabilities of the next token.
        factors: log s - log p; -inf where a token is no candidate.
        most: K; less where no row has as many candidates.
    """
    R, V = log_p.shape
    K = max(1, min(most, V, _most_candidates(factors)))
    if _is_compiled(log_p):
        tokens = torch.empty(R, K, dtype=torch.int64)
        log_score, log_rest = (torch.empty(shape, dtype=torch.float64) for shape in ((R, K), (R,)))
        out = (tokens.numpy(), log_score.numpy(), log_rest.numpy())
        shared_out(_weigh_rows, R, log_p.numpy(), factors, *out)
        return Weighed(tokens, log_score, log_rest)
    return weigh_by_tensors(log_p, factors, K)


def weigh_by_tensors(log_p: Float[Tensor, "R V"], factors: Factors, K: int) -> Weighed:
    """Does what `weigh` does, on any device and without waiting for it."""
    log_s = factors.applied(log_p)
    log_score, tokens = log_s.topk(K, dim=1)
    rest = log_s.scatter(1, tokens, -torch.inf).logsumexp(dim=1)
    return Weighed(torch.where(log_score.isneginf(), 0, tokens), log_score, rest)


def locate(
    log_p: Float[Tensor, "R V"],
    factors: Factors,
    known: Known,
    log_c: Float64[Tensor, "R"],
    rows: Int64[Tensor, "M"],
    targets: Float64[Tensor, "M"],
) -> Int64[Tensor, "M"]:
    """Finds the candidate of a row in whose stretch of the running sum of pi each target lies.

    Args:
        log_p, factors: as for `weigh`.
        known: candidates that take no part.
        log_c: of each row.
        rows: the row of each target, in rising order.
        targets: in rising order within a row, one apart.

    Returns:
        Tokens, in the order of the targets; no token twice in a row. Where rounding leaves a target
        beyond the last candidate, it is the last one, and -1 where that has been taken.
    """
    if _is_compiled(log_p):
        hit, count = torch.unique_consecutive(rows, return_counts=True)
        starts = torch.cat([count.new_zeros(1), count.cumsum(dim=0)])
        out = torch.empty_like(rows)
        shared_out(
            _locate_rows,
            len(hit),
            log_p.numpy(),
            factors,
            known,
            log_c.numpy(),
            (hit.numpy(), starts.numpy(), targets.numpy()),
            out.numpy(),
        )
        return out
    hit, which = torch.unique_consecutive(rows, return_inverse=True)
    some = factors._replace(
        by_class=factors.by_class[hit],
        tokens=factors.tokens[hit],
        by_token=factors.by_token[hit],
        which=factors.which[hit],
    )
    known = Known(known.tokens[hit], known.kept[hit])
    return locate_by_tensors(log_p[hit], some, known, log_c[hit], which, targets)


def locate_by_tensors(
    log_p: Float[Tensor, "R V"],
    factors: Factors,
    known: Known,
    log_c: Float64[Tensor, "R"],
    rows: Int64[Tensor, "M"],
    targets: Float64[Tensor, "M"],
) -> Int64[Tensor, "M"]:
    """Does what `locate` does, on any device and without waiting for it; it reads every row."""
    pi = unsure(log_p, factors, known, log_c)
    index = torch.arange(log_p.shape[1], device=rows.device)
    last = torch.where(pi > 0, index, -1).amax(dim=1)
    # The first candidate whose stretch ends beyond the target; those of probability zero are none.
    found = torch.minimum(bisect(pi.cumsum(dim=1), rows, targets), last[rows])
    return torch.where(repeated(rows, found), -1, found)


def repeated(rows: Int64[Tensor, "M"], tokens: Int64[Tensor, "M"]) -> Bool[Tensor, "M"]:
    """True for a token that the entry before has in the same row, as rounding may have it."""
    same = torch.zeros_like(tokens, dtype=torch.bool)
    same[1:] = (tokens[1:] == tokens[:-1]) & (rows[1:] == rows[:-1])
    return same


def _most_candidates(factors: Factors) -> int:
    """The most candidates that a row may have."""
    size = factors.classes.start.diff(dim=1)[factors.which]
    inside = (size * ~factors.by_class.isneginf()).sum(dim=1)
    return int(inside.max()) + factors.tokens.shape[1] if len(inside) else 0


def _is_compiled(log_p: Float[Tensor, "R V"]) -> bool:
    return log_p.device.type in guide.COMPILED and log_p.shape[1] >= NARROW


def _weigh_rows(
    first: int,
    last: int,
    log_p: Float[np.ndarray, "R V"],
    factors: Factors,
    tokens: np.ndarray,
    log_score: np.ndarray,
    log_rest: np.ndarray,
) -> None:
    """Does the work of `weigh` for the rows first .. last - 1, on the CPU."""
    V = log_p.shape[1]
    share, marked = np.empty(V, log_p.dtype), np.zeros(V, np.bool_)
    for row in range(first, last):
        line = _Line.of(factors, row)
        p, out = log_p[row], (tokens[row], log_score[row])
        if line.is_few(V):
            log_rest[row] = kernels.weigh_few(p, *line.arguments, line.listed, line.start,
                                              marked, *out)  # fmt: skip
            continue
        top = p.max()
        if top == -np.inf:  # nothing can follow
            tokens[row], log_score[row], log_rest[row] = 0, -np.inf, -np.inf
            continue
        exponentials(p, top, share)
        log_rest[row] = kernels.weigh_all(p, share, float(top), *line.arguments, marked, *out)


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
    """Does the work of `locate` for some of the rows that are hit, on the CPU."""
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
        kernels.locate(p, share, top, *line.arguments, hidden, log_c[row],
                       targets[begin:end], out[begin:end])  # fmt: skip
        hidden[sure] = False


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
        number = int(factors.which[row])
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

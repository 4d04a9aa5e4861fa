"""Passes over the vocabulary as tensor operations: the reference implementation for any device.

The passes over V tokens take most of the time of a step. This module implements three of the four
passes, and `smc._vocabulary.class_sums` implements the fourth:

    prepare_draws   log Z of every prefix, and the token at a given quantile of its distribution q
    best            the K candidates with the highest scores of every prefix, and the others' sum
    locate          the candidates at given points of the cumulative sum over those others

A *candidate* is a next token. Its score s is p(v) times a factor
(`smc._vocabulary.factors.Factors`). None of these operations synchronizes with the host. Each reads
R x V numbers about five times.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
from jaxtyping import Bool, Float, Float64, Int64
from torch import Tensor

from smc._vocabulary.draw import bisect, categorical
from smc._vocabulary.factors import Factors


class Draws(NamedTuple):
    """The distributions q of R prefixes, proportional to p g and prepared for drawing.

    Attributes:
        log_z: log of the sum over v of p(v) g(v).
        at: function that returns the token at a quantile of the distribution of each given row.
    """

    log_z: Float64[Tensor, "R"]
    at: Callable[[Int64[Tensor, "M"], Float64[Tensor, "M"]], Int64[Tensor, "M"]]


def prepare_draws(factors: Factors, log_p: Float[Tensor, "R V"]) -> Draws:
    """Prepare to draw from q proportional to p g, for R prefixes."""
    tilted = factors.apply(log_p)
    log_z = tilted.logsumexp(dim=1) if factors.log_z is None else factors.log_z
    return Draws(log_z.double(), categorical(tilted).at)


class Best(NamedTuple):
    """The K candidates with the highest scores of each of R rows, and the sum of the others.

    Attributes:
        tokens: the K best candidates in descending order; token 0 if there are fewer.
        log_score: log scores of these candidates; -inf if there are fewer.
        log_rest: log of the sum of all other scores of the row.
    """

    tokens: Int64[Tensor, "R K"]
    log_score: Float64[Tensor, "R K"]
    log_rest: Float64[Tensor, "R"]


class Known(NamedTuple):
    """The candidates of each row that are kept with certainty.

    Attributes:
        tokens: candidates in descending order of score.
        kept: number of candidates at the beginning of `tokens` that are kept.
    """

    tokens: Int64[Tensor, "R K"]
    kept: Int64[Tensor, "R"]


def inclusion_probabilities(
    log_p: Float[Tensor, "R V"],
    factors: Factors,
    known: Known,
    log_c: Float64[Tensor, "R"],
) -> Float64[Tensor, "R V"]:
    """Return pi = s / c of every candidate that is not kept with certainty; zero for all others."""
    log_pi = factors.apply(log_p) - torch.where(log_c.isneginf(), 0.0, log_c).unsqueeze(1)
    columns = torch.arange(known.tokens.shape[1], device=log_p.device)
    sure = columns < known.kept.unsqueeze(1)
    hidden = torch.zeros_like(log_pi, dtype=torch.int8)
    hidden.scatter_reduce_(1, known.tokens, sure.to(torch.int8), "amax")
    return log_pi.masked_fill(hidden.bool() | log_c.isneginf().unsqueeze(1), -torch.inf).exp()


def best(log_p: Float[Tensor, "R V"], factors: Factors, K: int) -> Best:
    """Find the K candidates with the highest scores in each row, and sum the other scores.

    Args:
        log_p: log-probabilities of the next token.
        factors: log s - log p; -inf for tokens that aren't candidates.
        K: number of candidates, at most V.
    """
    log_s = factors.apply(log_p)
    log_score, tokens = log_s.topk(K, dim=1)
    rest = log_s.scatter(1, tokens, -torch.inf).logsumexp(dim=1)
    return Best(torch.where(log_score.isneginf(), 0, tokens), log_score, rest)


def locate(
    log_p: Float[Tensor, "R V"],
    factors: Factors,
    known: Known,
    log_c: Float64[Tensor, "R"],
    rows: Int64[Tensor, "M"],
    targets: Float64[Tensor, "M"],
) -> Int64[Tensor, "M"]:
    """Find the candidates at given targets in the cumulative sums of pi.

    pi is the probability of keeping a candidate (`smc._inference.selection`). The result is the
    first candidate at which the cumulative sum of pi exceeds the target.

    Args:
        log_p, factors: as for `best`.
        known: candidates to exclude, because they are kept with certainty.
        log_c: log of the threshold c of each row, with pi = s / c.
        rows: the row of each target, in ascending order.
        targets: the targets; those of a row are ascending, at distances of one.

    Returns:
        Tokens, in the order of the targets. Each token occurs at most once per row. If rounding
        moves a target beyond the last candidate, the result is the last candidate, or -1 if another
        target has this candidate. The result is undefined if c is zero, or if the target exceeds
        the sum of pi.
    """
    pi = inclusion_probabilities(log_p, factors, known, log_c)
    index = torch.arange(log_p.shape[1], device=rows.device)
    last = torch.where(pi > 0, index, -1).amax(dim=1)
    # The first candidate whose cumulative sum exceeds the target; it never has pi = 0.
    found = torch.minimum(bisect(pi.cumsum(dim=1), rows, targets), last[rows])
    return torch.where(is_repeated(rows, found), -1, found)


def is_repeated(rows: Int64[Tensor, "M"], tokens: Int64[Tensor, "M"]) -> Bool[Tensor, "M"]:
    """Return True for tokens that repeat the previous token of the same row, due to rounding."""
    same = torch.zeros_like(tokens, dtype=torch.bool)
    same[1:] = (tokens[1:] == tokens[:-1]) & (rows[1:] == rows[:-1])
    return same

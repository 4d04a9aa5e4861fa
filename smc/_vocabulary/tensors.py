"""Passes over the vocabulary as tensor operations: the reference implementation for any device.

The passes over V tokens take most of the time of a step. This module implements two of the three
passes, and `smc._vocabulary.class_sums` implements the third:

    prepare_draws   log Z of every prefix, and the token at a given quantile of its distribution q
    best            the K candidates with the highest scores of every prefix, and the others' sum

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

from smc._vocabulary.draw import categorical
from smc._vocabulary.factors import Factors


class Draws(NamedTuple):
    """The distributions q of R prefixes, proportional to p g and prepared for drawing.

    Attributes:
        log_z: log of the sum over v of p(v) g(v).
        at: function that returns the token at a quantile of the distribution of each given row.
    """

    log_z: Float64[Tensor, "R"]
    at: Callable[[Int64[Tensor, "M"], Float64[Tensor, "M"]], Int64[Tensor, "M"]]


def prepare_draws(
    factors: Factors, log_p: Float[Tensor, "R V"], needed: Bool[Tensor, "R"] | None = None
) -> Draws:
    """Prepare to draw from q proportional to p g, for R prefixes.

    Args:
        needed: whether tokens will be drawn for each row; None for all. log Z of rows that aren't
            needed is arbitrary.
    """
    del needed
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


def exclude(factors: Factors, known: Known) -> Factors:
    """Return the factors, with -inf (a factor of zero) for candidates kept with certainty.

    Only the first `kept` columns of `known.tokens` are kept with certainty. The other columns
    repeat the first candidate, which has its own factor if no candidate is kept.
    """
    first, none = known.tokens[:, 0], known.kept == 0
    sure = torch.arange(known.tokens.shape[1], device=first.device) < known.kept.unsqueeze(1)
    tokens = torch.where(sure, known.tokens, first.unsqueeze(1))
    log_g = factors.at(torch.arange(len(first), device=first.device), first)
    log_g = log_g.masked_fill(~none, -torch.inf).unsqueeze(1).expand(tokens.shape)
    hidden = (factors.tokens.unsqueeze(2) == tokens.unsqueeze(1)).any(dim=2) & ~none.unsqueeze(1)
    return factors._replace(
        tokens=torch.cat([factors.tokens, tokens], dim=1),
        by_token=torch.cat([factors.by_token.masked_fill(hidden, -torch.inf), log_g], dim=1),
        log_z=None,
    )


def inclusion_probabilities(
    log_p: Float[Tensor, "R V"],
    factors: Factors,
    known: Known,
    log_c: Float64[Tensor, "R"],
) -> Float64[Tensor, "R V"]:
    """Return pi = s / c of every candidate that is not kept with certainty; zero for all others."""
    log_c = torch.where(log_c.isneginf(), torch.inf, log_c).unsqueeze(1)
    return (exclude(factors, known).apply(log_p) - log_c).exp()


def best(log_p: Float[Tensor, "R V"], factors: Factors, K: int) -> Best:
    """Find the K candidates with the highest scores in each row, and sum the other scores.

    Args:
        factors: log s - log p; -inf for tokens that aren't candidates.
    """
    log_s = factors.apply(log_p)
    log_score, tokens = log_s.topk(K, dim=1)
    rest = log_s.scatter(1, tokens, -torch.inf).logsumexp(dim=1)
    return Best(torch.where(log_score.isneginf(), 0, tokens), log_score, rest)

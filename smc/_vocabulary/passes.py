"""Passes over the vocabulary, which take most of the time of a step outside the model.

    prepare_draws   log Z of every prefix, and the token at a given quantile of its distribution q
    best            the K candidates with the highest scores of every prefix, and the others' sum

(A third pass is `smc._vocabulary.factors.top_k_and_class_sums`.) A *candidate* is a next token. Its
score s is p(v) times a factor. `VocabularyPass` has three implementations with equal results:

    tensors     tensor operations for any device; the reference. None synchronizes with the host.
                Each reads R x V numbers about five times
    compiled    compiled CPU loops that read each row once (`smc._vocabulary.kernels.loops`). To
                draw a token, q is first summed over blocks of tokens, so that a token is found by
                reading one block. Rows of fewer than `NARROW` tokens use tensor operations, because
                compiled calls for each row would take too long (128 prefixes of a dozen tokens: 29
                s instead of 0.4 s)
    triton      Triton kernels for CUDA devices (`smc._vocabulary.triton`)

A step gets its implementation as an argument. `pass_of` selects it by device or by name.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import torch
from jaxtyping import Bool, Float, Float64, Int64
from torch import Tensor

from gcd._arguments import check_indices
from hmm._threads import share_out
from smc._vocabulary import factors as tables
from smc._vocabulary.draw import Draws, categorical
from smc._vocabulary.factors import FEW, Factors, weigh
from smc._vocabulary.kernels import loops

NARROW = 1024
"""Minimum number of tokens in a row for compiled loops; shorter rows use tensor operations."""
PASSES = ("auto", "tensors", "compiled", "triton")
_BELOW_ONE = 1 - 2**-53


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

    In each row, the first `kept` of `known.tokens` are those candidates. In the result, the columns
    of the remaining tokens repeat the row's first candidate with its factor: zero, or its original
    factor if no candidate of the row is kept.
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


def prepare_draws_compiled(
    factors: Factors, log_p: Float[Tensor, "R V"], needed: Bool[Tensor, "R"] | None = None
) -> Draws:
    """Prepare to draw from q proportional to p g, for R prefixes; see `prepare_draws`."""
    if log_p.shape[1] < NARROW:
        return prepare_draws(factors, log_p)
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
    return Draws(log_z.double(), partial(_find_token, log_p, lines, sums, scale))


def _find_token(
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


def find_best_compiled(log_p: Float[Tensor, "R V"], factors: Factors, K: int) -> Best:
    """Find the K candidates with the highest scores in each row, and sum the other scores."""
    K = max(1, min(K, _most_candidates(factors)))
    if log_p.shape[1] < NARROW:
        return best(log_p, factors, K)
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


class VocabularyPass(NamedTuple):
    """An implementation of the passes over the vocabulary.

    Attributes:
        prepare_draws: function that prepares to draw tokens; see
            `smc._vocabulary.passes.prepare_draws`.
        best: function that finds the best candidates; see `smc._vocabulary.passes.best`. It may
            return fewer columns than K.
    """

    prepare_draws: Callable[[Factors, Tensor, Tensor | None], Draws]
    best: Callable[[Tensor, Factors, int], Best]

    def locate(
        self,
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
            factors: log s - log p; -inf for tokens that aren't candidates.
            rows: the row of each target, in ascending order.
            targets: the targets; those of a row are ascending, at distances of one.

        Returns:
            Tokens, in the order of the targets. Each token occurs at most once per row. If rounding
            moves a target beyond the last candidate, the result is the last candidate, or -1 if
            another target has this candidate. The result is undefined if c is zero, or if the
            target exceeds the sum of pi.
        """
        needed = torch.zeros_like(log_c, dtype=torch.bool).index_fill(0, rows, True)
        others = self.prepare_draws(exclude(factors, known), log_p, needed)
        log_z, log_c = others.log_z[rows], log_c[rows]
        possible = ~(log_z.isneginf() | log_c.isneginf())
        u = targets * torch.where(possible, log_c - log_z, 0.0).exp()
        found = others.at(rows, u.clamp(max=_BELOW_ONE))
        repeated = torch.zeros_like(possible)
        repeated[1:] = (found[1:] == found[:-1]) & (rows[1:] == rows[:-1])
        return torch.where(possible & ~repeated, found, -1)


TENSORS = VocabularyPass(prepare_draws, best)
COMPILED = VocabularyPass(prepare_draws_compiled, find_best_compiled)


def pass_of(name: str, device: torch.device) -> VocabularyPass:
    """Return the implementation with this name; "auto" selects the fastest one for the device."""
    if name not in PASSES:
        raise ValueError(
            f"expected the vocabulary pass to be one of {', '.join(PASSES)}, got {name!r}"
        )
    installed = importlib.util.find_spec("triton") is not None
    on_cpu = device.type in tables.COMPILED_DEVICES
    if name == "auto":
        name = "compiled" if on_cpu else "tensors"
        if device.type == "cuda" and installed:
            name = "triton"
    if name == "compiled" and not on_cpu:
        raise ValueError(
            f"expected a CPU device for the vocabulary pass 'compiled', got {device}; use 'auto'"
        )
    if name == "triton" and (not installed or device.type != "cuda"):
        got = f"{device}" if installed else f"{device} without triton"
        raise ValueError(
            "expected a CUDA device and the package triton for the vocabulary pass 'triton', got "
            f"{got}; use 'auto' or 'tensors'"
        )
    if name == "triton":
        from smc._vocabulary import triton

        return VocabularyPass(triton.prepare_draws, best)
    return COMPILED if name == "compiled" else TENSORS

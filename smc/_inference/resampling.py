"""Resampling schemes: replace N weighted particles by N equally weighted particles.

A resampling scheme draws ancestors a_1 … a_N such that particle n occurs N·W_n times among them in
expectation. This property, E[#{i : a_i = n}] = N·W_n, keeps the evidence estimate unbiased. The
schemes differ in the variance that they add (Douc, Cappé & Moulines, 2005):

    systematic     the same point of each of N equal slices of (0, 1), with a single uniform number;
                   the default
    multinomial    N independent draws from W; the largest variance, as in the paper

Each scheme is a function of the weights and of `uniform`. `uniform(M, breaks)` returns M uniform
numbers for each system of particles that is resampled separately (a stratum in
`smc._inference.strata`). `breaks` returns the points where the outcome changes, which tests use to
enumerate the outcomes (`smc._vocabulary.draw`). Schemes process B independent systems at once, in
O(B·N log N). Systems may have fewer than N particles: their rows are padded to N with weight 0, and
only their first `size` ancestors are meaningful.

A particle of weight zero must never be selected. A float32 cumulative sum with binary search and
clipping would select one about once in 10⁴ steps at N = 1024. Here sums are in float64, and the
resulting index is moved to a particle of positive weight, so the guarantee doesn't depend on
rounding.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from jaxtyping import Float64, Int64
from torch import Tensor

Uniform = Callable[[int, Callable[[], Tensor]], Tensor]
"""Function of M and a function that returns the points where each of B x M outcomes changes.

It returns uniform numbers, Float64["B M"].
"""

Scheme = Callable[..., Tensor]
"""Function of normalized weights Float64["B N"], a `Uniform`, and the system sizes Int64["B"].

It returns ancestors, Int64["B N"].
"""


def multinomial(
    weights: Float64[Tensor, "B N"], uniform: Uniform, size: Int64[Tensor, "B"]
) -> Int64[Tensor, "B N"]:
    """Draw N times independently from the weights."""
    del size  # the draws are independent
    B, N = weights.shape
    cumulative = _cumulative(weights)
    u = uniform(N, lambda: cumulative.unsqueeze(1).expand(B, N, N))
    return _inverse(weights, cumulative, u)


def systematic(
    weights: Float64[Tensor, "B N"], uniform: Uniform, size: Int64[Tensor, "B"]
) -> Int64[Tensor, "B N"]:
    """Take the same point of each slice ((i - 1)/N, i/N), from one uniform number per system."""
    m, cumulative, slices = size.double().unsqueeze(1), _cumulative(weights), _slices(weights)
    u = uniform(1, lambda: (cumulative * m).frac().unsqueeze(1))
    return _inverse(weights, cumulative, (slices + u) / m)


SCHEMES: dict[str, Scheme] = {"systematic": systematic, "multinomial": multinomial}


def scheme(name: str) -> Scheme:
    """Return the scheme with this name."""
    if not isinstance(name, str) or name not in SCHEMES:
        raise ValueError(f"expected resampling to be one of {', '.join(SCHEMES)}, got {name!r}")
    return SCHEMES[name]


def _slices(weights: Float64[Tensor, "B N"]) -> Float64[Tensor, "N"]:
    """Return the numbers 0 to N - 1 of the N equal slices of (0, 1)."""
    return torch.arange(weights.shape[1], dtype=torch.float64, device=weights.device)


def _cumulative(weights: Float64[Tensor, "B N"]) -> Float64[Tensor, "B N"]:
    """Divide cumulative sums by the total, so that the last one is exactly one."""
    sums = weights.cumsum(dim=1)
    total = sums[:, -1:]
    return sums / torch.where(total > 0, total, 1.0)


def _inverse(
    weights: Float64[Tensor, "B N"],
    cumulative: Float64[Tensor, "B N"],
    points: Float64[Tensor, "B M"],
) -> Int64[Tensor, "B M"]:
    """Return, for each point, the particle in whose range of cumulative weights it lies.

    Particles of weight zero are never returned.
    """
    N = weights.shape[1]
    found = torch.searchsorted(cumulative, points, right=True).clamp(max=N - 1)
    index = torch.arange(N, device=weights.device).expand_as(weights)
    here = torch.where(weights > 0, index, N)
    onwards = here.flip(1).cummin(dim=1).values.flip(1)
    last = torch.where(weights > 0, index, 0).amax(dim=1, keepdim=True)
    return torch.minimum(onwards, last).gather(1, found)

"""Resampling replaces N weighted particles by N equally weighted ones that stand for them.

A resampling scheme draws ancestors a_1 … a_N such that particle n is expected N·W_n times among
them.  That one property, E[#{i : a_i = n}] = N·W_n, is what keeps the evidence estimate unbiased;
the schemes differ in the variance they add (Douc, Cappé & Moulines, 2005):

    multinomial    N independent draws from W; the most noise
    stratified     one draw in each of N equal slices of (0, 1)
    systematic     the same point of every slice: one uniform number in all; the usual choice
    residual       floor(N·W_n) copies of each for certain, the rest multinomially

Each is a function of the weights and of `uniform`, which gives M uniform numbers per system and may
ask where the outcome of each choice changes (`smc.draw`).  Schemes work on B
independent systems at once, at O(B·N log N). Systems may have fewer than N particles
(`smc.systems`): rows are padded to N with weight 0, and only the first `size` ancestors are
meaningful.

A particle of weight zero must never survive.  With a float32 running sum, a binary search and a
clip at the end it does, about once in 10⁴ steps at N = 1024; here sums are in float64 and the
index found is moved to a particle of positive weight, so that the guarantee does not rest on
rounding at all.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from inspect import signature
from types import MappingProxyType

import torch
from jaxtyping import Float64, Int64
from torch import Tensor

Uniform = Callable[[int, Callable[[], Tensor]], Tensor]
"""(M, breaks of M choices in each of B systems, on demand) -> uniform numbers Float64["B M"]."""

Scheme = Callable[..., Tensor]
"""Normalised weights Float64["B N"], uniform numbers on demand, and the size of each system
Int64["B"] -> ancestors Int64["B N"]."""


def multinomial(
    weights: Float64[Tensor, "B N"], uniform: Uniform, size: Int64[Tensor, "B"]
) -> Int64[Tensor, "B N"]:
    """Draw N times independently from the weights."""
    del size  # draws do not know of each other
    B, N = weights.shape
    cumulative = _cumulative(weights)
    u = uniform(N, lambda: cumulative.unsqueeze(1).expand(B, N, N))
    return _inverse(weights, cumulative, u)


def stratified(
    weights: Float64[Tensor, "B N"], uniform: Uniform, size: Int64[Tensor, "B"]
) -> Int64[Tensor, "B N"]:
    """Draw once in each slice ((i - 1)/N, i/N)."""
    m, cumulative, slices = size.double().unsqueeze(1), _cumulative(weights), _slices(weights)
    u = uniform(weights.shape[1], lambda: (cumulative * m).unsqueeze(1) - slices.unsqueeze(1))
    return _inverse(weights, cumulative, (slices + u) / m)


def systematic(
    weights: Float64[Tensor, "B N"], uniform: Uniform, size: Int64[Tensor, "B"]
) -> Int64[Tensor, "B N"]:
    """Take the same point of each slice, hence a single uniform number per system."""
    m, cumulative, slices = size.double().unsqueeze(1), _cumulative(weights), _slices(weights)
    u = uniform(1, lambda: (cumulative * m).frac().unsqueeze(1))
    return _inverse(weights, cumulative, (slices + u) / m)


def residual(
    weights: Float64[Tensor, "B N"], uniform: Uniform, size: Int64[Tensor, "B"]
) -> Int64[Tensor, "B N"]:
    """Copy particle n floor(N·W_n) times, and draw what is missing to N from the remainders."""
    B, N = weights.shape
    expected = weights * size.double().unsqueeze(1)
    copies = expected.floor()
    remainder = expected - copies
    # Where rounding leaves no remainder although copies are missing, draw from the weights.
    some = remainder.sum(dim=1, keepdim=True) > 0
    remainder = torch.where(some, remainder, weights)
    cumulative = _cumulative(remainder)

    certain = copies.cumsum(dim=1)
    slots = _slices(weights).expand(B, N).contiguous()
    missing = slots >= certain[:, -1:]
    # Slots already filled ask for numbers too, so that shapes are fixed; those decide nothing.
    u = uniform(N, lambda: torch.where(missing.unsqueeze(2), cumulative.unsqueeze(1), 0.0))
    drawn = _inverse(remainder, cumulative, u)
    copied = torch.searchsorted(certain, slots, right=True).clamp(max=N - 1)
    return torch.where(missing, drawn, copied)


SCHEMES: Mapping[str, Scheme] = MappingProxyType(
    {
        "multinomial": multinomial,
        "stratified": stratified,
        "systematic": systematic,
        "residual": residual,
    }
)


def scheme(name: str | Scheme) -> Scheme:
    """Return the scheme of this name; a function that is one already comes back as it is.

    Raises:
        ValueError: no scheme has this name, or the function takes other arguments.
    """
    if not isinstance(name, str):
        try:
            signature(name).bind(None, None, None)
        except TypeError:
            raise ValueError(
                f"resampling is {name!r}; give a function of normalised weights, uniform numbers "
                f"and sizes as those of smc.resampling, or one of {', '.join(SCHEMES)}"
            ) from None
        return name
    if name not in SCHEMES:
        raise ValueError(f"unknown resampling scheme {name!r}; choose one of {', '.join(SCHEMES)}")
    return SCHEMES[name]


def _slices(weights: Float64[Tensor, "B N"]) -> Float64[Tensor, "N"]:
    """Return the numbers of the slices of (0, 1)."""
    return torch.arange(weights.shape[1], dtype=torch.float64, device=weights.device)


def _cumulative(weights: Float64[Tensor, "B N"]) -> Float64[Tensor, "B N"]:
    """Divide running sums by the total, so that the last one is exactly one."""
    sums = weights.cumsum(dim=1)
    total = sums[:, -1:]
    return sums / torch.where(total > 0, total, 1.0)


def _inverse(
    weights: Float64[Tensor, "B N"],
    cumulative: Float64[Tensor, "B N"],
    points: Float64[Tensor, "B M"],
) -> Int64[Tensor, "B M"]:
    """Invert the cumulative weights at each point; always find a particle of positive weight."""
    N = weights.shape[1]
    found = torch.searchsorted(cumulative, points, right=True).clamp(max=N - 1)
    index = torch.arange(N, device=weights.device).expand_as(weights)
    here = torch.where(weights > 0, index, N)
    onwards = here.flip(1).cummin(dim=1).values.flip(1)
    last = torch.where(weights > 0, index, 0).amax(dim=1, keepdim=True)
    return torch.minimum(onwards, last).gather(1, found)

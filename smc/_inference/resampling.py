"""Normalized weights, and resampling: N weighted particles become N equally weighted ones.

A resampling scheme draws ancestors a_1 … a_N such that particle n occurs N·W_n times among them in
expectation. This property, E[#{i : a_i = n}] = N·W_n, keeps the evidence estimate unbiased. The
schemes differ in the variance that they add (Douc, Cappé & Moulines, 2005):

    systematic     the same point of each of N equal slices of (0, 1), with a single uniform number;
                   the default
    multinomial    N independent draws from W; the largest variance, as in the paper

Each scheme is a function of the weights and of `uniform`. `uniform(M, breaks)` returns M uniform
numbers for each stratum. `breaks` returns the points where the outcome changes, which tests use to
enumerate the outcomes (`smc._vocabulary.draw`). Schemes process B independent systems at once, in
O(B·N log N). Systems may have fewer than N particles: their rows are padded to N with weight 0, and
only their first `size` ancestors are meaningful.

A particle of weight zero must never be selected. A float32 cumulative sum with binary search and
clipping would select one about once in 10⁴ steps at N = 1024. Here sums are in float64, and the
resulting index is moved to a particle of positive weight, so the guarantee doesn't depend on
rounding.

**Strata** are sets of particles that compete with each other; strata with a low ESS are resampled.
With `strata="none"`, a stratum consists of all particles of an example. With `strata="state"`, it
consists of an example's running particles in the same automaton state. Weights of particles in
different states aren't comparable: with masks, the probability of an improbable ending enters the
weight only at the end. The members of a stratum determine the keys of its random numbers.

Particles are sorted, so that each stratum is a contiguous range, in O(P log P). A scheme gets a
table of weights with one row per stratum. If the resampled strata have m particles together, it has
at most O(m²) numbers. In static shapes it has a row for every particle, O(P N) numbers in all; rows
of size 0 are padding.

**Weights.** A system of N particles x_n with weights w_n represents the distribution
sum_n W_n δ(x_n), with W_n = w_n / sum_m w_m (`Weights`). If all weights are zero, there is no
distribution.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
from jaxtyping import Bool, Float, Float64, Int64
from torch import Tensor

from smc._vocabulary.draw import Breaks, Draw, Keys, Purpose

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
    """Return the indices of the N equal slices of (0, 1), from 0 to N - 1."""
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


Indices = Callable[[Tensor], Tensor]
"""Function that returns the indices where a mask is True, or all indices in static shapes."""

STATE_BITS = 32
"""Number of bits for the automaton state in an integer that encodes example and state."""


class Strata(NamedTuple):
    """G strata of competing particles, each with 2 to m particles.

    Attributes:
        members: indices of each stratum's particles in ascending order, padded with the first one.
        size: number of particles in each stratum; 0 for a row that is only padding.
    """

    members: Int64[Tensor, "G m"]
    size: Int64[Tensor, "G"]

    @classmethod
    def of(
        cls,
        runs: Bool[Tensor, "P"],
        states: Int64[Tensor, "P"],
        N: int,
        strata: str,
        indices: Indices,
        width: int | None = None,
    ) -> Strata:
        """Find the strata of competing particles.

        Args:
            width: number of columns of `members`; by default, the size of the largest stratum.
        """
        P = len(runs)
        each = torch.arange(P, device=runs.device)
        if strata == "none":
            competes = runs.view(-1, N).any(dim=1)[each // N]
            states = torch.zeros_like(states)
        else:
            competes = runs
        name = torch.where(competes, ((each // N) << STATE_BITS) + states, -1 - each)
        name, order = name.sort(stable=True)
        leads = torch.nn.functional.pad(name.diff() != 0, (1, 0), value=True)
        number = leads.cumsum(dim=0) - 1
        size = torch.zeros_like(number).index_add(0, number, torch.ones_like(number))[number]
        size = torch.where(leads & (size > 1), size, 0)
        first = indices(size > 0)
        width = max(1, int(size.max())) if width is None else width
        column = (first.unsqueeze(1) + torch.arange(width, device=runs.device)).clamp(max=P - 1)
        inside = torch.arange(width, device=runs.device) < size[first].unsqueeze(1)
        # Padding with the first member, so that all members belong to the same example.
        return cls(torch.where(inside, order[column], order[first].unsqueeze(1)), size[first])

    @property
    def inside(self) -> Bool[Tensor, "G m"]:
        """True where `members` is not padding."""
        column = torch.arange(self.members.shape[1], device=self.size.device)
        return column < self.size.unsqueeze(1)

    def take(self, rows: Int64[Tensor, "K"]) -> Strata:
        """Return the strata with these indices."""
        return Strata(self.members[rows], self.size[rows])


class Resampled(NamedTuple):
    """The result of resampling P particles.

    Attributes:
        ancestors: for each particle, the particle that it is a copy of.
        log_weight: the new weights.
        examples: True for examples in which a stratum was resampled.
    """

    ancestors: Int64[Tensor, "P"]
    log_weight: Float64[Tensor, "P"]
    examples: Bool[Tensor, "B"]


def resample(
    strata: Strata,
    log_weight: Float64[Tensor, "P"],
    *,
    scheme: str,
    ess_threshold: float,
    examples: Int64[Tensor, "B"],
    step: Int64[Tensor, "B"],
    draw: Draw,
    indices: Indices,
) -> Resampled:
    """Replace the particles of each stratum with a low ESS by equally weighted copies."""
    P = len(log_weight)
    N = P // len(examples)
    weights = Weights.of(torch.where(strata.inside, log_weight[strata.members], -torch.inf))
    due = weights.ess > 0
    if ess_threshold < 1:
        due = due & (weights.ess < ess_threshold * strata.size)
    some = indices(due)
    if not len(some):
        none = torch.zeros_like(examples, dtype=torch.bool)
        return Resampled(torch.arange(P, device=log_weight.device), log_weight, none)
    strata, weights, due = strata.take(some), Weights(*(w[some] for w in weights)), due[some]
    members, inside = strata.members, strata.inside & due.unsqueeze(1)

    def uniform(count: int, breaks: Breaks) -> Float64[Tensor, "G M"]:
        named, decides = members[:, :count], inside[:, :count]
        keys = Keys(examples[named // N], named % N, step[named // N], Purpose.ANCESTOR)
        return draw(keys, lambda: torch.where(decides.unsqueeze(2), breaks(), 0.0))

    chosen = members.gather(1, SCHEMES[scheme](weights.normalized, uniform, strata.size))
    # The mean over the members of a stratum, which may be fewer than the columns of a row.
    size = strata.size.clamp(min=1).double()
    log_mean = weights.log_mean + (members.shape[1] / size).log()
    target = torch.where(inside, members, P).flatten()
    ancestors = torch.arange(P + 1, device=target.device).scatter(0, target, chosen.flatten())
    log_weight = torch.nn.functional.pad(log_weight, (0, 1))
    log_weight = log_weight.scatter(0, target, log_mean.unsqueeze(1).expand_as(members).flatten())
    example = members[:, 0] // N
    hit = torch.zeros_like(examples).index_add(0, example, due.long()) > 0
    return Resampled(ancestors[:P], log_weight[:P], hit)


class Weights(NamedTuple):
    """Normalized weights of particle systems, with one system per leading index.

    Attributes:
        normalized: normalized weights W_n, which sum to one over the last axis; all zero if all
            weights are zero.
        log_mean: log of the mean weight.
        ess: effective sample size, 1 / sum_n W_n² (Kong, Liu & Wong, 1994), from 1 to N; zero if
            all weights are zero.
    """

    normalized: Float64[Tensor, "*B N"]
    log_mean: Float64[Tensor, "*B"]
    ess: Float64[Tensor, "*B"]

    @classmethod
    def of(cls, log_weights: Float[Tensor, "*B N"]) -> Weights:
        """Compute the weights from log weights of any dtype, in float64."""
        log = log_weights.double()
        top = log.amax(dim=-1, keepdim=True)
        top = torch.where(top.isneginf(), 0.0, top)
        # The largest weight is scaled to one, so that the total neither overflows nor underflows.
        scaled = (log - top).exp()
        total = scaled.sum(dim=-1)
        dead = total == 0
        safe_total = torch.where(dead, 1.0, total)
        normalized = scaled / safe_total.unsqueeze(-1)
        squares = normalized.square().sum(dim=-1)
        return cls(
            normalized=normalized,
            log_mean=(total / log.shape[-1]).log() + top.squeeze(-1),
            ess=torch.where(dead, 0.0, 1 / torch.where(dead, 1.0, squares)),
        )

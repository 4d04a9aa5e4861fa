"""Strata: sets of particles that compete with each other; strata with a low ESS are resampled.

With `strata="none"`, a stratum consists of all particles of an example. With `strata="state"`, it
consists of an example's running particles in the same automaton state. Weights of particles in
different states aren't comparable: with masks, the probability of an improbable ending enters the
weight only at the end.

The particles are sorted, so that each stratum is a contiguous range. A resampling scheme
(`smc._inference.resampling`) gets a table of weights with one row per stratum, and their sizes.
The members of a stratum determine the keys of its random numbers.

Cost: O(P log P) for sorting. If the resampled strata have m particles together, their table has at
most O(m²) numbers. In static shapes it has a row for every particle, O(P N) numbers in all; rows of
size 0 are padding.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
from jaxtyping import Bool, Float64, Int64
from torch import Tensor

from smc._inference.resampling import Scheme
from smc._inference.weights import Weights
from smc._vocabulary.draw import Breaks, Draw, Keys, Purpose

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
    scheme: Scheme,
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

    chosen = members.gather(1, scheme(weights.normalized, uniform, strata.size))
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

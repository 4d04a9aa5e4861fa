"""This module resamples many particle systems at once in static shapes: no size depends on data.

Which particles compete, how many of them, and whether they are resampled are facts that only the
device knows. So every particle is given a row over the N particles of its example, in which those
that do not compete with it weigh nothing; the schemes of `smc.resampling` take such rows with their
sizes. Particle i has place `rank[i]` in its system, and its ancestor is the one of that place. A
system's numbers are named by its members, as in `smc.sampler`, and asked for once, by its first
member. Ancestors are those of `smc.sampler` for the same numbers, to the rounding of sums.

Cost: O(N²) numbers for each example, in some thirty small operations.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from jaxtyping import Bool, Float64, Int64
from torch import Tensor

from smc.draw import Breaks, Draw, Keys, Purpose
from smc.resampling import Scheme
from smc.weights import Weights


class Systems(NamedTuple):
    """The systems of particles that compete, one row for each of P particles.

    Attributes:
        members: numbers, within the example, of the particles of its system, in order; any number
            past the size.
        size: how many these are; 0 for a particle that competes with none, not even itself.
        rank: its place among them.
        first: number of the first of them.
        same: which particles of its example these are.
    """

    members: Int64[Tensor, "P N"]
    size: Int64[Tensor, "P"]
    rank: Int64[Tensor, "P"]
    first: Int64[Tensor, "P"]
    same: Bool[Tensor, "P N"]

    @classmethod
    def of(
        cls, runs: Bool[Tensor, "P"], states: Int64[Tensor, "P"], N: int, strata: str
    ) -> Systems:
        """Finds who competes with whom.

        Args:
            runs: particles that are due another token.
            states: of their automata.
            N: particles of each example.
            strata: "none", all of an example; "state", those that run and are in the same state.
        """
        number = torch.arange(N, device=runs.device)
        by_example = runs.view(-1, N)
        if strata == "none":
            same = by_example.any(dim=1).repeat_interleave(N, output_size=len(runs)).unsqueeze(1)
            same = same.expand(-1, N)
        else:
            here = states.view(-1, N)
            same = (here.unsqueeze(2) == here.unsqueeze(1)).view(-1, N)
            runs_too = by_example.unsqueeze(1).expand(-1, N, -1).reshape(-1, N)
            same = same & runs.unsqueeze(1) & runs_too
        own = number.repeat(len(by_example)).unsqueeze(1)
        members = torch.where(same, number, N).sort(dim=1).values
        return cls(
            members=members.clamp(max=N - 1),
            size=same.sum(dim=1),
            rank=(same & (number < own)).sum(dim=1),
            first=members[:, 0].clamp(max=N - 1),
            same=same,
        )


class Resampled(NamedTuple):
    """What became of P particles.

    Attributes:
        ancestors: whose copies they are, numbered through over all examples.
        log_weight: their weights.
        due: whether they were resampled.
        ess: effective sample size of each one's system.
    """

    ancestors: Int64[Tensor, "P"]
    log_weight: Float64[Tensor, "P"]
    due: Bool[Tensor, "P"]
    ess: Float64[Tensor, "P"]


def resample(
    systems: Systems,
    log_weight: Float64[Tensor, "P"],
    *,
    scheme: Scheme,
    ess_threshold: float,
    examples: Int64[Tensor, "P"],
    step: Int64[Tensor, ""],
    draw: Draw,
) -> Resampled:
    """Replaces the particles of each system of low ESS by equally weighted copies of them.

    Args:
        systems: who competes.
        log_weight: of the particles.
        scheme: one of `smc.resampling.SCHEMES`.
        ess_threshold: resample when the ESS falls under this fraction of the system's size; 1 or
            more means every step, 0 never.
        examples: identity of each particle's example, which names its random numbers.
        step: number of the step.
        draw: the seam of randomness.
    """
    P, N = systems.same.shape
    each = torch.arange(P, device=log_weight.device)
    number = each % N
    beside = log_weight.view(-1, 1, N).expand(-1, N, -1).reshape(P, N)
    weights = Weights.of(torch.where(systems.same, beside, -torch.inf))
    due = systems.size > 1
    if ess_threshold < 1:
        due = due & (weights.ess < ess_threshold * systems.size)
    leads = due & (systems.first == number)
    leader = each - number + systems.first

    def uniform(count: int, breaks: Breaks) -> Float64[Tensor, "P M"]:
        named = systems.members[:, :count]
        keys = Keys(examples.unsqueeze(1).expand_as(named), named, step, Purpose.ANCESTOR)
        decides = leads.unsqueeze(1) & (
            torch.arange(count, device=each.device) < systems.size[:, None]
        )

        def of_leaders() -> Float64[Tensor, "P M K"]:
            return torch.where(decides.unsqueeze(2), breaks(), 0.0)

        return draw(keys, of_leaders)[leader]

    chosen = scheme(weights.normalised, uniform, systems.size)
    ancestor = chosen.gather(1, systems.rank.clamp(max=N - 1).unsqueeze(1)).squeeze(1)
    # The mean over the system's own members, of which there may be fewer than N.
    log_mean = weights.log_mean + (N / systems.size.clamp(min=1).double()).log()
    return Resampled(
        ancestors=torch.where(due, each - number + ancestor, each),
        log_weight=torch.where(due, log_mean, log_weight),
        due=due,
        ess=weights.ess,
    )

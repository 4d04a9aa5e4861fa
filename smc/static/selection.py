"""This module selects candidates in static shapes: N slots for each example, filled from the first.

It keeps what `smc.selection.select` keeps, by the same threshold and the same points. How many are
kept is known to the device only, so the candidates that are kept for certain and those in which a
point falls are put in order together, and the first N are taken: there are never more, but for one
where rounding finds a point in what rounding has left over.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
from jaxtyping import Bool, Float, Float64, Int64
from torch import Tensor

from smc.candidates import Known
from smc.draw import Breaks
from smc.guide import Factors
from smc.outcome import count_of
from smc.selection import Fixed, Group, breaks, planned, points, thresholds
from smc.static.candidates import Candidates


class Kept(NamedTuple):
    """The candidates that were kept, those of example b in slots b·N, b·N + 1, …

    Attributes:
        taken: whether the slot has one.
        row: the prefix that it continues; any, where the slot has none.
        token: its next token; 0 where the slot has none.
        log_pi: log of the probability with which it was kept.
        dropped: for each example, whether there was a choice.
    """

    taken: Bool[Tensor, "P"]
    row: Int64[Tensor, "P"]
    token: Int64[Tensor, "P"]
    log_pi: Float64[Tensor, "P"]
    dropped: Bool[Tensor, "B"]


def select(
    log_p: Float[Tensor, "P V"],
    factors: Factors,
    num_particles: int,
    uniform: Callable[[Breaks], Float64[Tensor, "B"]],
    candidates: Candidates,
    *,
    floor: float,
    fixed: Fixed | None,
) -> Kept:
    """Keeps at most N candidates of each example, in the order of rows and tokens.

    Args:
        log_p: log-probabilities of the next token of the N prefixes of each example.
        factors: log s - log p of each candidate; -inf where there is none.
        num_particles: N.
        uniform: uniform numbers, one for each example; see `smc.selection.select`, as for `floor`
            and `fixed`.
        candidates: how to go over the vocabulary.
    """
    (P, V), N = log_p.shape, num_particles
    B, each = P // N, torch.arange(P, device=log_p.device)
    group = Group(each // N, B, N)
    weighed = candidates.weigh(log_p, factors, min(N, V))
    log_c = thresholds(weighed, group, N, floor, fixed)
    of_row = log_c[group.example]
    sure = weighed.log_score > of_row.unsqueeze(1)
    certain = sure.sum(dim=1)
    exact = floor == 0 and fixed is None
    places_left = N - count_of(group.example, B, certain) if exact else None
    plan = planned(weighed, sure, group, log_c, places_left)
    dropped = plan.mass.sum(dim=1) > 0

    def changes() -> Float64[Tensor, "B M"]:
        every = breaks(log_p, factors, weighed, sure, log_c, plan, group)
        return torch.where(dropped.unsqueeze(1), every, 0.0)

    column, target, inside = points(plan.ends, uniform(changes), N)
    row = column + N * torch.arange(B, device=log_p.device).unsqueeze(1)
    known = Known(weighed.tokens, certain)
    found = candidates.locate(log_p, factors, known, of_row, row.flatten(), target.flatten())
    found = found.view(B, N)
    hit, found = inside & dropped.unsqueeze(1) & (found >= 0), found.clamp(min=0)
    log_s = log_p[row, found] + factors.at(row.flatten(), found.flatten()).view(B, N)
    log_pi = torch.where(hit, log_s - log_c.unsqueeze(1), 0.0).clamp(max=0)
    return _in_order(
        torch.cat([sure.view(B, -1), hit], dim=1),
        torch.cat([(each.unsqueeze(1) * V + weighed.tokens).view(B, -1), row * V + found], dim=1),
        torch.cat([torch.zeros_like(weighed.log_score).view(B, -1), log_pi], dim=1),
        dropped,
        N,
        V,
    )


def _in_order(
    taken: Bool[Tensor, "B M"],
    name: Int64[Tensor, "B M"],
    log_pi: Float64[Tensor, "B M"],
    dropped: Bool[Tensor, "B"],
    N: int,
    V: int,
) -> Kept:
    """Puts the candidates that are taken into the slots of their examples.

    Args:
        name: row times V plus token.
    """
    P = len(dropped) * N
    name, order = torch.where(taken, name, P * V).sort(dim=1)
    name, log_pi = name[:, :N].flatten(), log_pi.gather(1, order[:, :N]).flatten()
    taken = name < P * V
    return Kept(
        taken=taken,
        row=torch.where(taken, name // V, torch.arange(P, device=name.device)),
        token=torch.where(taken, name % V, 0),
        log_pi=torch.where(taken, log_pi, 0.0),
        dropped=dropped,
    )

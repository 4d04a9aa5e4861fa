"""Particles name their rows of the model's cache, so that resampling moves as few rows as it can.

After resampling, some particles have several copies and others have none. The first copy of each
keeps its ancestor's row; every further copy takes a row that nobody has any more. So a row that
somebody goes on with is never overwritten, the copying can be done in place, and rows that stay
cost nothing. All of it is in static shapes, O(P²) bits for each example, and waits for nothing.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from jaxtyping import Int64
from torch import Tensor


class Moves(NamedTuple):
    """What resampling does to the rows of a cache.

    Attributes:
        row: the row of each particle from now on.
        source: the row that each row becomes a copy of; itself, if it stays.
    """

    row: Int64[Tensor, "P"]
    source: Int64[Tensor, "P"]


def moves(ancestors: Int64[Tensor, "P"], row: Int64[Tensor, "P"], N: int) -> Moves:
    """Finds rows for the copies of particles.

    Args:
        ancestors: whose copy each particle is, of the same example.
        row: the row of each particle before, all different.
        N: particles of each example.
    """
    P = len(row)
    each = torch.arange(P, device=row.device)
    groups = ancestors.view(-1, N)
    number = torch.arange(N, device=row.device)
    earlier = (groups.unsqueeze(2) == groups.unsqueeze(1)) & (number < number.unsqueeze(1))
    again = earlier.any(dim=2).flatten()
    childless = torch.ones_like(again)
    childless = childless.scatter(0, ancestors, False)
    # The k-th of the further copies of an example takes the k-th of its rows that are free.
    place = again.view(-1, N).cumsum(dim=1) - 1
    free = torch.where(childless.view(-1, N), number, N).sort(dim=1).values.clamp(max=N - 1)
    giver = (each.view(-1, N)[:, :1] + free.gather(1, place.clamp(min=0))).flatten()
    new = torch.where(again, row[giver], row[ancestors])
    return Moves(new, torch.empty_like(row).scatter(0, new, row[ancestors]))

"""Properties of the prefixes that a step extends."""

from __future__ import annotations

from typing import Any

import torch
from jaxtyping import Bool, Float64, Int64
from torch import Tensor

from smc._forward.prefixes import Extension, Prefixes, Reader, count_of
from smc._inference.particles import Particles
from smc._proposals import AutomatonPosition, Proposal, State
from smc._proposals.budget_effect import add_removed, compute_removed


def add_removed_in_step(
    total: Float64[Tensor, "B"],
    reader: Reader[State],
    prefixes: Prefixes[State],
    row: Int64[Tensor, "P"],
    reached: Float64[Tensor, "P"],
    drawn: Float64[Tensor, "P"],
    extension: Extension,
) -> Float64[Tensor, "B"]:
    """Add the probability that the budget removes after each prefix and along its forced run.

    `reached` and `drawn` are the weights of the particles before the step and after their draw.
    """
    position = prefixes.state.position
    assert isinstance(position, AutomatonPosition)  # as Frontier.start has checked
    mass = compute_removed(position, prefixes.log_p, reader.indices)
    return add_removed(add_removed(total, reached, mass[row]), drawn, extension.log_removed)


def fallbacks_of(
    fallback: Bool[Tensor, "R"] | None,
    prefixes: Prefixes[Any],
    particles: Particles,
    num_examples: int,
) -> Int64[Tensor, "B"]:
    """Count the prefixes of running particles where GCD's mask replaced g."""
    if fallback is None:
        return torch.zeros(num_examples, dtype=torch.int64, device=particles.row.device)
    fell_back = fallback & _in_use(prefixes, particles)
    return count_of(prefixes.example, num_examples, fell_back.long())


def prefixes_in_use(
    prefixes: Prefixes[State], particles: Particles, proposal: Proposal[State]
) -> tuple[Prefixes[State], Int64[Tensor, "R"]]:
    """Return the prefixes of running particles for observers, and their row numbers."""
    rows = _in_use(prefixes, particles).nonzero().squeeze(1)
    if len(rows) == prefixes.num_rows:
        return prefixes, rows
    state = proposal.take(prefixes.state, rows)
    return Prefixes(prefixes.example[rows], prefixes.log_p[rows], state), rows


def _in_use(prefixes: Prefixes[Any], particles: Particles) -> Bool[Tensor, "R"]:
    """Return True for prefixes that have a running particle."""
    count = torch.zeros_like(prefixes.example)
    return count.index_add(0, particles.row, particles.running.long()) > 0

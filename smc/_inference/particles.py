"""Weighted particles, as tensors with leading axis P = B·N, ordered by example.

Shapes are the same in every step: a finished or dead particle keeps its slot and is masked. Data
that depends only on tokens is stored per prefix (`smc._forward.prefixes`). A particle has the row
number of its prefix, `row`. The N prefixes that the discrete filter keeps are stored as particles,
too.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from jaxtyping import Bool, Float64, Int64
from torch import Tensor

from smc._forward.prefixes import Extension, Prefixes, Reader, count_of
from smc._proposals import AutomatonPosition, Proposal, State
from smc._proposals.budget_effect import add_removed, compute_removed

NOT_CHOSEN = 1.0
"""Value in `Particles.log_pi` for tokens that were not selected."""


class Particles(NamedTuple):
    """The P particles of a batch.

    Attributes:
        tokens: chosen and forced tokens, including EOS; -1 beyond the length. The last column is
            always -1: missing tokens are written to it.
        length: number of tokens.
        log_weight: log of the importance weight; -inf for a dead particle.
        log_p: log p_lm of the tokens, at the sampling temperature.
        log_potential: log psi of the prefix, by which the next weight update divides; 0 for psi =
            1.
        finished: True once the answer is complete.
        running: True for particles that take another token.
        row: row of the particle's prefix while the particle is running; arbitrary otherwise.
        founder: the particle's ancestor in the first step (`smc._results.reliability`).
        log_pi: log of the probability with which the discrete filter kept the prefix that ends in
            each token; `NOT_CHOSEN` for all other tokens. For SMC there are no columns.
    """

    tokens: Int64[Tensor, "P T"]
    length: Int64[Tensor, "P"]
    log_weight: Float64[Tensor, "P"]
    log_p: Float64[Tensor, "P"]
    log_potential: Float64[Tensor, "P"]
    finished: Bool[Tensor, "P"]
    running: Bool[Tensor, "P"]
    row: Int64[Tensor, "P"]
    founder: Int64[Tensor, "P"]
    log_pi: Float64[Tensor, "P S"]

    def take(self, ancestors: Int64[Tensor, "P"]) -> Particles:
        """Return copies of the particles with these indices, including their weights."""
        return Particles(*(field[ancestors] for field in self))

    def extend(
        self,
        by: Extension,
        *,
        log_weight: Float64[Tensor, "P"],
        log_p: Float64[Tensor, "P"],
        log_potential: Float64[Tensor, "P"] | None = None,
        log_pi: Float64[Tensor, "P"] | None = None,
    ) -> Particles:
        """Return the particles, with the running ones extended.

        Args:
            log_potential: new potentials; None keeps the old ones (the discrete filter has none).
            log_pi: log pi of the chosen tokens; None for SMC.
        """
        ran, many = self.running, (by.tokens >= 0).sum(dim=1)
        log_potential = self.log_potential if log_potential is None else log_potential
        # The column of each token is its position in the text, or the last column for no token.
        spare = self.tokens.shape[1] - 1
        column = self.length.unsqueeze(1) + torch.arange(by.tokens.shape[1], device=many.device)
        column = torch.where(by.tokens >= 0, column, spare)
        if log_pi is None:
            kept = self.log_pi
        else:
            first = torch.where(ran & (many > 0), self.length, spare).unsqueeze(1)
            kept = self.log_pi.scatter(1, first, log_pi.unsqueeze(1))
        return Particles(
            tokens=self.tokens.scatter(1, column, by.tokens),
            length=self.length + many,
            log_weight=torch.where(ran, log_weight, self.log_weight),
            log_p=self.log_p + torch.where(ran, log_p + by.forced_log_p, 0.0),
            log_potential=torch.where(ran, log_potential, self.log_potential),
            finished=self.finished | by.finished,
            running=by.running,
            row=by.row,
            founder=self.founder,
            log_pi=kept,
        )


def start_particles(
    num_examples: int,
    num_particles: int,
    budget: int,
    device: torch.device,
    *,
    selects: bool = False,
) -> Particles:
    """Create N particles of weight one for each example, before the first forward pass."""
    P = num_examples * num_particles
    zero = torch.zeros(P, dtype=torch.float64, device=device)
    number = torch.zeros(P, dtype=torch.int64, device=device)
    return Particles(
        tokens=torch.full((P, budget + 1), -1, dtype=torch.int64, device=device),
        length=number,
        log_weight=zero,
        log_p=zero,
        log_potential=zero,
        finished=torch.zeros(P, dtype=torch.bool, device=device),
        running=torch.ones(P, dtype=torch.bool, device=device),
        row=number,
        founder=torch.arange(P, device=device) % num_particles,
        log_pi=zero.new_full((P, budget + 1 if selects else 0), NOT_CHOSEN),
    )


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

"""Propagation of prefixes in a step; examples may wait for a forward pass in a later step."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from jaxtyping import Bool, Float64, Int64
from torch import Tensor

from smc._forward.prefixes import Extension, Prefixes, Reader, count_of
from smc._inference.particles import Particles
from smc._proposals import AutomatonPosition, Proposal, State
from smc._proposals.budget_effect import add_removed, compute_removed


class Propagation(NamedTuple):
    """Result of extending prefixes in a step, except for examples that wait for a pass.

    An example that waits for a forward pass (`smc._forward.prefixes.Reader.need_no_pass`) doesn't
    change, and repeats the step later: its g and its draw are computed again, with the same random
    numbers. With `read_ahead="auto"` no example waits, because drafts are only computed in passes
    over one row.

    Attributes:
        ready: True for examples that take the step now; None if all do.
        extension: the result of extending each particle.
        prefixes: the new prefixes.
    """

    ready: Bool[Tensor, "B"] | None
    extension: Extension
    prefixes: Prefixes[Any]

    @classmethod
    def extend(
        cls,
        reader: Reader[State],
        prefixes: Prefixes[State],
        before: Particles,
        row: Int64[Tensor, "P"],
        token: Int64[Tensor, "P"],
        running: Bool[Tensor, "P"],
        *,
        together: bool,
    ) -> Propagation:
        """Extend prefix number `row[p]` by the token `token[p]`, for each running particle p.

        Examples that need a forward pass may wait for a later step (`Reader.need_no_pass`).

        Args:
            reader: language model and proposal.
            prefixes: the prefixes before the step.
            before: the particles before the step.
            row, token, running: prefix and next token of each particle, and whether it is running.
            together: whether all examples must take the step, as observers require.
        """
        ready = None if together else reader.need_no_pass(prefixes, row, token, running)
        if ready is not None:
            going = ready.repeat_interleave(len(row) // len(ready))
            row = torch.where(going, row, before.row)
            token = torch.where(going, token, -1)
            running = torch.where(going, running, before.running)
        return cls(ready, *reader.extend(prefixes, row, token, running))

    def settle(
        self, before: Particles, after: Particles, step: Int64[Tensor, "B"]
    ) -> tuple[Particles, Particles, Int64[Tensor, "B"]]:
        """Undo the step for the examples that wait for a forward pass.

        Returns:
            The particles after the step; the particles before it, which are `running` only in
            examples that took the step; and the number of each example's next step.
        """
        if self.ready is None:
            return after, before, step + 1
        going = self.ready.repeat_interleave(len(before.row) // len(self.ready))
        after = after.where(going, before._replace(row=self.extension.row))
        return after, before._replace(running=before.running & going), step + self.ready.long()

    def add_removed(
        self,
        total: Float64[Tensor, "B"],
        reader: Reader[State],
        prefixes: Prefixes[State],
        row: Int64[Tensor, "P"],
        reached: Float64[Tensor, "P"],
        drawn: Float64[Tensor, "P"],
    ) -> Float64[Tensor, "B"]:
        """Add the probability that the budget removes after each prefix and along its forced run.

        `reached` and `drawn` are the weights of the particles before the step and after their draw.
        """
        position = prefixes.state.position
        assert isinstance(position, AutomatonPosition)  # as Frontier.start has checked
        mass = compute_removed(position, prefixes.log_p, reader.indices)
        found = add_removed(total, reached, mass[row])
        found = add_removed(found, drawn, self.extension.log_removed)
        return found if self.ready is None else torch.where(self.ready, found, total)


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

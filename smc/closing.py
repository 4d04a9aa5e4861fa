"""Answers are closed early: from some step on, running prefixes take a shortest way to their end.

Every automaton state knows how many tokens it needs to the end (D, `steps_to_accept`), and a token
that decreases it. From the step in which time runs out (`smc.deadlines`) the proposal is

    q(v) proportional to p_lm(v) 1{ D(state after v) = D(state) - 1 },

whatever it was before. So every prefix that can still be completed within its budget is complete
after D more tokens, and where there are several shortest ways, the language model chooses. Tokens
without a choice are read along in one forward pass, as always.

**Weights** stay p / q with the q that each token was really drawn with. Let L_t be the answers that
can still come out if the way out begins with step t: those complete by then, and those whose tokens
from step t on are a shortest way. If t doesn't depend on what was drawn,

    E[ evidence estimate · posterior(x) ] = p_lm(x) 1{ x in L_t }      for every answer x.

If t does depend on it (on how long the prefixes are, say), then

    E[ evidence estimate · posterior(x) ] <= p_lm(x),

because the estimate of p_lm of a prefix is a martingale up to step t, and closing can only lose
answers. So the estimated evidence is at most P_lm(C within n) in the mean, and probabilities are
those among the answers that were still possible.

**Bounds** hold: all that the budget allows after the prefixes at hand counts as open from then on.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
from jaxtyping import Bool, Float64, Int64
from torch import Tensor

from gcd.tokens.budget import BudgetMask
from smc.budgeting import Removed
from smc.deadlines import TimeLimit
from smc.outcome import Outcome, StepRecord
from smc.particles import Particles
from smc.prefixes import Extension, Prefixes, Reader, TokenCounts
from smc.proposals import AutomatonPosition, Batch
from smc.proposals.masks import ClassMaskProposal
from smc.turn import Turn


class ShortestWay(ClassMaskProposal):
    """The proposal that allows the tokens of shortest ways to the end, and no others."""

    def alive(self, walk: AutomatonPosition) -> Bool[Tensor, "R C"]:
        """Return the classes that a shortest completion begins with, if it fits the budget."""
        needed = walk.automata.steps_to_accept[walk.states.clamp(min=0)]
        return walk.mask.class_mask(walk.states, torch.minimum(walk.remaining, needed.long()))


class Closing:
    """Asks a time limit once in each step of a run, and closes the answers when it is reached.

    Args:
        reader: of the run; it is given another proposal.
        limit: says when.

    Attributes:
        reason: why the answers were closed; None if they were not.
        closed: the examples with answers that were running then.
    """

    def __init__(self, reader: Reader[Any], limit: TimeLimit) -> None:
        self._reader, self._limit = reader, limit
        self._log_mass: Float64[Tensor, "B"] | None = None
        self.reason: str | None = None
        self.closed: Bool[Tensor, "B"] | None = None

    def check(self, carry: Any, way_out: int, tokens: float) -> Any:
        """Return what the next step is given: with another proposal if the limit is reached.

        Args:
            carry: what the next step would be given.
            way_out, tokens: as for `TimeLimit.reason`.

        Raises:
            AbandonedError: nobody waits for the answers.
        """
        reason = self._limit.reason(way_out, tokens)
        if self.reason is not None or reason is None:
            return carry
        self.reason = reason
        reader, particles, prefixes = self._reader, carry.particles, carry.prefixes
        B = len(reader.batch.budgets)
        self.closed = particles.running.view(B, -1).any(dim=1)
        if carry.frontier is not None:
            nothing = torch.zeros_like(particles.running)
            self._log_mass = carry.frontier.advanced(
                prefixes, particles, particles.row, torch.zeros_like(particles.row), nothing,
                _nothing_taken(prefixes, particles, B),
            ).log_mass  # fmt: skip
        reader.proposal = ShortestWay()
        state = _position(prefixes, particles, reader.batch)
        return carry._replace(prefixes=replace(prefixes, state=state), frontier=None)

    def check_eagerly(self, carry: Any, record: StepRecord) -> Any:
        """Do as `check` after a step with this record, for which the host waits."""
        if self._limit.until is None:
            return self.check(carry, 0, 1.0)
        numbers = torch.stack([way_out(carry, self._reader.batch), record.read.sum()])
        longest, read = numbers.tolist()
        return self.check(carry, longest, max(1.0, read / carry.prefixes.num_rows))

    def mark(self, outcome: Outcome) -> Outcome:
        """Return the outcome of the run, which says what was closed, and why."""
        if self.closed is None:
            return outcome
        return outcome._replace(
            enumerated=outcome.enumerated & ~self.closed,
            log_mass=self._log_mass,
            closed=self.closed,
            closed_because=self.reason,
        )


def way_out(carry: Any, batch: Batch) -> Int64[Tensor, ""]:
    """Return the most tokens that a running prefix needs on a shortest way to its end."""
    particles = carry.particles
    states = carry.prefixes.state.walk.states[particles.row]
    needed = batch.automata.steps_to_accept[states.clamp(min=0)].long()
    return needed.masked_fill(~particles.running | (states < 0), 0).max()


def _position(prefixes: Prefixes[Any], particles: Particles, batch: Batch) -> AutomatonPosition:
    """Return where the prefixes are, whatever the proposal's state is."""
    walk = prefixes.state.walk
    if isinstance(walk, AutomatonPosition):
        return walk
    length = torch.zeros_like(prefixes.example)
    length = length.scatter_reduce(
        0, particles.row, particles.length.masked_fill(~particles.running, 0), "amax"
    )
    remaining = batch.budgets[prefixes.example] - length
    return AutomatonPosition(
        batch.automata, BudgetMask(batch.automata, batch.budgets), walk.states, remaining
    )


def _nothing_taken(prefixes: Prefixes[Any], particles: Particles, B: int) -> Turn:
    """Return a step that takes no token, after which all that is allowed is open."""
    no, zero = torch.zeros_like(particles.running), torch.zeros_like(particles.row)
    none = zero.new_zeros(B)
    extension = Extension(
        finished=no,
        running=no,
        row=zero,
        tokens=zero.new_zeros(len(zero), 0),
        forced=zero,
        forced_log_p=zero.double(),
        forced_log_g=zero.double(),
        landed=no,
        counts=TokenCounts(*[none] * 5),
        failed=no.any(),
        removed=Removed.nothing(zero.double()),
    )
    return Turn(None, extension, prefixes)

"""Closing of answers: after a time limit, running prefixes switch to a shortest completion.

Every automaton state has a distance D to the end in tokens (`steps_to_accept`), and some token
decreases it. When the time limit is reached (`smc._inference.deadlines`), the proposal is replaced
by

    q(v) proportional to p_lm(v) 1{ D(state after v) = D(state) - 1 }

So every prefix that can still be completed within its budget is complete after D more tokens. If
there are several shortest completions, the language model chooses among them. Consecutive tokens
without a choice are computed in one forward pass, as usual.

**Weights** are p / q with the q from which each token was drawn. Let L_t be the answers that are
still possible if closing begins in step t. These are the answers that are complete by then, and
those whose tokens from step t on are a shortest completion. If t doesn't depend on the drawn
tokens,

    E[ evidence estimate · posterior(x) ] = p_lm(x) 1{ x in L_t }      for every answer x.

If t depends on the drawn tokens (on the lengths of the prefixes, for example),

    E[ evidence estimate · posterior(x) ] <= p_lm(x),

because the estimate of p_lm of a prefix is a martingale up to step t, and closing can only remove
answers. So the expected evidence is at most P_lm(C within n). Probabilities are relative to the
answers that were still possible.

**Bounds** stay valid: all continuations of the current prefixes that the budget allows count as
open branches when closing begins.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
from jaxtyping import Bool, Float64, Int64
from torch import Tensor

from gcd import BudgetMask
from smc._forward.reader import Prefixes, Reader
from smc._inference.deadlines import TimeLimit
from smc._inference.particles import Outcome, Particles, StepRecord
from smc._proposals import AutomatonPosition, Batch
from smc._proposals.masks import ClassMaskProposal


class ShortestWay(ClassMaskProposal):
    """Proposal that only allows the tokens of shortest completions."""

    def alive(self, position: AutomatonPosition) -> Bool[Tensor, "R C"]:
        """Return True for classes that begin a shortest completion, if it fits into the budget."""
        needed = position.automata.steps_to_accept[position.states.clamp(min=0)]
        return position.mask.class_mask(
            position.states, torch.minimum(position.remaining, needed.long())
        )


class Closing:
    """The closing phase of a run.

    It checks the time limit once per step, and replaces the proposal when the limit is reached.

    Args:
        reader: the reader of the run, whose proposal is replaced.
        limit: the time limit.

    Attributes:
        reason: the reason for closing answers early; None if they weren't closed.
        closed: True for the examples that had running answers when closing began; None before.
    """

    def __init__(self, reader: Reader[Any], limit: TimeLimit) -> None:
        self._reader, self._limit = reader, limit
        self._log_upper: Float64[Tensor, "B"] | None = None
        self.reason: str | None = None
        self.closed: Bool[Tensor, "B"] | None = None

    def check(self, carry: Any, tokens_to_finish: int, tokens: float) -> Any:
        """Return the state before the next step, with the new proposal if the limit is reached."""
        reason = self._limit.reason(tokens_to_finish, tokens)
        if self.reason is not None or reason is None:
            return carry
        self.reason = reason
        reader, particles, prefixes = self._reader, carry.particles, carry.prefixes
        B = len(reader.batch.budgets)
        self.closed = particles.running.view(B, -1).any(dim=1)
        if carry.frontier is not None:
            self._log_upper = carry.frontier.close(prefixes, particles, prefixes.log_p)
        reader.proposal = ShortestWay()
        state = _position(prefixes, particles, reader.batch)
        return carry._replace(prefixes=replace(prefixes, state=state), frontier=None)

    def check_eagerly(self, carry: Any, record: StepRecord) -> Any:
        """Check the time limit after a step, with a host synchronization."""
        if self._limit.until is None:
            return self.check(carry, 0, 1.0)
        numbers = torch.stack([tokens_to_finish(carry, self._reader.batch), record.read.sum()])
        longest, read = numbers.tolist()
        return self.check(carry, longest, max(1.0, read / carry.prefixes.num_rows))

    def mark(self, outcome: Outcome) -> Outcome:
        """Return the result, with the examples that were closed early and the reason for it."""
        if self.closed is None:
            return outcome
        return outcome._replace(
            enumerated=outcome.enumerated & ~self.closed,
            log_upper=self._log_upper,
            closed=self.closed,
            closed_because=self.reason,
        )


def tokens_to_finish(carry: Any, batch: Batch) -> Int64[Tensor, ""]:
    """Return the largest distance of a running prefix to the end, in tokens."""
    particles = carry.particles
    states = carry.prefixes.state.position.states[particles.row]
    needed = batch.automata.steps_to_accept[states.clamp(min=0)].long()
    return needed.masked_fill(~particles.running | (states < 0), 0).max()


def _position(prefixes: Prefixes[Any], particles: Particles, batch: Batch) -> AutomatonPosition:
    """Return the positions of the prefixes in their automata, for the state of any proposal."""
    position = prefixes.state.position
    if isinstance(position, AutomatonPosition):
        return position
    length = torch.zeros_like(prefixes.example)
    length = length.scatter_reduce(
        0, particles.row, particles.length.masked_fill(~particles.running, 0), "amax"
    )
    remaining = batch.budgets[prefixes.example] - length
    return AutomatonPosition(
        batch.automata, BudgetMask(batch.automata, batch.budgets), position.states, remaining
    )

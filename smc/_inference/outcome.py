"""The result of an algorithm: weighted token sequences, and a record of every step."""

from __future__ import annotations

from typing import NamedTuple

import torch
from jaxtyping import Bool, Float64, Int64
from torch import Tensor

from smc._forward.prefixes import Extension
from smc._proposals.budgeting import Ledger


class StepRecord(NamedTuple):
    """The record of one step per example; for many steps, with a leading axis.

    Attributes:
        ess: effective sample size of the particles after the weight update, or of the running
            prefixes.
        resampled: whether the step resampled, or kept some candidate with probability below one.
        running: number of particles (or distinct prefixes) that take another token in the step.
        alive: number of particles of positive weight after the weight update, or of running
            prefixes.
        fallbacks: number of distinct prefixes where g fell back to GCD's mask (`Guide.fallback`).
        read: number of distinct prefixes that the language model computed at the end of the step,
            including those inside forced runs: one per token.
        forced: number of forced tokens of distinct prefixes.
        drafted: the part of `read` that was computed in advance (`smc._forward.read_ahead`).
        used: number of tokens that were computed in advance and became part of a prefix.
        landed: the part of `used` that was chosen instead of forced, each without a forward pass.
    """

    ess: Float64[Tensor, "*steps B"]
    resampled: Bool[Tensor, "*steps B"]
    running: Int64[Tensor, "*steps B"]
    alive: Int64[Tensor, "*steps B"]
    fallbacks: Int64[Tensor, "*steps B"]
    read: Int64[Tensor, "*steps B"]
    forced: Int64[Tensor, "*steps B"]
    drafted: Int64[Tensor, "*steps B"]
    used: Int64[Tensor, "*steps B"]
    landed: Int64[Tensor, "*steps B"]

    @classmethod
    def of_start(cls, extension: Extension, particles: int) -> StepRecord:
        """Return the record of a pseudo-step for tokens forced before the first choice.

        `running` is 0 for an example without forced tokens, so that reports skip the step.
        """
        started = (extension.counts.forced > 0).long() * particles
        none = torch.zeros_like(started)
        return cls(started.double(), none.bool(), started, started, none, *extension.counts)


class Selections(NamedTuple):
    """Candidates that the discrete filter kept with probability below one, per step.

    Attributes:
        uncertain: number of candidates per example and step with pi < 1.
        slack: the sum of 1 - pi over these candidates.
    """

    uncertain: Int64[Tensor, "B T"]
    slack: Float64[Tensor, "B T"]

    @classmethod
    def start(cls, num_examples: int, most: int, device: torch.device) -> Selections:
        """Create tables for at most this number of steps."""
        count = torch.zeros(num_examples, most, dtype=torch.int64, device=device)
        return cls(count, count.double())

    def add(
        self,
        log_pi: Float64[Tensor, "P"],
        step: Int64[Tensor, "B"],
        ready: Bool[Tensor, "B"] | None,
    ) -> Selections:
        """Add a step's selection.

        Args:
            log_pi: log pi of each example's N slots; zero for an empty or certain slot.
            step: number of each example's step.
            ready: examples that take the step; None for all.
        """
        B = len(step)
        slack = -torch.expm1(log_pi.view(B, -1))
        count, slack = (slack > 0).sum(dim=1), slack.sum(dim=1)
        if ready is not None:
            count, slack = count * ready, slack * ready
        column = step.unsqueeze(1).clamp(max=self.slack.shape[1] - 1)
        return Selections(
            self.uncertain.scatter_add(1, column, count.unsqueeze(1)),
            self.slack.scatter_add(1, column, slack.unsqueeze(1)),
        )


class Outcome(NamedTuple):
    """The result of one batch of examples.

    Attributes:
        example: index in the batch of the example of each of M sequences, ascending.
        tokens: the sequences, including EOS; -1 beyond their lengths.
        length: number of tokens of each.
        log_weight: log importance weight; -inf for a dead sequence.
        log_p: log p_lm of each, at the sampling temperature.
        finished: whether it is a complete answer.
        log_evidence: log of the estimate of P(C within n), for each example.
        ess: effective sample size of the final weights.
        enumerated: whether the sequences are the whole target, with exact probabilities.
        history: the records of all steps, [steps, B] each, on the host.
        start_seconds: time until the first step, for prompts, tables and graph capture.
        log_mass: log of the probability of found answers and open branches, for each example
            (`smc._inference.bounds.Frontier`); None if unknown.
        founder: each sequence's ancestor in the first step; None if sequences were selected.
        log_pi: log-probability with which each token was selected (`Particles.log_pi`); None if
            tokens were drawn.
        selections: the selections of each example's steps; None if tokens were drawn.
        ledger: probability removed by the budget (`smc._proposals.budgeting`); None if unknown.
        closed: examples whose running answers were closed early (`smc._inference.closing`); None
            without a time limit.
        closed_because: the reason.
    """

    example: Int64[Tensor, "M"]
    tokens: Int64[Tensor, "M T"]
    length: Int64[Tensor, "M"]
    log_weight: Float64[Tensor, "M"]
    log_p: Float64[Tensor, "M"]
    finished: Bool[Tensor, "M"]
    log_evidence: Float64[Tensor, "B"]
    ess: Float64[Tensor, "B"]
    enumerated: Bool[Tensor, "B"]
    history: StepRecord
    start_seconds: float = 0.0
    log_mass: Float64[Tensor, "B"] | None = None
    founder: Int64[Tensor, "M"] | None = None
    log_pi: Float64[Tensor, "M S"] | None = None
    selections: Selections | None = None
    ledger: Ledger | None = None
    closed: Bool[Tensor, "B"] | None = None
    closed_because: str | None = None

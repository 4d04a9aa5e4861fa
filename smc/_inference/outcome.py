"""The result of an algorithm: weighted token sequences, and a record of every step."""

from __future__ import annotations

from typing import NamedTuple

import torch
from jaxtyping import Bool, Float64, Int64
from torch import Tensor

from smc._forward.prefixes import Extension


class StepRecord(NamedTuple):
    """Statistics of one step for each of B examples, or of several steps along a leading axis.

    Attributes:
        ess: effective sample size. For SMC, of the particles after the weight update; for the
            discrete filter, of the running prefixes.
        resampled: whether the step resampled, or kept some prefixes with a probability below one.
        running: number of particles (or distinct prefixes) that take another token in the step.
        alive: number of particles with positive weight after the weight update, or of running
            prefixes.
        fallbacks: number of distinct prefixes where GCD's mask replaced g (`Factors.fallback`).
        read: number of tokens that the language model computed at the end of the step, including
            forced tokens and draft tokens. Equal prefixes count once, except in static shapes.
        forced: number of forced tokens; equal prefixes count once.
        drafted: number of draft tokens in `read` (`smc._forward.read_ahead`).
        used: number of draft tokens that became part of a prefix.
        landed: number of tokens in `used` that the sampler chose; the others were forced.
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
        """Return the record for the tokens that are forced before the first step.

        `running` is 0 for an example without such tokens, so that reports skip the record.
        """
        started = (extension.counts.forced > 0).long() * particles
        none = torch.zeros_like(started)
        return cls(started.double(), none.bool(), started, started, none, *extension.counts)


class Selections(NamedTuple):
    """Counts of the prefixes that the discrete filter kept with a probability pi below one.

    Attributes:
        uncertain: number of prefixes with pi < 1, per example and step.
        slack: sum of 1 - pi over these prefixes.
    """

    uncertain: Int64[Tensor, "B T"]
    slack: Float64[Tensor, "B T"]

    @classmethod
    def start(cls, num_examples: int, most: int, device: torch.device) -> Selections:
        """Create counts of zero for at most `most` steps."""
        count = torch.zeros(num_examples, most, dtype=torch.int64, device=device)
        return cls(count, count.double())

    def add(self, log_pi: Float64[Tensor, "P"], step: Int64[Tensor, "B"]) -> Selections:
        """Count the prefixes that a step kept with a probability below one.

        Args:
            log_pi: log pi of each example's N slots; zero for an empty slot, or if pi is one.
        """
        B = len(step)
        slack = -torch.expm1(log_pi.view(B, -1))
        count, slack = (slack > 0).sum(dim=1), slack.sum(dim=1)
        column = step.unsqueeze(1).clamp(max=self.slack.shape[1] - 1)
        return Selections(
            self.uncertain.scatter_add(1, column, count.unsqueeze(1)),
            self.slack.scatter_add(1, column, slack.unsqueeze(1)),
        )


class Outcome(NamedTuple):
    """The result of one batch of examples: M weighted token sequences.

    Attributes:
        example: index in the batch of each sequence's example, in ascending order.
        tokens: the tokens of each sequence, including EOS; -1 beyond its length.
        length: number of tokens of each sequence.
        log_weight: log of the importance weight; -inf for weight zero.
        log_p: log p_lm of each sequence, at the sampling temperature.
        finished: whether each sequence is a complete answer.
        log_evidence: log of the estimate of P(C within n), for each example.
        ess: effective sample size of the final weights of each example.
        enumerated: whether the sequences of each example are the whole target, with exact
            probabilities.
        history: the records of all steps on the host, as [steps, B] arrays.
        start_seconds: time until the first step, for prompts, tables and graph capture.
        log_upper: log of the probability of found answers and open branches, for each example
            (`smc._inference.bounds.Frontier`); None if unknown.
        founder: each sequence's ancestor in the first step; None for the discrete filter.
        log_pi: log-probability with which each token was selected (`Particles.log_pi`); None for
            SMC.
        selections: how many prefixes each step kept by chance; None for SMC.
        log_removed: log-probability of the tokens that only the budget forbids
            (`smc._proposals.budget_effect`); None if unknown.
        closed: examples whose running answers were closed early (`smc._inference.closing`); None if
            none were.
        closed_because: the reason for closing them.
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
    log_upper: Float64[Tensor, "B"] | None = None
    founder: Int64[Tensor, "M"] | None = None
    log_pi: Float64[Tensor, "M S"] | None = None
    selections: Selections | None = None
    log_removed: Float64[Tensor, "B"] | None = None
    closed: Bool[Tensor, "B"] | None = None
    closed_because: str | None = None

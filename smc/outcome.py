"""An algorithm leaves weighted token sequences, and a record of every step."""

from __future__ import annotations

from typing import NamedTuple

import torch
from jaxtyping import Bool, Float64, Int64
from torch import Tensor

from smc.budgeting import Ledger
from smc.prefixes import Extension


class StepRecord(NamedTuple):
    """What happened in one step, per example; of many steps, with an axis for these before it.

    Attributes:
        ess: effective sample size; of the particles after weighing, or of the prefixes that run.
        resampled: whether the step resampled; or some candidate had less than probability one of
            being kept.
        running: particles (or distinct prefixes) due another token when the step began.
        alive: particles of positive weight, after weighing; or prefixes that run.
        fallbacks: distinct prefixes at which the proposal knew nothing (`Guide.fallback`).
        read: distinct prefixes that the language model read at the end of the step, those in the
            middle of a forced run included: one for each token.
        forced: tokens that distinct prefixes took without a choice.
        drafted: of `read`, those that were read in advance (`smc.read_ahead`).
        used: tokens that had been read in advance, and became part of a prefix.
        landed: of `used`, those that were chosen, each of which took no pass.
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

        `running` is 0 for an example where nothing was forced, so that reports skip the step.
        """
        started = (extension.counts.forced > 0).long() * particles
        none = torch.zeros_like(started)
        return cls(started.double(), none.bool(), started, started, none, *extension.counts)


class Selections(NamedTuple):
    """How many candidates the steps of the discrete filter kept with less than certainty.

    Attributes:
        uncertain: candidates of each example and step that were kept with pi < 1.
        slack: the sum of 1 - pi over these candidates.
    """

    uncertain: Int64[Tensor, "B T"]
    slack: Float64[Tensor, "B T"]

    @classmethod
    def start(cls, num_examples: int, most: int, device: torch.device) -> Selections:
        """Make the tables of at most so many steps."""
        count = torch.zeros(num_examples, most, dtype=torch.int64, device=device)
        return cls(count, count.double())

    def noted(
        self,
        log_pi: Float64[Tensor, "P"],
        step: Int64[Tensor, "B"],
        ready: Bool[Tensor, "B"] | None,
    ) -> Selections:
        """Add a step's selection.

        Args:
            log_pi: of the N places of each example; zero for a place that is empty or certain.
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
        example: index in the batch of the example that each of M sequences belongs to, rising.
        tokens: the sequences, EOS included; -1 beyond their lengths.
        length: tokens of each.
        log_weight: log importance weight; -inf for a sequence that died.
        log_p: log p_lm of each, at the sampling temperature.
        finished: whether it is a complete answer.
        log_evidence: log of the estimate of P(C within n), of each example.
        ess: effective sample size of the final weights.
        enumerated: whether all sequences of the target are there, with their exact probabilities.
        history: the records of all steps, [steps, B] each, on the host.
        start_seconds: what it took until the first step: prompts were read, tables made, and a
            graph captured.
        log_mass: log of the probability of what was found or left open (`smc.bounds.Frontier`), of
            each example; None where it is not known.
        founder: the particle of the first step that each sequence descends from; None where the
            sequences were selected.
        log_pi: log-probability with which each token was selected (`Particles.log_pi`); None where
            tokens were drawn.
        selections: of the steps of each example; None where tokens were drawn.
        ledger: what the budget has removed (`smc.budgeting`); None where it is not known.
        closed: the examples of which running answers took the shortest way out before their time
            (`smc.closing`); None where nobody asked for that.
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

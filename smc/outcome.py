"""An algorithm leaves weighted token sequences, and a record of every step."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from jaxtyping import Bool, Float64, Int64
from torch import Tensor

from smc.prefixes import Fate


class StepRecord(NamedTuple):
    """What happened in one step, per example.

    Attributes:
        ess: effective sample size; of the particles after weighing, or of the prefixes that run.
        resampled: whether the step resampled, or left candidates out.
        running: particles (or distinct prefixes) due another token when the step began.
        alive: particles of positive weight, after weighing; or prefixes that run.
        fallbacks: distinct prefixes at which the proposal knew nothing (`Guide.fallback`).
        read: distinct prefixes that the language model read at the end of the step, those in the
            middle of a forced run included: one for each token.
        forced: tokens that distinct prefixes took without a choice.
    """

    ess: Float64[Tensor, "B"]
    resampled: Bool[Tensor, "B"]
    running: Int64[Tensor, "B"]
    alive: Int64[Tensor, "B"]
    fallbacks: Int64[Tensor, "B"]
    read: Int64[Tensor, "B"]
    forced: Int64[Tensor, "B"]


class Read(NamedTuple):
    """What the language model read in a step, per example.

    Attributes:
        tokens: distinct prefixes, one for each token.
        forced: tokens that followed without a choice, the ends of texts among them.
    """

    tokens: Int64[Tensor, "B"]
    forced: Int64[Tensor, "B"]

    @classmethod
    def of(cls, fate: Fate, example: Int64[Tensor, "M"], count: int) -> Read:
        """Sums up over the prefixes of each example."""
        return cls(count_of(example, count, fate.read), count_of(example, count, fate.forced))


def start_record(read: Read, particles: int) -> list[StepRecord]:
    """Returns the record of what was forced before the first choice: a step without one."""
    if not bool((read.forced > 0).any()):
        return []
    started = (read.forced > 0).long() * particles
    nothing = torch.zeros_like(started)
    record = StepRecord(started.double(), nothing.bool(), started, started, nothing, *read)
    return [record]


class Outcome(NamedTuple):
    """What one batch of examples came to.

    Attributes:
        example: index in the batch of the example that each of M sequences belongs to, rising.
        tokens: the sequences, EOS included; -1 beyond their lengths.
        length: tokens of each.
        log_weight: log importance weight; -inf for a sequence that died.
        finished: whether it is a complete answer.
        log_evidence: log of the estimate of P(C within n), of each example.
        ess: effective sample size of the final weights.
        enumerated: whether all sequences of the target are there, with their exact probabilities.
        records: of the steps.
    """

    example: Int64[Tensor, "M"]
    tokens: Int64[Tensor, "M T"]
    length: Int64[Tensor, "M"]
    log_weight: Float64[Tensor, "M"]
    finished: Bool[Tensor, "M"]
    log_evidence: Float64[Tensor, "B"]
    ess: Float64[Tensor, "B"]
    enumerated: Bool[Tensor, "B"]
    records: Sequence[StepRecord]

    @property
    def history(self) -> StepRecord:
        """The records on the host, one row a step."""
        # Without a step, where all answers are empty, the history is of length zero.
        fields = zip(*self.records, strict=True) if self.records else [()] * 7
        none = torch.zeros(0, len(self.log_evidence))
        return StepRecord(*(torch.stack(field).cpu() if field else none for field in fields))


def count_of(
    example: Int64[Tensor, "M"], count: int, many: Int64[Tensor, "M"] | None = None
) -> Int64[Tensor, "B"]:
    """Counts how many there are of each example; `many` says how many each entry stands for."""
    many = torch.ones_like(example) if many is None else many
    return example.new_zeros(count).index_add(0, example, many)

"""The steps of an algorithm, and the loop that takes them until no prefix is left.

`smc._inference.captured` takes the same steps in constant shapes, which a CUDA graph can capture.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any, Protocol, runtime_checkable

import torch

from smc._forward.reader import Reader
from smc._inference.closing import Closing
from smc._inference.deadlines import TimeLimit
from smc._inference.particles import Outcome, StepRecord


@runtime_checkable
class Stepper(Protocol):
    """The steps of an algorithm for one batch: a `ParticleFilter` or a `DiscreteFilter`."""

    @property
    def reader(self) -> Reader[Any]:
        """The reader, which runs the language model and updates the proposal's state."""
        ...

    def start(self, prompts: Sequence[Sequence[int]]) -> tuple[Any, StepRecord]:
        """Run the model on the prompts; return the first state, and the record of forced tokens."""
        ...

    def step(self, carry: Any) -> tuple[Any, StepRecord]:
        """Take a step; return the next state, and the record of this step.

        Parts of the state that no step changes must be the same tensors afterward, because a graph
        copies all other tensors.
        """
        ...

    def outcome(self, carry: Any, history: StepRecord) -> Outcome:
        """Return the answers of all examples, ordered by example.

        Args:
            carry: the state after the last step.
            history: the records of all steps.
        """
        ...


@torch.inference_mode()
def run_eagerly(
    stepper: Stepper, prompts: Sequence[Sequence[int]], limit: TimeLimit | None = None
) -> Outcome:
    """Sample answers to the prompts, with host synchronizations in each step."""
    started = time.perf_counter()
    carry, record = stepper.start(prompts)
    records, seconds = [record], time.perf_counter() - started
    closing = None if limit is None else Closing(stepper.reader, limit)
    while carry.prefixes.num_rows:
        if closing is not None:
            carry = closing.check_eagerly(carry, record)
        carry, record = stepper.step(carry)
        records.append(record)
    history = StepRecord(*(torch.stack(field).cpu() for field in zip(*records, strict=True)))
    outcome = stepper.outcome(carry, history)._replace(start_seconds=seconds)
    return outcome if closing is None else closing.mark(outcome)

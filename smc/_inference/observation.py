"""Observation of an algorithm's steps.

`smc.sample(..., observe=...)` calls `observe` once for each batch of examples. The function that
`observe` returns is called after every step. An observer can't change answers or weights, because
random numbers are functions of their keys. The observer's time is not included in
`Diagnostics.seconds`. With an observer, no graph is captured.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, TypeAlias

import torch
from jaxtyping import Bool, Float64, Int64
from torch import Tensor

from smc._forward.prefixes import Prefixes


class Population(NamedTuple):
    """Sequences after a step, and their ancestors before the step.

    Attributes:
        example: index of each sequence's example in the batch, in ascending order.
        ancestor: index of each sequence's ancestor among the sequences before the step.
        tokens: all tokens of each sequence; -1 beyond its length.
        length: number of tokens.
        log_weight: log of the importance weight; -inf for weight zero.
        finished: whether the answer is complete.
        running: whether the sequence takes another token.
        landed: whether the step's tokens matched a draft, so that they didn't need a forward pass
            (`smc._forward.read_ahead`).
    """

    example: Int64[Tensor, "Q"]
    ancestor: Int64[Tensor, "Q"]
    tokens: Int64[Tensor, "Q T"]
    length: Int64[Tensor, "Q"]
    log_weight: Float64[Tensor, "Q"]
    finished: Bool[Tensor, "Q"]
    running: Bool[Tensor, "Q"]
    landed: Bool[Tensor, "Q"]


class Observation(NamedTuple):
    """Data of one step of an algorithm, for all examples of a batch; passed to observers.

    Attributes:
        prefixes: R prefixes with the model's log-probabilities (`smc._forward.prefixes.Prefixes`).
        tilted: function that returns log p(v) + log g(v) of every next token v, as R x V numbers;
            -inf for a token that the proposal doesn't allow.
        example: index of the example in the batch of each of P sequences, in ascending order.
        row: the prefix of each sequence; -1 for an ended sequence.
        tokens: all tokens of each sequence; -1 beyond its length. If the beginning of an answer is
            forced, there are tokens before the first step.
        length: number of tokens of each sequence.
        log_weight: log weight of each sequence after the step's weight update.
        after: the sequences after the step.
        ended: complete answers that the discrete filter stored in this step. None for SMC, where
            complete answers stay among the sequences.
    """

    prefixes: Prefixes[Any]
    tilted: Callable[[], Float64[Tensor, "R V"]]
    example: Int64[Tensor, "P"]
    row: Int64[Tensor, "P"]
    tokens: Int64[Tensor, "P T"]
    length: Int64[Tensor, "P"]
    log_weight: Float64[Tensor, "P"]
    after: Population
    ended: Population | None = None


Watch: TypeAlias = Callable[[Observation], None]
"""Function that is called with the `Observation` of each step of a batch."""

Observe: TypeAlias = Callable[[Sequence[int]], Watch | None]
"""Function that returns the `Watch` of a batch, given its `example_ids`; None for no watch."""


class Timed:
    """Wrapper of an observer that measures the time that the observer takes.

    Attributes:
        seconds: total time so far.
    """

    def __init__(self, watch: Watch) -> None:
        self._watch = watch
        self.seconds = 0.0

    def __call__(self, observation: Observation) -> None:
        """Pass the step to the observer."""
        if observation.row.is_cuda:  # wait for pending work, which is the algorithm's time
            torch.cuda.synchronize(observation.row.device)
        started = time.perf_counter()
        self._watch(observation)
        self.seconds += time.perf_counter() - started

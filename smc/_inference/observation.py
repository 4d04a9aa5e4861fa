"""Observation of an algorithm's steps.

`smc.sample(..., observe=...)` calls `observe` once for each batch of examples, and calls the
returned function after every step. An observer can't change answers or weights, because random
numbers are functions of their keys. Its time is not included in `Diagnostics.seconds`. Observation
does change the execution: all examples advance together, and no graph is captured.
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
    """Sequences after a step, and their ancestors before it.

    Attributes:
        example: index of the sequence's example in the batch, ascending.
        ancestor: index of the sequence's ancestor among the sequences before the step.
        tokens: all tokens of each sequence; -1 beyond its length.
        length: number of tokens.
        log_weight: log importance weight; -inf for a dead sequence.
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
    """Data of one step of an algorithm, for all examples of a batch; passed to `observe`.

    Attributes:
        prefixes: R prefixes with the model's log-probabilities (`smc._forward.prefixes.Prefixes`).
        tilted: function that returns log p(v) + log g(v) of every next token v, as R x V numbers;
            -inf for a token that the proposal doesn't allow.
        example: for each of P sequences, the index of its example in the batch, ascending.
        row: the prefix of each of these sequences; -1 for an ended sequence.
        tokens: all tokens of these sequences; -1 beyond their lengths. If the beginning of an
            answer is forced, there are tokens before the first step.
        length: number of tokens.
        log_weight: log weights of these sequences after this step's weight update.
        after: the sequences before the next step.
        ended: complete answers that the discrete filter has collected (its pool); None for SMC,
            where complete answers stay among the sequences.
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
"""A function that is called with each step of one batch."""

Observe: TypeAlias = Callable[[Sequence[int]], Watch | None]
"""A function of the identities of a batch's examples; it returns None to skip the batch."""


class Timed:
    """A watch that measures its own time, to exclude it from the algorithm's.

    Attributes:
        seconds: total time so far.
    """

    def __init__(self, watch: Watch) -> None:
        self._watch = watch
        self.seconds = 0.0

    def __call__(self, observation: Observation) -> None:
        """Pass the step to the watch."""
        if observation.row.is_cuda:  # pending device work counts as the algorithm's time
            torch.cuda.synchronize(observation.row.device)
        started = time.perf_counter()
        self._watch(observation)
        self.seconds += time.perf_counter() - started

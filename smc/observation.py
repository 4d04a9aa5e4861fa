"""An observer may watch an algorithm run; this module has what it is shown of each step.

`smc.sample(..., observe=...)` asks once for each batch of examples whether it is to be watched, and
calls what it is given after every step. An observer changes no answer and no weight: random numbers
are functions of what they are for. Its time is left out of `Diagnostics.seconds`. Watching does
change execution: no example waits, and no graph is captured.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, TypeAlias

import torch
from jaxtyping import Bool, Float64, Int64
from torch import Tensor

from smc.prefixes import Prefixes


class Population(NamedTuple):
    """Sequences after a step, and which of those before it they go on from.

    Attributes:
        example: index in the batch of the example each belongs to, rising.
        ancestor: index among the sequences before the step.
        tokens: all tokens of each; -1 beyond its length.
        length: how many there are.
        log_weight: log importance weight; -inf once dead.
        finished: whether its answer is complete.
        running: whether another token is due.
        landed: whether the model had read what the step added before it was chosen, so that no pass
            was made for it (`smc.read_ahead`).
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
    """One step of an algorithm, for all examples of a batch.

    Attributes:
        prefixes: R prefixes with the model's log-probabilities (`smc.prefixes.Prefixes`).
        tilted: computes log p(v) + log g(v) of every next token, R x V numbers; -inf for a token
            that the proposal does not allow.
        example: index in the batch of the example that each of P sequences belongs to, rising.
        row: the prefix at which each of these sequences stood; -1 for one that is over.
        tokens: all tokens of these sequences; -1 beyond their lengths. Before the first step, too,
            there are some where the beginning of an answer is forced.
        length: how many there are.
        log_weight: of these sequences, once they were weighed in this step.
        after: the sequences with which the next step begins.
        ended: complete answers that take no further part (the pool's, of the discrete filter);
            None where they stay among the sequences.
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
"""It is shown each step of one batch."""

Observe: TypeAlias = Callable[[Sequence[int]], Watch | None]
"""It is given the identities of a batch's examples; None lets the batch go unwatched."""


class Timed:
    """A watch whose own time is known, so that it is not counted as the algorithm's.

    Attributes:
        seconds: what it has taken so far.
    """

    def __init__(self, watch: Watch) -> None:
        self._watch = watch
        self.seconds = 0.0

    def __call__(self, observation: Observation) -> None:
        """Show the step."""
        if observation.row.is_cuda:  # what is under way there is the algorithm's
            torch.cuda.synchronize(observation.row.device)
        started = time.perf_counter()
        self._watch(observation)
        self.seconds += time.perf_counter() - started

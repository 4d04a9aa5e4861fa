"""Weighted particles are a struct of tensors with leading axis P = B·N, example-major.

Particles of one example often hold the same tokens: all of them before the first draw, many after
resampling or where the model is sure of itself.  What depends on tokens alone is therefore kept
once per distinct prefix (`smc.prefixes`), and a particle names its prefix by `row`.  A particle
that is finished or dead has no row, and costs nothing more.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from jaxtyping import Bool, Float64, Int64
from torch import Tensor


class Particles(NamedTuple):
    """The P particles of a batch.

    Attributes:
        tokens: what each has drawn, EOS included; -1 beyond its length.
        length: tokens drawn.
        log_weight: log importance weight; -inf once dead.
        log_potential: log psi of its prefix, by which its next increment is divided; 0 for psi = 1.
        finished: True once its answer is complete.
        row: its prefix while it is running, else -1.
    """

    tokens: Int64[Tensor, "P T"]
    length: Int64[Tensor, "P"]
    log_weight: Float64[Tensor, "P"]
    log_potential: Float64[Tensor, "P"]
    finished: Bool[Tensor, "P"]
    row: Int64[Tensor, "P"]

    @property
    def running(self) -> Bool[Tensor, "P"]:
        """True where another token is due."""
        return self.row >= 0

    def take(self, ancestors: Int64[Tensor, "P"]) -> Particles:
        """Copies of these particles, weights and all."""
        return Particles(*(field[ancestors] for field in self))

    def append(
        self,
        which: Int64[Tensor, "M"],
        tokens: Int64[Tensor, "M K"],
        *,
        increment: Float64[Tensor, "M"],
        log_potential: Float64[Tensor, "M"],
        finished: Bool[Tensor, "M"],
        row: Int64[Tensor, "M"],
    ) -> Particles:
        """Returns the particles after these have taken some tokens each; -1 stands for none."""
        return Particles(
            tokens=appended(self.tokens, self.length, which, tokens),
            length=self.length.index_add(0, which, (tokens >= 0).sum(dim=1)),
            log_weight=self.log_weight.index_add(0, which, increment),
            log_potential=self.log_potential.index_copy(0, which, log_potential),
            finished=self.finished.index_copy(0, which, finished),
            row=self.row.index_copy(0, which, row),
        )


def appended(
    tokens: Int64[Tensor, "P T"],
    length: Int64[Tensor, "P"],
    which: Int64[Tensor, "M"],
    runs: Int64[Tensor, "M K"],
) -> Int64[Tensor, "P T"]:
    """Returns sequences of these lengths, some of which go on with runs; -1 stands for no token."""
    row, column = (runs >= 0).nonzero(as_tuple=True)
    place = (which[row], length[which[row]] + column)
    return tokens.index_put(place, runs[row, column])


def start_particles(
    num_examples: int, num_particles: int, budget: int, device: torch.device
) -> Particles:
    """Makes N particles of weight one for each example, on the empty prefix that they share."""
    P = num_examples * num_particles
    examples = torch.arange(num_examples, device=device)
    return Particles(
        tokens=torch.full((P, budget), -1, dtype=torch.int64, device=device),
        length=torch.zeros(P, dtype=torch.int64, device=device),
        log_weight=torch.zeros(P, dtype=torch.float64, device=device),
        log_potential=torch.zeros(P, dtype=torch.float64, device=device),
        finished=torch.zeros(P, dtype=torch.bool, device=device),
        row=examples.repeat_interleave(num_particles),
    )

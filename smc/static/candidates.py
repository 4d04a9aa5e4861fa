"""Candidates are gone over in static shapes by one of three ways; `smc.candidates` says what for.

tensors     tensor operations, the reference
compiled    the loops that `smc.candidates` has for the CPU, which has nobody to wait for
triton      sums of blocks of tokens, for CUDA devices (`smc.static.triton_candidates`)
"""

from __future__ import annotations

from typing import Protocol, runtime_checkable

import torch
from jaxtyping import Bool, Float, Float64, Int64
from torch import Tensor

from smc.candidates import (
    Known,
    Weighed,
    locate,
    locate_by_tensors,
    weigh,
    weigh_by_tensors,
)
from smc.guide import Factors


@runtime_checkable
class Candidates(Protocol):
    """A way to go over all candidates of P prefixes."""

    def weigh(self, log_p: Float[Tensor, "P V"], factors: Factors, most: int) -> Weighed:
        """Finds the K = `most` candidates of the greatest score in each row, sums up the others."""
        ...

    def locate(
        self,
        log_p: Float[Tensor, "P V"],
        factors: Factors,
        known: Known,
        log_c: Float64[Tensor, "P"],
        rows: Int64[Tensor, "M"],
        targets: Float64[Tensor, "M"],
        inside: Bool[Tensor, "M"],
    ) -> Int64[Tensor, "M"]:
        """Finds the candidate at each target that is inside; -1 for others, and for none.

        The other arguments are those of `smc.candidates.locate`.
        """
        ...


class TensorCandidates:
    """Tensor operations; the reference."""

    def weigh(self, log_p: Float[Tensor, "P V"], factors: Factors, most: int) -> Weighed:
        """See `Candidates`."""
        return weigh_by_tensors(log_p, factors, most)

    def locate(
        self,
        log_p: Float[Tensor, "P V"],
        factors: Factors,
        known: Known,
        log_c: Float64[Tensor, "P"],
        rows: Int64[Tensor, "M"],
        targets: Float64[Tensor, "M"],
        inside: Bool[Tensor, "M"],
    ) -> Int64[Tensor, "M"]:
        """See `Candidates`."""
        found = locate_by_tensors(log_p, factors, known, log_c, rows, targets)
        return torch.where(inside, found, -1)


class CompiledCandidates:
    """What `smc.candidates` does on the CPU."""

    def weigh(self, log_p: Float[Tensor, "P V"], factors: Factors, most: int) -> Weighed:
        """See `Candidates`."""
        return weigh(log_p, factors, most)

    def locate(
        self,
        log_p: Float[Tensor, "P V"],
        factors: Factors,
        known: Known,
        log_c: Float64[Tensor, "P"],
        rows: Int64[Tensor, "M"],
        targets: Float64[Tensor, "M"],
        inside: Bool[Tensor, "M"],
    ) -> Int64[Tensor, "M"]:
        """See `Candidates`."""
        found = torch.full_like(rows, -1)
        found[inside] = locate(log_p, factors, known, log_c, rows[inside], targets[inside])
        return found

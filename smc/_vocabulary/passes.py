"""Selection of the implementation of passes over the vocabulary; all three give equal results.

    tensors     tensor operations for any device; the reference (`smc._vocabulary.tensors`)
    compiled    compiled CPU loops that read each row once (`smc._vocabulary.compiled`)
    triton      Triton kernels for CUDA devices (`smc._vocabulary.triton`)

A step gets its implementation as an argument. `pass_of` selects it by device or by name.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from typing import NamedTuple

import torch
from jaxtyping import Float, Float64, Int64
from torch import Tensor

from smc._vocabulary import compiled, factors, tensors
from smc._vocabulary.factors import Factors
from smc._vocabulary.tensors import Best, Draws, Known

PASSES = ("auto", "tensors", "compiled", "triton")
_BELOW_ONE = 1 - 2**-53


class VocabularyPass(NamedTuple):
    """An implementation of the passes over the vocabulary.

    Attributes:
        prepare_draws: function that prepares to draw tokens; see
            `smc._vocabulary.tensors.prepare_draws`.
        best: function that finds the best candidates; see `smc._vocabulary.tensors.best`. It may
            return fewer columns than K.
    """

    prepare_draws: Callable[[Factors, Tensor, Tensor | None], Draws]
    best: Callable[[Tensor, Factors, int], Best]

    def locate(
        self,
        log_p: Float[Tensor, "R V"],
        factors: Factors,
        known: Known,
        log_c: Float64[Tensor, "R"],
        rows: Int64[Tensor, "M"],
        targets: Float64[Tensor, "M"],
    ) -> Int64[Tensor, "M"]:
        """Find the candidates at given targets in the cumulative sums of pi.

        pi is the probability of keeping a candidate (`smc._inference.selection`). The result is the
        first candidate at which the cumulative sum of pi exceeds the target.

        Args:
            factors: log s - log p; -inf for tokens that aren't candidates.
            rows: the row of each target, in ascending order.
            targets: the targets; those of a row are ascending, at distances of one.

        Returns:
            Tokens, in the order of the targets. Each token occurs at most once per row. If rounding
            moves a target beyond the last candidate, the result is the last candidate, or -1 if
            another target has this candidate. The result is undefined if c is zero, or if the
            target exceeds the sum of pi.
        """
        needed = torch.zeros_like(log_c, dtype=torch.bool).index_fill(0, rows, True)
        others = self.prepare_draws(tensors.exclude(factors, known), log_p, needed)
        log_z, log_c = others.log_z[rows], log_c[rows]
        possible = ~(log_z.isneginf() | log_c.isneginf())
        u = targets * torch.where(possible, log_c - log_z, 0.0).exp()
        found = others.at(rows, u.clamp(max=_BELOW_ONE))
        repeated = torch.zeros_like(possible)
        repeated[1:] = (found[1:] == found[:-1]) & (rows[1:] == rows[:-1])
        return torch.where(possible & ~repeated, found, -1)


TENSORS = VocabularyPass(tensors.prepare_draws, tensors.best)
COMPILED = VocabularyPass(compiled.prepare_draws, compiled.best)


def pass_of(name: str, device: torch.device) -> VocabularyPass:
    """Return the implementation with this name; "auto" selects the fastest one for the device."""
    if name not in PASSES:
        raise ValueError(
            f"expected the vocabulary pass to be one of {', '.join(PASSES)}, got {name!r}"
        )
    installed = importlib.util.find_spec("triton") is not None
    on_cpu = device.type in factors.COMPILED_DEVICES
    if name == "auto":
        name = "compiled" if on_cpu else "tensors"
        if device.type == "cuda" and installed:
            name = "triton"
    if name == "compiled" and not on_cpu:
        raise ValueError(
            f"expected a CPU device for the vocabulary pass 'compiled', got {device}; use 'auto'"
        )
    if name == "triton" and (not installed or device.type != "cuda"):
        got = f"{device}" if installed else f"{device} without triton"
        raise ValueError(
            "expected a CUDA device and the package triton for the vocabulary pass 'triton', got "
            f"{got}; use 'auto' or 'tensors'"
        )
    if name == "triton":
        from smc._vocabulary import triton

        return VocabularyPass(triton.prepare_draws, tensors.best)
    return COMPILED if name == "compiled" else TENSORS

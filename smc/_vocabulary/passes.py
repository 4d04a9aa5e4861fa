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
from torch import Tensor

from smc._vocabulary import compiled, factors, tensors
from smc._vocabulary.factors import Factors
from smc._vocabulary.tensors import Best, Draws, Known

PASSES = ("auto", "tensors", "compiled", "triton")


class VocabularyPass(NamedTuple):
    """An implementation of the passes over the vocabulary.

    Attributes:
        prepare_draws: function that prepares to draw tokens; see
            `smc._vocabulary.tensors.prepare_draws`.
        best: function that finds the best candidates; see `smc._vocabulary.tensors.best`. It may
            return fewer columns than K.
        locate: function that finds candidates at given points of a cumulative sum; see
            `smc._vocabulary.tensors.locate`.
    """

    prepare_draws: Callable[[Factors, Tensor], Draws]
    best: Callable[[Tensor, Factors, int], Best]
    locate: Callable[[Tensor, Factors, Known, Tensor, Tensor, Tensor], Tensor]


TENSORS = VocabularyPass(tensors.prepare_draws, tensors.best, tensors.locate)
COMPILED = VocabularyPass(compiled.prepare_draws, compiled.best, compiled.locate)


def pass_of(name: str, device: torch.device) -> VocabularyPass:
    """Return the implementation with this name; "auto" selects the fastest one for the device.

    Raises:
        ValueError: the name is unknown, the implementation is for another device, or Triton is not
            installed.
    """
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

        return VocabularyPass(triton.prepare_draws, tensors.best, triton.locate)
    return COMPILED if name == "compiled" else TENSORS

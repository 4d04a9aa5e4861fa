"""Selection of the implementation of passes over the vocabulary; all three give equal results.

    tensors     tensor operations for any device; the reference (`smc._vocabulary.tensors`)
    compiled    compiled CPU loops that read each row once (`smc._vocabulary.compiled`)
    triton      Triton kernels for CUDA devices (`smc._vocabulary.triton`)

A step takes its implementation as an argument; `pass_of` selects it by device or by name.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from smc._vocabulary import compiled, factors, tensors
from smc._vocabulary.factors import Factors, Guide
from smc._vocabulary.tensors import Best, Known, TokenSampler

PASSES = ("auto", "tensors", "compiled", "triton")


class VocabularyPass(NamedTuple):
    """An implementation of the passes over the vocabulary.

    Attributes:
        draws: see `smc._vocabulary.tensors.draws`.
        best: see `smc._vocabulary.tensors.best`; it may return fewer columns than K.
        locate: see `smc._vocabulary.tensors.locate`.
    """

    draws: Callable[[Guide, Tensor], TokenSampler]
    best: Callable[[Tensor, Factors, int], Best]
    locate: Callable[[Tensor, Factors, Known, Tensor, Tensor, Tensor], Tensor]


TENSORS = VocabularyPass(tensors.draws, tensors.best, tensors.locate)
COMPILED = VocabularyPass(compiled.draws, compiled.best, compiled.locate)


def pass_of(name: str, device: torch.device) -> VocabularyPass:
    """Return the pass with this name; "auto" is the device's fused pass, if installed.

    Raises:
        ValueError: the name is unknown, the pass is for another device, or Triton is missing.
    """
    if name not in PASSES:
        raise ValueError(f"expected a pass in {', '.join(PASSES)}, got {name!r}")
    installed = importlib.util.find_spec("triton") is not None
    on_cpu = device.type in factors.COMPILED_DEVICES
    if name == "auto":
        name = "compiled" if on_cpu else "tensors"
        if device.type == "cuda" and installed:
            name = "triton"
    if name == "compiled" and not on_cpu:
        raise ValueError(f"the pass 'compiled' needs a CPU device, got {device}; use 'auto'")
    if name == "triton" and (not installed or device.type != "cuda"):
        raise ValueError(
            f"the pass 'triton' needs the package triton and a CUDA device, got {device}; use "
            "'auto' or 'tensors'"
        )
    if name == "triton":
        from smc._vocabulary import triton

        return VocabularyPass(triton.draws, tensors.best, triton.locate)
    return COMPILED if name == "compiled" else TENSORS

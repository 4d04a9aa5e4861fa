"""A pass goes over the vocabulary for all prefixes of a step; there are three, with equal results.

    tensors     tensor operations, for any device; the reference (`smc.vocabulary.tensors`)
    compiled    loops compiled for the CPU, one reading of each row (`smc.vocabulary.compiled`)
    triton      the same for CUDA devices, as Triton kernels (`smc.vocabulary.triton`)

A step takes whichever it is handed; `pass_of` chooses by device or by name.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from smc.vocabulary import compiled, factors, tensors
from smc.vocabulary.factors import Factors, Guide
from smc.vocabulary.tensors import Best, Known, TokenSampler

PASSES = ("auto", "tensors", "compiled", "triton")


class VocabularyPass(NamedTuple):
    """A way to go over the vocabulary.

    Attributes:
        draws: as `smc.vocabulary.tensors.draws`.
        best: as `smc.vocabulary.tensors.best`; it may return fewer columns than K.
        locate: as `smc.vocabulary.tensors.locate`.
    """

    draws: Callable[[Guide, Tensor], TokenSampler]
    best: Callable[[Tensor, Factors, int], Best]
    locate: Callable[[Tensor, Factors, Known, Tensor, Tensor, Tensor], Tensor]


TENSORS = VocabularyPass(tensors.draws, tensors.best, tensors.locate)
COMPILED = VocabularyPass(compiled.draws, compiled.best, compiled.locate)


def pass_of(name: str, device: torch.device) -> VocabularyPass:
    """Return the pass of this name; "auto" is the fused one of the device, if it is installed.

    Raises:
        ValueError: there is none of this name, it is for another device, or Triton is missing.
    """
    if name not in PASSES:
        raise ValueError(f"unknown pass {name!r}; choose one of {', '.join(PASSES)}")
    installed = importlib.util.find_spec("triton") is not None
    on_cpu = device.type in factors.COMPILED_DEVICES
    if name == "auto":
        name = "compiled" if on_cpu else "tensors"
        if device.type == "cuda" and installed:
            name = "triton"
    if name == "compiled" and not on_cpu:
        raise ValueError(f"the pass 'compiled' is for the CPU, not for {device}; take 'auto'")
    if name == "triton" and (not installed or device.type != "cuda"):
        raise ValueError(
            f"the pass 'triton' needs the package triton and a CUDA device, not {device}; take "
            "'auto' or 'tensors'"
        )
    if name == "triton":
        from smc.vocabulary import triton

        return VocabularyPass(triton.draws, tensors.best, triton.locate)
    return COMPILED if name == "compiled" else TENSORS

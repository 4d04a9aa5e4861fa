"""This module chooses how to go over the vocabulary, by name or by device."""

from __future__ import annotations

import importlib.util

import torch

from smc.static.candidates import COMPILED, TENSORS, Candidates
from smc.static.passes import Pass, TorchPass

PASSES = ("auto", "torch", "blocks", "triton")
"""See `smc.static.passes`; "blocks" is compiled for the CPU, "triton" for CUDA devices."""


def pass_of(name: str, device: torch.device) -> Pass:
    """Returns the pass of this name; "auto" is the fused one of the device, if it is installed.

    Raises:
        ValueError: there is none of this name, it is for another device, or Triton is missing.
    """
    name = _resolved(name, device)
    if name == "blocks":
        from smc.static.blocks import BlockPass

        return BlockPass()
    if name == "triton":
        from smc.static.triton_blocks import TritonPass

        return TritonPass()
    return TorchPass()


def candidates_of(name: str, device: torch.device) -> Candidates:
    """Does for the discrete filter what `pass_of` does for the particle filter."""
    name = _resolved(name, device)
    if name == "blocks":
        return COMPILED
    if name == "triton":
        from smc.static.triton_candidates import TRITON

        return TRITON
    return TENSORS


def _resolved(name: str, device: torch.device) -> str:
    """One of "torch", "blocks" and "triton", which this device has."""
    if name not in PASSES:
        raise ValueError(f"unknown pass {name!r}; choose one of {', '.join(PASSES)}")
    installed = importlib.util.find_spec("triton") is not None
    if name == "auto":
        fused = {"cpu": "blocks", "cuda": "triton" if installed else "torch"}
        return fused.get(device.type, "torch")
    if name == "blocks" and device.type != "cpu":
        raise ValueError(f"the pass 'blocks' is for the CPU, not for {device}; take 'triton'")
    if name == "triton" and (not installed or device.type != "cuda"):
        raise ValueError(
            f"the pass 'triton' needs the package triton and a CUDA device, not {device}; take "
            "'auto' or 'torch'"
        )
    return name

"""The device that these tests run on, and values on it beside the same ones on the CPU."""

from __future__ import annotations

import os
from typing import Any

import torch
from torch.utils._pytree import tree_flatten, tree_map

NAME = os.environ.get("GCD_TEST_DEVICE", "mock")
if NAME == "mock":
    import tests.devices.pretending  # noqa: F401

DEVICE = torch.device(NAME)


def move(value: Any, device: Any = DEVICE) -> Any:
    """Copy all tensors of a tree to a device."""
    return tree_map(lambda each: each.to(device) if isinstance(each, torch.Tensor) else each, value)


def assert_same(found: Any, expected: Any, *, tolerance: float = 1e-10) -> None:
    """Asserts that every tensor of a tree is on the device, and has the numbers of the CPU's."""
    pairs = list(zip(tree_flatten(found)[0], tree_flatten(expected)[0], strict=True))
    assert any(isinstance(one, torch.Tensor) for one, _ in pairs)
    for one, other in pairs:
        if not isinstance(one, torch.Tensor):
            assert one == other
            continue
        assert one.device.type == DEVICE.type
        torch.testing.assert_close(one.cpu(), other, rtol=tolerance, atol=tolerance, equal_nan=True)

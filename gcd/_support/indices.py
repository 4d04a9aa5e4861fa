"""Range checks of token ids, states and other indices, before tensors or compiled code use them.

A wrong index may not raise an error by itself: a negative index of a tensor counts from the end,
and compiled code reads arbitrary memory. On the CPU the values are compared with their bounds,
which takes some microseconds per batch. On other devices this would be a host synchronization, so
only the type is checked, and PyTorch's own device-side assertions apply.
"""

from __future__ import annotations

import torch
from jaxtyping import Int
from torch import Tensor

_WHOLE = (torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8)


def check_indices(
    indices: Int[Tensor, "..."], size: int, what: str = "token", *, least: int = 0
) -> None:
    """Refuse indices outside of `least` to `size` - 1.

    Args:
        indices: indices, of any shape.
        size: number of indexed items; indices are below it.
        what: the name of an item, such as "token", for the error.
        least: the smallest allowed index, such as -1 for a placeholder.

    Raises:
        ValueError: an index is out of range, or indices are not whole numbers.
    """
    if not isinstance(indices, Tensor) or indices.dtype not in _WHOLE:
        kind = indices.dtype if isinstance(indices, Tensor) else type(indices).__name__
        raise ValueError(f"expected a tensor of integers, one for each {what}, got {kind}")
    if indices.device.type != "cpu" or not indices.numel():
        return
    values = indices.numpy()
    lowest, highest = int(values.min()), int(values.max())
    if lowest < least or highest >= size:
        wrong = lowest if lowest < least else highest
        raise ValueError(f"expected each {what} in {least}..{size - 1}, got {wrong}")


def check_shape(given: Tensor, shape: tuple[int, ...], what: str) -> None:
    """Raise `ValueError` unless a tensor has this shape."""
    if not isinstance(given, Tensor) or tuple(given.shape) != shape:
        found = tuple(given.shape) if isinstance(given, Tensor) else type(given).__name__
        raise ValueError(f"expected {what} of shape {shape}, got {found}")

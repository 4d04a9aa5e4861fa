"""Matrix products in the precision of their arguments, also within `torch.autocast`.

Autocast is meant for the layers of a neural network. In a recursion over probabilities it would
turn float32 into bfloat16. The compiled loops refuse this type, and its three digits aren't enough.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import ParamSpec, TypeVar

import torch

P = ParamSpec("P")
R = TypeVar("R")

_DEVICES = ("cpu", "cuda", "mps", "xpu")


def in_own_precision(function: Callable[P, R]) -> Callable[P, R]:
    """Decorate a function to run without autocast, on any device."""

    @wraps(function)
    def run(*args: P.args, **options: P.kwargs) -> R:
        for device in _DEVICES:
            if torch.is_autocast_enabled(device):
                with torch.autocast(device, enabled=False):
                    return run(*args, **options)
        return function(*args, **options)

    return run

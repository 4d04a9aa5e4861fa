"""Compilation of the static step of a `transformers` model with `torch.compile`.

A step of a small model launches about a thousand small kernels (norms, rotary positions, copies
into the cache). On a CUDA device, where a step is captured as a graph, these kernels take most of
the time. `torch.compile` fuses them. Compilation takes tens of seconds for each model and each
number of rows. Compilation is repeated once, for the second number of cache columns, and the result
then works for all numbers of columns.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from types import FunctionType
from typing import Any

import torch
from torch import Tensor

Step = Callable[..., Tensor]

_CAPTURING = ("reduce-overhead", "max-autotune")


def compile_step(step: Step, compile: bool | Mapping[str, Any]) -> CompiledStep | None:
    """Create a compiled step from the `compile` argument of `TransformersLM`; None for False."""
    options = {} if isinstance(compile, bool) else dict(compile)
    captures = options.get("mode") in _CAPTURING or (options.get("options") or {}).get(
        "triton.cudagraphs"
    )
    if captures or not options.get("fullgraph", True):
        raise ValueError(
            f"expected compile to be a bool, or arguments of torch.compile without CUDA graphs or "
            f"graph breaks, got {options}; pass compile=True or "
            "compile={'mode': 'max-autotune-no-cudagraphs'}"
        )
    return None if compile is False else CompiledStep(step, options)


class CompiledStep:
    """A function of tensors that is compiled when it gets tensors of new shapes or types.

    Args:
        step: the function.
        options: arguments of `torch.compile`; `fullgraph` is always True.

    Attributes:
        checked: shapes, types and devices of arguments for which the compiled function was compared
            with the function itself.
    """

    def __init__(self, step: Step, options: Mapping[str, Any]) -> None:
        self._step, self._options = step, dict(options)
        plain: Any = inspect.unwrap(step)
        # PyTorch stores at most eight compiled variants of a code object, so each model has a copy.
        own = FunctionType(plain.__code__.replace(), plain.__globals__, plain.__name__)
        self._compiled: Step = torch.compile(own, **{**options, "fullgraph": True})
        self.checked: set[object] = set()

    def __call__(self, *arguments: Any) -> Tensor:
        """Call the compiled function; compile it first if shapes or types are new."""
        return self._compiled(*arguments)

    def __reduce__(self) -> tuple[type, tuple[Step, dict[str, Any]]]:
        return CompiledStep, (self._step, self._options)

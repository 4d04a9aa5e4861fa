"""Muon is momentum whose direction is orthogonalised, for the matrices of a network.

Keller Jordan et al., "Muon: an optimizer for hidden layers in neural networks" (2024), with the
scale of Liu et al., arXiv 2502.16982, so that AdamW's learning rates carry over. `torch.optim.Muon`
iterates in bfloat16, which processors without such instructions emulate a hundred times slower;
here the iteration is float32, over all matrices of one shape at once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch

_COEFFICIENTS = (3.4445, -4.7750, 2.0315)
_STEPS = 5


class Muon(torch.optim.Optimizer):
    """Nesterov momentum, Newton-Schulz, decoupled weight decay; two-dimensional parameters only."""

    def __init__(
        self,
        params: Iterable[torch.Tensor],
        lr: float,
        weight_decay: float = 0.0,
        momentum: float = 0.95,
    ) -> None:
        super().__init__(params, {"lr": lr, "weight_decay": weight_decay, "momentum": momentum})

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Update every parameter that has a gradient."""
        loss = None if closure is None else closure()
        for group in self.param_groups:
            by_shape: dict[torch.Size, list[torch.Tensor]] = {}
            for parameter in group["params"]:
                if parameter.grad is not None:
                    by_shape.setdefault(parameter.shape, []).append(parameter)
            for shape, parameters in by_shape.items():
                directions = [self._direction(p, group["momentum"]) for p in parameters]
                scale = group["lr"] * 0.2 * max(shape) ** 0.5
                for parameter, update in zip(
                    parameters, orthogonal(torch.stack(directions)), strict=True
                ):
                    parameter.mul_(1 - group["lr"] * group["weight_decay"])
                    parameter.sub_(update, alpha=scale)
        return loss

    def _direction(self, parameter: torch.Tensor, momentum: float) -> torch.Tensor:
        state, grad = self.state[parameter], parameter.grad
        assert grad is not None
        if "momentum_buffer" not in state:
            state["momentum_buffer"] = torch.zeros_like(parameter)
        buffer: torch.Tensor = state["momentum_buffer"]
        buffer.lerp_(grad, 1 - momentum)
        return grad.lerp(buffer, momentum)


def orthogonal(matrices: torch.Tensor) -> torch.Tensor:
    """Nearly the orthogonal factor of each matrix (N, R, C): singular values end near one."""
    wide = matrices if matrices.shape[1] <= matrices.shape[2] else matrices.mT
    wide = wide / wide.norm(dim=(1, 2), keepdim=True).clamp_min(1e-7)
    a, b, c = _COEFFICIENTS
    for _ in range(_STEPS):
        gram = wide @ wide.mT
        wide = a * wide + (b * gram + c * gram @ gram) @ wide
    return wide if matrices.shape[1] <= matrices.shape[2] else wide.mT

"""Detection of host synchronizations in proposals.

An operation synchronizes with the host if the host needs its result or the shape of its result. On
a CUDA device such an operation waits for all pending work, and can't be captured in a graph. The
detector calls a proposal once on any device, and records the operations.
"""

from __future__ import annotations

from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from smc._models.static_cache import NotStaticError
from smc._proposals import Batch, Proposal

WAITING = frozenset(
    {
        "_local_scalar_dense",
        "_unique",
        "_unique2",
        "bincount",
        "equal",
        "is_nonzero",
        "item",
        "lift_fresh",  # copies host numbers into a tensor
        "masked_select",
        "nonzero",
        "repeat_interleave",
        "unique_consecutive",
        "unique_dim",
    }
)


class Waits(TorchDispatchMode):
    """A dispatch mode that records operations with a host synchronization.

    Attributes:
        found: names of these operations.
        count: number of all operations.
    """

    def __init__(self) -> None:
        super().__init__()
        self.found: list[str] = []
        self.count = 0

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        """Run an operation; record it if its name or a boolean index implies a synchronization."""
        name = func._schema.name.removeprefix("aten::")
        self.count += 1
        by_mask = name.startswith(("index", "_index_put")) and any(
            isinstance(index, torch.Tensor) and index.dtype == torch.bool
            for part in args
            if isinstance(part, list | tuple)
            for index in part
        )
        if name in WAITING or by_mask:
            self.found.append(name)
        return func(*args, **(kwargs or {}))


@torch.inference_mode()
def refuse_waits(proposal: Proposal[Any], batch: Batch) -> None:
    """Raise an error if a method of a proposal synchronizes with the host.

    The methods are called for the empty prefixes of a batch.
    """
    state = proposal.start(batch)
    B, V = len(batch.budgets), batch.automata.vocabulary.size
    log_p = torch.zeros(B, V, dtype=torch.float32, device=batch.budgets.device).log_softmax(dim=1)
    each = torch.arange(B, device=log_p.device)
    token = torch.zeros_like(each).unsqueeze(1)
    calls = {
        "guide": lambda: proposal.guide(state, log_p),
        "take": lambda: proposal.take(state, each),
        "advance": lambda: proposal.advance(state, token),
    }
    for name, call in calls.items():
        call()  # tables that are made at the first call don't count
        with Waits() as waits:
            call()
        if waits.found:
            raise NotStaticError(
                f"expected a proposal without host synchronizations, as static shapes require, but "
                f"`{name}` of {proposal!r} calls {', '.join(sorted(set(waits.found)))}; compute "
                "with masks instead, or set execution='eager'"
            )

"""A detector of waits finds operations that force a host sync.

The host must see their result, or the shape of it. On a CUDA device such an operation waits for all
that is under way, and cannot be captured. Here it is found on any device: a proposal is asked once,
and the operations that it calls are listed.
"""

from __future__ import annotations

from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from smc.models.static_cache import NotStaticError
from smc.proposals import Batch, Proposal

WAITING = frozenset(
    {
        "_local_scalar_dense",
        "_unique",
        "_unique2",
        "bincount",
        "equal",
        "is_nonzero",
        "item",
        "lift_fresh",  # numbers of the host become a tensor
        "masked_select",
        "nonzero",
        "repeat_interleave",
        "unique_consecutive",
        "unique_dim",
    }
)


class Waits(TorchDispatchMode):
    """A mode that lists the operations which would wait.

    Attributes:
        found: their names.
        count: how many operations there were.
    """

    def __init__(self) -> None:
        super().__init__()
        self.found: list[str] = []
        self.count = 0

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        """Look at the name, and for boolean indices."""
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
    """Ask a proposal about the first tokens, and refuse it if it waits.

    Raises:
        NotStaticError: it does; the message says where, and for which operation.
    """
    state = proposal.start(batch)
    B, V = len(batch.budgets), batch.automata.vocabulary.size
    log_p = torch.zeros(B, V, dtype=torch.float32, device=batch.budgets.device).log_softmax(dim=1)
    each = torch.arange(B, device=log_p.device)
    token = torch.zeros_like(each).unsqueeze(1)
    calls = {
        "guide": lambda: proposal.guide(state, log_p).log_z,
        "score": lambda: proposal.score(state, log_p),
        "take": lambda: proposal.take(state, each),
        "advance": lambda: proposal.advance(state, token),
    }
    for name, call in calls.items():
        call()  # tables that are made once, at first use
        with Waits() as waits:
            call()
        if waits.found:
            raise NotStaticError(
                f"{proposal!r} cannot be executed in static shapes: its `{name}` calls "
                f"{', '.join(sorted(set(waits.found)))}, for which the host waits; write it with "
                "masks, or give execution='eager'"
            )

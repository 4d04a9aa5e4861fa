"""One process or several under `torchrun`: who this one is, waiting for the others, one bar."""

from __future__ import annotations

import os
from datetime import timedelta

import torch.distributed as dist
from tqdm import tqdm


def processes() -> tuple[int, int]:
    """This process's rank and the number of processes; one process unless under `torchrun`."""
    world = int(os.environ.get("WORLD_SIZE", "1"))
    if world > 1 and not dist.is_initialized():
        # Only barriers, no tensor travels; a process may wait long for the slowest.
        dist.init_process_group("gloo", timeout=timedelta(days=7))
    return int(os.environ.get("RANK", "0")), world


def wait_for_all(world: int) -> None:
    """Return when every process is here."""
    if world > 1:
        dist.barrier()


def bar(total: int, what: str, unit: str, rank: int, initial: int = 0) -> tqdm:
    """A progress bar, on the first process alone."""
    return tqdm(
        total=total, initial=initial, desc=what, unit=unit, disable=rank > 0, dynamic_ncols=True
    )

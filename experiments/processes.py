"""Processes of a run, one or several under `torchrun`, and errors in one line."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from tqdm import tqdm

_PATIENCE = timedelta(days=7)  # a process may wait long for the slowest one


def processes(device: torch.device | None = None) -> tuple[int, int]:
    """Return the rank of this process and the number of processes, one unless under `torchrun`.

    Args:
        device: device of the tensors that processes exchange, with NCCL on GPUs and gloo on CPUs.
            Without a device only barriers and small objects are exchanged, with gloo.
    """
    world = int(os.environ.get("WORLD_SIZE", "1"))
    if world > 1 and not dist.is_initialized():
        backend = "gloo"
        if device is not None and device.type == "cuda":
            torch.cuda.set_device(device)
            backend = "cpu:gloo,cuda:nccl"
        dist.init_process_group(backend, timeout=_PATIENCE)
    return int(os.environ.get("RANK", "0")), world


def wait_for_all(world: int) -> None:
    """Wait until every process has called this."""
    if world > 1:
        dist.barrier()


def refuse_disagreement(world: int, digest: str) -> None:
    """Check that all processes have prepared the same; every process must call this once.

    Raises:
        ValueError: the digests differ; raised in every process.
    """
    digests: list[Any] = [digest]
    if world > 1:
        digests = [None] * world
        dist.all_gather_object(digests, digest)
    if len(set(digests)) > 1:
        raise ValueError(
            "expected the same code, settings, data and models in all processes under torchrun, "
            f"but what they prepared differs ({', '.join(map(str, digests))})"
        )


def bar(total: int, what: str, unit: str, rank: int, initial: int = 0) -> tqdm:
    """Make a progress bar that only the first process shows."""
    return tqdm(
        total=total, initial=initial, desc=what, unit=unit, disable=rank > 0, dynamic_ncols=True
    )


@contextmanager
def errors_in_one_line() -> Iterator[None]:
    """Exit with a one-line message for user errors; `HYDRA_FULL_ERROR=1` shows the traceback."""
    try:
        yield
    except KeyboardInterrupt:
        sys.exit(130)
    except (ValueError, OSError) as error:
        if os.environ.get("HYDRA_FULL_ERROR") == "1":
            raise
        print(f"error: {error}", file=sys.stderr)
        sys.exit(2)
    finally:
        if dist.is_initialized():
            dist.destroy_process_group()

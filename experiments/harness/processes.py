"""Processes of a run, one or several under `torchrun`, and errors in one line."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Sequence
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


def refuse_disagreement(world: int, digest: str, records: Sequence[str]) -> None:
    """Check that all processes have prepared the same; every process must call this once.

    Args:
        world: the number of processes.
        digest: digest of everything that must be equal.
        records: one line per record, to report the first difference.

    Raises:
        ValueError: the digests differ; raised in every process, with the first difference.
    """
    if world == 1:
        return
    digests: list[Any] = [None] * world
    dist.all_gather_object(digests, digest)
    if len(set(digests)) > 1:
        prepared: list[Any] = [None] * world
        dist.all_gather_object(prepared, list(records))
        other = next(rank for rank in range(world) if digests[rank] != digests[0])
        raise ValueError(
            f"expected the same records in all processes under torchrun, but "
            f"{first_difference(prepared[0], prepared[other], other)}; use the same code, "
            "settings, data and models on every machine"
        )


def first_difference(first: Sequence[str], other: Sequence[str], rank: int) -> str:
    """Describe the first difference between the records of process 0 and process `rank`."""
    for one, two in zip(first, other, strict=False):
        if one != two:
            return f"process 0 has {one} where process {rank} has {two}"
    if len(first) != len(other):
        longer, name = (first, 0) if len(first) > len(other) else (other, rank)
        extra = longer[min(len(first), len(other))]
        counts = f"process 0 has {len(first)} and process {rank} has {len(other)}"
        return f"{counts}; only process {name} has {extra}"
    return f"what determines the results differs between process 0 and process {rank}"


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

"""Seconds of work on any device, and of the tables that proposals make once."""

from __future__ import annotations

import time
from collections.abc import Callable

import torch

import smc
from gcd.tokens.batch import AutomatonBatch
from gcd.tokens.token_automaton import TokenAutomaton


def seconds_of(work: Callable[[], object], device: torch.device | None = None) -> float:
    """Measure the seconds until the work is done, on the device too."""

    def now() -> float:
        if device is not None and device.type == "cuda":
            torch.cuda.synchronize(device)
        return time.perf_counter()

    started = now()
    work()
    return now() - started


def table_seconds(
    proposal: smc.Proposal,
    constraint: TokenAutomaton,
    budget: int,
    device: torch.device | None = None,
) -> float | None:
    """Measure the time in which a proposal makes its table, in seconds; None if it has none.

    The proposal keeps the table for the runs that follow, so this must be asked first. A small one
    is made before it and forgotten: kernels are loaded or compiled for the first, which is no
    method's own time.
    """
    if not proposal.memory(constraint, budget):
        return None
    automata = AutomatonBatch([constraint], device=device)
    shortest = int(constraint.steps_to_accept[constraint.initial])
    small, whole = (
        smc.Batch(automata, torch.tensor([tokens], device=device)) for tokens in (shortest, budget)
    )
    proposal.start(small)
    proposal.free()
    return round(seconds_of(lambda: proposal.start(whole), device), 5)

"""Stepwise EM on one process's share of the sequences; as a module, in each of two processes."""

from __future__ import annotations

import sys
from pathlib import Path

import torch
import torch.distributed as dist

from hmm import HMM, Step
from hmm import _em as em


def train(hmm: HMM, tokens: torch.Tensor, lengths: torch.Tensor) -> list[torch.Tensor]:
    """Take three mini-batch steps on this process's share of the sequences."""
    rank, world = (dist.get_rank(), dist.get_world_size()) if dist.is_initialized() else (0, 1)
    step = Step(hmm)
    for k in range(3):
        rows = torch.arange(len(lengths))[k::3][rank::world]
        step = em.em_step(
            step,
            [(tokens[rows], lengths[rows])],
            pseudo_counts=0.01,
            step_size=em.step_size(k),
            num_sequences=len(lengths),
        )
    trained = step.hmm
    log_likelihood = torch.tensor(step.log_likelihood)
    return [trained.initial, *trained.transition.factors, trained.emission, log_likelihood]


if __name__ == "__main__":
    folder = Path(sys.argv[1])
    dist.init_process_group("gloo")
    found = train(*torch.load(folder / "given.pt", weights_only=False))
    torch.save(found, folder / f"{dist.get_rank()}.pt")
    dist.destroy_process_group()

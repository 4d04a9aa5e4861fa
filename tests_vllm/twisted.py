"""P-GCD with a small random HMM, and its values along an answer by `smc.PGCD`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest
import torch

import gcd
import gcd_vllm
import hmm
import smc
from smc._vocabulary.factors import defend
from tests_vllm.oracle import Oracle


@contextmanager
def registered(vocabulary: gcd.Vocabulary, folder: Path) -> Iterator[gcd_vllm.PGCD]:
    """P-GCD with an HMM in a folder, which is the engine's directory of HMMs meanwhile."""
    seeded = torch.Generator().manual_seed(0)
    model = hmm.HMM.random(6, vocabulary.size, generator=seeded, concentration=0.3)
    hmm.save(model, folder / "random", vocabulary=vocabulary)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("GCD_VLLM_HMMS", str(folder))
        yield gcd_vllm.PGCD("random", exact_top_k=8, defense=0.05)


def values(
    pgcd: gcd_vllm.PGCD, oracle: Oracle, ids: Sequence[int], budget: int
) -> list[tuple[float, float]]:
    """Log Z and log q of each token of an answer."""
    proposal = pgcd.proposal(oracle.automaton.vocabulary, torch.device("cpu"))
    batch = smc.Batch(gcd.AutomatonBatch([oracle.automaton]), torch.tensor([budget]))
    start, found = proposal.start(batch), []
    for t, token in enumerate(ids):
        read = torch.tensor([ids[:t]], dtype=torch.int64)
        log_p = oracle.log_p_after(tuple(ids[:t])).unsqueeze(0)
        guide = defend(proposal.guide(proposal.advance(start, read), log_p), log_p)
        log_z = float(guide.log_z[0])
        found.append((log_z, float(guide.apply(log_p)[0, token]) - log_z))
    return found

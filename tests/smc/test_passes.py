"""Every pass over the vocabulary gives the reference's log Z and tokens."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import hmm._lookahead
import smc
from gcd import AutomatonBatch
from smc import Batch
from smc._vocabulary.passes import COMPILED, TENSORS, _find_token
from tests.smc.passes import (
    AUTOMATA,
    PROPOSALS,
    V,
    compare,
    compare_selection,
    pgcd,
)

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("N", [1, 9])
def test_compiled_candidates_are_the_reference(N: int, dtype: torch.dtype) -> None:
    compare_selection(COMPILED, dtype, N)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("name", PROPOSALS)
def test_blocks_are_the_reference(name: str, dtype: torch.dtype) -> None:
    compare(COMPILED, name, dtype)


def test_sums_over_every_class_are_those_over_live_ones(monkeypatch) -> None:
    """Compare computations without host synchronization with the compiled loops."""
    for proposal in (pgcd(exact_top_k=7), pgcd(exact_top_k=0)):
        batch = Batch(AutomatonBatch(AUTOMATA), torch.tensor([3, 4]))
        state = proposal.start(batch)
        generator = torch.Generator().manual_seed(1)
        for token in (None, 5):
            if token is not None:
                state = proposal.advance(state, torch.full((2, 1), token))
            log_p = torch.randn(2, V, generator=generator).log_softmax(dim=1)
            expected = proposal.guide(state, log_p)
            with monkeypatch.context() as elsewhere:
                elsewhere.setattr(hmm._lookahead, "_COMPILED", ())
                found = proposal.without_host_sync().guide(state, log_p)
            assert torch.allclose(found.log_g, expected.log_g, rtol=0, atol=1e-5)


def test_what_the_model_finds_impossible_is_still_told_apart() -> None:
    """The mask leaves a probability of e^-150, beyond the range of float32 exponentials."""
    proposal, batch = smc.GCD(), Batch(AutomatonBatch([AUTOMATA[1]]), torch.tensor([2]))
    state = proposal.start(batch)
    logits = torch.zeros(1, V)
    mask = state.mask.mask(state.states, state.remaining)
    logits[mask] = -150 + torch.randn(int(mask.sum()), generator=torch.Generator().manual_seed(4))
    log_p = logits.log_softmax(dim=1)
    row, guide = torch.zeros(1, dtype=torch.int64), proposal.guide(state, log_p)
    found, expected = COMPILED.prepare_draws(guide, log_p), TENSORS.prepare_draws(guide, log_p)
    assert found.at.func is _find_token
    assert float(found.log_z) == pytest.approx(float(expected.log_z), abs=1e-4)
    for u in torch.linspace(0.001, 0.999, 60, dtype=torch.float64):
        assert torch.equal(found.at(row, u[None]), expected.at(row, u[None]))


def test_a_row_after_which_nothing_can_follow() -> None:
    proposal, batch = smc.GCD(), Batch(AutomatonBatch(AUTOMATA), torch.tensor([3, 3]))
    log_p = torch.full((2, V), -torch.inf)
    log_p[1] = torch.zeros(V).log_softmax(dim=0)
    found = COMPILED.prepare_draws(proposal.guide(proposal.start(batch), log_p), log_p)
    assert found.log_z.isneginf().tolist() == [True, False]


def test_a_row_that_does_not_exist_is_refused() -> None:
    proposal, batch = smc.GCD(), Batch(AutomatonBatch(AUTOMATA), torch.tensor([3, 3]))
    log_p = torch.zeros(2, V).log_softmax(dim=1)
    found = COMPILED.prepare_draws(proposal.guide(proposal.start(batch), log_p), log_p)
    with pytest.raises(ValueError, match=r"expected each row in 0\.\.1, got 2"):
        found.at(torch.tensor([0, 2]), torch.tensor([0.5, 0.5], dtype=torch.float64))


@pytest.mark.slow("loops of a GPU in Python, in a process whose Triton interprets")
def test_triton_is_the_reference_in_its_interpreter() -> None:
    if importlib.util.find_spec("triton") is None:
        pytest.skip("triton is not installed")
    result = subprocess.run(
        [sys.executable, "-m", "tests.smc.triton_oracle"],
        cwd=ROOT, capture_output=True, text=True,
    )  # fmt: skip
    assert result.returncode == 0, result.stderr[-3000:]
    assert result.stdout.split("\n")[:-1] == [
        "gcd agrees", "pgcd agrees", "candidates agree", "rows agree",
    ]  # fmt: skip

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
from gcd import AutomatonBatch, Vocabulary, lift, regex
from hmm import HMM
from smc import Batch
from smc._inference.selection import FinishedScores, Group, select
from smc._vocabulary import compiled
from smc._vocabulary.mixture import defend
from smc._vocabulary.passes import COMPILED, TENSORS, VocabularyPass

ROOT = Path(__file__).resolve().parents[2]
V = 2300
"""Number of tokens: more than two blocks of either kind, the last one incomplete."""


def vocabulary() -> Vocabulary:
    words = [bytes([65 + i // 230, 97 + i // 10 % 23, 97 + i % 10]) for i in range(V - 1)]
    return Vocabulary.from_bytes([b"", *words], [0])


WORDS = vocabulary()
AUTOMATA = [lift(regex(pattern), WORDS) for pattern in ("([A-E][a-z]+)*", "(Aaa|Bcd)?J[a-z]*")]


def pgcd(device: str = "cpu", **options) -> smc.PGCD:
    generator = torch.Generator().manual_seed(2)
    hmm = HMM.random(5, V, generator=generator).to(device)
    return smc.PGCD(hmm, lookahead="in_time", **options)


PROPOSALS = {
    "lm": lambda _="cpu": smc.LM(),
    "lcd": lambda _="cpu": smc.LCD(),
    "gcd": lambda _="cpu": smc.GCD(),
    "pgcd": lambda device="cpu": pgcd(device, exact_top_k=7),
    "tied": lambda device="cpu": pgcd(device, exact_top_k=0),
}


def compare(
    given: VocabularyPass, name: str, dtype: torch.dtype, draws: int = 12, device: str = "cpu"
) -> None:
    """Compare a pass with the reference, at a start and after tokens, at three temperatures."""
    generator = torch.Generator().manual_seed(1)
    automata = AutomatonBatch([AUTOMATA[i % 2] for i in range(4)], device=device)
    batch = Batch(automata, torch.tensor([3, 5, 3, 4], device=device))
    P = 8
    proposal = PROPOSALS[name](device)
    each = torch.arange(4, device=device).repeat_interleave(2)
    state = proposal.take(proposal.start(batch), each)
    tolerance = 1e-10 if dtype == torch.float64 else 2e-6
    for temperature in (1.0, 0.7, 0.1):
        logits = 4 * torch.randn(P, V, generator=generator, dtype=dtype) / temperature
        logits[0, 1::3] = -torch.inf
        log_p = logits.log_softmax(dim=1).to(device)
        factors = defend(proposal.guide(state, log_p), log_p)._replace(log_z=None)
        found, expected = (each.prepare_draws(factors, log_p) for each in (given, TENSORS))
        scale = tolerance * (1 if temperature > 0.1 else 30)
        assert torch.allclose(found.log_z, expected.log_z, rtol=0, atol=scale)
        same = 0
        for _ in range(draws):
            rows = torch.randint(0, P, (P,), generator=generator).to(device)
            u = torch.rand(P, generator=generator, dtype=torch.float64).to(device)
            tokens = found.at(rows, u)
            same += int((tokens == expected.at(rows, u)).sum())
            assert not bool(factors.at(rows, tokens).isneginf().any())
        assert same == draws * P
        rows = torch.arange(P, device=device)
        middle = torch.full((P,), 0.37, dtype=torch.float64, device=device)
        state = proposal.advance(state, expected.at(rows, middle).unsqueeze(1))


def compare_selection(
    given: VocabularyPass, dtype: torch.dtype, N: int, device: str = "cpu"
) -> None:
    """Compare the discrete filter's selection of these candidates with the reference."""
    generator = torch.Generator().manual_seed(N)
    proposal = pgcd(device, exact_top_k=7)
    batch = Batch(AutomatonBatch(AUTOMATA, device=device), torch.tensor([3, 5], device=device))
    example = torch.arange(2, device=device).repeat_interleave(N)
    state = proposal.take(proposal.start(batch), example)
    tolerance = 1e-10 if dtype == torch.float64 else 2e-6
    chosen = 0
    for spread, count_finished in ((1.0, False), (6.0, True)):
        log_p = (spread * torch.randn(2 * N, V, generator=generator)).to(dtype).log_softmax(dim=1)
        log_p[0, 1::3] = -torch.inf
        log_p = log_p.to(device)
        log_weight = torch.randn(2 * N, generator=generator, dtype=torch.float64)
        log_weight[2 * N - 1 :: 2 * N] = -torch.inf if N > 1 else 0.0  # an empty slot
        log_weight = log_weight.to(device)
        factors = proposal.guide(state, log_p)
        factors = factors._replace(
            by_class=factors.by_class + log_weight.unsqueeze(1),
            by_token=factors.by_token + log_weight.unsqueeze(1),
        )
        answers = torch.full((2, N), -torch.inf, dtype=torch.float64, device=device)
        answers[:, 0] = -1.0
        finished = FinishedScores(answers, answers[:, -1]) if count_finished else None
        u = torch.rand(2, generator=generator, dtype=torch.float64).to(device)
        found, expected = (
            select(log_p, factors, Group(example, 2, N), N, lambda _, u=u: u, vocabulary_pass=each,
                   floor=1e-3 * count_finished, finished=finished)
            for each in (given, TENSORS)
        )  # fmt: skip
        for one, other in zip(found, expected, strict=True):
            if one.dtype == torch.float64:
                assert torch.allclose(one, other, rtol=0, atol=tolerance)
            else:
                assert torch.equal(one, other)
        chosen += int(expected.kept.sum())
    assert chosen >= 2 * N


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
    assert found.at.func is compiled._draw
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

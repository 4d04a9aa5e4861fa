"""The passes over the vocabulary: compiled loops and tensor operations against plain sums."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

import smc
from gcd import AutomatonBatch
from smc import Batch, Factors
from smc._vocabulary import factors as guides
from smc._vocabulary.factors import TopKAndClassSums, log_sum_of_classes, top_k_and_class_sums
from smc._vocabulary.passes import COMPILED, TENSORS, _find_token
from tests.smc.matrix import covering
from tests.smc.passes import (
    AUTOMATA,
    FORMS,
    PRECISION,
    PROPOSALS,
    V,
    both_ways,
    case,
    compare,
    compare_selection,
)


def assert_right(
    found: TopKAndClassSums,
    log_p: torch.Tensor,
    class_of: torch.Tensor,
    which: torch.Tensor,
    alive: torch.Tensor,
    tolerance: float,
) -> None:
    """Compare with sums of rows and classes one by one; equal tokens may come in any order."""
    K = found.best.shape[1]
    for r in range(len(log_p)):
        klass = class_of[which[r]].long()
        allowed = log_p[r].double().masked_fill(~alive[r][klass], -torch.inf)
        best = allowed.topk(K).values
        torch.testing.assert_close(found.best[r].double(), best, rtol=0, atol=0)
        tokens = found.tokens[r][~best.isneginf()]
        assert torch.equal(allowed[tokens], best[: len(tokens)])
        assert len(set(tokens.tolist())) == len(tokens)
        rest = allowed.index_fill(0, tokens, -torch.inf)
        mass = [rest[klass == c].logsumexp(dim=0) for c in range(alive.shape[1])]
        torch.testing.assert_close(
            found.log_mass[r].double(), torch.stack(mass), rtol=1e-13, atol=tolerance
        )


SIZES = [(3, 2, 3), (50, 7, 0), (50, 7, 5), (50, 60, 50), (5000, 40, 64), (4500, 3, 1),
         *((5000, 100, K) for K in (0, 3, 64))]  # fmt: skip


@pytest.mark.parametrize(
    "row", covering(form=[*FORMS], dtype=[*PRECISION], sizes=SIZES), ids=lambda row: str(row)
)
def test_favorites_and_the_mass_of_the_rest(
    row: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Include float32, where exp of most of these numbers is zero, and equal numbers."""
    monkeypatch.setattr(guides, "COMPILED_DEVICES", FORMS[row["form"]])
    vocabulary, classes, K = row["sizes"]
    for seed in range(3):
        log_p, class_of, which, alive = case(9, vocabulary, classes, seed)
        log_p = log_p.to(row["dtype"])
        if seed == 2:
            log_p = log_p.round()
        if classes == 100:  # few are allowed, which the CPU looks up without reading the rest
            alive = torch.arange(100) == 11 * torch.arange(9).unsqueeze(1)
            alive[4, 3] = True
        alive[0] = False
        found = top_k_and_class_sums(log_p, both_ways(class_of, alive.shape[1]), which, alive, K)
        assert_right(found, log_p, class_of, which, alive, PRECISION[row["dtype"]])


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("dtype", PRECISION)
@pytest.mark.parametrize("K", [0, 2])
@pytest.mark.parametrize("order", ["rising", "falling"])
def test_classes_of_any_scale(
    form: str, dtype: torch.dtype, K: int, order: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A lookahead may allow only tokens that are 10^-400 as probable as the rest.

    In a rising row, each token pushes out a candidate.
    """
    monkeypatch.setattr(guides, "COMPILED_DEVICES", FORMS[form])
    V, scales = 20_000, torch.tensor([0.0, -30, -90, -200, -750, -2000, -1e4, -1e30])
    number = torch.arange(V) * len(scales) // V
    if order == "rising":
        number = number.flip(0)
    log_p = (scales[number] - torch.linspace(9, 12, V)).to(dtype).unsqueeze(0)
    log_p[0, 7] = -torch.inf
    class_of, which = number.int().unsqueeze(0), torch.zeros(1, dtype=torch.int64)
    alive = torch.ones(1, len(scales), dtype=torch.bool)
    found = top_k_and_class_sums(log_p, both_ways(class_of, alive.shape[1]), which, alive, K)
    assert_right(found, log_p, class_of, which, alive, 1e-5)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("dtype", PRECISION)
def test_a_guide_that_is_one_or_zero(
    form: str, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(guides, "COMPILED_DEVICES", FORMS[form])
    log_p, class_of, which, classes = case(9, 3000, 20, 3)
    classes[0] = False
    log_p = log_p.to(dtype)
    factors = Factors.mask(classes, both_ways(class_of, 20), which)
    mask = torch.stack([classes[r][class_of[which[r]].long()] for r in range(9)])
    expected = log_p.double().masked_fill(~mask, -torch.inf)
    assert torch.equal(factors.apply(log_p), expected)
    torch.testing.assert_close(
        log_sum_of_classes(log_p, factors.classes, which, classes),
        expected.logsumexp(dim=1),
        rtol=1e-13,
        atol=PRECISION[dtype],
    )


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("K", [0, 5])
def test_a_guide_by_class(form: str, K: int, monkeypatch: pytest.MonkeyPatch) -> None:
    log_p, class_of, which, alive = case(7, 60, 9, 0)
    generator = torch.Generator().manual_seed(1)
    by_class = torch.randn(7, 9, generator=generator, dtype=torch.float64)
    by_class = by_class.masked_fill(~alive, -torch.inf)
    tokens = torch.stack([torch.randperm(60, generator=generator)[:K] for _ in range(7)])
    by_token = torch.randn(7, K, generator=generator, dtype=torch.float64)
    expected = torch.stack([by_class[r, class_of[which[r]].long()] for r in range(7)])
    expected.scatter_(1, tokens, by_token)
    monkeypatch.setattr(guides, "COMPILED_DEVICES", FORMS[form])
    factors = Factors(by_class, tokens, by_token, both_ways(class_of, 9), which)
    assert torch.equal(factors.log_g, expected)
    assert torch.equal(factors.apply(log_p), log_p + expected)
    rows = torch.arange(7).repeat_interleave(60)
    each = torch.arange(60).repeat(7)
    assert torch.equal(factors.at(rows, each), expected.flatten())


# -- all forms of a pass give the log Z and the tokens of the reference ----------------------------


ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("N", [1, 9])
def test_compiled_candidates_are_the_reference(N: int, dtype: torch.dtype) -> None:
    compare_selection(COMPILED, dtype, N)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("name", PROPOSALS)
def test_blocks_are_the_reference(name: str, dtype: torch.dtype) -> None:
    compare(COMPILED, name, dtype)


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


def test_rows_that_are_impossible_or_do_not_exist() -> None:
    proposal, batch = smc.GCD(), Batch(AutomatonBatch(AUTOMATA), torch.tensor([3, 3]))
    log_p = torch.full((2, V), -torch.inf)
    log_p[1] = torch.zeros(V).log_softmax(dim=0)
    found = COMPILED.prepare_draws(proposal.guide(proposal.start(batch), log_p), log_p)
    assert found.log_z.isneginf().tolist() == [True, False]
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

"""The passes over the vocabulary: compiled loops and tensor operations against plain sums."""

from __future__ import annotations

import pytest
import torch

from smc import Factors
from smc._vocabulary import factors as guides
from smc._vocabulary.factors import (
    TopKAndClassSums,
    log_sum_of_classes,
    top_k_and_class_sums,
)
from tests.smc.guides import FORMS, PRECISION, both_ways, case


def plain(
    log_p: torch.Tensor, class_of: torch.Tensor, which: torch.Tensor, alive: torch.Tensor, K: int
) -> TopKAndClassSums:
    """Process rows and classes one by one."""
    tokens, best = torch.zeros(len(log_p), K, dtype=torch.int64), log_p.new_empty(len(log_p), K)
    log_mass = log_p.new_full(alive.shape, -torch.inf)
    for r in range(len(log_p)):
        klass = class_of[which[r]].long()
        allowed = log_p[r].masked_fill(~alive[r][klass], -torch.inf)
        best[r], tokens[r] = allowed.topk(K)
        rest = allowed.index_fill(0, tokens[r], -torch.inf)
        for c in range(alive.shape[1]):
            log_mass[r, c] = rest[klass == c].logsumexp(dim=0)
    return TopKAndClassSums(tokens, best, log_mass)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("dtype", PRECISION)
@pytest.mark.parametrize(
    ("vocabulary", "classes", "K"),
    [(3, 2, 3), (50, 7, 0), (50, 7, 5), (50, 60, 50), (5000, 40, 64), (4500, 3, 1)],
)
def test_favorites_and_the_mass_of_the_rest(
    form: str,
    dtype: torch.dtype,
    vocabulary: int,
    classes: int,
    K: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Include float32, where exp of most of these numbers is zero."""
    monkeypatch.setattr(guides, "COMPILED_DEVICES", FORMS[form])
    for seed in range(4):
        log_p, class_of, which, alive = case(9, vocabulary, classes, seed)
        log_p = log_p.to(dtype)
        alive[0] = False
        found = top_k_and_class_sums(log_p, both_ways(class_of, alive.shape[1]), which, alive, K)
        expected = plain(log_p.double(), class_of, which, alive, K)
        torch.testing.assert_close(found.best, expected.best, rtol=0, atol=0)
        some = ~expected.best.isneginf()
        assert torch.equal(found.tokens[some], expected.tokens[some])
        mass = expected.log_mass.masked_fill(~alive, -torch.inf)
        torch.testing.assert_close(found.log_mass, mass, rtol=1e-13, atol=PRECISION[dtype])


@pytest.mark.parametrize("dtype", PRECISION)
@pytest.mark.parametrize("K", [0, 3, 64])
def test_where_few_are_allowed(dtype: torch.dtype, K: int) -> None:
    """Allow one or two of a hundred classes, which the CPU looks up without reading the rest."""
    V, C = 5000, 100
    for seed in range(3):
        log_p, class_of, which, _ = case(9, V, C, seed)
        log_p = log_p.to(dtype)
        alive = torch.zeros(9, C, dtype=torch.bool)
        alive[torch.arange(9), torch.arange(9) * 11] = True
        alive[4, 3] = True
        alive[5] = False
        found = top_k_and_class_sums(log_p, both_ways(class_of, C), which, alive, K)
        expected = plain(log_p.double(), class_of, which, alive, K)
        torch.testing.assert_close(found.best, expected.best, rtol=0, atol=0)
        mass = expected.log_mass.masked_fill(~alive, -torch.inf)
        torch.testing.assert_close(found.log_mass, mass, rtol=1e-13, atol=PRECISION[dtype])


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("dtype", PRECISION)
@pytest.mark.parametrize("K", [0, 2])
@pytest.mark.parametrize("order", ["rising", "falling"])
def test_classes_of_any_scale(
    form: str, dtype: torch.dtype, K: int, order: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A lookahead may allow only tokens that are 10^-400 as probable as the rest."""
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
    expected = plain(log_p.double(), class_of, which, alive, K)
    torch.testing.assert_close(found.best, expected.best, rtol=0, atol=0)
    torch.testing.assert_close(
        found.log_mass, expected.log_mass, rtol=1e-7 if dtype == torch.float32 else 1e-13, atol=1e-5
    )


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


@pytest.mark.parametrize("order", ["rising", "falling", "equal"])
def test_favorites_in_any_order(order: str) -> None:
    """An ascending row pushes out every candidate; no mass is lost."""
    V, K = 20000, 8
    log_p = torch.linspace(-9, -3, V, dtype=torch.float64).unsqueeze(0)
    log_p = {"rising": log_p, "falling": log_p.flip(1), "equal": torch.full_like(log_p, -1e4)}[
        order
    ]
    class_of, alive = torch.zeros(1, V, dtype=torch.int32), torch.ones(1, 1, dtype=torch.bool)
    found = top_k_and_class_sums(
        log_p, both_ways(class_of, 1), torch.zeros(1, dtype=torch.int64), alive, K
    )
    expected = log_p.sort(dim=1, descending=True).values
    assert torch.equal(found.best, expected[:, :K])
    assert len(set(found.tokens[0].tolist())) == K
    assert float(found.log_mass) == pytest.approx(float(expected[:, K:].logsumexp(1)), abs=1e-11)


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

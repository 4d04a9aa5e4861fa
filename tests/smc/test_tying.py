"""The passes over the vocabulary: compiled and as tensor operations, against plain sums."""

from __future__ import annotations

import pytest
import torch

from smc import tying
from smc.tying import Rest, TiedGuide, weigh_rest

FORMS = {"compiled": ("cpu",), "tensors": ()}


def case(rows: int, vocabulary: int, classes: int, seed: int) -> tuple[torch.Tensor, ...]:
    """Log-probabilities over hundreds of orders of magnitude, some tokens impossible."""
    generator = torch.Generator().manual_seed(seed)
    scale = torch.tensor([1.0, 30.0, 200.0])[torch.arange(rows) % 3].unsqueeze(1)
    log_p = torch.randn(rows, vocabulary, generator=generator, dtype=torch.float64) * scale
    nothing = torch.rand(rows, vocabulary, generator=generator) < 0.1
    log_p = log_p.masked_fill(nothing, -torch.inf).log_softmax(dim=1)
    class_of = torch.randint(0, classes, (2, vocabulary), generator=generator, dtype=torch.int32)
    which = torch.randint(0, 2, (rows,), generator=generator)
    alive = torch.rand(rows, classes, generator=generator) < 0.6
    return log_p, class_of, which, alive


def plain(
    log_p: torch.Tensor, class_of: torch.Tensor, which: torch.Tensor, alive: torch.Tensor, K: int
) -> Rest:
    """One row and one class after the other."""
    tokens, best = torch.zeros(len(log_p), K, dtype=torch.int64), log_p.new_empty(len(log_p), K)
    log_mass = log_p.new_full(alive.shape, -torch.inf)
    for r in range(len(log_p)):
        klass = class_of[which[r]].long()
        allowed = log_p[r].masked_fill(~alive[r][klass], -torch.inf)
        best[r], tokens[r] = allowed.topk(K)
        rest = allowed.index_fill(0, tokens[r], -torch.inf)
        for c in range(alive.shape[1]):
            log_mass[r, c] = rest[klass == c].logsumexp(dim=0)
    return Rest(tokens, best, log_mass)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize(
    ("vocabulary", "classes", "K"),
    [(3, 2, 3), (50, 7, 0), (50, 7, 5), (50, 60, 50), (5000, 40, 64), (4500, 3, 1)],
)
def test_favourites_and_the_mass_of_the_rest(
    form: str, vocabulary: int, classes: int, K: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tying, "_COMPILED", FORMS[form])
    for seed in range(4):
        log_p, class_of, which, alive = case(9, vocabulary, classes, seed)
        alive[0] = False
        found = weigh_rest(log_p, class_of, which, alive, K)
        expected = plain(log_p, class_of, which, alive, K)
        torch.testing.assert_close(found.best, expected.best, rtol=0, atol=0)
        some = ~expected.best.isneginf()
        assert torch.equal(found.tokens[some], expected.tokens[some])
        # Under 1e-300 of the top there may be nothing.
        top = torch.cat([expected.log_mass, expected.best], dim=1).amax(dim=1, keepdim=True)
        seen = alive & (expected.log_mass > top - 690)
        torch.testing.assert_close(
            found.log_mass[seen], expected.log_mass[seen], rtol=1e-13, atol=1e-12
        )
        assert not found.log_mass.isnan().any()
        assert (found.log_mass[alive & expected.log_mass.isneginf()] == -torch.inf).all()


@pytest.mark.parametrize("order", ["rising", "falling", "equal"])
def test_favourites_in_any_order(order: str) -> None:
    """A row that rises pushes every candidate out again; nobody's mass is lost."""
    V, K = 20000, 8
    log_p = torch.linspace(-9, -3, V, dtype=torch.float64).unsqueeze(0)
    log_p = {"rising": log_p, "falling": log_p.flip(1), "equal": torch.full_like(log_p, -1e4)}[
        order
    ]
    class_of, alive = torch.zeros(1, V, dtype=torch.int32), torch.ones(1, 1, dtype=torch.bool)
    found = weigh_rest(log_p, class_of, torch.zeros(1, dtype=torch.int64), alive, K)
    expected = log_p.sort(dim=1, descending=True).values
    assert torch.equal(found.best, expected[:, :K])
    assert len(set(found.tokens[0].tolist())) == K
    assert float(found.log_mass) == pytest.approx(float(expected[:, K:].logsumexp(1)), abs=1e-12)


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
    monkeypatch.setattr(tying, "_COMPILED", FORMS[form])
    guide = TiedGuide(by_class, tokens, by_token, class_of, which, log_p.logsumexp(dim=1))
    assert torch.equal(guide.log_g, expected)
    assert torch.equal(guide.tilted(log_p), log_p + expected)
    rows = torch.arange(7).repeat_interleave(60)
    each = torch.arange(60).repeat(7)
    assert torch.equal(guide.at(rows, each), expected.flatten())

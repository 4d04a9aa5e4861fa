"""Selection: the threshold against its equation, passes against plain sums, and the selection
probabilities by enumerating u.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from smc import Factors
from smc._inference.selection import (
    FinishedScores,
    Group,
    Selection,
    select,
    select_without_replacement,
    thresholds,
)
from smc._vocabulary import factors as guides
from smc._vocabulary import passes
from smc._vocabulary.passes import Best, Known, VocabularyPass, pass_of
from tests.smc.matrix import covering
from tests.smc.passes import FORMS, PRECISION, both_ways, case


def auto() -> VocabularyPass:
    """The default pass of this device."""
    return pass_of("auto", torch.device("cpu"))


logs = st.floats(-70, 5) | st.just(-math.inf)


def solved(scores: np.ndarray, slots: int) -> float:
    """C in exact arithmetic, checked against its equation; 0 if all candidates fit."""
    positive = sorted((Fraction(float(s)) for s in scores if s > 0), reverse=True)
    if len(positive) <= slots:
        return 0.0
    tail = sum(positive)
    for k, score in enumerate(positive[:slots]):
        c = tail / (slots - k)
        if score <= c:
            break
        tail -= score
    assert (
        sum(min(1, s / c) for s in positive[: 2 * slots]) + sum(positive[2 * slots :]) / c == slots
    )
    return float(c)


def threshold(log_score: torch.Tensor, log_rest: torch.Tensor, slots: int) -> torch.Tensor:
    """Log c of one example with one prefix."""
    one = Group(torch.zeros(1, dtype=torch.int64), 1, 1)
    best = Best(torch.zeros_like(log_score, dtype=torch.int64), log_score, log_rest)
    return thresholds(best, one, slots, 0.0, None)


@settings(max_examples=60)
@given(st.lists(logs, min_size=1, max_size=30), st.integers(1, 12))
def test_the_threshold_solves_its_equation(log_scores: list[float], slots: int) -> None:
    values = torch.tensor([log_scores], dtype=torch.float64)
    log_c = threshold(values, torch.full((1,), -torch.inf, dtype=torch.float64), slots)
    expected = solved(values[0].exp().numpy(), slots)
    assert float(log_c.exp()) == pytest.approx(expected, rel=1e-10)


@pytest.mark.parametrize("small", [1e-16, 1e-30, 1e-60, 1e-200])
def test_small_scores_are_not_lost_beside_large_ones(small: float) -> None:
    """Subtracting large scores from the total would leave only rounding errors. With three slots
    for scores 1, small, small/2 and small/4, c is (small + small/2 + small/4) / 2; computed as the
    total minus one, it would be zero or -1e-17.
    """
    scores = torch.tensor([[small / 2, 1.0, small / 4, small]], dtype=torch.float64)
    none = torch.full((1,), -torch.inf, dtype=torch.float64)
    log_c = threshold(scores.log(), none, 3)
    assert float(log_c.exp()) == pytest.approx(1.75 * small / 2, rel=1e-12)
    # The same if only the sum of the small scores is known.
    log_rest = torch.tensor([0.75 * small], dtype=torch.float64).log()
    top = torch.tensor([[1.0, small, small / 2]], dtype=torch.float64)
    assert float(threshold(top.log(), log_rest, 2).exp()) == pytest.approx(2.25 * small, rel=1e-12)


def factors_of(
    seed: int, rows: int, vocabulary: int, classes: int, own: int, dtype: torch.dtype
) -> tuple[torch.Tensor, Factors]:
    """Log-probabilities of any scale, and factors of equally varied scales by class and token."""
    log_p, class_of, which, alive = case(rows, vocabulary, classes, seed)
    generator = torch.Generator().manual_seed(seed)
    by_class = 40 * torch.randn(rows, classes, generator=generator, dtype=torch.float64)
    by_class = by_class.masked_fill(~alive, -torch.inf)
    tokens = torch.stack([torch.randperm(vocabulary, generator=generator) for _ in range(rows)])
    tokens = tokens[:, :own]
    if own > 2:  # lists may end in copies of a token
        tokens[:, -1] = tokens[:, 0]
    by_token = 40 * torch.randn(rows, own, generator=generator, dtype=torch.float64)
    by_token[by_token < -50] = -torch.inf
    if own > 2:
        by_token[:, -1] = by_token[:, 0]
    return log_p.to(dtype), Factors(by_class, tokens, by_token, both_ways(class_of, classes), which)


def spread(log_p: torch.Tensor, factors: Factors) -> torch.Tensor:
    """The score of every token, computed one by one."""
    log_s = torch.full(log_p.shape, -torch.inf, dtype=torch.float64)
    for r, row in enumerate(log_p.double()):
        klass = factors.classes.of[factors.automaton_of_row[r]].long()
        log_s[r] = row + factors.by_class[r][klass]
        for token, own in zip(factors.tokens[r].tolist(), factors.by_token[r], strict=True):
            log_s[r, token] = row[token] + own
    return log_s


SIZES = [(3, 2, 3, 0), (50, 7, 1, 4), (50, 60, 50, 9), (5000, 40, 16, 64), (6000, 300, 5, 0)]


@pytest.mark.parametrize(
    "row", covering(form=[*FORMS], dtype=[*PRECISION], sizes=SIZES), ids=lambda row: str(row)
)
def test_one_pass_finds_the_best_and_sums_up_the_others(
    row: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(guides, "COMPILED_DEVICES", FORMS[row["form"]])
    (vocabulary, classes, K, own), dtype = row["sizes"], row["dtype"]
    monkeypatch.setattr(passes, "NARROW", 0)
    for seed in range(3):
        log_p, factors = factors_of(seed, 9, vocabulary, classes, own, dtype)
        log_p[4] = -torch.inf  # no token is possible
        factors.by_class[5] = -torch.inf  # only listed tokens are candidates
        factors.by_class[6, 2:] = -torch.inf  # few candidates
        found = auto().best(log_p, factors, K)
        log_s = spread(log_p, factors)
        best, tokens = log_s.topk(K, dim=1)
        rest = log_s.scatter(1, tokens, -torch.inf).logsumexp(dim=1)
        width = found.log_score.shape[1]
        assert bool(best[:, width:].isneginf().all()), "no row has more candidates"
        best = best[:, :width]
        assert torch.equal(found.log_score, best)
        real = ~best.isneginf()
        assert torch.equal(log_s.gather(1, found.tokens)[real], best[real])
        for r in range(9):
            assert len(set(found.tokens[r][real[r]].tolist())) == int(real[r].sum())
        torch.testing.assert_close(found.log_rest, rest, rtol=1e-13, atol=PRECISION[dtype])


@pytest.mark.parametrize("form", FORMS)
def test_scores_that_a_product_of_exponentials_cannot_hold(
    form: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Tokens with a high probability may have a tiny factor, and vice versa."""
    monkeypatch.setattr(guides, "COMPILED_DEVICES", FORMS[form])
    monkeypatch.setattr(passes, "NARROW", 0)
    V = 4000
    number = torch.arange(V) % 4
    log_p = torch.tensor([0.0, -850.0, -60.0, -300.0])[number] - torch.linspace(9, 10, V)
    by_class = torch.tensor([[-900.0, 0.0, -2000.0, -500.0]], dtype=torch.float64)
    which = torch.zeros(1, dtype=torch.int64)
    nothing = torch.zeros(1, 0)
    for dtype in PRECISION:
        factors = Factors(
            by_class, nothing.long(), nothing.double(), both_ways(number.int()[None], 4), which
        )
        row = log_p.to(dtype).unsqueeze(0)
        found, log_s = auto().best(row, factors, 3), spread(row, factors)
        rest = log_s.scatter(1, log_s.topk(3, dim=1).indices, -torch.inf).logsumexp(dim=1)
        torch.testing.assert_close(found.log_rest, rest, rtol=0, atol=PRECISION[dtype])


def kept(
    u: float, log_p: torch.Tensor, factors: Factors, group: Group, slots: int, **options: object
) -> Selection:
    def uniform(_: Callable[[], torch.Tensor]) -> torch.Tensor:
        return torch.full((group.num_examples,), u, dtype=torch.float64)

    return only(select(log_p, factors, group, slots, uniform, **options))  # type: ignore[arg-type]


def only(found: Selection) -> Selection:
    """The slots that are taken."""
    *fields, dropped = found
    return Selection(*(field[found.kept] for field in fields), dropped)


GROUP = Group.of(torch.tensor([0, 0, 0, 1, 1, 3]), 4)


@pytest.mark.parametrize(
    "row",
    covering(
        form=[*FORMS], options=["none", "floor", "finished"],
        sizes=[(6, 3, 2), (60, 9, 5), (3000, 30, 64)],
    ),
    ids=lambda row: str(row),
)  # fmt: skip
def test_each_candidate_is_kept_in_proportion_to_its_score(
    row: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The mean over equally spaced u of the kept candidates is pi, up to the spacing; none is kept
    twice; and min(1, s / c) sums to the number of slots.
    """
    monkeypatch.setattr(guides, "COMPILED_DEVICES", FORMS[row["form"]])
    (vocabulary, classes, own), option = row["sizes"], row["options"]
    monkeypatch.setattr(passes, "NARROW", 0)
    slots, points = 7, 30
    log_p, factors = factors_of(5, 6, vocabulary, classes, own, torch.float64)
    log_p, by_class = log_p / 20, factors.by_class / 20  # so that many tokens matter
    factors = factors._replace(by_class=by_class, by_token=factors.by_token / 20)
    log_s = spread(log_p, factors)
    floor, finished = 0.05 * (option == "floor"), None
    if option == "finished":
        top = torch.full((4, slots), -torch.inf, dtype=torch.float64)
        top[0, :2], top[1, 0] = log_s[0].topk(2).values - 1, log_s[3].max() + 5
        finished = FinishedScores(top, top[:, 0] - 3)
    often = torch.zeros(6, vocabulary, dtype=torch.float64)
    log_pi = torch.full_like(often, -torch.inf)
    for u in (torch.arange(points, dtype=torch.float64) + 0.5) / points:
        found = kept(float(u), log_p, factors, GROUP, slots, floor=floor, finished=finished)
        places = found.row * vocabulary + found.token
        assert torch.equal(places, torch.unique(places)), "in order, and no candidate twice"
        often[found.row, found.token] += 1 / points
        log_pi[found.row, found.token] = found.log_pi
    for example in (0, 1, 3):
        rows = GROUP.example == example
        mine = log_s[rows].exp()
        scores = mine.flatten().numpy()
        if finished is not None:
            others = finished.top[example].exp().numpy()
            # The rest of the finished answers consists of many small scores.
            rest = np.full(1000, float(finished.rest[example].exp()) / 1000)
            scores = np.concatenate([scores, others, rest])
        c = solved(scores, slots)
        c = max(c, floor * scores.sum())
        pi = torch.clamp(mine / c, max=1) if c else (mine > 0).double()
        torch.testing.assert_close(often[rows], pi, rtol=0, atol=1.01 / points)
        seen = often[rows] > 0
        torch.testing.assert_close(log_pi[rows][seen], pi[seen].log(), rtol=1e-9, atol=1e-9)
        if option == "none":
            total = min(slots, int((mine > 0).sum()))
            assert float(pi.sum()) == pytest.approx(total, rel=1e-12)


@pytest.mark.parametrize("form", FORMS)
def test_targets_at_the_ends_of_a_row(form: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rounding may move a target beyond the last candidate, or two targets to one."""
    monkeypatch.setattr(guides, "COMPILED_DEVICES", FORMS[form])
    monkeypatch.setattr(passes, "NARROW", 0)
    log_p = torch.tensor([[0.5, 0.25, 0.25, 0.0]], dtype=torch.float64).log()
    zero = torch.zeros(1, 0)
    factors = Factors(
        torch.zeros(1, 4, dtype=torch.float64), zero.long(), zero.double(),
        both_ways(torch.arange(4).int()[None], 4), torch.zeros(1, dtype=torch.int64),
    )  # fmt: skip
    known = Known(torch.zeros(1, 1, dtype=torch.int64), torch.tensor([0]))
    log_c = torch.tensor([0.5], dtype=torch.float64).log()

    def at(*targets: float) -> list[int]:
        rows = torch.zeros(len(targets), dtype=torch.int64)
        points = torch.tensor(targets, dtype=torch.float64)
        return auto().locate(log_p, factors, known, log_c, rows, points).tolist()

    assert at(1e-300) == [0]
    assert at(0.999, 1.999) == [0, 2]
    assert at(1.0) == [1], "a stretch begins at its left end"
    assert at(2.0) == [2], "beyond the last candidate"
    assert at(1.9, 2.9) == [2, -1], "which is not kept twice"
    sure = Known(torch.tensor([[0]]), torch.tensor([1]))
    rows = torch.zeros(1, dtype=torch.int64)
    targets = torch.tensor([0.4], dtype=torch.float64)
    assert auto().locate(log_p, factors, sure, log_c, rows, targets).tolist() == [1]


@settings(max_examples=40)
@given(
    st.lists(st.floats(-30, 3), min_size=1, max_size=40), st.integers(1, 9), st.floats(0.01, 0.99)
)
def test_pruning_keeps_the_sum_of_the_weights(log_w: list[float], slots: int, u: float) -> None:
    """With s = w, the kept weights have the same sum as all weights."""
    weights = torch.tensor(log_w, dtype=torch.float64)
    found, log_pi = select_without_replacement(weights, slots, lambda _: u)
    assert len(found) == min(slots, len(log_w))
    after = (weights[found] - log_pi).logsumexp(dim=0)
    assert float(after) == pytest.approx(float(weights.logsumexp(dim=0)), abs=1e-9)


def test_a_choice_among_very_many() -> None:
    """A table of slots by candidates would take 34 GB."""
    weights = torch.randn(70_000, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    found, log_pi = select_without_replacement(weights, 1 << 16, lambda _: 0.3)
    assert len(found) == 1 << 16
    after = (weights[found] - log_pi).logsumexp(dim=0)
    assert float(after) == pytest.approx(float(weights.logsumexp(dim=0)), abs=1e-9)


@pytest.mark.parametrize("far", [-1e7, -1e9, -1e30, float(torch.finfo(torch.float32).min)])
def test_scores_whose_logarithms_have_no_digits_left(far: float) -> None:
    """Logarithms this large have arbitrary rounding; there are never too many, nor an error."""
    generator = torch.Generator().manual_seed(1)
    for u in (0.1, 0.5, 0.9):
        weights = far + torch.randn(30, generator=generator, dtype=torch.float64)
        found, _ = select_without_replacement(weights, 8, lambda _, u=u: u)
        assert 1 <= len(set(found.tolist())) == len(found) <= 8

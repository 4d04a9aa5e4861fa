"""Weights against their definitions, and at extreme values."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from smc import Weights

log_weights = st.lists(
    st.one_of(st.floats(-30, 30), st.just(-math.inf)), min_size=1, max_size=8
).filter(lambda values: max(values) > -math.inf)


@settings(max_examples=100)
@given(log_weights)
def test_against_the_definitions(values: list[float]) -> None:
    w = [math.exp(value) for value in values]
    total = sum(w)
    found = Weights.of(torch.tensor(values, dtype=torch.float64))
    assert found.normalized.tolist() == pytest.approx([x / total for x in w], rel=1e-12)
    assert float(found.log_mean) == pytest.approx(math.log(total / len(w)), rel=1e-12, abs=1e-12)
    assert float(found.ess) == pytest.approx(total**2 / sum(x * x for x in w), rel=1e-12)


def test_scale_does_not_matter_even_where_exp_over_or_underflows() -> None:
    base = torch.tensor([0.0, -1.0, -math.inf], dtype=torch.float64)
    expected = Weights.of(base)
    for shift in (-5000.0, 5000.0):
        found = Weights.of(base + shift)
        torch.testing.assert_close(found.normalized, expected.normalized, rtol=1e-12, atol=0)
        torch.testing.assert_close(found.log_mean, expected.log_mean + shift, rtol=1e-12, atol=0)


def test_all_dead_is_a_separate_state_and_not_nan() -> None:
    found = Weights.of(torch.full((2, 3), -math.inf))
    assert (found.normalized == 0).all()
    assert (found.ess == 0).all()
    assert found.log_mean.isneginf().all()


def test_equal_weights_and_a_lone_survivor() -> None:
    assert float(Weights.of(torch.zeros(1024)).ess) == pytest.approx(1024)
    lone = torch.full((1024,), -math.inf)
    lone[7] = -800.0
    assert float(Weights.of(lone).ess) == 1.0
    assert float(Weights.of(lone).log_mean) == pytest.approx(-800 - math.log(1024))


def test_a_batch_is_each_alone() -> None:
    log = torch.randn(5, 7, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    together = Weights.of(log)
    for b in range(5):
        for whole, alone in zip(together, Weights.of(log[b]), strict=True):
            assert torch.equal(whole[b], alone)

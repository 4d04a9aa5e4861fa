"""The random numbers: a function of keys, uniform, and never drawing impossible outcomes."""

from __future__ import annotations

import itertools
import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from smc import CounterDraw
from smc._vocabulary.draw import Categorical, Keys, Purpose, categorical, uniform

ALMOST_ONE = 1 - 2.0**-53
ALMOST_ZERO = 2.0**-53


def keys(example: list[int], particle: list[int], step: int = 0) -> Keys:
    return Keys(torch.tensor(example), torch.tensor(particle), step, Purpose.TOKEN)


def no_breaks() -> torch.Tensor:
    raise AssertionError("the generator has no use for breaks")


def test_a_number_is_a_function_of_its_key_not_of_the_order_of_calls() -> None:
    draw = CounterDraw(7)
    together = draw(keys([0, 1, 2, 5], [3, 0, 1, 5]), no_breaks)
    backwards = draw(keys([5, 2, 1, 0], [5, 1, 0, 3]), no_breaks)
    assert torch.equal(together, backwards.flip(0))
    assert torch.equal(together[2:3], CounterDraw(7)(keys([2], [1]), no_breaks))
    grid = draw(
        Keys(torch.tensor([[0, 1], [2, 5]]), torch.tensor([[3, 0], [1, 5]]), 0, Purpose(1)),
        no_breaks,
    )
    assert torch.equal(grid.flatten(), together)


def test_every_part_of_the_key_matters() -> None:
    base = Keys(torch.tensor([1]), torch.tensor([2]), 3, Purpose.TOKEN)
    variants = [
        uniform(0, base),
        uniform(1, base),
        uniform(-1, base),
        uniform(1 << 63, base),
        uniform(0, base._replace(example=torch.tensor([2]))),
        uniform(0, base._replace(particle=torch.tensor([1]))),
        uniform(0, base._replace(example=torch.tensor([2]), particle=torch.tensor([1]))),
        uniform(0, base._replace(step=4)),
        uniform(0, base._replace(purpose=Purpose.ANCESTOR)),
    ]
    assert len({float(u) for u in variants}) == len(variants)


def by_unbounded_integers(seed: int, example: int, particle: int, step: int, purpose: int) -> float:
    """The same function with Python's integers modulo 2^64."""
    wide = (1 << 64) - 1

    def mix(x: int) -> int:
        x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9 & wide
        x = (x ^ (x >> 27)) * 0x94D049BB133111EB & wide
        return x ^ (x >> 31)

    state = seed & wide
    for word in (purpose, step, example, particle):
        state = mix(state + 0x9E3779B97F4A7C15 & wide) ^ word
    state = mix(mix(state + 0x9E3779B97F4A7C15 & wide))
    return ((state >> 12) + 0.5) / 2**52


@settings(max_examples=100)
@given(
    st.integers(-(2**70), 2**70), st.integers(0, 2**62), st.integers(0, 2**31), st.integers(0, 99)
)
def test_wrapping_int64_arithmetic_is_right(
    seed: int, example: int, particle: int, step: int
) -> None:
    u = uniform(seed, keys([example], [particle], step))
    assert float(u) == by_unbounded_integers(seed, example, particle, step, Purpose.TOKEN)


def test_numbers_are_unchanged() -> None:
    """Stored results can be reproduced only as long as this holds."""
    u = uniform(2026, keys([0, 0, 1, 123456789], [0, 1, 0, 31], step=5))
    assert u.tolist() == PINNED


PINNED = [0.2226246988388506, 0.5856628750436014, 0.13429811640071676, 0.5619928432362175]


@pytest.mark.parametrize("along", ["example", "particle", "step", "seed"])
def test_uniform_and_independent_along_every_part_of_the_key(along: str) -> None:
    n = 2_000 if along in ("step", "seed") else 20_000
    count, zero = torch.arange(n), torch.zeros(n, dtype=torch.int64)
    if along == "example":
        u = uniform(3, Keys(count, zero, 0, Purpose.TOKEN))
    elif along == "particle":
        u = uniform(3, Keys(zero, count, 0, Purpose.TOKEN))
    elif along == "step":
        u = torch.cat([uniform(3, keys([0], [0], step=t)) for t in range(n)])
    else:
        u = torch.cat([uniform(s, keys([0], [0])) for s in range(n)])
    assert stats.kstest(u.numpy(), "uniform").pvalue > 1e-4
    table = torch.histogramdd(torch.stack([u[:-1], u[1:]], 1), 8, range=[0.0, 1.0, 0.0, 1.0]).hist
    assert stats.chisquare(table.flatten().numpy()).pvalue > 1e-4
    assert float(u.min()) > 0
    assert float(u.max()) < 1


def at(log_p: list[float], u: float) -> int:
    q = categorical(torch.tensor([log_p], dtype=torch.float64))
    return int(q.at(torch.tensor([0]), torch.tensor([u], dtype=torch.float64)))


log_ps = st.lists(
    st.one_of(st.floats(-900, 0), st.just(-math.inf)), min_size=1, max_size=12
).filter(lambda values: max(values) > -math.inf)


@settings(max_examples=300)
@given(log_ps, st.one_of(st.just(ALMOST_ONE), st.just(ALMOST_ZERO), st.floats(1e-9, 1 - 1e-9)))
def test_the_impossible_is_never_drawn(log_p: list[float], u: float) -> None:
    assert log_p[at(log_p, u)] > -math.inf


def test_a_lone_possibility_is_drawn_however_unlikely() -> None:
    for u in (ALMOST_ZERO, 0.5, ALMOST_ONE):
        assert at([-math.inf, -500.0, -math.inf], u) == 1
        assert at([-math.inf, -1e300], u) == 1


def test_not_even_where_a_parallel_prefix_sum_rises_at_an_outcome_of_weight_zero() -> None:
    q = Categorical(
        weight=torch.tensor([[0.5, 0.0, 1.0]], dtype=torch.float64),
        cumulative=torch.tensor([[0.5, 0.6, 1.5]], dtype=torch.float64),
        likeliest=torch.tensor([2]),
    )
    u = torch.tensor([0.2, 0.37, 0.9], dtype=torch.float64)
    assert q.at(torch.zeros(3, dtype=torch.int64), u).tolist() == [0, 2, 2]


def test_the_outcome_is_the_inverse_of_the_distribution_function() -> None:
    log_p = [math.log(0.2), -math.inf, math.log(0.5), math.log(0.3)]
    assert [at(log_p, u) for u in (0.001, 0.199, 0.201, 0.699, 0.701, 0.999)] == [0, 0, 2, 2, 3, 3]


def test_breaks_are_where_the_outcome_changes() -> None:
    generator = torch.Generator().manual_seed(0)
    log_p = torch.randn(3, 6, generator=generator, dtype=torch.float64)
    log_p[1, [0, 3, 5]] = -math.inf
    q = categorical(log_p)
    rows = torch.tensor([2, 0, 1, 1])
    for row, points in zip(rows, q.breaks(rows), strict=True):
        edges = sorted({0.0, 1.0, *points.tolist()})
        p = log_p[row].softmax(0)
        for low, high in itertools.pairwise(edges):
            inside = torch.tensor([low + 1e-9, (low + high) / 2, high - 1e-9], dtype=torch.float64)
            outcomes = q.at(row.expand(3), inside)
            assert len(set(outcomes.tolist())) == 1
            assert high - low == pytest.approx(float(p[outcomes[0]]), abs=1e-12)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_devices_agree_bit_for_bit() -> None:
    examples, particles = torch.arange(1000), torch.arange(1000) * 31
    here = uniform(5, Keys(examples, particles, 9, Purpose.TOKEN))
    there = uniform(5, Keys(examples.cuda(), particles.cuda(), 9, Purpose.TOKEN))
    assert torch.equal(here, there.cpu())

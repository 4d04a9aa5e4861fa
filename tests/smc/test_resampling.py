"""Random numbers, categorical draws, weights and resampling against their definitions."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st

from smc import Weights
from smc._inference.resampling import SCHEMES, Uniform, scheme
from smc._vocabulary.draw import Categorical, Keys, Purpose, categorical, uniform
from tests.smc.walks import half_a_slice, heaviest

ALMOST_ONE = 1 - 2.0**-53
ALMOST_ZERO = 2.0**-53


def keys(example: list[int], particle: list[int], step: int = 0) -> Keys:
    return Keys(torch.tensor(example), torch.tensor(particle), step, Purpose.TOKEN)


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
    st.integers(-(2**70), 2**70),
    st.integers(0, 2**62),
    st.integers(0, 2**31),
    st.integers(0, 99),
    st.sampled_from(Purpose),
)
def test_wrapping_int64_arithmetic_is_right(
    seed: int, example: int, particle: int, step: int, purpose: Purpose
) -> None:
    u = uniform(seed, keys([example], [particle], step)._replace(purpose=purpose))
    assert float(u) == by_unbounded_integers(seed, example, particle, step, purpose)


def test_numbers_are_unchanged() -> None:
    """Stored results can be reproduced only as long as this holds."""
    u = uniform(2026, keys([0, 0, 1, 123456789], [0, 1, 0, 31], step=5))
    assert u.tolist() == PINNED


PINNED = [0.2226246988388506, 0.5856628750436014, 0.13429811640071676, 0.5619928432362175]


def at(log_p: list[float], u: float) -> int:
    q = categorical(torch.tensor([log_p], dtype=torch.float64))
    return int(q.at(torch.tensor([0]), torch.tensor([u], dtype=torch.float64)))


log_ps = st.lists(
    st.one_of(st.floats(-900, 0), st.just(-math.inf)), min_size=1, max_size=12
).filter(lambda values: max(values) > -math.inf)


@settings(max_examples=150)
@given(log_ps, st.one_of(st.just(ALMOST_ONE), st.just(ALMOST_ZERO), st.floats(1e-9, 1 - 1e-9)))
@example([-math.inf, -1e300], ALMOST_ONE)
@example([-math.inf, -500.0, -math.inf], ALMOST_ZERO)
def test_the_impossible_is_never_drawn(log_p: list[float], u: float) -> None:
    assert log_p[at(log_p, u)] > -math.inf


def test_not_even_where_a_parallel_prefix_sum_rises_at_an_outcome_of_weight_zero() -> None:
    q = Categorical(
        weight=torch.tensor([[0.5, 0.0, 1.0]], dtype=torch.float64),
        cumulative=torch.tensor([[0.5, 0.6, 1.5]], dtype=torch.float64),
        likeliest=torch.tensor([2]),
    )
    u = torch.tensor([0.2, 0.37, 0.9], dtype=torch.float64)
    assert q.at(torch.zeros(3, dtype=torch.int64), u).tolist() == [0, 2, 2]


def test_breaks_are_where_the_outcome_changes() -> None:
    generator = torch.Generator().manual_seed(0)
    log_p = torch.randn(3, 6, generator=generator, dtype=torch.float64)
    log_p[1, [0, 3, 5]] = -math.inf
    q = categorical(log_p)
    rows = torch.tensor([2, 0, 1, 1])
    for row, points in zip(rows, q.breaks(rows), strict=True):
        ordered: list[int] = []
        edges = sorted({0.0, 1.0, *points.tolist()})
        p = log_p[row].softmax(0)
        for low, high in itertools.pairwise(edges):
            inside = torch.tensor([low + 1e-9, (low + high) / 2, high - 1e-9], dtype=torch.float64)
            outcomes = q.at(row.expand(3), inside)
            assert len(set(outcomes.tolist())) == 1
            ordered.append(int(outcomes[0]))
            assert high - low == pytest.approx(float(p[outcomes[0]]), abs=1e-12)
        assert ordered == p.nonzero().flatten().tolist()


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_devices_agree_bit_for_bit() -> None:
    examples, particles = torch.arange(1000), torch.arange(1000) * 31
    here = uniform(5, Keys(examples, particles, 9, Purpose.TOKEN))
    there = uniform(5, Keys(examples.cuda(), particles.cuda(), 9, Purpose.TOKEN))
    assert torch.equal(here, there.cpu())


# -- resampling ------------------------------------------------------------------------------------


schemes = pytest.mark.parametrize("name", list(SCHEMES))


def constant(u: float) -> Uniform:
    return lambda count, breaks: torch.full((breaks().shape[0], count), u, dtype=torch.float64)


def all_of(weights: torch.Tensor) -> torch.Tensor:
    """The sizes of systems that fill their rows."""
    return torch.full((len(weights),), weights.shape[1])


def normalized(values: list[float] | torch.Tensor) -> torch.Tensor:
    weights = torch.as_tensor(values, dtype=torch.float64).reshape(1, -1)
    return weights / weights.sum()


def expected_copies(resample: object, weights: torch.Tensor) -> torch.Tensor:
    """Exact expected number of copies of each particle, by enumerating all outcomes."""
    N = weights.shape[1]
    cells: list[list[tuple[float, float]]] = []

    def look(count: int, breaks: object) -> torch.Tensor:
        for points in breaks()[0].tolist():  # type: ignore[operator]
            edges = sorted({0.0, 1.0, *(p for p in points if 0 < p < 1)})
            pairs = itertools.pairwise(edges)
            cells.append([((a + b) / 2, b - a) for a, b in pairs if b - a > 1e-14])
        return torch.full((1, count), 0.5, dtype=torch.float64)

    sizes = all_of(weights)
    resample(weights, look, sizes)  # type: ignore[operator]
    total = torch.zeros(N, dtype=torch.float64)
    for choice in itertools.product(*cells):
        u = torch.tensor([[middle for middle, _ in choice]], dtype=torch.float64)
        ancestors = resample(weights, lambda *_, u=u: u, sizes)  # type: ignore[operator]
        share = np.prod([length for _, length in choice])
        total += float(share) * torch.bincount(ancestors[0], minlength=N).double()
    return total


WEIGHTS = [
    [1.0],
    [0.3, 0.7],
    [0.5, 0.0, 0.5],
    [0.25, 0.25, 0.5],
    [0.1, 0.2, 0.7],
    [0.0, 0.0, 1.0],
    [1 / 3, 1 / 3, 1 / 3],
    [0.05, 0.6, 0.0, 0.35],
]


@schemes
@pytest.mark.parametrize("values", WEIGHTS)
def test_expected_copies_are_proportional_to_weight(name: str, values: list[float]) -> None:
    weights = normalized(values)
    found = expected_copies(SCHEMES[name], weights)
    torch.testing.assert_close(found, weights[0] * len(values), rtol=0, atol=1e-12)


@pytest.mark.parametrize("wrong", [heaviest, half_a_slice])
def test_wrong_schemes_are_rejected(wrong: object) -> None:
    weights = normalized([0.1, 0.2, 0.7])
    found = expected_copies(wrong, weights)
    assert float((found - weights[0] * 3).abs().max()) > 0.05


@schemes
@settings(max_examples=40)
@given(
    values=st.lists(st.one_of(st.just(0.0), st.floats(1e-12, 1)), min_size=1, max_size=40).filter(
        lambda v: sum(v) > 0
    ),
    u=st.one_of(st.just(ALMOST_ZERO), st.just(ALMOST_ONE), st.floats(1e-9, 1 - 1e-9)),
)
@example(values=[0.0, 1.0, 0.0], u=ALMOST_ONE)
@example(values=[0.0, 1.0, 0.0], u=ALMOST_ZERO)
@example(values=[0.5, 0.5, 0.0], u=ALMOST_ONE)
def test_a_particle_of_weight_zero_never_survives(name: str, values: list[float], u: float) -> None:
    weights = normalized(values)
    ancestors = SCHEMES[name](weights, constant(u), all_of(weights))
    assert ancestors.shape == weights.shape
    assert (weights[0][ancestors[0]] > 0).all()


def by_definition(name: str, weights: list[float], u: list[float]) -> list[int]:
    """The ancestors for given uniform numbers."""

    def inverse(weights: list[float], point: float) -> int:
        ends = itertools.accumulate(weights)
        return next(i for i, end in enumerate(ends) if end > point * sum(weights))

    m = len(weights)
    if name == "multinomial":
        return [inverse(weights, u[i]) for i in range(m)]
    return [inverse(weights, (i + u[0]) / m) for i in range(m)]


@schemes
@pytest.mark.parametrize("room", [0, 3])
def test_each_scheme_is_its_definition(name: str, room: int) -> None:
    """All schemes are unbiased, so this tells them apart; also with padded rows."""
    rng = np.random.default_rng(4)
    for m in (1, 2, 3, 5, 8, 13) * 4:
        weights = rng.exponential(size=m) ** 3
        weights = (weights / weights.sum()).tolist()
        u = rng.random(m + room).tolist()
        padded = torch.tensor([weights + [0.0] * room], dtype=torch.float64)
        found = scheme(name)(
            padded,
            lambda count, _, u=u: torch.tensor([u[:count]], dtype=torch.float64),
            torch.tensor([m]),
        )
        assert found[0, :m].tolist() == by_definition(name, weights, u)


# -- weights -------------------------------------------------------------------------------------

log_weights = st.lists(
    st.one_of(st.floats(-30, 30), st.just(-math.inf)), min_size=1, max_size=8
).filter(lambda values: max(values) > -math.inf)


@settings(max_examples=80)
@given(log_weights, st.sampled_from([0.0, -5000.0, 5000.0]))
@example([0.0] * 5, 0.0)
@example([-800.0] + [-math.inf] * 7, 0.0)
def test_against_the_definitions(values: list[float], shift: float) -> None:
    """Scale doesn't matter, even where exp over- or underflows."""
    w = [math.exp(value - max(values)) for value in values]
    total = sum(w)
    found = Weights.of(torch.tensor(values, dtype=torch.float64) + shift)
    assert found.normalized.tolist() == pytest.approx([x / total for x in w], rel=1e-11)
    log_mean = math.log(total / len(w)) + max(values) + shift
    assert float(found.log_mean) == pytest.approx(log_mean, rel=1e-12, abs=1e-12)
    assert float(found.ess) == pytest.approx(total**2 / sum(x * x for x in w), rel=1e-11)


def test_all_dead_is_a_separate_state_and_not_nan() -> None:
    found = Weights.of(torch.full((2, 3), -math.inf))
    assert (found.normalized == 0).all()
    assert (found.ess == 0).all()
    assert found.log_mean.isneginf().all()

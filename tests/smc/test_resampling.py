"""Resampling: every scheme is unbiased and handles its edge cases."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st

from smc._inference.resampling import SCHEMES, Uniform, scheme

ALMOST_ONE = 1 - 2.0**-53
ALMOST_ZERO = 2.0**-53

schemes = pytest.mark.parametrize("name", list(SCHEMES))


def constant(u: float) -> Uniform:
    return lambda count, breaks: torch.full((breaks().shape[0], count), u, dtype=torch.float64)


def random(seed: int) -> Uniform:
    generator = torch.Generator().manual_seed(seed)

    def draw(count: int, breaks: object) -> torch.Tensor:
        B = breaks().shape[0]  # type: ignore[operator]
        return torch.rand(B, count, generator=generator, dtype=torch.float64)

    return draw


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


def always_the_heaviest(
    weights: torch.Tensor, uniform: Uniform, size: torch.Tensor
) -> torch.Tensor:
    """A deliberately wrong scheme: the unbiasedness test must reject it."""
    return weights.argmax(dim=1, keepdim=True).expand_as(weights).contiguous()


def systematic_off_by_half_a_slice(
    weights: torch.Tensor, uniform: Uniform, size: torch.Tensor
) -> torch.Tensor:
    """Another wrong scheme: nearly right, but the offset covers only half of each slice."""
    return SCHEMES["systematic"](weights, lambda count, breaks: uniform(count, breaks) / 2, size)


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


@pytest.mark.parametrize("wrong", [always_the_heaviest, systematic_off_by_half_a_slice])
def test_wrong_schemes_are_rejected(wrong: object) -> None:
    weights = normalized([0.1, 0.2, 0.7])
    found = expected_copies(wrong, weights)
    assert float((found - weights[0] * 3).abs().max()) > 0.05


@schemes
@settings(max_examples=60)
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


@schemes
def test_zero_weights_among_1024_particles(name: str) -> None:
    """A float32 cumulative sum would revive dead particles, mostly at the end."""
    generator = torch.Generator().manual_seed(1)
    for trial in range(10):
        weights = torch.rand(4, 1024, generator=generator, dtype=torch.float64)
        weights[:, 1024 - 1 - trial :] = 0
        weights[torch.rand(4, 1024, generator=generator) < 0.3] = 0
        weights = weights / weights.sum(dim=1, keepdim=True)
        for uniform in (constant(ALMOST_ONE), constant(ALMOST_ZERO), random(trial)):
            assert (weights.gather(1, SCHEMES[name](weights, uniform, all_of(weights))) > 0).all()


@schemes
def test_a_lone_survivor_takes_all(name: str) -> None:
    weights = torch.zeros(1, 1024, dtype=torch.float64)
    weights[0, 17] = 1
    assert (SCHEMES[name](weights, random(0), all_of(weights)) == 17).all()


def test_equal_weights_keep_everyone() -> None:
    for N in (1, 2, 3, 7, 64, 1024):
        weights = torch.full((1, N), 1 / N, dtype=torch.float64)
        found = SCHEMES["systematic"](weights, constant(0.5), all_of(weights))
        assert found[0].tolist() == list(range(N))


@schemes
def test_copies_of_low_variance_schemes_stay_near_their_expectation(name: str) -> None:
    generator = torch.Generator().manual_seed(2)
    weights = torch.rand(8, 100, generator=generator, dtype=torch.float64)
    weights = weights / weights.sum(dim=1, keepdim=True)
    ancestors = SCHEMES[name](weights, random(3), all_of(weights))
    copies = torch.stack([torch.bincount(row, minlength=100) for row in ancestors])
    slack = {"systematic": 1.0, "multinomial": 10.0}[name]
    assert float((copies - 100 * weights).abs().max()) < slack


@schemes
def test_a_batch_is_each_alone(name: str) -> None:
    generator = torch.Generator().manual_seed(4)
    weights = torch.rand(5, 16, generator=generator, dtype=torch.float64)
    weights = weights / weights.sum(dim=1, keepdim=True)
    together = SCHEMES[name](weights, constant(0.37), all_of(weights))
    for b in range(5):
        one = weights[b : b + 1]
        alone = SCHEMES[name](one, constant(0.37), all_of(one))
        assert torch.equal(together[b], alone[0])


def test_unknown_names_are_refused_with_the_choices() -> None:
    for name in ("systematc", "residual", always_the_heaviest):
        with pytest.raises(ValueError, match="one of systematic, multinomial, got "):
            scheme(name)  # type: ignore[arg-type]


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

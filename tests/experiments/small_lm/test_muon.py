"""Muon: its directions are orthogonal, and its steps are those of torch's own, rounding aside."""

from __future__ import annotations

import pytest
import torch

from experiments.small_lm.muon import Muon, orthogonal


def _random(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("shape", [(3, 8, 8), (2, 8, 20), (2, 20, 8)])
def test_singular_values_end_near_one_and_singular_vectors_stay(shape: tuple[int, ...]) -> None:
    matrices = _random(*shape)
    result = orthogonal(matrices)
    values = torch.linalg.svdvals(result)
    assert values.min() > 0.3
    assert values.max() < 1.3
    left, _, right = torch.linalg.svd(matrices, full_matrices=False)
    between = left.mT @ result @ right.mT
    torch.testing.assert_close(between, torch.diag_embed(torch.diagonal(between, dim1=1, dim2=2)))


def test_steps_are_those_of_torch_up_to_its_bfloat16() -> None:
    start = [_random(8, 8), _random(8, 20, seed=1), _random(8, 8, seed=2)]
    ours = [torch.nn.Parameter(tensor.clone()) for tensor in start]
    theirs = [torch.nn.Parameter(tensor.clone()) for tensor in start]
    first = Muon(ours, lr=0.1, weight_decay=0.02)
    second = torch.optim.Muon(theirs, lr=0.1, weight_decay=0.02, adjust_lr_fn="match_rms_adamw")
    for step in range(3):
        for position, (mine, other) in enumerate(zip(ours, theirs, strict=True)):
            mine.grad = _random(*mine.shape, seed=10 * step + position)
            other.grad = mine.grad.clone()
        first.step()
        second.step()
    for mine, other, begun in zip(ours, theirs, start, strict=True):
        moved = (other - begun).norm()
        assert moved > 0.1
        assert (mine - other).norm() < 0.03 * moved


def test_a_parameter_without_gradient_stays() -> None:
    parameter = torch.nn.Parameter(_random(4, 4))
    before = parameter.detach().clone()
    Muon([parameter], lr=1.0, weight_decay=0.5).step()
    assert torch.equal(parameter, before)

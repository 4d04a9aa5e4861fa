"""Packed masks against numpy's own packing, at every width around the word boundaries."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from gcd._tokens.batch import pack
from gcd._tokens.vocabulary import num_words

WIDTHS = [1, 31, 32, 33, 63, 64, 65, 511, 1000]


def _random_mask(*shape: int) -> torch.Tensor:
    return torch.rand(*shape, generator=torch.Generator().manual_seed(0)) < 0.5


def _packed_by_numpy(mask: torch.Tensor) -> np.ndarray:
    """Pack bit v % 32 into word v // 32, as little-endian bytes."""
    padding = -mask.shape[-1] % 32
    bits = np.pad(mask.numpy(), [(0, 0)] * (mask.ndim - 1) + [(0, padding)])
    return np.packbits(bits, axis=-1, bitorder="little").view("<i4")


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("rows", [(), (0,), (3,), (2, 3)])
def test_packing_follows_the_layout(width: int, rows: tuple[int, ...]) -> None:
    mask = _random_mask(*rows, width)
    words = pack(mask)
    assert words.dtype == torch.int32
    assert words.shape == (*rows, num_words(width))
    np.testing.assert_array_equal(words.numpy(), _packed_by_numpy(mask))


def test_the_last_bit_of_a_word_is_its_sign_and_padding_is_zero() -> None:
    assert pack(torch.ones(1, 33, dtype=torch.bool)).tolist() == [[-1, 1]]
    assert pack(torch.arange(32) == 31).tolist() == [-(2**31)]


def test_a_transposed_mask_packs_by_its_own_rows() -> None:
    mask = _random_mask(40, 3)
    assert torch.equal(pack(mask.T), pack(mask.T.contiguous()))

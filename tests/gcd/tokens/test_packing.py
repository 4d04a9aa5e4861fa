"""Packed masks against numpy's own packing, at every width around the word boundaries."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from gcd._tokens.batch import pack
from gcd._tokens.vocabulary import num_words


@pytest.mark.parametrize("width", [1, 31, 32, 33, 63, 64, 65, 511, 1000])
@pytest.mark.parametrize("rows", [(), (0,), (3,), (2, 3)])
def test_packing_follows_the_layout(width: int, rows: tuple[int, ...]) -> None:
    """Bit v % 32 of word v // 32, as little-endian bytes."""
    mask = torch.rand(width, *rows, generator=torch.Generator().manual_seed(0)) < 0.5
    mask[-1] = True  # possibly the sign of a word
    mask = mask.movedim(0, -1)  # not contiguous
    words = pack(mask)
    padded = np.pad(mask.numpy(), [(0, 0)] * len(rows) + [(0, -width % 32)])
    packed = np.packbits(padded, axis=-1, bitorder="little")
    assert words.dtype == torch.int32
    assert words.shape == (*rows, num_words(width))
    np.testing.assert_array_equal(words.numpy(), np.ascontiguousarray(packed).view("<i4"))

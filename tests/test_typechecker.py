"""Annotations are enforced in tests, in the first, tenth, hundredth … call of each function."""

from __future__ import annotations

import jaxtyping
import pytest
import torch

from smc.weights import Weights


@pytest.mark.parametrize("test", ["a test", "the next one"])
def test_a_wrong_dtype_is_refused_in_the_first_and_the_tenth_call(test):
    wrong = torch.zeros(1, 2, dtype=torch.int64)
    for call in range(1, 13):
        if call in (1, 10):
            with pytest.raises(jaxtyping.TypeCheckError):
                Weights.of(wrong)
        else:
            Weights.of(wrong)

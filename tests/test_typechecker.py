"""Annotations are enforced in tests, in the first calls of each."""

from __future__ import annotations

import jaxtyping
import pytest
import torch

from smc.weights import Weights
from tests.typechecker import CALLS


@pytest.mark.parametrize("test", ["a test", "the next one"])
def test_a_wrong_dtype_is_refused_in_the_first_calls(test):
    wrong = torch.zeros(1, 2, dtype=torch.int64)
    for _ in range(CALLS):
        with pytest.raises(jaxtyping.TypeCheckError):
            Weights.of(wrong)
    Weights.of(wrong)

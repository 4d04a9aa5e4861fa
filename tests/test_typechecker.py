"""Annotations are enforced in tests, in the first, tenth, hundredth … call of each function."""

from __future__ import annotations

from collections.abc import Callable

import jaxtyping
import pytest
import torch

import tests.typechecker
from smc import Sample, Weights

WRONG = torch.zeros(1, 2, dtype=torch.int64)


def assert_checked(call: Callable[[], object]) -> None:
    tests.typechecker.begin_test()
    for number in range(1, 13):
        if number in (1, 10):
            with pytest.raises(jaxtyping.TypeCheckError):
                call()
        else:
            call()


def test_a_wrong_dtype_is_refused_in_the_first_and_the_tenth_call():
    for _ in range(2):
        assert_checked(lambda: Weights.of(WRONG))


def test_a_wrong_field_is_refused_in_the_first_and_the_tenth_one_made():
    for _ in range(2):
        assert_checked(lambda: Sample("ab", b"ab", 0.0, True, 0.0))

"""Transitions, compared with their matrix."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.hmm.oracles import recipes, tiny, transition_matrix


@settings(max_examples=25)
@given(recipes(), st.data())
def test_products_rows_and_counts_are_those_of_the_matrix(recipe, data):
    transition = recipe.model().transition
    A = transition_matrix(transition)
    np.testing.assert_allclose(transition.dense().numpy(), A, atol=1e-14)
    np.testing.assert_allclose(A.sum(axis=1), 1, atol=1e-12)
    x = torch.rand(2, 3, recipe.states, dtype=torch.float64)
    np.testing.assert_allclose(transition.forward(x).numpy(), x.numpy() @ A, atol=1e-13)
    np.testing.assert_allclose(transition.backward(x).numpy(), x.numpy() @ A.T, atol=1e-13)
    # A single vector, and a row expanded without copying, give the same product.
    torch.testing.assert_close(transition.forward(x[0, 0]), transition.forward(x)[0, 0])
    repeated = x[0, 0].expand(4, -1)
    torch.testing.assert_close(
        transition.backward(repeated), transition.backward(repeated.contiguous())
    )
    states = data.draw(st.lists(st.integers(0, recipe.states - 1), max_size=5))
    rows = transition.rows(torch.tensor(states, dtype=torch.int64))
    np.testing.assert_allclose(rows.numpy(), A[states], atol=1e-14)
    before, after = x
    counts = transition.expected_counts(before, after)
    pairs = A * (before.numpy().T @ after.numpy())
    np.testing.assert_allclose(counts[0].numpy(), pairs, atol=1e-13)


def test_another_type_and_a_factor_off_its_simplex():
    transition = tiny().transition
    single = transition.to(dtype=torch.float32)
    single.check()
    assert {part.dtype for part in single.factors} == {torch.float32}
    broken = type(transition)(*(part * (1 + 1e-6) for part in transition.factors))
    with pytest.raises(ValueError, match=r"got the sum 1\.00000"):
        broken.check()

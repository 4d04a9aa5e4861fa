"""Transitions, compared with their matrix."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.hmm.oracles import recipes, tiny, transition_matrix

QUICK = settings(max_examples=25)


@QUICK
@given(recipes())
def test_products_are_those_of_the_matrix(recipe):
    hmm = recipe.model()
    A = transition_matrix(hmm.transition)
    np.testing.assert_allclose(hmm.transition.dense().numpy(), A, atol=1e-14)
    np.testing.assert_allclose(A.sum(axis=1), 1, atol=1e-12)
    x = torch.rand(2, 3, hmm.num_states, dtype=torch.float64)
    np.testing.assert_allclose(hmm.transition.forward(x).numpy(), x.numpy() @ A, atol=1e-13)
    np.testing.assert_allclose(hmm.transition.backward(x).numpy(), x.numpy() @ A.T, atol=1e-13)
    # A single vector, and a row expanded without copying, give the same product.
    torch.testing.assert_close(hmm.transition.forward(x[0, 0]), hmm.transition.forward(x)[0, 0])
    repeated = x[0, 0].expand(4, -1)
    torch.testing.assert_close(
        hmm.transition.backward(repeated), hmm.transition.backward(repeated.contiguous())
    )


@QUICK
@given(recipes(), st.data())
def test_rows_are_those_of_the_matrix(recipe, data):
    hmm = recipe.model()
    states = data.draw(st.lists(st.integers(0, hmm.num_states - 1), max_size=5))
    rows = hmm.transition.rows(torch.tensor(states, dtype=torch.int64))
    np.testing.assert_allclose(rows.numpy(), transition_matrix(hmm.transition)[states], atol=1e-14)


@QUICK
@given(recipes())
def test_expected_counts_of_each_parameter(recipe):
    hmm = recipe.model()
    before, after = torch.rand(2, 5, hmm.num_states, dtype=torch.float64)
    pairs = transition_matrix(hmm.transition) * (before.numpy().T @ after.numpy())
    counts = hmm.transition.expected_counts(before, after)
    np.testing.assert_allclose(counts[0].numpy(), pairs, atol=1e-13)


def test_another_type_and_a_factor_off_its_simplex():
    transition = tiny().transition
    single = transition.to(dtype=torch.float32)
    single.check()
    assert {part.dtype for part in single.factors} == {torch.float32}
    broken = type(transition)(
        *(part * (1 + 1e-6 * i) for i, part in enumerate(transition.factors, 1))
    )
    with pytest.raises(ValueError, match=r"got the sum 1\.00000"):
        broken.check()

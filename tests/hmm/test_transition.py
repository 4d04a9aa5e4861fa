"""Both kinds of transition, compared with their matrix."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from hmm._transition import Dense, factor_shapes
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
    """Uses of A[i, j] are summed; for a factor's entry, over the pairs whose path uses it."""
    hmm = recipe.model()
    before, after = torch.rand(2, 5, hmm.num_states, dtype=torch.float64)
    pairs = transition_matrix(hmm.transition) * (before.numpy().T @ after.numpy())
    counts = hmm.transition.expected_counts(before, after)
    if isinstance(hmm.transition, Dense):
        np.testing.assert_allclose(counts[0].numpy(), pairs, atol=1e-13)
        return
    first, second = (np.zeros(tuple(part.shape)) for part in hmm.transition.factors)
    inner = first.shape[1]
    for i, j in np.ndindex(*pairs.shape):
        (k, m), (next_k, next_m) = divmod(i, inner), divmod(j, inner)
        first[k, m, next_m] += pairs[i, j]
        second[next_m, k, next_k] += pairs[i, j]
    np.testing.assert_allclose(counts[0].numpy(), first, atol=1e-13)
    np.testing.assert_allclose(counts[1].numpy(), second, atol=1e-13)


def test_blocks_that_do_not_divide_are_refused():
    with pytest.raises(ValueError, match="divides 12 states, got 5"):
        factor_shapes(12, 5)


def test_blocks_as_square_as_they_go():
    assert factor_shapes(16384, True) == ((128, 128, 128), (128, 128, 128))
    assert factor_shapes(12, True) == ((4, 3, 3), (3, 4, 4))
    assert factor_shapes(7, True) == ((7, 1, 1), (1, 7, 7))
    # True is a kind, 1 is a size: states that differ only in k.
    assert factor_shapes(12, 1) == ((12, 1, 1), (1, 12, 12))


@pytest.mark.parametrize("monarch", [False, 2])
def test_another_type_and_a_factor_off_its_simplex(monarch):
    transition = tiny(monarch=monarch).transition
    single = transition.to(dtype=torch.float32)
    single.check()
    assert {part.dtype for part in single.factors} == {torch.float32}
    broken = type(transition)(
        *(part * (1 + 1e-6 * i) for i, part in enumerate(transition.factors, 1))
    )
    with pytest.raises(ValueError, match=r"got the sum 1\.00000"):
        broken.check()

"""Parameters: their number, shapes, and refused values."""

import pytest
import torch
from hypothesis import given, settings

from hmm import HMM, Dense
from tests.hmm.oracles import recipes, tiny


def test_the_dense_count():
    assert tiny().num_parameters == 3 + 3 * 3 + 3 * 3


@settings(max_examples=25)
@given(recipes())
def test_random_models_are_positive_and_normalized(recipe):
    hmm = recipe.model()
    hmm.check()
    for part in (hmm.initial, *hmm.transition.factors, hmm.emission):
        assert bool((part > 0).all())


def test_random_is_a_function_of_its_generator():
    one, same, other = tiny(seed=3), tiny(seed=3), tiny(seed=4)
    assert torch.equal(one.emission, same.emission)
    assert not torch.equal(one.emission, other.emission)


def test_parts_that_disagree_are_refused():
    hmm = tiny()
    with pytest.raises(ValueError, match="3, 4 and 3"):
        HMM(hmm.initial, Dense(torch.full((4, 4), 0.25, dtype=torch.float64)), hmm.emission)
    with pytest.raises(ValueError, match="float32, float64"):
        HMM(hmm.initial.float(), hmm.transition, hmm.emission)
    with pytest.raises(ValueError, match="positive"):
        HMM.random(3, 0)


@pytest.mark.usefixtures("unchecked_annotations")
def test_wrong_shapes_are_refused_by_name():
    ones, square = torch.ones, Dense(torch.ones(3, 3))
    for make, message in [
        (lambda: Dense(ones(2, 3)), r"square transition matrix, got shape \(2, 3\)"),
        (lambda: HMM(ones(3), square, ones(3, 5)), r"emission must have shape \(V, H\)"),
        (lambda: HMM(ones(1, 3), square, ones(5, 3)), r"`initial` of shape \(H,\)"),
        (
            lambda: HMM(torch.tensor([1, 0, 0]), square, ones(5, 3)).check(),
            "the same floating-point type .* got float32, int64",
        ),
    ]:
        with pytest.raises(ValueError, match=message):
            make()


@pytest.mark.parametrize(
    ("part", "value", "message"),
    [
        ("emission", float("nan"), r"emission.*got the sum nan at index \[1\]"),
        ("emission", float("inf"), r"emission.*got the sum inf"),
        ("emission", 0.9, r"emission"),
        ("initial", float("nan"), r"`initial`.*got the sum nan"),
        ("transition", float("nan"), r"transition.*got the sum nan at index \[2\]"),
    ],
)
def test_values_that_are_no_probabilities_are_refused(part, value, message):
    hmm = tiny()
    array = {"transition": hmm.transition.factors[0]}.get(part, getattr(hmm, part))
    array[(2, 1) if array.dim() == 2 else 1] = value
    with pytest.raises(ValueError, match=message):
        hmm.check()


def test_logarithms_and_negative_probabilities_are_refused():
    hmm = tiny()
    with pytest.raises(ValueError, match="logarithms"):
        HMM(hmm.initial, hmm.transition, hmm.emission.log()).check()
    hmm.initial[:] = torch.tensor([1.5, -0.25, -0.25])
    with pytest.raises(ValueError, match=r"at least 0 in .*, got -0\.25"):
        hmm.check()


def test_emissions_alone_in_bfloat16():
    """Rounded entries of a whole vocabulary still count as a distribution; larger errors don't."""
    hmm = HMM.random(8, 30000, generator=torch.Generator().manual_seed(0))
    small = hmm.to(emission_dtype=torch.bfloat16)
    assert small.emission.dtype == torch.bfloat16
    assert small.dtype == small.transition.factors[0].dtype == torch.float32
    small.check()
    with pytest.raises(ValueError, match="emission"):
        HMM(small.initial, small.transition, small.emission * 1.05).check()

"""Parameters: their number, shapes, and refused values."""

import pytest
import torch
from hypothesis import given, settings

from hmm import HMM, Dense
from tests.hmm.oracles import parameters, recipes, tiny

ONES, SQUARE = torch.ones, Dense(torch.ones(3, 3))


@settings(max_examples=25)
@given(recipes())
def test_random_models_are_positive_and_normalized(recipe):
    hmm, same = recipe.model(), recipe.model()
    hmm.check()
    for part, again in zip(parameters(hmm), parameters(same), strict=True):
        assert bool((part > 0).all())
        assert torch.equal(part, again)
    states, tokens = recipe.states, recipe.num_tokens
    assert hmm.num_parameters == states * (1 + states + tokens)
    assert not torch.equal(tiny(seed=3).emission, tiny(seed=4).emission)


def changed(part, index, value):
    """Return the tiny model with another value in one of its arrays."""
    hmm = tiny()
    parts = dict(zip(("initial", "transition", "emission"), parameters(hmm), strict=True))
    parts[part][index] = value
    return hmm


@pytest.mark.usefixtures("unchecked_annotations")
@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda hmm: HMM(hmm.initial, Dense(ONES(4, 4).double()), hmm.emission), "3, 4 and 3"),
        (lambda hmm: HMM(hmm.initial.float(), hmm.transition, hmm.emission), "float32, float64"),
        (lambda _: HMM.random(3, 0), "positive"),
        (lambda _: Dense(ONES(2, 3)), r"square transition matrix, got shape \(2, 3\)"),
        (lambda _: HMM(ONES(3), SQUARE, ONES(3, 5)), r"emission must have shape \(V, H\)"),
        (lambda _: HMM(ONES(1, 3), SQUARE, ONES(5, 3)), r"`initial` of shape \(H,\)"),
        (
            lambda _: HMM(torch.tensor([1, 0, 0]), SQUARE, ONES(5, 3)),
            "the same floating-point type .* got float32, int64",
        ),
        (lambda _: changed("emission", (2, 1), torch.nan), r"emission.*sum nan at index \[1\]"),
        (lambda _: changed("emission", (2, 1), torch.inf), r"emission.*got the sum inf"),
        (lambda _: changed("emission", (2, 1), 0.9), "emission"),
        (lambda _: changed("initial", 1, torch.nan), r"`initial`.*got the sum nan"),
        (lambda _: changed("transition", (2, 1), torch.nan), r"transition.*sum nan at index \[2\]"),
        (lambda hmm: HMM(hmm.initial, hmm.transition, hmm.emission.log()), "logarithms"),
        (lambda hmm: Dense(hmm.transition.matrix * (1 + 1e-6)), r"got the sum 1\.00000"),
        (
            lambda _: changed("initial", slice(3), torch.tensor([1.5, -0.25, -0.25]).double()),
            r"at least 0 in .*, got -0\.25",
        ),
    ],
)
def test_what_is_no_model_is_refused(call, message):
    with pytest.raises(ValueError, match=message):
        call(tiny()).check()


def test_emissions_alone_in_bfloat16():
    """Rounded entries of a whole vocabulary still count as a distribution; larger errors don't."""
    hmm = HMM.random(8, 30000, generator=torch.Generator().manual_seed(0))
    small = hmm.to(emission_dtype=torch.bfloat16)
    assert small.emission.dtype == torch.bfloat16
    assert small.dtype == small.transition.factors[0].dtype == torch.float32
    small.check()
    with pytest.raises(ValueError, match="emission"):
        HMM(small.initial, small.transition, small.emission * 1.05).check()

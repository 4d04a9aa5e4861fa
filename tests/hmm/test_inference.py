"""Filter, likelihood, posterior and sampling against sums over every path of hidden states."""

from collections import Counter

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from hmm import HMM, Dense, expected_statistics
from hmm import _inference as inference
from tests.hmm.oracles import all_strings, batch, joint, over, parameters, recipes, sparse, tiny

QUICK = settings(max_examples=25)


def close(actual, expected, atol=1e-10):
    np.testing.assert_allclose(np.asarray(actual), expected, rtol=1e-10, atol=atol)


def normalized(table):
    return table / table.sum() if table.sum() else np.zeros_like(table)


@pytest.mark.parametrize("length", [1, 2, 3, 5, 7])
@pytest.mark.parametrize("make", [tiny, sparse])
def test_every_recursion_against_every_path(make, length):
    """Impossible sequences have no posterior, and no NaN."""
    hmm = make(length)
    strings = all_strings(3, length)
    strings = strings[torch.randperm(len(strings))[:12]]
    lengths = torch.full((len(strings),), length)
    filtered = inference.filter_all(hmm, strings, lengths)
    posterior = inference.marginals(hmm, strings, lengths)
    pairs = np.zeros((hmm.num_states, hmm.num_states))
    for n, string in enumerate(strings.tolist()):
        table = joint(hmm, string)
        close(filtered.log_likelihood[n].exp(), table.sum(), atol=0)
        table = normalized(table)
        for t in range(length):
            # P(h_t | x_<=t) from the truncated sequence; predicted with token t unobserved.
            cut = normalized(joint(hmm, string[: t + 1]))
            close(filtered.filtered[n, t], over(cut, t))
            cut = normalized(joint(hmm, [*string[:t], None]))
            close(filtered.predicted[n, t], over(cut, t))
            close(posterior.states[n, t], over(table, t))
        for t in range(length - 1):
            pairs += over(table, t, t + 1)
    close(posterior.log_likelihood, filtered.log_likelihood)
    close(inference.log_likelihood(hmm, strings, lengths), filtered.log_likelihood)
    close(posterior.transition_counts[0], pairs)


@QUICK
@given(
    st.one_of(recipes(), st.integers(0, 99)),
    st.integers(0, 2**31),
    st.lists(st.integers(0, 6), min_size=1, max_size=6),
    st.sampled_from([-1, -100, 10**9]),
)
def test_a_batch_is_its_sequences_step_by_step(recipe, seed, lengths, rubbish):
    """Order, padding and the other sequences change nothing, even if a token is impossible."""
    hmm = sparse(recipe) if isinstance(recipe, int) else recipe.model()
    tokens, lengths = batch(seed, lengths, hmm.num_tokens, rubbish)
    whole = inference.filter_all(hmm, tokens, lengths)
    together = inference.marginals(hmm, tokens, lengths)
    counts = torch.zeros_like(hmm.transition.matrix)
    for n, length in enumerate(lengths.tolist()):
        predicted, total = inference.predict_first(hmm, 1), 0.0
        for t in range(length):
            close(whole.predicted[n, t], predicted[0].numpy())
            filtered, gain = inference.filter_step(hmm, predicted, tokens[n, t : t + 1])
            close(whole.filtered[n, t], filtered[0].numpy())
            total += float(gain)
            close(filtered.sum(), float(total > -np.inf))
            predicted = hmm.transition.forward(filtered)
        close(whole.log_likelihood[n], total)
        alone = inference.marginals(hmm, tokens[n : n + 1, :length], lengths[n : n + 1])
        close(together.states[n, :length], alone.states[0].numpy())
        close(together.log_likelihood[n], total)
        counts += alone.transition_counts[0]
        for part in (whole.filtered, whole.predicted, together.states):
            assert not part[n, length:].any()
    close(together.transition_counts[0], counts.numpy())


@pytest.mark.parametrize("lengths", [[3], [0, 3, 0], [3, 2], [0], []])
def test_nothing_writes_to_the_parameters(lengths):
    """A batch in which one sequence has a token is one row, which must not alias the model."""
    hmm = tiny(seed=3)
    before = [part.clone() for part in parameters(hmm)]
    lengths = torch.tensor(lengths, dtype=torch.int64)
    tokens = torch.tensor([[1, 2, 0]]).expand(len(lengths), 3)
    for function in (inference.log_likelihood, inference.filter_all, inference.marginals):
        function(hmm, tokens, lengths)
    predicted = inference.predict_first(hmm, len(lengths))
    inference.filter_step(hmm, predicted, tokens[:, 0])
    inference.sample(hmm, 2, 3)
    expected_statistics(hmm, tokens, lengths)
    assert all(map(torch.equal, parameters(hmm), before))


def test_counts_do_not_depend_on_the_block_of_rows(monkeypatch):
    hmm = tiny()
    for lengths in ([4, 2, 4, 1, 3, 0], [4, 4, 4, 4]):
        tokens, lengths = batch(0, lengths, 3)
        whole = inference.marginals(hmm, tokens, lengths).transition_counts
        with monkeypatch.context() as patch:
            patch.setattr(inference, "_ROWS_AT_ONCE", 5)
            for part, expected in zip(
                inference.marginals(hmm, tokens, lengths).transition_counts, whole, strict=True
            ):
                close(part, expected.numpy())


def test_long_sequences_in_single_precision():
    """The total probability is far below the smallest float32, but each step is ordinary."""
    generator = torch.Generator().manual_seed(0)
    wide = HMM.random(16, 5, generator=generator, dtype=torch.float64)
    hmm = wide.to(dtype=torch.float32)
    tokens, lengths = batch(0, [120, 100, 3], 5)
    single = inference.marginals(hmm, tokens, lengths)
    double = inference.marginals(wide, tokens, lengths)
    assert float(double.log_likelihood[0]) < -150
    torch.testing.assert_close(
        single.log_likelihood.double(), double.log_likelihood, rtol=1e-5, atol=0
    )
    torch.testing.assert_close(single.states.double(), double.states, rtol=0, atol=1e-4)


def test_posterior_where_the_filter_was_all_but_certain_of_the_contrary():
    """Only the improbable state can continue: its weight recovers from 1e-20."""
    rare = 1e-20
    hmm = HMM(
        torch.tensor([1 - rare, rare], dtype=torch.float32),
        Dense(torch.eye(2)),
        torch.tensor([[0.5, 0.5], [0.5, 0.0], [0.0, 0.5]]),
    )
    tokens = torch.tensor([[0, 0, 2]])
    result = inference.marginals(hmm, tokens, torch.tensor([3]))
    close(result.states[0], [[0.0, 1.0]] * 3, atol=1e-6)
    close(result.log_likelihood.exp() / rare, [0.125], atol=1e-6)
    close(result.transition_counts[0], [[0, 0], [0, 2]], atol=1e-6)


@pytest.mark.parametrize("rare", [1e-40, 2e-38])
def test_what_single_precision_cannot_divide_by_is_taken_for_less_likely(rare):
    """Neither 1 / 1e-40 nor the sum of sixteen 1 / 2e-38 is a float32.

    The one state that can continue gets a lower weight, and nothing is NaN.
    """
    hmm = HMM(
        torch.tensor([1.0, 0.0]),
        Dense(torch.tensor([[1.0, rare], [0.0, 1.0]])),
        torch.tensor([[0.5, 0.5], [0.5, 0.0], [0.0, 0.5]]),
    )
    tokens = torch.tensor([[0, 2, 0]]).expand(16, -1)
    result = inference.marginals(hmm, tokens, torch.full((16,), 3))
    mass = result.states[0].sum(dim=-1)
    close(mass[1:], [1.0, 1.0], atol=1e-6)
    assert 0 <= float(mass[0]) <= 1
    assert all(bool(part.isfinite().all()) for part in result.transition_counts)
    assert float(result.transition_counts[0].sum()) <= 2 * 16


def test_emissions_in_bfloat16_are_widened():
    hmm = tiny(dtype=torch.float32)
    rounded = hmm.to(emission_dtype=torch.bfloat16)
    widened = rounded.to(emission_dtype=torch.float32)
    tokens, lengths = batch(0, [4, 6], 3)
    small, large = (
        inference.filter_all(model, tokens, lengths).filtered for model in (rounded, widened)
    )
    assert small.dtype == torch.float32
    torch.testing.assert_close(small, large)
    # Numbers drawn in bfloat16 would often be equal.
    one, other = (
        inference.sample(model, 200, 4, torch.Generator().manual_seed(0))
        for model in (rounded, widened)
    )
    assert torch.equal(one.tokens, other.tokens)


def test_frequencies_of_samples_are_their_probabilities():
    """Chi-square test over all strings of up to three tokens and their states; token 2 ends."""
    hmm, num = tiny(seed=5), 40_000
    drawn, same = (
        inference.sample(hmm, num, 3, torch.Generator().manual_seed(1), eos_id=2) for _ in range(2)
    )
    assert all(map(torch.equal, drawn, same))
    last = drawn.states.gather(1, drawn.lengths.unsqueeze(1) - 1).expand(-1, 3)
    behind = torch.arange(3) >= drawn.lengths.unsqueeze(1)
    assert torch.equal(drawn.states[behind], last[behind])
    assert (drawn.tokens[behind] == 2).all()
    seen = Counter(
        (tuple(tokens[:length]), tuple(states[:length]))
        for tokens, states, length in zip(*(part.tolist() for part in drawn), strict=True)
    )
    strings = [s for n in (1, 2, 3) for s in all_strings(3, n).tolist() if 2 not in s[:-1]]
    expected = {
        (tuple(string), states): num * p
        for string in strings
        if len(string) == 3 or string[-1] == 2
        for states, p in np.ndenumerate(joint(hmm, string))
    }
    assert seen.keys() <= expected.keys()
    close(sum(expected.values()), num)
    cells = [key for key, often in expected.items() if often > 5]
    chi2 = sum((seen[key] - expected[key]) ** 2 / expected[key] for key in cells)
    assert chi2 < len(cells) + 6 * np.sqrt(2 * len(cells))  # six standard deviations


@pytest.mark.usefixtures("unchecked_annotations")
def test_tokens_and_lengths_out_of_range_are_refused():
    hmm = tiny()
    for function, tokens, lengths, message in (
        (inference.filter_all, [[0, 3]], [2], r"tokens from 0 to 2, .* got tokens from 0 to 3"),
        (inference.marginals, [[0, -1]], [2], r"tokens from 0 to 2, .* got tokens from -1 to 0"),
        (inference.log_likelihood, [[0, 1]], [3], r"lengths from 0 to 2, .* from 3 to 3"),
        (inference.log_likelihood, [[0], [0]], [1], r"2 lengths, one per sequence, .* \(1,\)"),
    ):
        with pytest.raises(ValueError, match=message):
            function(hmm, torch.tensor(tokens), torch.tensor(lengths))
    with pytest.raises(ValueError, match="got num=1 and length=0"):
        inference.sample(hmm, 1, 0)

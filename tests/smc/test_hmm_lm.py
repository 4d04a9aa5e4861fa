"""The HMM as a language model returns the filter's distributions after any row operation."""

from __future__ import annotations

import math

import pytest
import torch

import gcd
import smc
from hmm import HMM, filter_all, log_likelihood
from smc import HMMLanguageModel
from smc._models.hmm_lm import PROMPT

VOCABULARY = gcd.Vocabulary.from_bytes([b"", b"a", b"b", b"ab", b"ba", b"."], eos_ids=[0])


def toy(num_states: int = 4, **options) -> HMM:
    generator = torch.Generator().manual_seed(0)
    return HMM.random(num_states, VOCABULARY.size, generator=generator, **options)


def likelihood(model: HMM, tokens: tuple[int, ...]) -> float:
    one = torch.tensor([tokens])
    return float(
        log_likelihood(model.normalized(torch.float64), one, torch.tensor([len(tokens)])).exp()
    )


def uniform_rows(tokens: list[list[int]]) -> tuple[torch.Tensor, torch.Tensor]:
    return torch.tensor(tokens), torch.tensor([len(row) for row in tokens])


def test_the_next_token_is_as_the_filter_has_it():
    model = toy()
    lm = HMMLanguageModel(model, VOCABULARY)
    rows, first = lm.prefill([PROMPT, [3, 1]])
    tokens = [[1, 3, 2, 5], [4, 4, 1, 1]]
    runs, lengths = uniform_rows(tokens)
    found = torch.cat([first.unsqueeze(1), rows.extend(runs, lengths)], dim=1)
    assert found.dtype == torch.float64
    predicted = filter_all(model.normalized(torch.float64), runs, lengths).predicted
    expected = (predicted @ model.normalized(torch.float64).emission.T).log()
    torch.testing.assert_close(found[:, :4], expected, rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(found.exp().sum(dim=2), torch.ones(2, 5).double())
    chosen = found[:, :4].gather(2, runs.unsqueeze(2)).sum(dim=(1, 2)).exp().tolist()
    assert chosen == pytest.approx([likelihood(model, tuple(row)) for row in tokens], rel=1e-12)


def test_prompts_are_ignored():
    lm = HMMLanguageModel(toy(), VOCABULARY)
    assert lm.encode("anything") == list(PROMPT)
    assert lm.encode([2, 4]) == [2, 4]
    assert isinstance(lm, smc.LanguageModel)
    _, first = lm.prefill([[1], [2, 2, 3]])
    assert torch.equal(first[0], first[1])


def test_rows_are_extended_copied_and_cut_back():
    lm = HMMLanguageModel(toy(), VOCABULARY)
    rows, _ = lm.prefill([PROMPT])
    rows.reorder(torch.tensor([0, 0, 0]))
    ragged = rows.extend(torch.tensor([[1, 2, 3], [4, 9, 9], [5, 1, 9]]), torch.tensor([3, 1, 2]))
    assert bool(ragged[1, 1:].isnan().all())
    assert bool(ragged[2, 2:].isnan().all())
    rows.reorder(torch.tensor([2, 0, 2, 1]))
    rows.truncate(torch.tensor([2, 1, 0, 1]))
    after = rows.extend(torch.tensor([[2], [2], [2], [2]]), torch.ones(4, dtype=torch.int64))
    for row, prefix in enumerate([[5, 1, 2], [1, 2], [2], [4, 2]]):
        fresh, _ = lm.prefill([PROMPT])
        runs, lengths = uniform_rows([prefix])
        torch.testing.assert_close(after[row, 0], fresh.extend(runs, lengths)[0, -1])


def test_nothing_follows_an_impossible_row_and_another_vocabulary_is_refused():
    model = toy()
    emission = model.emission.clone()
    emission[2] = 0
    lm = HMMLanguageModel(HMM(model.initial, model.transition, emission), VOCABULARY)
    rows, first = lm.prefill([PROMPT])
    assert float(first[0, 2]) == -math.inf
    rows.reorder(torch.tensor([0, 0]))
    after = rows.extend(torch.tensor([[2, 1], [1, 1]]), torch.tensor([2, 2]))
    assert bool(after[0].isneginf().all())
    assert bool(after[1].logsumexp(dim=1).exp().allclose(torch.ones((), dtype=torch.float64)))
    with pytest.raises(ValueError, match="over 6 tokens, as in the vocabulary, got one over 7"):
        HMMLanguageModel(HMM.random(2, 7), VOCABULARY)


def test_half_precision_is_normalized():
    coarse = toy(16).to(emission_dtype=torch.bfloat16)
    fine = coarse.normalized(torch.float64)
    assert fine.emission.dtype == torch.float64
    for part, dim in ((fine.initial, 0), (fine.transition.dense(), 1), (fine.emission, 0)):
        assert float((part.sum(dim=dim) - 1).abs().max()) < 1e-14

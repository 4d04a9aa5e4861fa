"""EM over the tokens that occur, with one class for all others, equals EM over all tokens."""

import pytest
import torch

from experiments.distillation.lumping import Lumping, pool_rare
from hmm import _em as em
from hmm._em import PseudoCounts, Step
from hmm._inference import log_likelihood
from hmm._model import HMM

V, SEEN = 40, (3, 4, 11, 39)


def data(seed: int) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    tokens = torch.tensor(SEEN)[torch.randint(0, len(SEEN), (30, 6), generator=generator)]
    return tokens, torch.randint(1, 7, (30,), generator=generator)


def lumping() -> Lumping:
    return Lumping.all_but(torch.isin(torch.arange(V), torch.tensor(SEEN)))


def parameters(hmm: HMM) -> list[torch.Tensor]:
    return [hmm.initial, *hmm.transition.factors, hmm.emission]


def test_em_over_classes_is_em_over_tokens():
    """Several steps of stepwise EM, with pseudo-counts that differ between tokens that occur."""
    tokens, lengths = data(0)
    classes = lumping()
    assert classes.num_classes == len(SEEN) + 1
    assert classes.sizes.tolist() == [1, 1, 1, 1, V - 4]
    generator = torch.Generator().manual_seed(1)
    start = HMM.random(6, V, generator=generator, dtype=torch.float64)
    prior = torch.full((V,), 0.01, dtype=torch.float64)
    prior[list(SEEN)] = torch.tensor([0.1, 0.4, 0.2, 0.7], dtype=torch.float64)

    def trained(hmm: HMM, ids: torch.Tensor, pseudo: torch.Tensor) -> Step:
        state = Step(hmm)
        for step in range(4):
            state = em.em_step(
                state,
                [(ids[10 * part : 10 * part + 15], lengths[10 * part : 10 * part + 15])
                 for part in range(2)],
                pseudo_counts=PseudoCounts(0.1, 0.2, pseudo),
                step_size=em.step_size(step),
                num_sequences=30,
            )  # fmt: skip
        return state

    whole = trained(start, tokens, prior)
    small = trained(classes.lump(start), classes.class_of[tokens], classes.sums(prior))
    assert small.hmm.num_tokens == 5
    assert small.log_likelihood == pytest.approx(whole.log_likelihood, abs=1e-10)
    again = classes.spread(small.hmm)
    for mine, theirs in zip(parameters(again), parameters(whole.hmm), strict=True):
        torch.testing.assert_close(mine, theirs, atol=1e-12, rtol=1e-9)
    torch.testing.assert_close(
        log_likelihood(small.hmm, classes.class_of[tokens], lengths),
        log_likelihood(whole.hmm, tokens, lengths),
    )
    # Tokens that never occur have the same row in every type.
    for model in (whole.hmm, again):
        for dtype in (torch.float64, torch.float32, torch.bfloat16):
            assert len(model.emission.to(dtype).double().unique(dim=0)) == 5


def test_a_model_with_equal_rows_comes_back():
    hmm = HMM.random(3, 5, generator=torch.Generator().manual_seed(2), dtype=torch.float64)
    classes = lumping()
    spread = classes.spread(hmm)
    spread.check()
    assert spread.num_tokens == V
    torch.testing.assert_close(spread.emission[0], hmm.emission[4] / 36)
    torch.testing.assert_close(spread.emission[11], hmm.emission[2])
    torch.testing.assert_close(classes.lump(spread).emission, hmm.emission)
    # Nothing is lumped where everything occurs.
    assert Lumping.all_but(torch.ones(7, dtype=torch.bool)).class_of.tolist() == list(range(7))
    assert Lumping.all_but(torch.zeros(7, dtype=torch.bool)).sizes.tolist() == [7]


def test_rare_tokens_that_were_seen_equally_often_share_their_emissions():
    hmm = HMM.random(4, 9, generator=torch.Generator().manual_seed(1))
    counts = torch.tensor([0, 7, 1, 3, 1, 0, 2, 3, 2])
    pooled = pool_rare(hmm.emission, counts, 2)
    torch.testing.assert_close(pooled.sum(dim=0), hmm.emission.sum(dim=0))
    for alike in ([0, 5], [2, 4], [6, 8]):
        expected = hmm.emission[alike].mean(dim=0).expand(len(alike), -1)
        assert torch.equal(pooled[alike], expected)
    own = [1, 3, 7]
    assert torch.equal(pooled[own], hmm.emission[own])
    assert len(pooled.unique(dim=0)) == 3 + len(own)

"""Counts of known states, compared with loops; recovery of known clusters and models."""

import itertools
import sys

import numpy as np
import pytest
import torch

from hmm import HMM, PseudoCounts, distilled
from hmm import _em as em
from hmm import _inference as inference
from hmm._initialize import SMOOTHING, cluster, counts_of_states
from tests.hmm.oracles import batch


def test_counts_of_known_states():
    tokens, lengths = batch(0, [5, 0, 3, 1, 7], 4)
    states, _ = batch(1, [5, 0, 3, 1, 7], 6, rubbish=99)
    counts = counts_of_states(states, tokens, lengths, 6, 4, dtype=torch.float64)
    initial, transition, emission = np.zeros(6), np.zeros((6, 6)), np.zeros((4, 6))
    for n, length in enumerate(lengths.tolist()):
        path, string = states[n, :length].tolist(), tokens[n, :length].tolist()
        for h in path[:1]:
            initial[h] += 1
        for before, after in itertools.pairwise(path):
            transition[before, after] += 1
        for token, h in zip(string, path, strict=True):
            emission[token, h] += 1
    np.testing.assert_array_equal(counts.initial.numpy(), initial)
    np.testing.assert_array_equal(counts.transition[0].numpy(), transition)
    np.testing.assert_array_equal(counts.emission.numpy(), emission)
    assert float(counts.sequences) == 4
    assert float(counts.tokens) == 16
    # They equal EM's counts if the posterior is certain, and can be added to them.
    em.maximize(counts, 0.1).check()
    with pytest.raises(ValueError, match="states from 0 to 4, got states from 0 to 5"):
        counts_of_states(states, tokens, lengths, 5, 4)


def test_clusters_that_lie_apart_are_found():
    pytest.importorskip("faiss")
    random = np.random.default_rng(0)
    label = random.integers(5, size=400)
    centers = 10 * np.eye(5, 8)
    vectors = torch.from_numpy(centers[label] + 0.1 * random.standard_normal((400, 8)))
    found = cluster(vectors.half(), 5, restarts=20)
    assert torch.equal(found, cluster(vectors.half(), 5, restarts=20))
    pairs = {(a, b) for a, b in zip(label.tolist(), found.tolist(), strict=True)}
    assert len(pairs) == len({a for a, _ in pairs}) == len({b for _, b in pairs}) == 5
    with pytest.raises(ValueError, match=r"at least 401 vectors .* got 400"):
        cluster(vectors, 401)
    vectors[3, 2] = float("nan")
    with pytest.raises(ValueError, match="NaN"):
        cluster(vectors, 5)


def test_without_faiss_the_package_to_install_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "faiss", None)
    with pytest.raises(ImportError, match=r"pip install .*\[distillation\]"):
        cluster(torch.zeros(3, 2), 2)


def test_a_model_is_found_from_vectors_that_know_its_states():
    """Token 0 ends a sequence; it is the only token of the last state, and no other."""
    pytest.importorskip("faiss")
    generator = torch.Generator().manual_seed(0)
    source = HMM.random(6, 9, generator=generator, dtype=torch.float64, concentration=0.3)
    source.emission[0], source.emission[:, 5] = 0.0, 0.0
    source.emission[0, 5] = 1.0
    source.emission.div_(source.emission.sum(dim=0))
    data = inference.sample(source, 1500, 12, generator, eos_id=0)
    inside = torch.arange(data.tokens.shape[1]) < data.lengths.unsqueeze(1)
    states = data.states[inside]
    vectors = 10 * torch.eye(6)[states] + 0.1 * torch.randn(len(states), 6, generator=generator)
    # A language model's state after EOS is meaningless, and not used.
    vectors[states == 5] = torch.randn(int((states == 5).sum()), 6, generator=generator)
    hmm = distilled(vectors, data.tokens, data.lengths, 6, 9, eos_ids=(0,), restarts=20)
    hmm.check()
    assert float(hmm.emission[0, 5]) > 0.98
    # The same as from the states themselves, up to the order of the clusters.
    known = em.maximize(counts_of_states(data.states, data.tokens, data.lengths, 6, 9), SMOOTHING)
    fresh = inference.sample(source, 500, 12, torch.Generator().manual_seed(1), eos_id=0)
    truth, best, found, blind = (
        float(inference.log_likelihood(model, fresh.tokens, fresh.lengths).mean())
        for model in (source, known, hmm, HMM.random(6, 9, generator=generator))
    )
    assert found == pytest.approx(best, abs=1e-3)
    assert truth - 0.3 < found < truth
    assert blind < truth - 1


def test_smoothing_leaves_nothing_impossible():
    pytest.importorskip("faiss")
    tokens, lengths = batch(0, [4] * 20, 3)
    vectors = torch.randn(80, 4, generator=torch.Generator().manual_seed(0))
    hmm = distilled(vectors, tokens, lengths, 8, 50)
    for part in (hmm.initial, *hmm.transition.factors, hmm.emission):
        assert bool((part > 0).all())
    bare = distilled(vectors, tokens, lengths, 8, 50, smoothing=PseudoCounts())
    assert float(bare.emission[3:].sum()) == 0
    with pytest.raises(ValueError, match=r"expected 80 vectors, .* got 79"):
        distilled(vectors[1:], tokens, lengths, 8, 50)

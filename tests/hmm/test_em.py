"""Expected counts, compared with all paths; monotone likelihood; multiple processes."""

import copy
import itertools
import math

import numpy as np
import pytest
import torch

from hmm import HMM, PseudoCounts, Statistics, Step
from hmm import _em as em
from hmm import _inference as inference
from tests import processes
from tests.hmm.oracles import batch, joint, over, parameters, sparse, tiny
from tests.hmm.stepwise import train


def arrays(statistics: Statistics) -> list[torch.Tensor]:
    return [statistics.initial, *statistics.transition, *statistics[2:]]


def assert_close(actual: Statistics, expected: Statistics, tolerance: float = 1e-10) -> None:
    for one, other in zip(arrays(actual), arrays(expected), strict=True):
        torch.testing.assert_close(one, other, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("hmm", [tiny(), sparse(0)], ids=["positive", "zeros"])
def test_counts_against_every_path(hmm):
    """Sequences that are impossible add nothing but their likelihood."""
    tokens, lengths = batch(0, [1, 4, 0, 3, 7, 4, 1, 2], 3)
    counts = em.expected_statistics(hmm, tokens, lengths)
    H, log_likelihood, possible = hmm.num_states, 0.0, 0
    initial, transition, emission = np.zeros(H), np.zeros((H, H)), np.zeros((3, H))
    for n, length in enumerate(lengths.tolist()):
        if not length:
            continue
        string = tokens[n, :length].tolist()
        table = joint(hmm, string)
        log_likelihood += math.log(table.sum()) if table.sum() else -math.inf
        if not table.sum():
            continue
        possible += 1
        table = table / table.sum()
        initial += over(table, 0)
        for t, token in enumerate(string):
            emission[token] += over(table, t)
            transition += over(table, t - 1, t) if t else 0
    assert possible == 7 or (0 < possible < 7 and log_likelihood == -math.inf)
    np.testing.assert_allclose(counts.initial.numpy(), initial, atol=1e-12)
    np.testing.assert_allclose(counts.transition[0].numpy(), transition, atol=1e-12)
    np.testing.assert_allclose(counts.emission.numpy(), emission, atol=1e-12)
    assert float(counts.log_likelihood) == pytest.approx(log_likelihood, abs=1e-10)
    assert float(counts.tokens) == int(lengths.sum())
    assert float(counts.sequences) == 8
    # Counts add over sequences, also into the same memory.
    into, parts = Statistics.zeros(hmm), []
    for rows in (slice(None, 3), slice(3, None)):
        parts.append(em.expected_statistics(hmm, tokens[rows], lengths[rows]))
        assert em.expected_statistics(hmm, tokens[rows], lengths[rows], into=into) is into
    assert_close(parts[0] + parts[1], counts)
    assert_close(into, counts)
    mixed = em.blend(counts, Statistics.zeros(hmm), 0.25)
    torch.testing.assert_close(mixed.initial, counts.initial * 0.75)
    assert float(mixed.log_likelihood) == pytest.approx(0.75 * log_likelihood)
    # The old counts have no influence with a step size of one.
    alone = em.expected_statistics(hmm, tokens[2:3], lengths[2:3])
    assert_close(em.blend(counts, copy.deepcopy(alone), 1), alone)


@pytest.mark.parametrize("weight", [0.0, 1.0])
def test_every_full_step_raises_the_posterior(weight):
    """The log-likelihood plus the sum of pseudo-count times log parameter never falls."""
    source = tiny(seed=1, concentration=0.2)
    data = inference.sample(source, 60, 8, torch.Generator().manual_seed(0), eos_id=2)
    per_token = weight * torch.tensor([0.1, 2.0, 0.5], dtype=torch.float64)
    prior = PseudoCounts(initial=0.5 * weight, transition=0.2 * weight, emission=per_token)
    hmm = tiny(seed=2)
    curve = []
    for _ in range(30):
        counts = em.expected_statistics(hmm, data.tokens, data.lengths)
        density = prior.initial * hmm.initial.log().sum()
        density += sum(prior.transition * part.log().sum() for part in hmm.transition.factors)
        density += (per_token.unsqueeze(1) * hmm.emission.log()).sum()
        curve.append(float(counts.log_likelihood + density))
        hmm = em.maximize(counts, prior)
        hmm.check()
    rises = np.diff(curve)
    assert (rises > -1e-10).all()
    assert rises[0] > 1.0
    if not weight:
        # The better model explains the data at least as well as the model that generated it.
        truth = inference.log_likelihood(source, data.tokens, data.lengths).sum()
        assert curve[-1] > float(truth) - 5


def test_maximizing_normalizes_counts():
    counts = Statistics(
        torch.tensor([3.0, 1.0]),
        (torch.tensor([[1.0, 3.0], [0.0, 0.0]]),),
        torch.tensor([[6.0, 0.0], [2.0, 0.0]]),
        *(torch.tensor(0.0, dtype=torch.float64) for _ in range(3)),
    )
    hmm = em.maximize(counts)
    assert hmm.initial.tolist() == [0.75, 0.25]
    # A state that was never visited is uniform, not 0 / 0.
    assert hmm.transition.dense().tolist() == [[0.25, 0.75], [0.5, 0.5]]
    assert hmm.emission.tolist() == [[0.75, 0.5], [0.25, 0.5]]
    assert counts.transition[0].tolist() == [[1.0, 3.0], [0.0, 0.0]]
    smooth = em.maximize(counts, PseudoCounts(0.0, 1.0, torch.tensor([1.0, 3.0])))
    assert smooth.initial.tolist() == [0.75, 0.25]
    torch.testing.assert_close(
        smooth.transition.dense(), torch.tensor([[2 / 6, 4 / 6], [0.5, 0.5]])
    )
    torch.testing.assert_close(smooth.emission, torch.tensor([[7 / 12, 0.25], [5 / 12, 0.75]]))
    assert em.maximize(counts, 0.1, emission_dtype=torch.bfloat16).emission.dtype == torch.bfloat16


def test_stepwise_em_blends_counts():
    """Counts are scaled and blended in place, but only in the new counts' memory."""
    tokens, lengths = batch(0, [5, 3, 6, 2], 3)
    hmm = tiny(dtype=torch.float64)
    halves = [(tokens[:2], lengths[:2]), (tokens[2:], lengths[2:])]
    first = em.em_step(Step(hmm), halves[:1], num_sequences=4, pseudo_counts=0.1)
    assert_close(first.statistics, em.expected_statistics(hmm, *halves[0]).scale_(2))
    kept = copy.deepcopy(first)
    for size in (1.0, 0.25):
        second = em.em_step(first, halves[1:], num_sequences=4, pseudo_counts=0.1, step_size=size)
        assert second.statistics is not first.statistics
        for part, before in zip(
            [*parameters(first.hmm), *arrays(first.statistics)],
            [*parameters(kept.hmm), *arrays(kept.statistics)],
            strict=True,
        ):
            assert torch.equal(part, before)
    fresh = em.expected_statistics(first.hmm, *halves[1]).scale_(2)
    assert_close(second.statistics, first.statistics.scale_(0.75) + fresh.scale_(0.25))
    assert second.step == 2
    likelihood = inference.log_likelihood(first.hmm, *halves[1]).sum() / 8
    assert second.log_likelihood == pytest.approx(float(likelihood))
    # All batches in one step are full-batch EM, however they are divided.
    one, other = (em.em_step(Step(hmm), data).hmm for data in ([(tokens, lengths)], halves))
    for part, expected in zip(parameters(one), parameters(other), strict=True):
        torch.testing.assert_close(part, expected)


def test_step_sizes_fall_as_stepwise_em_asks():
    sizes = [em.step_size(k) for k in range(1000)]
    assert sizes[0] == pytest.approx(2**-0.7)
    assert all(a > b for a, b in itertools.pairwise(sizes))


def test_bad_input_is_refused():
    hmm, (tokens, lengths) = tiny(), batch(0, [3, 0], 3)
    counts = em.expected_statistics(hmm, tokens, lengths)
    with pytest.raises(ValueError, match="expected transition pseudo-counts of at least 0, got -1"):
        em.maximize(counts, PseudoCounts(transition=-1))
    with pytest.raises(ValueError, match=r"or 3, one per token, got shape \(2,\)"):
        em.maximize(counts, PseudoCounts(emission=torch.ones(2)))
    with pytest.raises(ValueError, match=r"step_size .*\(0, 1\], got 0"):
        em.blend(counts, counts, 0.0)
    with pytest.raises(ValueError, match=r"step_size .*\(0, 1\], got 1.5"):
        em.em_step(Step(hmm), [(tokens, lengths)], step_size=1.5)
    with pytest.raises(ValueError, match="got bfloat16"):
        em.em_step(Step(hmm.to(dtype=torch.bfloat16)), [(tokens, lengths)])
    with pytest.raises(ValueError, match="all 1 sequences are empty or have probability zero"):
        em.em_step(Step(hmm), [(tokens[1:], lengths[1:])])
    hmm.emission[0] = 0
    with pytest.raises(ValueError, match="all 2 sequences are empty or have probability zero"):
        em.em_step(Step(hmm), [(torch.tensor([[0], [0]]), torch.tensor([1, 1]))])


@pytest.mark.slow("two processes; the first such test starts the process that forks them")
def test_two_processes_equal_one(tmp_path):
    generator = torch.Generator().manual_seed(0)
    hmm = HMM.random(8, 11, generator=generator)
    tokens, lengths = batch(1, [int(n) for n in np.random.default_rng(0).integers(1, 9, 31)], 11)
    torch.save((hmm, tokens, lengths), tmp_path / "given.pt")
    single = train(hmm, tokens, lengths)
    done = processes.run("-m", "tests.hmm.stepwise", str(tmp_path), count=2)
    assert done.returncode == 0, done.stderr
    ranks = [torch.load(tmp_path / f"{rank}.pt") for rank in range(2)]
    for mine, theirs, expected in zip(*ranks, single, strict=True):
        np.testing.assert_array_equal(mine.numpy(), theirs.numpy())
        np.testing.assert_allclose(mine.numpy(), expected.numpy(), rtol=1e-5, atol=1e-7)

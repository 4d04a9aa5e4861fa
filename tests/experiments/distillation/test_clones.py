"""The HMM made of visited prefixes, against naive sums and enumeration."""

from __future__ import annotations

import pytest
import torch

from experiments.distillation import clones
from experiments.distillation.clones import clone
from experiments.distillation.lumping import Lumping
from experiments.distillation.prefixes import TopTokenPrefixes
from experiments.distillation.sampling import sample_batch
from gcd import Vocabulary
from hmm._inference import log_likelihood
from hmm._model import HMM
from smc.testing import ToyLM

SMALL = Vocabulary.from_bytes([b"a", b"b", b""], [2])
FIVE = Vocabulary.from_bytes([b"a", b"b", b"c", b"", b"d"], [3])


class Markov(ToyLM):
    """A toy whose next token depends on the last few alone."""

    def __init__(self, vocabulary: Vocabulary, order: int, **options) -> None:
        super().__init__(vocabulary, **options)
        self.order = order

    def log_p(self, tokens):
        return super().log_p(tokens[-self.order :])


class Fixed(ToyLM):
    """A toy that says the same after every prefix."""

    def __init__(self, vocabulary: Vocabulary, p: list[float]) -> None:
        super().__init__(vocabulary)
        self.p = torch.tensor(p, dtype=torch.float64)

    def log_p(self, tokens):
        return self.p.log()


def visited(lm: ToyLM, prompts, count: int, length: int, seed: int = 0) -> TopTokenPrefixes:
    """The prefixes of `count` answers to each prompt, with whole distributions."""
    size = lm.vocabulary.size
    given = [list(prompt) for prompt in prompts for _ in range(count)]
    found = sample_batch(lm, given, length, torch.Generator().manual_seed(seed), size)
    return TopTokenPrefixes.of(found, Lumping.all_but(torch.ones(size, dtype=torch.bool)))


def continuations(lm: ToyLM, prompt: tuple[int, ...], length: int):
    """Every continuation with its probability."""
    [eos] = lm.vocabulary.eos_ids

    def go_on(tokens: tuple[int, ...], p: float):
        if len(tokens) == length or tokens[-1:] == (eos,):
            yield tokens, p
            return
        for token, share in enumerate(lm.log_p(prompt + tokens).exp().tolist()):
            yield from go_on((*tokens, token), p * share)

    yield from go_on((), 1.0)


def test_parameters_are_the_formula_s():
    """Kinds' shares, clones' counts and emissions, by naive sums over the prefixes."""
    lm = ToyLM(FIVE, seed=5)
    tree = visited(lm, ((0,), (1, 2)), 40, 4)
    ends = torch.arange(5) == 3
    expected = tree.sum_by_group(torch.zeros_like(tree.token), 1)[0]
    kind = clones._kinds(expected, ends, 3)
    assert sorted(kind.unique().tolist()) == [0, 1, 2, 3, 4]  # three own kinds, rare, ends
    states, kind_of = clones._states(tree, kind, ends, 12, 0)
    H, kinds = len(kind_of), kind_of.tolist()
    assert 5 < H <= 12
    said = torch.zeros(H + 1, 5, dtype=torch.float64)
    lists = tree.top_tokens
    for at, tokens, log_p in zip(tree.read.tolist(), lists.tokens, lists.log_p, strict=True):
        # Each token is a kind here.
        said[states[at], kind[tokens.long()]] += tree.weight[at] * log_p.double().exp()
    wanted = torch.zeros(H + 1, H, dtype=torch.float64)
    emitted = torch.zeros(5, H, dtype=torch.float64)
    count = torch.zeros(H + 1, H, dtype=torch.float64)
    for i, (parent, s) in enumerate(zip(tree.parent.tolist(), states.tolist(), strict=True)):
        if parent >= 0 and s >= 0:
            assert kinds[s] == int(kind[tree.token[i]])
            count[states[parent], s] += float(tree.weight[i]) * 80
            emitted[tree.token[i], s] += float(tree.weight[i]) * 80
    for s in range(H + 1):
        shares = said[s] / said[s].sum() if said[s].sum() > 0 else said.sum(0) / said.sum()
        for k in range(5):
            mine = [i for i in range(H) if kinds[i] == k]
            large = (count[:, mine].sum(0) + 1e-6) / (count[:, mine].sum(0) + 1e-6).sum()
            per_clone = (count[s, mine] + large) / (count[s, mine].sum() + 1)
            wanted[s, mine] = shares[k] * per_clone
    hmm = clone(tree, 12, eos_ids=(3,))
    found = torch.cat([hmm.transition.dense(), hmm.initial[None]])
    assert torch.allclose(found.double(), wanted, atol=1e-6)
    assert torch.allclose(hmm.emission.double(), (emitted > 0).double(), atol=1e-6)


def divergence(lm: ToyLM, hmm: HMM, prompt: tuple[int, ...], length: int) -> float:
    """KL(lm | hmm) of the first few tokens, nats, by enumeration."""
    every = list(continuations(lm, prompt, length))
    lengths = torch.tensor([len(tokens) for tokens, _ in every])
    rows = torch.tensor([[*tokens, *(0,) * (length - len(tokens))] for tokens, _ in every])
    p = torch.tensor([p for _, p in every], dtype=torch.float64)
    return float((p * (p.log() - log_likelihood(hmm, rows, lengths).double())).sum())


def test_a_bigram_is_reproduced():
    """One state a token suffices, and no number of samples is needed but to come by each token."""
    lm = Markov(FIVE, 1, seed=3)
    tree = visited(lm, [(0, 1)], 60, 5)
    hmm = clone(tree, 20, eos_ids=(3,))
    assert divergence(lm, hmm, (0, 1), 4) == pytest.approx(0, abs=1e-4)
    # With fewer states than tokens some are lumped together, and it is not.
    assert divergence(lm, clone(tree, 4, eos_ids=(3,)), (0, 1), 4) > 0.02


def test_a_trigram_is_approached_as_samples_grow():
    """Clones tell apart what stands before a token; which of them comes next is counted."""
    lm = Markov(FIVE, 2, seed=3)
    found = [
        divergence(lm, clone(visited(lm, [(0, 1)], n, 6), 64, eos_ids=(3,)), (0, 1), 4)
        for n in (20, 200, 20_000)
    ]
    assert found[0] > 2 * found[1] > 4 * found[2]
    assert found[2] < 0.005
    bigram = clone(visited(lm, [(0, 1)], 20_000, 6), 16, eos_ids=(3,))
    assert divergence(lm, bigram, (0, 1), 4) > 10 * found[2]


RARE = Vocabulary.from_bytes([*(bytes([65 + i]) for i in range(60)), b"", b"."], [60, 61])


@pytest.mark.parametrize(
    ("lm", "length"),
    [
        (ToyLM(FIVE, seed=1), 5),
        (ToyLM(FIVE, seed=1), 1),  # nothing but the root is read
        (ToyLM(RARE, seed=1, spread=0.01), 3),  # nearly all tokens are rare
        (ToyLM(RARE, seed=1, spread=5.0), 3),
        (Fixed(SMALL, [0.0, 0.0, 1.0]), 4),  # the text ends at once
        (Fixed(SMALL, [1.0, 0.0, 0.0]), 4),  # and never
        (Fixed(Vocabulary.from_bytes([b""], [0]), [1.0]), 2),  # there is nothing but an end
    ],
)
@pytest.mark.parametrize("num_states", [2, 3, 4, 8, 50, 300])
def test_parameters_are_distributions(lm, length, num_states):
    eos_ids = lm.vocabulary.eos_ids
    tree = visited(lm, ((0,), (0, 0)), 30, length)
    hmm = clone(tree, num_states, eos_ids=eos_ids)
    hmm.check()
    assert hmm.num_states <= num_states
    assert hmm.initial.dtype == hmm.emission.dtype == torch.float32
    # The first token is exactly as probable as the model says, up to half precision and rare ones.
    first = (hmm.emission @ hmm.initial).double()
    said = torch.stack([lm.log_p((0,)), lm.log_p((0, 0))]).exp().mean(dim=0)
    ends = torch.isin(torch.arange(len(said)), torch.tensor(eos_ids))
    assert float(first[ends].sum()) == pytest.approx(float(said[ends].sum()), abs=2e-3)
    # An end is an end: no other token shares its state.
    enders = hmm.emission[ends].sum(dim=0) > 0
    assert float(hmm.emission[~ends][:, enders].sum()) == 0


def test_same_seed_same_bytes():
    lm = ToyLM(FIVE, seed=6)
    tree = visited(lm, [(1,)], 200, 5)

    def parameters(seed: int) -> list[list]:
        hmm = clone(tree, 30, eos_ids=(3,), seed=seed)
        return [each.tolist() for each in (hmm.initial, hmm.transition.dense(), hmm.emission)]

    assert parameters(1) == parameters(1) != parameters(2)
    with pytest.raises(ValueError, match=r"at least 2 states .* got 1"):
        clone(tree, 1, eos_ids=(3,))

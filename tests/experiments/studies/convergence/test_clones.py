"""Visited prefixes and the HMM made of them, against enumeration and naive sums."""

from __future__ import annotations

import itertools
import math

import pytest
import torch

from experiments.distillation import clones
from experiments.distillation.clones import clone
from experiments.studies.convergence import visited
from experiments.studies.convergence.visited import Visited, visit
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


def uniform(count: int, length: int, seed: int = 0) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.rand(count, length, dtype=torch.float64, generator=generator)


def paths(tree: Visited) -> list[tuple[int, ...]]:
    """The tokens of each prefix; parents come first."""
    found: list[tuple[int, ...]] = []
    for parent, token in zip(tree.parent.tolist(), tree.token.tolist(), strict=True):
        found.append(() if parent < 0 else (*found[parent], token))
    return found


def continuations(lm: ToyLM, prompt: tuple[int, ...], length: int, temperature: float = 1.0):
    """Every continuation with its probability, and uniform numbers that draw it."""
    [eos] = lm.vocabulary.eos_ids

    def go_on(tokens: tuple[int, ...], p: float, u: tuple[float, ...]):
        if len(tokens) == length or tokens[-1:] == (eos,):
            yield tokens, p, u + (0.5,) * (length - len(u))
            return
        shares = (lm.log_p(prompt + tokens) / temperature).softmax(dim=0)
        edges = [0.0, *shares.cumsum(0).tolist()]
        for token, share in enumerate(shares.tolist()):
            middle = (edges[token] + edges[token + 1]) / 2
            yield from go_on((*tokens, token), p * share, (*u, middle))

    yield from go_on((), 1.0, ())


@pytest.mark.parametrize("temperature", [1.0, 0.6])
@pytest.mark.parametrize("count", [1, 2, 3])
def test_weights_are_unbiased(count, temperature):
    """Over all outcomes of all draws, the mean weight of a prefix is its probability."""
    lm, prompt, length = ToyLM(SMALL, seed=4, spread=1.5), (0, 1), 2
    every = list(continuations(lm, prompt, length, temperature))
    truth = {(): 1.0}
    for tokens, p, _ in every:
        for t in range(1, len(tokens) + 1):
            truth[tokens[:t]] = truth.get(tokens[:t], 0.0) + p
    mean = dict.fromkeys(truth, 0.0)
    for drawn in itertools.product(every, repeat=count):
        u = torch.tensor([u for _, _, u in drawn], dtype=torch.float64)
        tree = visit(lm, prompt, u, temperature=temperature)
        assert sorted(set(paths(tree))) == sorted(
            {tokens[:t] for tokens, _, _ in drawn for t in range(len(tokens) + 1)}
        )
        chance = math.prod(p for _, p, _ in drawn)
        for path, weight in zip(paths(tree), tree.weight.tolist(), strict=True):
            mean[path] += chance * weight
    assert mean == pytest.approx(truth, abs=1e-12)


def test_weights_have_their_limits():
    log_prefix = torch.tensor([0.0, -1e-17, -3.0, -40.0, -800.0], dtype=torch.float64)
    found = visited.weights(log_prefix, 1000)
    p = math.exp(-3)
    expected = [1.0, 1.0, p / (1 - (1 - p) ** 1000), 1e-3, 1e-3]
    assert found.tolist() == pytest.approx(expected, rel=1e-12)


def test_a_tree_is_its_continuations():
    """Tokens, likelihoods and what is said at each prefix, one continuation at a time."""
    lm, prompt, u = ToyLM(FIVE, seed=2), (0, 1), uniform(50, 4)
    tree = visit(lm, prompt, u)
    sequences = tree.sequences()
    for i, row in enumerate(u.tolist()):
        tokens: tuple[int, ...] = ()
        log_likelihood = 0.0
        for number in row:
            log_p = lm.log_p(prompt + tokens)
            token = int((log_p.exp().cumsum(0) <= number).sum())
            tokens, log_likelihood = (*tokens, token), log_likelihood + float(log_p[token])
            if token == 3:
                break
        assert sequences.sequence(i) == list(tokens)
        assert float(sequences.log_likelihood[i]) == pytest.approx(log_likelihood)
    found = paths(tree)
    assert len(set(found)) == len(found)
    for at, log_p in zip(tree.read.tolist(), tree.log_p, strict=True):
        assert torch.allclose(log_p.double(), lm.log_p(prompt + found[at]), atol=1e-2)
    unread = {path for i, path in enumerate(found) if i not in set(tree.read.tolist())}
    assert unread == {path for path in found if len(path) == 4 or path[-1:] == (3,)}


def test_groups_change_nothing(monkeypatch):
    lm, u = ToyLM(FIVE, seed=2), uniform(300, 5)
    done: list[int] = []
    whole = visit(lm, (0,), u)
    monkeypatch.setattr(visited, "_TOKENS", 0)
    parts = visit(lm, (0,), u, progress=done.append)
    assert sum(done) == 300 * 5
    assert not torch.equal(whole.token, parts.token)  # there were groups

    def described(tree: Visited) -> dict:
        found = paths(tree)
        assert all(p < i for i, p in enumerate(tree.parent.tolist()))
        said = {found[at]: row.tolist() for at, row in zip(tree.read.tolist(), tree.log_p)}  # noqa: B905
        return {p: (w, said.get(p)) for p, w in zip(found, tree.weight.tolist(), strict=True)}

    assert described(parts) == described(whole)
    assert torch.equal(parts.sequences().tokens, whole.sequences().tokens)


def test_joined_trees_are_equally_probable():
    lm = ToyLM(FIVE, seed=2)
    trees = [visit(lm, prompt, uniform(20, 3)) for prompt in ((0,), (1, 2))]
    both = Visited.join(trees)
    assert float(both.weight[both.parent < 0].sum()) == pytest.approx(1)
    assert paths(both) == paths(trees[0]) + paths(trees[1])
    assert torch.equal(both.log_p, torch.cat([tree.log_p for tree in trees]))
    lists = [tree.sequences() for tree in trees]
    assert both.sequences().tokens.tolist() == torch.cat([s.tokens for s in lists]).tolist()
    assert [paths(both)[i] for i in both.read.tolist()] == [
        paths(tree)[i] for tree in trees for i in tree.read.tolist()
    ]


def test_continuations_stay_within_the_context():
    for context, length in ((6, 3), (None, 5)):
        lm = ToyLM(FIVE, seed=1, context=context)
        assert int(visit(lm, (0, 1, 2), uniform(30, 5)).sequences().lengths.max()) == length


def test_what_cannot_be_kept_or_read_is_refused():
    lm = ToyLM(FIVE, seed=1)
    with pytest.raises(ValueError, match=r"more than 0 MiB; lower task\.hmm_sequences"):
        visit(lm, (0,), uniform(30, 5), most_bytes=100)
    with pytest.raises(FloatingPointError, match="got NaN"):
        visit(Fixed(SMALL, [0.5, float("nan"), 0.5]), (0,), uniform(3, 2))
    with pytest.raises(ValueError, match=r"at least 2 states .* got 1"):
        clone(visit(lm, (0,), uniform(3, 2)), 1, eos_ids=(3,))


def test_parameters_are_the_formula_s():
    """Kinds' shares, clones' counts and emissions, by naive sums over the prefixes."""
    lm = ToyLM(FIVE, seed=5)
    tree = Visited.join([visit(lm, prompt, uniform(40, 4)) for prompt in ((0,), (1, 2))])
    ends = torch.arange(5) == 3
    expected = tree.sum_by_group(torch.zeros_like(tree.token), 1)[0]
    kind = clones._kinds(expected, ends, 3)
    assert sorted(kind.unique().tolist()) == [0, 1, 2, 3, 4]  # three own kinds, rare, ends
    states, kind_of = clones._states(tree, kind, ends, 12, 0)
    H, kinds = len(kind_of), kind_of.tolist()
    assert 5 < H <= 12
    said = torch.zeros(H + 1, 5, dtype=torch.float64)
    for at, log_p in zip(tree.read.tolist(), tree.log_p, strict=True):
        said[states[at], kind] += tree.weight[at] * log_p.double().exp()  # each token a kind here
    wanted = torch.zeros(H + 1, H, dtype=torch.float64)
    tokens = torch.zeros(5, H, dtype=torch.float64)
    count = torch.zeros(H + 1, H, dtype=torch.float64)
    for i, (parent, s) in enumerate(zip(tree.parent.tolist(), states.tolist(), strict=True)):
        if parent >= 0 and s >= 0:
            assert kinds[s] == int(kind[tree.token[i]])
            count[states[parent], s] += float(tree.weight[i]) * 80
            tokens[tree.token[i], s] += float(tree.weight[i]) * 80
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
    assert torch.allclose(hmm.emission.double(), (tokens > 0).double(), atol=1e-6)


def divergence(lm: ToyLM, hmm: HMM, prompt: tuple[int, ...], length: int) -> float:
    """KL(lm | hmm) of the first few tokens, nats, by enumeration."""
    every = list(continuations(lm, prompt, length))
    lengths = torch.tensor([len(tokens) for tokens, _, _ in every])
    rows = torch.tensor([[*tokens, *(0,) * (length - len(tokens))] for tokens, _, _ in every])
    p = torch.tensor([p for _, p, _ in every], dtype=torch.float64)
    return float((p * (p.log() - log_likelihood(hmm, rows, lengths).double())).sum())


def test_a_bigram_is_reproduced():
    """One state a token suffices, and no number of samples is needed but to come by each token."""
    lm = Markov(FIVE, 1, seed=3)
    tree = visit(lm, (0, 1), uniform(60, 5))
    hmm = clone(tree, 20, eos_ids=(3,))
    assert divergence(lm, hmm, (0, 1), 4) == pytest.approx(0, abs=1e-4)
    # With fewer states than tokens some are lumped together, and it is not.
    assert divergence(lm, clone(tree, 4, eos_ids=(3,)), (0, 1), 4) > 0.02


def test_a_trigram_is_approached_as_samples_grow():
    """Clones tell apart what stands before a token; which of them comes next is counted."""
    lm = Markov(FIVE, 2, seed=3)
    found = [
        divergence(lm, clone(visit(lm, (0, 1), uniform(n, 6)), 64, eos_ids=(3,)), (0, 1), 4)
        for n in (20, 200, 20_000)
    ]
    assert found[0] > 2 * found[1] > 4 * found[2]
    assert found[2] < 0.005
    bigram = clone(visit(lm, (0, 1), uniform(20_000, 6)), 16, eos_ids=(3,))
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
    tree = Visited.join([visit(lm, prompt, uniform(30, length)) for prompt in ((0,), (0, 0))])
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
    tree = visit(lm, (1,), uniform(200, 5))
    one, same, other = (clone(tree, 30, eos_ids=(3,), seed=seed) for seed in (1, 1, 2))
    for left, right in ((one, same), (one, other)):
        equal = all(
            a.shape == b.shape and torch.equal(a, b)
            for a, b in (
                (left.initial, right.initial),
                (left.transition.dense(), right.transition.dense()),
                (left.emission, right.emission),
            )
        )
        assert equal == (right is same)

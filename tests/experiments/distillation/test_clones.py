"""Answers that share what they read, what the model said on the way, and clones made of that."""

from __future__ import annotations

import collections
from dataclasses import replace

import pytest
import torch

from experiments.distillation import clones, sampling
from experiments.distillation import data as distill_data
from experiments.distillation.clones import clone
from experiments.distillation.data import Sequences, TopTokens, lumping_of
from experiments.distillation.lumping import Lumping
from experiments.distillation.prefixes import TopTokenPrefixes, after_each_token
from gcd import Vocabulary
from hmm._inference import log_likelihood
from hmm._model import HMM
from smc._models.protocol import Rows
from smc.testing import ToyLM

SIX = Vocabulary.from_bytes([b"a", b"b", b"c", b"", b"d", b""], [3, 5])
SMALL = Vocabulary.from_bytes([b"a", b"b", b""], [2])
FIVE = Vocabulary.from_bytes([b"a", b"b", b"c", b"", b"d"], [3])
MANY = Vocabulary.from_bytes([b"a", b"b", b"c", b"", *(bytes([65 + i]) for i in range(40))], [3])


class Counting(ToyLM):
    """A toy that counts the prompts and the tokens that it reads."""

    read = 0

    def prefill(self, prompts):
        self.read += sum(map(len, prompts))
        rows, log_p = super().prefill(prompts)
        return CountingRows(self, rows), log_p


class CountingRows:
    def __init__(self, lm: Counting, rows: Rows) -> None:
        self.lm, self.rows = lm, rows
        self.reorder = rows.reorder

    def extend(self, runs, lengths):
        self.lm.read += int(lengths.sum())
        return self.rows.extend(runs, lengths)


def sampled(lm, prompts, length: int, top: int, seed: int = 0) -> Sequences:
    return sampling.sample_batch(lm, prompts, length, torch.Generator().manual_seed(seed), top)


def everything(vocabulary: Vocabulary) -> Lumping:
    return Lumping.all_but(torch.ones(vocabulary.size, dtype=torch.bool))


def before(sequences: Sequences, row: int) -> list[tuple[int, tuple[int, ...]]]:
    """The entry of what was said, and prompt and answer so far, before each token."""
    start = int(sequences.lengths[:row].sum())
    prompt, answer = tuple(sequences.prompt(row)), sequences.sequence(row)
    return [(int(sequences.asked[start + t]), (*prompt, *answer[:t])) for t in range(len(answer))]


@pytest.mark.parametrize("top", [1, 3, 6, 100])
def test_the_most_probable_tokens_are_kept_and_ends_always(top):
    log_p = torch.randn(9, 6, generator=torch.Generator().manual_seed(0)).log_softmax(dim=1)
    said = TopTokens.of(log_p, top, SIX.eos_ids)
    size = max(2, min(top, 6))
    assert said.tokens.shape == (9, size)
    for row, tokens, values in zip(log_p, said.tokens.tolist(), said.log_p, strict=True):
        others = sorted((v for v in range(6) if v not in (3, 5)), key=lambda v: -row[v])
        assert sorted(tokens) == sorted([3, 5, *others[: size - 2]])
        torch.testing.assert_close(values.float(), row[tokens], atol=2e-3, rtol=1e-3)


def test_sketches_keep_distances():
    """Of logits, whatever was subtracted from them; in any file they are projected alike."""
    logits = torch.randn(40, 2000, generator=torch.Generator().manual_seed(0))
    one, other = (
        TopTokens.of(x.log_softmax(dim=1), 2, [3]).sketch.float() for x in (logits, logits[:9] + 5)
    )
    torch.testing.assert_close(one[:9], other, atol=0.1, rtol=1e-2)
    ratio = torch.pdist(one) / torch.pdist(logits)
    assert 0.7 < float(ratio.min()) <= float(ratio.max()) < 1.3
    impossible = TopTokens.of(torch.tensor([[0.0, -torch.inf, -torch.inf]]), 3, [1])
    assert bool(impossible.sketch.isfinite().all())


def test_each_prefix_is_computed_once_and_keeps_its_result():
    lm = Counting(SIX, seed=3, spread=2.0)
    prompts = [[0, 1]] * 30 + [[2]] + [[1, 1, 1]] * 9 + [[2]] * 10
    found = sampled(lm, prompts, 4, 6)
    assert [found.prompt(row) for row in range(50)] == prompts
    # Prompts, and what goes on after them: ends and last tokens are not read.
    prefixes = {prefix for row in range(50) for _, prefix in before(found, row)}
    tokens = sum(len(prompt) for prompt in {tuple(p) for p in prompts})
    assert lm.read == tokens + len(prefixes) - 3
    entries = collections.defaultdict(set)
    for row in range(50):
        for entry, prefix in before(found, row):
            entries[prefix].add(entry)
            listed = torch.full((6,), -torch.inf).double()
            listed[found.top_tokens.tokens[entry].long()] = found.top_tokens.log_p[entry].double()
            torch.testing.assert_close(listed, lm.log_p(prefix), atol=2e-3, rtol=1e-3)
    assert all(len(numbers) == 1 for numbers in entries.values())
    assert len(prefixes) == len(found.top_tokens)
    # The same answers, whether anything is kept or not.
    bare = sampled(lm, prompts, 4, 0)
    assert torch.equal(bare.tokens, found.tokens)
    assert bare.top_tokens is None
    assert not bare.answered


def test_files_keep_the_results(tmp_path):
    lm = ToyLM(SIX, seed=3)
    parts = [sampled(lm, [[0]] * 5, 4, 4), sampled(lm, [[1]] * 4, 4, 4, seed=1)]
    for name, part in zip("ab", parts, strict=True):
        distill_data.save(part, tmp_path / f"{name}.safetensors")
    both = distill_data.read(tmp_path)
    assert both.answered
    some = both.take(torch.tensor([7, 0]))
    for row in range(2):
        for entry, prefix in before(some, row):
            tokens = some.top_tokens.tokens[entry].long()
            expected = lm.log_p(prefix)[tokens]
            torch.testing.assert_close(
                some.top_tokens.log_p[entry].double(), expected, atol=2e-3, rtol=0
            )


def test_latent_variables_need_no_second_reading():
    """The sketch after each token is that of what the model says there."""
    lm = ToyLM(SIX, seed=3)
    found = sampled(lm, [[0], [1]] * 20, 4, 4)
    shorter, vectors = after_each_token(found, SIX.eos_ids)
    ended = [found.sequence(row)[-1] in SIX.eos_ids for row in range(40)]
    assert 0 < sum(ended) < 40
    position = 0
    rows = [row for row in range(40) if len(found.sequence(row)) > 1 or ended[row]]
    assert len(shorter) == len(rows)
    for place, row in enumerate(rows):
        answer = found.sequence(row)[: None if ended[row] else -1]
        assert shorter.sequence(place) == answer
        for t, token in enumerate(answer):
            prefix = (*found.prompt(row), *answer[: t + 1])
            sketch = TopTokens.of(lm.log_p(prefix)[None], 1, SIX.eos_ids).sketch[0].float()
            expected = torch.zeros_like(sketch) if token in SIX.eos_ids else sketch
            torch.testing.assert_close(vectors[position], expected)
            position += 1
    assert position == len(vectors)


def naive(sequences: Sequences) -> dict[tuple, tuple[float, int | None]]:
    """Of each (prompt, prefix) the share of the answers that come by, and what was said there."""
    found: dict[tuple, tuple[float, int | None]] = {}
    for row in range(len(sequences)):
        prompt, answer = tuple(sequences.prompt(row)), tuple(sequences.sequence(row))
        entries = [entry for entry, _ in before(sequences, row)]
        for t in range(len(answer) + 1):
            share, entry = found.get((prompt, answer[:t]), (0.0, None))
            entry = entries[t] if t < len(answer) else entry
            found[prompt, answer[:t]] = (share + 1 / len(sequences), entry)
    return found


def described(prefixes: TopTokenPrefixes, prompts: dict[int, tuple[int, ...]]) -> dict:
    """The same of the tree; roots are told apart by their number."""
    names: list[tuple] = []
    read = {at: i for i, at in enumerate(prefixes.read.tolist())}
    links = list(zip(prefixes.parent.tolist(), prefixes.token.tolist(), strict=True))
    for i in range(len(links)):
        path, at = [], i
        while links[at][0] >= 0:
            path.append(links[at][1])
            at = links[at][0]
        names.append((prompts[at], tuple(path[::-1])))
    return {
        name: (weight, read.get(i))
        for i, (name, weight) in enumerate(zip(names, prefixes.weight.tolist(), strict=True))
    }


PROMPTS = [[0, 1]] * 20 + [[2]] * 20


def test_the_tree_is_that_of_the_answers():
    found = sampled(ToyLM(SIX, seed=3, spread=1.5), PROMPTS, 4, 6)
    prefixes = TopTokenPrefixes.of(found, everything(SIX))
    tree = described(prefixes, {0: (0, 1), 1: (2,)})
    expected = naive(found)
    assert tree.keys() == expected.keys()
    for name, (weight, place) in tree.items():
        share, entry = expected[name]
        assert weight == pytest.approx(share)
        assert (place is None) == (entry is None)
        if entry is not None:
            assert torch.equal(prefixes.top_tokens.tokens[place], found.top_tokens.tokens[entry])
    with pytest.raises(ValueError, match="no next distributions"):
        TopTokenPrefixes.of(Sequences.from_lists([[0, 1]]), everything(SIX))


@pytest.mark.parametrize("top", [5, MANY.size])
def test_the_rest_is_shared_out_as_tokens_are_on_average(top):
    """Against loops over prefixes and tokens, with a class of several tokens."""
    found = sampled(ToyLM(MANY, seed=2, spread=3.0), [[0], [1]] * 10, 4, top)
    lumping = lumping_of(replace(found, top_tokens=None), MANY.size, MANY.eos_ids)
    size = lumping.num_classes
    assert 5 < size < MANY.size
    prefixes = TopTokenPrefixes.of(found, lumping)
    group = torch.arange(len(prefixes.token)) % 2
    listed = prefixes.top_tokens
    p_of = listed.log_p.double().exp().tolist()
    lists = [*zip(prefixes.read.tolist(), listed.tokens.tolist(), p_of, strict=True)]
    base = [0.0] * size
    for at, tokens, values in lists:
        for token, p in zip(tokens, values, strict=True):
            base[token] += float(prefixes.weight[at]) * p
    base = [value / sum(base) for value in base]
    expected = torch.zeros(2, size, dtype=torch.float64)
    for at, tokens, values in lists:
        weight = float(prefixes.weight[at])
        for token, p in zip(tokens, values, strict=True):
            expected[group[at], token] += weight * p
        open_to = [c for c in range(size) if c == size - 1 or c not in tokens]
        share = sum(base[c] for c in open_to)
        for c in open_to * (top == 5):  # lists of all tokens are whole, but for rounding
            expected[group[at], c] += weight * (1 - sum(values)) * base[c] / share
    torch.testing.assert_close(prefixes.sum_by_group(group, 2), expected)
    # Nothing is lost: every prefix that was read has a whole distribution.
    total = float(prefixes.weight[prefixes.read].sum())
    assert float(expected.sum()) == pytest.approx(total, rel=1e-6 if top == 5 else 1e-3)
    assert prefixes.rest > 0.05 if top == 5 else prefixes.rest == 0


# -- the HMM made of visited prefixes, against naive sums and enumeration


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


def visited(lm: ToyLM, prompts, count: int, length: int) -> TopTokenPrefixes:
    """The prefixes of `count` answers to each prompt, with whole distributions."""
    given = [list(prompt) for prompt in prompts for _ in range(count)]
    found = sampled(lm, given, length, lm.vocabulary.size)
    return TopTokenPrefixes.of(found, everything(lm.vocabulary))


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

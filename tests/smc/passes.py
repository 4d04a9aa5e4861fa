"""Comparisons of a pass over the vocabulary with the reference."""

from __future__ import annotations

import torch

import smc
from gcd import AutomatonBatch, Vocabulary, lift, regex
from gcd._tokens.batch import TokenClasses
from hmm import HMM
from smc import Batch
from smc._inference.selection import FinishedScores, Group, select
from smc._vocabulary.factors import defend
from smc._vocabulary.passes import TENSORS, VocabularyPass

V = 2300
"""Number of tokens: more than two blocks of either kind, the last one incomplete."""


def vocabulary() -> Vocabulary:
    words = [bytes([65 + i // 230, 97 + i // 10 % 23, 97 + i % 10]) for i in range(V - 1)]
    return Vocabulary.from_bytes([b"", *words], [0])


WORDS = vocabulary()


AUTOMATA = [lift(regex(pattern), WORDS) for pattern in ("([A-E][a-z]+)*", "(Aaa|Bcd)?J[a-z]*")]


def pgcd(device: str = "cpu", **options) -> smc.PGCD:
    generator = torch.Generator().manual_seed(2)
    hmm = HMM.random(5, V, generator=generator).to(device)
    return smc.PGCD(hmm, lookahead="in_time", **options)


PROPOSALS = {
    "lm": lambda _="cpu": smc.LM(),
    "lcd": lambda _="cpu": smc.LCD(),
    "gcd": lambda _="cpu": smc.GCD(),
    "pgcd": lambda device="cpu": pgcd(device, exact_top_k=7),
    "tied": lambda device="cpu": pgcd(device, exact_top_k=0),
}


def compare(
    given: VocabularyPass, name: str, dtype: torch.dtype, draws: int = 12, device: str = "cpu"
) -> None:
    """Compare a pass with the reference, at a start and after tokens, at three temperatures."""
    generator = torch.Generator().manual_seed(1)
    automata = AutomatonBatch([AUTOMATA[i % 2] for i in range(4)], device=device)
    batch = Batch(automata, torch.tensor([3, 5, 3, 4], device=device))
    P = 8
    proposal = PROPOSALS[name](device)
    each = torch.arange(4, device=device).repeat_interleave(2)
    state = proposal.take(proposal.start(batch), each)
    tolerance = 1e-10 if dtype == torch.float64 else 2e-6
    for temperature in (1.0, 0.7, 0.1):
        logits = 4 * torch.randn(P, V, generator=generator, dtype=dtype) / temperature
        logits[0, 1::3] = -torch.inf
        log_p = logits.log_softmax(dim=1).to(device)
        factors = defend(proposal.guide(state, log_p), log_p)._replace(log_z=None)
        found, expected = (each.prepare_draws(factors, log_p) for each in (given, TENSORS))
        scale = tolerance * (1 if temperature > 0.1 else 30)
        assert torch.allclose(found.log_z, expected.log_z, rtol=0, atol=scale)
        same = 0
        for _ in range(draws):
            rows = torch.randint(0, P, (P,), generator=generator).to(device)
            u = torch.rand(P, generator=generator, dtype=torch.float64).to(device)
            tokens = found.at(rows, u)
            same += int((tokens == expected.at(rows, u)).sum())
            assert not bool(factors.at(rows, tokens).isneginf().any())
        assert same == draws * P
        rows = torch.arange(P, device=device)
        middle = torch.full((P,), 0.37, dtype=torch.float64, device=device)
        state = proposal.advance(state, expected.at(rows, middle).unsqueeze(1))


def compare_selection(
    given: VocabularyPass, dtype: torch.dtype, N: int, device: str = "cpu"
) -> None:
    """Compare the discrete filter's selection of these candidates with the reference."""
    generator = torch.Generator().manual_seed(N)
    proposal = pgcd(device, exact_top_k=7)
    batch = Batch(AutomatonBatch(AUTOMATA, device=device), torch.tensor([3, 5], device=device))
    example = torch.arange(2, device=device).repeat_interleave(N)
    state = proposal.take(proposal.start(batch), example)
    tolerance = 1e-10 if dtype == torch.float64 else 2e-6
    chosen = 0
    for spread, count_finished in ((1.0, False), (6.0, True)):
        log_p = (spread * torch.randn(2 * N, V, generator=generator)).to(dtype).log_softmax(dim=1)
        log_p[0, 1::3] = -torch.inf
        log_p = log_p.to(device)
        log_weight = torch.randn(2 * N, generator=generator, dtype=torch.float64)
        log_weight[2 * N - 1 :: 2 * N] = -torch.inf if N > 1 else 0.0  # an empty slot
        log_weight = log_weight.to(device)
        factors = proposal.guide(state, log_p)
        factors = factors._replace(
            by_class=factors.by_class + log_weight.unsqueeze(1),
            by_token=factors.by_token + log_weight.unsqueeze(1),
        )
        answers = torch.full((2, N), -torch.inf, dtype=torch.float64, device=device)
        answers[:, 0] = -1.0
        finished = FinishedScores(answers, answers[:, -1]) if count_finished else None
        u = torch.rand(2, generator=generator, dtype=torch.float64).to(device)
        found, expected = (
            select(log_p, factors, Group(example, 2, N), N, lambda _, u=u: u, vocabulary_pass=each,
                   floor=1e-3 * count_finished, finished=finished)
            for each in (given, TENSORS)
        )  # fmt: skip
        for one, other in zip(found, expected, strict=True):
            if one.dtype == torch.float64:
                assert torch.allclose(one, other, rtol=0, atol=tolerance)
            else:
                assert torch.equal(one, other)
        chosen += int(expected.kept.sum())
    assert chosen >= 2 * N


# -- log-probabilities and classes, for both forms of the passes ------------------------------

FORMS = {"compiled": ("cpu",), "tensors": ()}


def case(rows: int, vocabulary: int, classes: int, seed: int) -> tuple[torch.Tensor, ...]:
    """Log-probabilities over hundreds of orders of magnitude, with some impossible tokens."""
    generator = torch.Generator().manual_seed(seed)
    scale = torch.tensor([1.0, 30.0, 200.0])[torch.arange(rows) % 3].unsqueeze(1)
    log_p = torch.randn(rows, vocabulary, generator=generator, dtype=torch.float64) * scale
    nothing = torch.rand(rows, vocabulary, generator=generator) < 0.1
    log_p = log_p.masked_fill(nothing, -torch.inf).log_softmax(dim=1)
    class_of = torch.randint(0, classes, (2, vocabulary), generator=generator, dtype=torch.int32)
    which = torch.randint(0, 2, (rows,), generator=generator)
    alive = torch.rand(rows, classes, generator=generator) < 0.6
    return log_p, class_of, which, alive


def both_ways(class_of: torch.Tensor, classes: int) -> TokenClasses:
    """The classes with the tokens of each class."""
    inside = torch.stack([torch.bincount(row, minlength=classes) for row in class_of])
    start = torch.nn.functional.pad(inside.cumsum(dim=1), (1, 0))
    return TokenClasses(class_of, class_of.argsort(dim=1, stable=True).int(), start)


PRECISION = {torch.float32: 1e-5, torch.float64: 1e-12}

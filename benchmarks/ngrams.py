"""Bigrams and trigrams with interpolated Kneser-Ney smoothing, as baselines for an HMM.

    P_k(x | c) = [ max(n(c, x) - d_k, 0) + d_k t(c) P_(k-1)(x | c') ] / n(c)

At the highest order, n is the number of occurrences. At lower ones, it is the number of distinct
tokens before the n-gram. t(c) is the number of distinct tokens after c. c' is c without its first
token, and P_0 is uniform. The discounts d_k are chosen on validation sequences. Source: Kneser and
Ney 1995.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from jaxtyping import Bool, Float64, Int64
from torch import Tensor

DISCOUNTS = (0.3, 0.4, 0.5, 0.6, 0.7, 0.75, 0.8, 0.85, 0.9, 0.95, 0.98)


class Grams(NamedTuple):
    """The n-grams of a corpus: the tokens before each token, as one number, and the token.

    Attributes:
        context: by order minus one, the number of each context.
        token: the tokens.
        size: number of tokens of the vocabulary, plus one for the start.
    """

    context: list[Int64[Tensor, "n"]]
    token: Int64[Tensor, "n"]
    size: int

    @classmethod
    def of(
        cls, tokens: Int64[Tensor, "B T"], inside: Bool[Tensor, "B T"], size: int, order: int
    ) -> Grams:
        """Read padded sequences, with a start symbol before each."""
        context, before = [torch.zeros_like(tokens)], tokens
        for back in range(1, order):
            before = torch.cat([torch.full_like(tokens[:, :1], size), before[:, :-1]], dim=1)
            context.append(context[-1] + before * (size + 1) ** (back - 1))
        return cls([each[inside] for each in context], tokens[inside], size + 1)


class Counts(NamedTuple):
    """Counts of pairs of a context and a token, sorted by their numbers."""

    pairs: Int64[Tensor, "p"]
    count: Float64[Tensor, "p"]
    contexts: Int64[Tensor, "c"]
    total: Float64[Tensor, "c"]
    types: Float64[Tensor, "c"]

    @classmethod
    def of(cls, pairs: Int64[Tensor, "n"], size: int) -> Counts:
        """Count pairs of a context and a token, given as context · size + token."""
        found, count = torch.unique(pairs, return_counts=True)
        contexts, index = torch.unique(found // size, return_inverse=True)
        total = torch.bincount(index, weights=count.double())
        return cls(found, count.double(), contexts, total, torch.bincount(index).double())


def _look_up(
    keys: Int64[Tensor, "p"], values: Float64[Tensor, "p"], wanted: Int64[Tensor, "n"]
) -> Float64[Tensor, "n"]:
    index = torch.searchsorted(keys, wanted).clamp(max=len(keys) - 1)
    return torch.where(keys[index] == wanted, values[index], 0.0)


class KneserNey:
    """Counts of all orders up to that of `grams`."""

    def __init__(self, grams: Grams) -> None:
        self.size = grams.size
        top = grams.context[-1] * self.size + grams.token
        self.counts = [Counts.of(top, self.size)]
        for lower in range(len(grams.context) - 2, -1, -1):  # each higher n-gram counts once
            types = self.counts[0].pairs
            context = types // self.size % self.size**lower
            self.counts.insert(0, Counts.of(context * self.size + types % self.size, self.size))

    def probability(self, grams: Grams, discounts: list[float]) -> Float64[Tensor, "n"]:
        """Return P(token | context) of each token."""
        p = torch.full_like(grams.token, 1 / (self.size - 1), dtype=torch.float64)
        for counts, context, d in zip(self.counts, grams.context, discounts, strict=True):
            n = _look_up(counts.pairs, counts.count, context * self.size + grams.token)
            total = _look_up(counts.contexts, counts.total, context)
            types = _look_up(counts.contexts, counts.types, context)
            here = ((n - d).clamp(min=0) + d * types * p) / total.clamp(min=1)
            p = torch.where(total > 0, here, p)
        return p

    def fitted(self, grams: Grams) -> list[float]:
        """Return the discounts, chosen one by one for the highest likelihood of `grams`."""
        chosen = [0.75] * len(self.counts)
        for turn in [*reversed(range(len(chosen)))] * 2:
            options = [[*chosen[:turn], d, *chosen[turn + 1 :]] for d in DISCOUNTS]
            chosen = max(options, key=lambda each: float(self.probability(grams, each).log().sum()))
        return chosen

"""Baselines for an HMM: a smoothed unigram and bigram model of the same sequences.

    unigram    P(v)     = (n(v) + 1/2) / (n + V/2)
    bigram     P(v | u) = (n(u, v) + m P(v)) / (n(u, ·) + m)

n counts tokens of the training sequences. The first token of a sequence follows a special start
symbol u. m is the number of pseudo-observations of the unigram (a Dirichlet prior, MacKay and Peto
1995). It is the best power of two *on the held-out sequences themselves*, which favors the bigram.

Only pairs that occur are stored, so the cost doesn't depend on the size of the vocabulary.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from experiments.distillation.data import Sequences

STRENGTHS = tuple(2.0**k for k in range(-6, 17))


def unigram(sequences: Sequences, num_tokens: int) -> Tensor:
    """Estimate P(v) in float64, positive everywhere."""
    counts = torch.bincount(sequences.tokens, minlength=num_tokens).double() + 0.5
    return counts / counts.sum()


@dataclass(frozen=True)
class Baselines:
    """Held-out log-likelihood of both baselines, in nats per token.

    Attributes:
        unigram: nats per token of the unigram model.
        bigram: nats per token of the bigram model.
        strength: m of the bigram model.
    """

    unigram: float
    bigram: float
    strength: float


def compare(training: Sequences, held_out: Sequences, num_tokens: int) -> Baselines:
    """Train both baselines on one part of the sequences, and evaluate them on the other."""
    single = unigram(training, num_tokens)
    context, seen = _contexts(training, num_tokens), training.tokens
    pairs, counts = torch.unique(context * num_tokens + seen, return_counts=True)
    totals = torch.bincount(context, minlength=num_tokens + 1).double()

    context = _contexts(held_out, num_tokens)
    wanted = context * num_tokens + held_out.tokens
    indices = torch.searchsorted(pairs, wanted).clamp(max=len(pairs) - 1)
    count = torch.where(pairs[indices] == wanted, counts[indices], 0).double()
    total, prior = totals[context], single[held_out.tokens]
    best, strength = -math.inf, STRENGTHS[0]
    for m in STRENGTHS:
        mean = float(((count + m * prior) / (total + m)).log().mean())
        if mean > best:
            best, strength = mean, m
    return Baselines(float(prior.log().mean()), best, strength)


def _contexts(sequences: Sequences, num_tokens: int) -> Tensor:
    """Return the token before each token; for the first of a sequence, the number `num_tokens`."""
    before = sequences.tokens.roll(1)
    before[sequences.lengths.cumsum(0) - sequences.lengths] = num_tokens
    return before

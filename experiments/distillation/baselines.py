"""An HMM must beat a unigram and a bigram of the same sequences, well smoothed.

    unigram    P(v)     = (n(v) + 1/2) / (n + V/2)
    bigram     P(v | u) = (n(u, v) + m P(v)) / (n(u, ·) + m)

n counts tokens of the training sequences; the first token of a sequence follows a mark u of its
own. m is how many observations of a context the unigram is worth (a Dirichlet prior, MacKay and
Peto 1995). It is the best power of two *on the held-out sequences themselves*: one number, chosen
in the bigram's favour.

Only pairs that occur are kept, so a vocabulary of 128 000 costs no more than a small one.
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
    """The held-out log-likelihood of both baselines, in nats a token.

    Attributes:
        unigram, bigram: of the two models.
        strength: the m of the bigram.
    """

    unigram: float
    bigram: float
    strength: float


def compare(training: Sequences, held_out: Sequences, num_tokens: int) -> Baselines:
    """Train both baselines on one part of the sequences, and measure them on the other."""
    single = unigram(training, num_tokens)
    context, seen = _contexts(training, num_tokens), training.tokens
    pairs, counts = torch.unique(context * num_tokens + seen, return_counts=True)
    totals = torch.bincount(context, minlength=num_tokens + 1).double()

    context = _contexts(held_out, num_tokens)
    wanted = context * num_tokens + held_out.tokens
    places = torch.searchsorted(pairs, wanted).clamp(max=len(pairs) - 1)
    count = torch.where(pairs[places] == wanted, counts[places], 0).double()
    total, prior = totals[context], single[held_out.tokens]
    best, strength = -math.inf, STRENGTHS[0]
    for m in STRENGTHS:
        mean = float(((count + m * prior) / (total + m)).log().mean())
        if mean > best:
            best, strength = mean, m
    return Baselines(float(prior.log().mean()), best, strength)


def _contexts(sequences: Sequences, num_tokens: int) -> Tensor:
    """The token before each, `num_tokens` before the first of a sequence."""
    before = sequences.tokens.roll(1)
    before[sequences.lengths.cumsum(0) - sequences.lengths] = num_tokens
    return before

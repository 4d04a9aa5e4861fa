"""Prefix tree of sampled answers, with truncated next distributions, for `clones`.

Answers to one prompt that were sampled together share their common prefixes. The weight of a prefix
is the share of the answers that contain it, so sums over prefixes are means over answers.

**Approximation.** Only the K most probable next tokens of a prefix are known. The remaining mass r
is divided among all other tokens in proportion to their average,

    p(v) = r b(v) / (sum of b over tokens that are not listed),    b = the mean of what is listed.

r is exact, and zero if all V tokens are listed.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property

import torch
from jaxtyping import Float32, Float64, Int64
from torch import Tensor

from experiments.distillation.data import Sequences, TopTokens
from experiments.distillation.lumping import Lumping

_FLOOR = 1e-6
"""Minimum share of b of unlisted tokens, so that rounding errors of p aren't amplified."""


@dataclass(frozen=True)
class TopTokenPrefixes:
    """Prefixes with their next tokens.

    Attributes:
        parent: index of the prefix without its last token; -1 for the empty prefixes, the roots,
            which come first.
        token: class of the last token; -1 for a root.
        weight: weight of each prefix; the weights of all roots sum to one.
        read: prefixes with a known next distribution. The others have ended or were truncated.
        top_tokens: most probable next tokens of each of `read`, as classes.
        lumping: the classes of tokens.
        num_sequences: number of answers.
    """

    parent: Int64[Tensor, "n"]
    token: Int64[Tensor, "n"]
    weight: Float64[Tensor, "n"]
    read: Int64[Tensor, "m"]
    top_tokens: TopTokens
    lumping: Lumping
    num_sequences: int

    @classmethod
    def of(cls, sequences: Sequences, lumping: Lumping) -> TopTokenPrefixes:
        """Make the tree of sequences whose next distributions are known.

        Raises:
            ValueError: they aren't known.
        """
        if sequences.top_tokens is None or not sequences.answered:
            raise ValueError(
                "the sequences have no next distributions; sample them again with top above 0"
            )
        classes = lumping.class_of[sequences.tokens]
        assert bool((lumping.sizes[classes] == 1).all()), "tokens that occur are not lumped"
        count, size = len(sequences), lumping.num_classes
        records, asked = sequences.asked.unique(return_inverse=True)
        first = torch.zeros(len(asked), dtype=torch.bool)
        first[sequences.lengths.cumsum(0) - sequences.lengths] = True
        after = torch.where(first.roll(-1), -1, asked.roll(-1))  # distribution after each token
        roots, passing = asked[first].unique(return_counts=True)
        keys, which, times = torch.unique(
            asked * size + classes, return_inverse=True, return_counts=True
        )
        record = torch.full_like(keys, -1).scatter_reduce_(0, which, after, "amax")
        # The prefix of each distribution: a root, or the prefix that ends in a token.
        prefix = torch.full((len(records),), -1)
        prefix[roots] = torch.arange(len(roots))
        goes_on = record >= 0
        prefix[record[goes_on]] = len(roots) + goes_on.nonzero().squeeze(1)
        nothing = torch.full_like(roots, -1)
        return cls(
            torch.cat([nothing, prefix[keys // size]]),
            torch.cat([nothing, keys % size]),
            torch.cat([passing, times]).double() / count,
            prefix,
            sequences.top_tokens.take(records).lump(lumping),
            lumping,
            count,
        )

    @property
    def num_tokens(self) -> int:
        """Number of classes."""
        return self.lumping.num_classes

    def sum_by_group(self, group: Int64[Tensor, "n"], num_groups: int) -> Float64[Tensor, "G V"]:
        """Sum weight · p over the prefixes in `read` of each group.

        p is the next distribution, in which the remaining mass is distributed over all tokens that
        aren't listed.
        """
        size, base = self.num_tokens, self._base
        sums = torch.zeros(num_groups * size, dtype=torch.float64)
        rests = torch.zeros(num_groups, dtype=torch.float64)
        for at, tokens, p, rest in self._lists():
            indices = (group[at, None] * size + tokens).flatten()
            weight = self.weight[at]
            sums.index_add_(0, indices, (weight[:, None] * p).flatten())
            # A class can be listed in part; its share of b stays in the remaining mass.
            listed = torch.where(self.lumping.sizes[tokens] == 1, base[tokens], 0.0)
            scale = weight * rest / (1 - listed.sum(dim=1)).clamp(min=_FLOOR)
            rests.index_add_(0, group[at], scale)
            sums.index_add_(0, indices, (-scale[:, None] * listed).flatten())
        # Rounding can make differences of equal numbers negative.
        return (sums.view(num_groups, size) + rests[:, None] * base).clamp_(min=0)

    @property
    def rest(self) -> float:
        """Mean over the prefixes of r, the probability of all next tokens that aren't listed."""
        total = sum(float((self.weight[at] * rest).sum()) for at, _, _, rest in self._lists())
        return total / float(self.weight[self.read].sum())

    @cached_property
    def _base(self) -> Float64[Tensor, "V"]:
        """Return b, the mean of the listed probabilities."""
        sums = torch.zeros(self.num_tokens, dtype=torch.float64)
        for at, tokens, p, _ in self._lists():
            sums.index_add_(0, tokens.flatten(), (self.weight[at, None] * p).flatten())
        return sums / sums.sum()

    def _lists(self) -> Iterator[tuple[Tensor, Tensor, Tensor, Tensor]]:
        """Yield some prefixes at a time, with their listed tokens, probabilities, and r."""
        whole = self.top_tokens.tokens.shape[1] == len(self.lumping.class_of)
        for rows, tokens, p in self.top_tokens.pieces():
            rest = (1 - p.sum(dim=1)).clamp(min=0)
            yield self.read[rows], tokens, p, torch.zeros_like(rest) if whole else rest


def after_each_token(
    sequences: Sequences, eos_ids: tuple[int, ...]
) -> tuple[Sequences, Float32[Tensor, "n D"]]:
    """Return a sketch of the logits after each token, for latent variable distillation.

    There is no distribution after the last token of a text. An EOS token gets a vector of zeros,
    which isn't used; a truncated text loses its last token.

    Returns:
        The sequences, and a vector for each of their tokens.
    """
    assert sequences.top_tokens is not None
    last = torch.zeros(sequences.num_tokens, dtype=torch.bool)
    last[sequences.lengths.cumsum(0) - 1] = True
    cut = last & ~torch.isin(sequences.tokens, torch.tensor(eos_ids, dtype=torch.int64))
    vectors = sequences.top_tokens.sketch[sequences.asked.roll(-1)].float()
    vectors[last] = 0
    shorter = replace(
        sequences,
        tokens=sequences.tokens[~cut],
        asked=sequences.asked[~cut],
        lengths=sequences.lengths - cut[last].long(),
    )
    return shorter.take(shorter.lengths.nonzero().squeeze(1)), vectors[~cut]

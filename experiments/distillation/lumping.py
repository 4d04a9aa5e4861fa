"""Lumping: merging of tokens that don't occur in the training data, to save computation.

Most tokens of a large vocabulary never occur in the sequences on which an HMM is trained. Divide
the tokens into C classes, such that all tokens of a class have the same emission:

    emission(v, h) = emission_of_class(class_of(v), h) / sizes(class_of(v))

EM over classes is equivalent to EM over tokens if each token that occurs is a separate class, and
all other tokens form one class. The other tokens have no counts, only pseudo-counts. If these are
equal, so are the tokens' emissions after the M-step. The pseudo-count of a class is the sum over
its tokens. The likelihood is the same, because no sequence contains a token of the large class.

Each pass over V H numbers becomes a pass over C H numbers, in time and in memory. All tokens of a
class have bitwise equal rows in every dtype, so a compressed file has them once.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import torch
from jaxtyping import Bool, Float, Int64
from torch import Tensor

from hmm import HMM


@dataclass(frozen=True, eq=False)
class Lumping:
    """A partition of V tokens into C classes.

    Attributes:
        class_of: the class of each token. Each class 0 to C - 1 has at least one token.
    """

    class_of: Int64[Tensor, "V"]

    @classmethod
    def all_but(cls, own: Bool[Tensor, "V"]) -> Lumping:
        """Return the partition in which each token marked in `own` is a separate class.

        These classes are in token order. All other tokens, if there are any, form the last class.
        """
        return cls(torch.where(own, own.cumsum(0) - 1, own.sum()))

    @cached_property
    def sizes(self) -> Int64[Tensor, "C"]:
        """Number of tokens in each class."""
        return torch.bincount(self.class_of)

    @property
    def num_classes(self) -> int:
        return len(self.sizes)

    def sums(self, values: Float[Tensor, "V *rest"]) -> Float[Tensor, "C *rest"]:
        """Sum the values of the tokens in each class."""
        total = values.new_zeros(self.num_classes, *values.shape[1:])
        return total.index_add_(0, self.class_of.to(values.device), values)

    def lump(self, hmm: HMM) -> HMM:
        """Convert a model over tokens to a model over classes, which sums the tokens' emissions."""
        return HMM(hmm.initial, hmm.transition, self.sums(hmm.emission))

    def spread(self, hmm: HMM) -> HMM:
        """Convert a model over classes to a model over tokens.

        The probability of a class is distributed evenly among its tokens.
        """
        sizes = self.sizes.to(hmm.device, hmm.emission.dtype).unsqueeze(1)
        return HMM(
            hmm.initial, hmm.transition, (hmm.emission / sizes)[self.class_of.to(hmm.device)]
        )


def pool_rare(
    emission: Float[Tensor, "V H"], counts: Int64[Tensor, "V"], most: int
) -> Float[Tensor, "V H"]:
    """Set the emissions of each rare token to the mean over all tokens that occurred equally often.

    A token that occurred three times gives little information about the states that emit it. The
    sum of each state's emissions doesn't change.

    Args:
        emission: emission of each token in each state.
        counts: number of times that each token occurred in training.
        most: largest count of a rare token. Tokens with larger counts keep their emissions.
    """
    pooled = emission.clone()
    for count in range(most + 1):
        alike = (counts == count).nonzero()[:, 0].to(emission.device)
        if len(alike):
            pooled[alike] = emission[alike].mean(dim=0)
    return pooled

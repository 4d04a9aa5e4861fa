"""Lumping: merging of tokens that don't occur in the training data, to save computation.

Most of a large vocabulary never occurs in the sequences that an HMM is trained on. With C classes
of tokens, each of which distributes its probability evenly,

    emission(v, h) = emission_of_class(class_of(v), h) / sizes(class_of(v)),

EM over classes is equivalent to EM over tokens, if every token that occurs is a class by itself,
and all tokens that don't occur form one class. These tokens only have pseudo-counts. If their
pseudo-counts are equal, so are their emissions after the M-step. The pseudo-count of a class is the
sum over its tokens. The likelihood is the same, because no sequence contains a token of a larger
class. So every pass over V H numbers becomes one over C H, in time and in memory. Tokens of a class
have bitwise equal rows in every dtype (`hmm._shared_rows` then stores it once).
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import torch
from jaxtyping import Bool, Float, Int64
from torch import Tensor

from hmm._model import HMM


@dataclass(frozen=True, eq=False)
class Lumping:
    """Partition of V tokens into C classes.

    Attributes:
        class_of: the class of each token; every class 0 to C - 1 has at least one.
    """

    class_of: Int64[Tensor, "V"]

    @classmethod
    def all_but(cls, own: Bool[Tensor, "V"]) -> Lumping:
        """Return the partition in which each of these tokens is a separate class, in their order.

        All other tokens together, if there are any, are the last class.
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
        """Sum the values of the tokens of each class."""
        total = values.new_zeros(self.num_classes, *values.shape[1:])
        return total.index_add_(0, self.class_of.to(values.device), values)

    def lumped(self, hmm: HMM) -> HMM:
        """Return the same model with emissions of classes instead of tokens."""
        return HMM(hmm.initial, hmm.transition, self.sums(hmm.emission))

    def spread(self, hmm: HMM) -> HMM:
        """Return the model over tokens for one over classes; each class is distributed evenly."""
        sizes = self.sizes.to(hmm.device, hmm.emission.dtype).unsqueeze(1)
        return HMM(
            hmm.initial, hmm.transition, (hmm.emission / sizes)[self.class_of.to(hmm.device)]
        )

"""This module lumps tokens that no data tell apart into one, for training, and spreads them again.

Most of a large vocabulary never occurs in the sequences that an HMM is trained on. With C classes
of tokens, each of which shares its probability out evenly,

    emission(v, h) = emission_of_class(class_of(v), h) / sizes(class_of(v)),

and EM over classes is EM over tokens, for classes of one token each and one of all those that do
not occur: these have no counts, only their pseudo-counts, and if those are equal in the class, so
is what the M-step makes of them. A class has the sum of its tokens' pseudo-counts. The likelihood
is the same, as no sequence has a token of a larger class. So every pass over V H numbers becomes
one over C H, in time and in memory, and tokens of a class have the same row, bit for bit, whatever
the type it is rounded to (`hmm.shared_rows` then stores it once).
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import torch
from jaxtyping import Bool, Float, Int64
from torch import Tensor

from hmm.model import HMM


@dataclass(frozen=True, eq=False)
class Lumping:
    """A partition of V tokens into C classes.

    Attributes:
        class_of: the class of each token; every class 0 to C - 1 has one.
    """

    class_of: Int64[Tensor, "V"]

    @classmethod
    def all_but(cls, own: Bool[Tensor, "V"]) -> Lumping:
        """Return the partition in which these tokens are classes of their own, in their order.

        All others together, if there are any, are the last class.
        """
        return cls(torch.where(own, own.cumsum(0) - 1, own.sum()))

    @cached_property
    def sizes(self) -> Int64[Tensor, "C"]:
        """How many tokens each class has."""
        return torch.bincount(self.class_of)

    @property
    def num_classes(self) -> int:
        return len(self.sizes)

    def sums(self, values: Float[Tensor, "V *rest"]) -> Float[Tensor, "C *rest"]:
        """Add up what belongs to the tokens of each class."""
        total = values.new_zeros(self.num_classes, *values.shape[1:])
        return total.index_add_(0, self.class_of.to(values.device), values)

    def lumped(self, hmm: HMM) -> HMM:
        """Return the same model, which emits classes in place of tokens."""
        return HMM(hmm.initial, hmm.transition, self.sums(hmm.emission))

    def spread(self, hmm: HMM) -> HMM:
        """Return the model over tokens of one over classes, each shared out evenly."""
        sizes = self.sizes.to(hmm.device, hmm.emission.dtype).unsqueeze(1)
        return HMM(
            hmm.initial, hmm.transition, (hmm.emission / sizes)[self.class_of.to(hmm.device)]
        )

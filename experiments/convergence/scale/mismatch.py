"""This module makes worse HMMs of a given one, for methods that look ahead.

Where the language model is an HMM, looking ahead with that very HMM is perfect, as no distilled
model ever is. A mismatched one is what a distillation with fewer states would be like:

    merged    hidden states become the means of clusters, by k-means of the square roots of what a
              state emits and of what comes next (distances are then Hellinger's), each as heavy as
              the number of visits that the first `_VISITED` tokens of a text pay it

                  A'(K, K') = sum over h in K of w(h) A(h, K') / w(K),   B'(v, K) likewise

    blurred   a share of every distribution is replaced by a random one, a point of the simplex
              that is uniformly distributed, so that the model is wrong and not just coarse

Both have distributions that sum to one in float64, and are functions of model, size and seed.
`LOOKAHEADS` names the models that problems are run with. On text of the language model itself
(1 000 sequences of up to 60 tokens) they lose, in nats a token,

                                     own    mild    strong    one state
    the HMM of tool calls              0    0.39      0.75         2.20
    the HMM of stories                 0    0.60      1.15         2.55

where the HMMs that the convergence task distils from the language models lose 0.26 and 0.59. The
first line, and 0.26, are of a language model that is no longer in the repository. The strengths
were chosen by these numbers, before any sampler was run with them.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from jaxtyping import Float64
from torch import Tensor

from experiments.distillation.clones import k_means
from experiments.harness.seeds import derived_seed
from hmm.model import HMM
from hmm.transition import from_factors
from smc.models.hmm_lm import in_double

_VISITED = 64  # tokens
_RARELY = 1e-6  # of a visit: what a state counts at least, so that its cluster has a mean


def merged(hmm: HMM, num_states: int, *, seed: int = 0) -> HMM:
    """Merge hidden states that are alike, down to at most so many.

    Args:
        num_states: of the result, at most; k-means may leave clusters empty.
        seed: of k-means.

    Raises:
        ValueError: there are to be no states, or more than the model has.
    """
    if not 1 <= num_states <= hmm.num_states:
        raise ValueError(
            f"an HMM of {hmm.num_states} states can be merged into 1 to {hmm.num_states}, "
            f"not {num_states}"
        )
    hmm = in_double(hmm)
    step = hmm.transition.dense()
    weight = _visits(hmm)
    emitted = hmm.emission.T
    points = torch.cat([emitted, step @ emitted], dim=1).sqrt().float()
    generator = torch.Generator().manual_seed(derived_seed("merged", seed, num_states))
    found = k_means(points, weight.float(), num_states, generator)
    group = torch.unique(found, return_inverse=True)[1]
    member = torch.nn.functional.one_hot(group).double()  # H x K
    mean = member * weight.unsqueeze(1)
    mean /= mean.sum(dim=0)  # P(h | K)
    return in_double(
        HMM(
            hmm.initial @ member,
            from_factors((mean.T @ step @ member,)),
            hmm.emission @ mean,
        )
    )


def _visits(hmm: HMM) -> Float64[Tensor, "H"]:
    """The expected number of visits to each state by the first tokens of a text."""
    here, total = hmm.initial, torch.zeros_like(hmm.initial)
    for _ in range(_VISITED):
        total += here
        here = hmm.transition.forward(here)
    return total.clamp_(min=_RARELY)


def blurred(hmm: HMM, share: float, *, seed: int = 0) -> HMM:
    """Replace a share of every distribution of a model by a random distribution.

    Raises:
        ValueError: the share is not in [0, 1].
    """
    if not 0 <= share <= 1:
        raise ValueError(f"a share of noise lies in [0, 1], not {share}")
    hmm = in_double(hmm)
    generator = torch.Generator().manual_seed(derived_seed("blurred", seed))
    noise = HMM.random(hmm.num_states, hmm.num_tokens, generator=generator, dtype=torch.float64)

    def mixed(part: Tensor, other: Tensor) -> Tensor:
        return (1 - share) * part + share * other

    return in_double(
        HMM(
            mixed(hmm.initial, noise.initial),
            from_factors((mixed(hmm.transition.dense(), noise.transition.dense()),)),
            mixed(hmm.emission, noise.emission),
        )
    )


def _a_quarter(hmm: HMM) -> HMM:
    return merged(hmm, max(1, hmm.num_states // 4))


def _an_eighth_and_noise(hmm: HMM) -> HMM:
    return blurred(merged(hmm, max(1, hmm.num_states // 8)), 0.1)


LOOKAHEADS: dict[str, Callable[[HMM], HMM]] = {
    "own": in_double,
    "mild": _a_quarter,
    "strong": _an_eighth_and_noise,
}
"""What to look ahead with, of the HMM that is the language model: itself; states merged down to a
quarter; to an eighth, and a tenth of every distribution replaced by noise."""

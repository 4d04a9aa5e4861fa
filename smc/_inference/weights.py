"""Normalization of the importance weights of particle systems, in log space.

A system of N weighted particles (x_n, W_n) represents the distribution sum_n W_n δ(x_n), with
W_n = w_n / sum_m w_m.  `Weights` holds the quantities that the sampler needs:

    normalized     W_n
    log_mean       log( (1/N) sum_n w_n ), the estimate of the log evidence
    ess            1 / sum_n W_n², the effective sample size: N if all weights are equal, 1 if one
                   particle has all the weight (Kong, Liu & Wong, 1994)

A system of dead particles (every w_n = 0) has no distribution: `normalized` is zero, `ess` is zero
and `log_mean` is -inf.  Cost: O(N) per system.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from jaxtyping import Float, Float64
from torch import Tensor


class Weights(NamedTuple):
    """Normalized weights of particle systems, with one system per leading index.

    Attributes:
        normalized: normalized weights W_n; the last axis sums to one (to zero if all are dead).
        log_mean: log of the mean weight.
        ess: effective sample size, in [1, N]; zero if all are dead.
    """

    normalized: Float64[Tensor, "*B N"]
    log_mean: Float64[Tensor, "*B"]
    ess: Float64[Tensor, "*B"]

    @classmethod
    def of(cls, log_weights: Float[Tensor, "*B N"]) -> Weights:
        """Compute the weights from exp(log_weights), in float64 for any input dtype."""
        log = log_weights.double()
        top = log.amax(dim=-1, keepdim=True)
        top = torch.where(top.isneginf(), 0.0, top)
        # Scaled so that the largest is one: the total neither overflows nor underflows.
        scaled = (log - top).exp()
        total = scaled.sum(dim=-1)
        dead = total == 0
        safe_total = torch.where(dead, 1.0, total)
        normalized = scaled / safe_total.unsqueeze(-1)
        squares = normalized.square().sum(dim=-1)
        return cls(
            normalized=normalized,
            log_mean=(total / log.shape[-1]).log() + top.squeeze(-1),
            ess=torch.where(dead, 0.0, 1 / torch.where(dead, 1.0, squares)),
        )

"""Normalization of the importance weights of particle systems, in log space.

A system of N particles x_n with weights w_n represents the distribution sum_n W_n δ(x_n), with W_n
= w_n / sum_m w_m. `Weights` has the numbers that the sampler needs:

    normalized     W_n
    log_mean       log( (1/N) sum_n w_n ), the estimate of the log evidence
    ess            1 / sum_n W_n², the effective sample size: N if all weights are equal, 1 if one
                   particle has all the weight (Kong, Liu & Wong, 1994)

If all weights are zero, there is no distribution: `normalized` and `ess` are zero, and `log_mean`
is -inf. Cost: O(N) per system.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from jaxtyping import Float, Float64
from torch import Tensor


class Weights(NamedTuple):
    """Normalized weights of particle systems, with one system per leading index.

    Attributes:
        normalized: normalized weights W_n, which sum to one over the last axis; all zero if all
            weights are zero.
        log_mean: log of the mean weight.
        ess: effective sample size, from 1 to N; zero if all weights are zero.
    """

    normalized: Float64[Tensor, "*B N"]
    log_mean: Float64[Tensor, "*B"]
    ess: Float64[Tensor, "*B"]

    @classmethod
    def of(cls, log_weights: Float[Tensor, "*B N"]) -> Weights:
        """Compute the weights from log weights of any dtype, in float64."""
        log = log_weights.double()
        top = log.amax(dim=-1, keepdim=True)
        top = torch.where(top.isneginf(), 0.0, top)
        # The largest weight is scaled to one, so that the total neither overflows nor underflows.
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

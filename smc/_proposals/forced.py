"""Forced runs: consecutive forced tokens, each the only token that g allows.

Most of a tool call is text that the constraint prescribes. If only one token is allowed, q gives it
probability one, so it can be appended without a draw and without a forward pass before it. One
forward pass then computes the whole run together with the preceding token, and returns the
log-probability of each token for the weight. With f_1 ... f_k the run after a drawn token d,

    weight  *=  product of p_lm(f_i)  ·  g(f_k) / g(d)

is the product of the increments Z / psi of k steps: the intermediate values of g cancel.

The target and the weight of every sequence are the same as token by token. Only the times of
resampling differ: particles are compared between choices and never inside a run, so a call that
resamples may return other particles.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Generic

import torch
from jaxtyping import Float64, Int64
from torch import Tensor

from smc._proposals import AutomatonPosition, Proposal, State


@dataclass(frozen=True, eq=False)
class Followed(Generic[State]):
    """Result of appending forced runs to M prefixes.

    Attributes:
        tokens: the runs; -1 beyond their lengths.
        log_g: log g of the last token of each run; 0 for an empty run.
        state: the proposal's state after the runs.
        walks: the positions before each token of the runs, if the proposal's state has positions.
    """

    tokens: Int64[Tensor, "M K"]
    log_g: Float64[Tensor, "M"]
    state: State
    walks: tuple[AutomatonPosition, ...] = ()

    @property
    def length(self) -> Int64[Tensor, "M"]:
        """Number of tokens in each run."""
        return (self.tokens >= 0).sum(dim=1)


def follow(proposal: Proposal[State], state: State, *, follows: bool = True) -> Followed[State]:
    """Append forced tokens to each prefix until it has a choice, is complete, or dies.

    Args:
        proposal: the proposal whose g decides which tokens are allowed.
        state: its state, one row per prefix.
        follows: False to leave all runs empty.
    """
    log_g = torch.zeros_like(state.walk.states, dtype=torch.float64)
    columns, walks = [state.walk.states.new_empty(len(log_g), 0)], []
    while follows:
        token = proposal.forced(state).masked_fill(~state.walk.running, -1)
        rows = (token >= 0).nonzero().squeeze(1)
        if not len(rows):
            break
        log_g[rows] = proposal.log_g_of_forced(proposal.take(state, rows), token[rows])
        if isinstance(state.walk, AutomatonPosition):
            walks.append(state.walk)
        state = proposal.advance(state, token.unsqueeze(1))
        columns.append(token.unsqueeze(1))
    return Followed(torch.cat(columns, dim=1), log_g, state, tuple(walks))

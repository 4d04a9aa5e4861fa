"""Forced runs: consecutive forced tokens, each the only token that g allows.

Most of a tool call is text that the constraint prescribes. If only one token is allowed, q gives it
probability one. The token can therefore be appended without a draw, and without a forward pass
before it. A single forward pass then computes the preceding token and the whole run, and returns
the log-probability of each token for the weight. Let f_1 ... f_k be the run after a drawn token d.
The update

    weight  *=  product of p_lm(f_i)  ·  g(f_k) / g(d)

is the product of the factors Z / psi of k single steps, because the intermediate values of g
cancel.

The target and the weight of every sequence are the same as with single steps. Only the times of
resampling differ, because particles are never resampled inside a run of forced tokens. So a run of
the sampler may end with other answers than with single steps.
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
        tokens: the forced tokens of each prefix; -1 beyond the last one.
        log_g: log g of the last forced token; 0 if there are no forced tokens.
        state: the proposal's state after the forced tokens.
        positions: positions in the automata before each column of `tokens`; empty if the proposal's
            state has no positions.
    """

    tokens: Int64[Tensor, "M K"]
    log_g: Float64[Tensor, "M"]
    state: State
    positions: tuple[AutomatonPosition, ...] = ()

    @property
    def length(self) -> Int64[Tensor, "M"]:
        """Number of tokens in each run."""
        return (self.tokens >= 0).sum(dim=1)


def follow(proposal: Proposal[State], state: State, *, follows: bool = True) -> Followed[State]:
    """Append forced tokens to each prefix until several tokens are allowed, or the prefix ends."""
    log_g = torch.zeros_like(state.position.states, dtype=torch.float64)
    columns, positions = [state.position.states.new_empty(len(log_g), 0)], []
    while follows:
        token = proposal.forced(state).masked_fill(~state.position.running, -1)
        rows = (token >= 0).nonzero().squeeze(1)
        if not len(rows):
            break
        log_g[rows] = proposal.log_g_of_forced(proposal.take(state, rows), token[rows])
        if isinstance(state.position, AutomatonPosition):
            positions.append(state.position)
        state = proposal.advance(state, token.unsqueeze(1))
        columns.append(token.unsqueeze(1))
    return Followed(torch.cat(columns, dim=1), log_g, state, tuple(positions))

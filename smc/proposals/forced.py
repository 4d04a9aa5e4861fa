"""A forced run is a stretch of tokens between two choices: each is the only one that g allows.

A tool call is mostly text that the constraint prescribes. Where one token alone is allowed, q gives
it probability one, so nothing is drawn, and the language model need not be asked first: it reads
the run in one forward pass, together with the token before it, and says afterwards how probable
each token was, which is what the weight needs. With f_1 ... f_k the run after a drawn token d,

    weight  *=  product of p_lm(f_i)  ·  g(f_k) / g(d)

are the increments Z / psi of k steps, taken at once: g in between cancels out.

The target is what it is token by token, as is the weight of every sequence. What differs is when
particles are compared: between choices, and no longer in the middle of a run, so a run that
resamples may find other particles.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Generic

import torch
from jaxtyping import Float64, Int64
from torch import Tensor

from smc.proposals import AutomatonPosition, Proposal, State


@dataclass(frozen=True, eq=False)
class Followed(Generic[State]):
    """Where M prefixes are after the tokens that they had no choice about.

    Attributes:
        tokens: the runs; -1 beyond their lengths.
        log_g: log g of the last token of each run; 0 where there is none.
        state: the proposal's state behind them.
        walks: where the prefixes were before each token of the runs, where that is known.
    """

    tokens: Int64[Tensor, "M K"]
    log_g: Float64[Tensor, "M"]
    state: State
    walks: tuple[AutomatonPosition, ...] = ()

    @property
    def length(self) -> Int64[Tensor, "M"]:
        """Tokens of each run."""
        return (self.tokens >= 0).sum(dim=1)


def follow(proposal: Proposal[State], state: State, *, follows: bool = True) -> Followed[State]:
    """Go on from each prefix until there is a choice, the answer is complete, or the prefix dies.

    Args:
        proposal: whose g decides what is allowed.
        state: its state, a row for each prefix.
        follows: False to stay where one is, so that all runs are empty.
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

"""Proposal protocol: the distribution from which the next token is drawn under a constraint.

A proposal q(v) is proportional to p_lm(v) · g(v). `guide` returns log g. The sampler computes Z =
sum_v p_lm(v) g(v), draws tokens from q, and computes the weights.

A proposal has an immutable state with one row per prefix. Each row has a position in its automaton
(`smc._proposals.position`). The state depends only on the tokens, so equal prefixes have equal
rows, and a sampler can return to an earlier step by keeping its state. `guide` also receives the
language model's log-probabilities of the next token. A proposal never receives weights.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from typing import Protocol, runtime_checkable

import torch
from jaxtyping import Float, Float64, Int, Int64
from torch import Tensor

from gcd import TokenAutomaton
from smc._proposals.position import Batch, State
from smc._vocabulary.factors import Factors


class HasTables(Protocol):
    """Base of proposals and lookaheads, which may compute tables; by default there are none.

    Attributes:
        max_bytes: memory limit for the tables that `start` computes, in bytes; None for no limit.
    """

    max_bytes: int | None = None

    def check(self, automata: Sequence[TokenAutomaton], budgets: Sequence[int]) -> None:
        """Raise the errors that `start` would raise for these examples, before any computation.

        Raises:
            ConstraintError: `start` would raise this error.
        """
        del automata, budgets

    def memory(self, automaton: TokenAutomaton, budget: int) -> int:
        """Return the size in bytes of one example's tables.

        The tables of a batch have at most the sum of the sizes of its examples.
        """
        del automaton, budget
        return 0

    def free(self) -> None:
        """Release the cached tables."""
        return


@runtime_checkable
class Proposal(HasTables, Protocol[State]):
    """Base class of proposals, which are distributions q = p g / Z over the next token.

    To write a proposal, derive from this class and implement `start`, `guide`, `advance` and
    `take`. By default, a proposal accepts every constraint and doesn't have tables.

    Attributes:
        potential: whether g(x_t) is the potential psi_t of a prefix. If True, weights are
            multiplied by Z_t / psi_{t-1}. This factor is known before x_t is drawn, so particles
            are resampled before the draw. (If g is 0 or 1, psi is 1 and the factor is Z_t.) If
            False, weights are multiplied by Z_t / g(x_t), which is known after the draw.
    """

    potential: bool = True

    @abstractmethod
    def start(self, batch: Batch) -> State:
        """Return the state of B empty prefixes, one per example.

        Raises:
            ConstraintError: the proposal doesn't support these constraints; see `check`.
        """
        ...

    @abstractmethod
    def guide(self, state: State, log_p: Float[Tensor, "R V"]) -> Factors:
        """Return log g, given the model's log-probabilities of the next token.

        g must *not* include a defensive mixture with the mask of allowed tokens. The sampler adds
        the mixture: particles mix over the next tokens of each prefix, and the discrete filter over
        all candidates of an example (`Factors.defense`).
        """
        ...

    def forced(self, state: State) -> Int64[Tensor, "R"]:
        """Return the only token that g allows after each prefix; -1 if g allows several tokens.

        The sampler appends such a token without a forward pass before it (`smc._proposals.forced`).
        The default returns -1 for all prefixes, so that every token takes a forward pass.
        """
        states = state.position.states
        return torch.full_like(states, -1)

    def log_g_of_forced(self, state: State, tokens: Int64[Tensor, "R"]) -> Float64[Tensor, "R"]:
        """Return log g of the tokens that `forced` returned, as `guide` would return it.

        g is the potential after these tokens. The default, log g = 0, is correct for masks. Weights
        are correct for any value, but resampling is more accurate with the correct value.
        """
        return torch.zeros_like(tokens, dtype=torch.float64)

    @abstractmethod
    def advance(self, state: State, tokens: Int[Tensor, "R T"]) -> State:
        """Return the state after one or more tokens per prefix; -1 means no token."""
        ...

    @abstractmethod
    def take(self, state: State, ancestors: Int64[Tensor, "Q"]) -> State:
        """Return the state of the prefixes with these indices, which may repeat."""
        ...

    def without_host_sync(self) -> Proposal[State]:
        """Return a version of the proposal that never synchronizes with the host.

        Static shapes require it. The default returns the proposal itself. A proposal that
        synchronizes anyway is rejected (`smc._forward.static`).
        """
        return self

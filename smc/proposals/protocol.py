"""A proposal is the distribution from which the next token is drawn, given the constraint.

A proposal q(v) is proportional to p_lm(v) · g(v).  `guide` returns log g and the log of
Z = sum_v p_lm(v) g(v); the sampler draws from the product and sees to the weights.

It carries an immutable state with one row per prefix, which has a position
(`smc.proposals.position`).  The state is a function of the tokens alone, so equal prefixes have
equal rows, and rolling back is keeping the old state; `guide` and `score` also see what the
language model says of the next token.  No proposal sees weights.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from typing import Protocol, runtime_checkable

import torch
from jaxtyping import Float, Float64, Int, Int64
from torch import Tensor

from gcd.tokens.token_automaton import TokenAutomaton
from smc.competition import CandidateGuide, candidates_of
from smc.proposals.position import Batch, State
from smc.vocabulary.factors import Guide


class HasTables(Protocol):
    """The members of a proposal or lookahead that are about its tables; by default it has none.

    Attributes:
        max_bytes: most memory that `start` may take for its tables; None where there is no bound.
    """

    max_bytes: int | None = None

    def check(self, automata: Sequence[TokenAutomaton], budgets: Sequence[int]) -> None:
        """Refuse what `start` would refuse of these examples, before anything is computed.

        Raises:
            ConstraintError: as `start` would raise it.
        """
        del automata, budgets

    def memory(self, automaton: TokenAutomaton, budget: int) -> int:
        """Return the bytes of the tables of one example; several take at most the sum."""
        del automaton, budget
        return 0

    def free(self) -> None:
        """Give back the memory of tables that are kept for the next call."""
        return


@runtime_checkable
class Proposal(HasTables, Protocol[State]):
    """A family of distributions over the next token, one per prefix.

    To write one, derive from this class and give `start`, `guide`, `advance` and `take`; the other
    members have defaults, those of a proposal that never refuses and keeps nothing in memory.

    Attributes:
        potential: how the weights use g. True: g(x_t) is itself the potential psi_t of the prefix,
            so that the increment Z_t / psi_{t-1} is known before x_t is drawn, and resampling comes
            before drawing. (Where g is 0 or 1, psi is 1 and the increment Z_t.) False: the
            increment is Z_t / g(x_t), known after the draw.
    """

    potential: bool = True

    @abstractmethod
    def start(self, batch: Batch) -> State:
        """Return the state of B empty prefixes, one per example.

        Raises:
            ConstraintError: the proposal cannot serve these constraints; see `check`.
        """
        ...

    @abstractmethod
    def guide(self, state: State, log_p: Float[Tensor, "R V"]) -> Guide:
        """Return log g and log Z, given the log-probabilities of the next token."""
        ...

    def forced(self, state: State) -> Int64[Tensor, "R"]:
        """Return the only token that g allows after each prefix; -1 where there are several.

        The language model need not be asked before such a token (`smc.proposals.forced`). A
        proposal that does not know returns -1 everywhere, as this default does, and is asked at
        every token.
        """
        states = state.walk.states
        return torch.full_like(states, -1)

    def log_g_of_forced(self, state: State, tokens: Int64[Tensor, "R"]) -> Float64[Tensor, "R"]:
        """Return log g of tokens that `forced` gave, as `guide` would.

        It serves as the potential behind them. The default, 0, is that of masks; weights would be
        right with any number, but resampling would know less of what the lookahead says.
        """
        return torch.zeros_like(tokens, dtype=torch.float64)

    @abstractmethod
    def advance(self, state: State, tokens: Int[Tensor, "R T"]) -> State:
        """Return the state after one or several more tokens; -1 stands for no token."""
        ...

    @abstractmethod
    def take(self, state: State, ancestors: Int64[Tensor, "Q"]) -> State:
        """Return the state of these rows."""
        ...

    def without_host_sync(self) -> Proposal[State]:
        """Return the proposal as one that never waits for the device, for steps in static shapes.

        That is itself, if not overridden; should it wait, it is refused (`smc.proposals.waits`).
        """
        return self

    def score(self, state: State, log_p: Float[Tensor, "R V"]) -> CandidateGuide:
        """Return g as the discrete particle filter scores next tokens with it (`smc.filter`).

        Return g *without* a per-row defence; the filter defends per example. The default is the g
        of `guide`.
        """
        return candidates_of(self.guide(state, log_p), state.walk.successors())

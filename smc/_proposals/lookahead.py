"""Protocol of lookaheads: models of the probability that a text is completed in time.

Let C be a constraint and r the remaining budget of a prefix in tokens. For each item v that may
come next (a token or a class of tokens), a lookahead returns the logarithms of

    joint(v)    = P(v is next, and the text is completed in C within the r tokens | prefix)
    mass(v)     = P(v is next | prefix)
    eventual(v) = P(v is next, and the text is completed in C at some length | prefix)

under its own model. `smc.Twisted` turns these probabilities into a proposal. `smc.Twisted` also
implements tying, the defensive mixture and potentials for any kind of model. `smc.HMMLookahead`
implements the protocol with a hidden Markov model.

Weights are correct for any values, because the sampler uses the same g for the draw and for the
weights. The accuracy of the values determines how many particles are needed. If the model equals
the language model, and g is computed for every single token, all particles have equal weights.
"""

from __future__ import annotations

from abc import abstractmethod
from typing import NamedTuple, Protocol, TypeVar, runtime_checkable

import torch
from jaxtyping import Float64, Int, Int64
from torch import Tensor

from smc._proposals import AutomatonPosition, Batch
from smc._proposals.protocol import HasTables


class Expectation(NamedTuple):
    """Log-probabilities that each of K items (classes or tokens) comes next, for R prefixes.

    Values of items that the constraint or the budget doesn't allow are ignored.

    Attributes:
        log_joint: log P(the item is next, and the text is completed within the budget | prefix).
        log_mass: log P(the item is next | prefix).
        log_eventual: log P(the item is next, and the text is completed at some length | prefix);
            None unless the lookahead's `eventual` is True.
    """

    log_joint: Float64[Tensor, "R K"]
    log_mass: Float64[Tensor, "R K"]
    log_eventual: Float64[Tensor, "R K"] | None = None


ModelState = TypeVar("ModelState")
"""State of a lookahead for R prefixes: an immutable tuple of tensors with one row per prefix."""


@runtime_checkable
class Lookahead(HasTables, Protocol[ModelState]):
    """Base class of models that can compute the probability that a text is completed in time.

    To write a lookahead, derive from this class and implement `start`, `advance`, `take`, `classes`
    and `tokens`; the other members have defaults. Methods receive each prefix's automaton state and
    remaining budget as an `AutomatonPosition`. Results for prefixes that have ended are ignored.

    Attributes:
        eventual: whether the results of `classes` and `tokens` include `log_eventual`.
    """

    eventual: bool = False

    def without_host_sync(self) -> Lookahead[ModelState]:
        """Return a version of the lookahead that never synchronizes with the host.

        Static shapes require it. The default returns the lookahead itself.
        """
        return self

    @abstractmethod
    def start(self, batch: Batch) -> ModelState:
        """Return the state of B empty prefixes, one per example.

        Raises:
            ConstraintError: the model doesn't support these constraints; see `check`.
        """
        ...

    @abstractmethod
    def advance(self, state: ModelState, tokens: Int[Tensor, "R T"]) -> ModelState:
        """Return the state after one or more tokens per prefix; -1 means no token."""
        ...

    @abstractmethod
    def take(self, state: ModelState, ancestors: Int64[Tensor, "Q"]) -> ModelState:
        """Return the state of the prefixes with these indices, which may repeat."""
        ...

    @abstractmethod
    def classes(self, state: ModelState, position: AutomatonPosition) -> Expectation:
        """Return the log-probabilities of all token classes of each prefix's automaton."""
        ...

    @abstractmethod
    def tokens(
        self, state: ModelState, position: AutomatonPosition, tokens: Int64[Tensor, "R K"]
    ) -> Expectation:
        """Return the log-probabilities of the given tokens."""
        ...

    def all_tokens(self, state: ModelState, position: AutomatonPosition) -> Expectation:
        """Return the log-probabilities of all tokens in the vocabulary."""
        every = torch.arange(position.automata.vocabulary.size, device=position.states.device)
        return self.tokens(state, position, every.expand(len(position.states), -1))

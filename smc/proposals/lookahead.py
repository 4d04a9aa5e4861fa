"""A lookahead is a tractable model that says how probably a text will be completed in time.

Let C be a constraint and r the tokens that a prefix may still take. Of every item v that may come
next, a token or a class of tokens, a lookahead gives

    joint(v)    = P(v is next, and the text is completed in C within the r tokens | prefix)
    mass(v)     = P(v is next | prefix)
    eventual(v) = P(v is next, and the text is completed in C at some length | prefix)

under its own model, as logarithms. `smc.Twisted` makes a proposal of them: tying, defence and
potentials are its business, and it does not depend on the lookahead's kind. The first such model is
a hidden Markov model (`smc.HMMLookahead`).

Any numbers give correct weights, as the sampler weighs by the g that it really used; how good they
are decides how many particles are needed. If the model is the language model itself, and every
token has its own g, all particles have equal weights.
"""

from __future__ import annotations

from abc import abstractmethod
from typing import NamedTuple, Protocol, TypeVar, runtime_checkable

import torch
from jaxtyping import Float64, Int, Int64
from torch import Tensor

from smc.proposals import AutomatonPosition, Batch
from smc.proposals.protocol import HasTables


class Expectation(NamedTuple):
    """What a model expects of K items (classes or tokens) that may come next, for R prefixes.

    Numbers of items that the constraint does not allow within the budget are not looked at.

    Attributes:
        log_joint: log P(the item is next, and the text is completed within the budget | prefix).
        log_mass: log P(the item is next | prefix).
        log_eventual: log P(the item is next, and the text is completed at some length | prefix);
            None unless the lookahead's `eventual` is true.
    """

    log_joint: Float64[Tensor, "R K"]
    log_mass: Float64[Tensor, "R K"]
    log_eventual: Float64[Tensor, "R K"] | None = None


ModelState = TypeVar("ModelState")
"""What a model knows about R prefixes: an immutable tuple of tensors, one row a prefix."""


@runtime_checkable
class Lookahead(HasTables, Protocol[ModelState]):
    """A tractable model, asked about the next token under a constraint and a budget.

    To write one, derive from this class and give `start`, `advance`, `take`, `classes` and
    `tokens`; the other members have defaults. Where a prefix is in its automaton, and how much of
    the budget is left, is handed to the lookahead as an `AutomatonPosition`. Rows of
    prefixes that are over may hold anything.

    Attributes:
        eventual: whether its expectations have `log_eventual`.
    """

    eventual: bool = False

    def without_host_sync(self) -> Lookahead[ModelState]:
        """Return a lookahead that never waits for the device, for steps in static shapes; itself,
        if not overridden.
        """
        return self

    @abstractmethod
    def start(self, batch: Batch) -> ModelState:
        """Return the state of B empty prefixes, one per example.

        Raises:
            ConstraintError: the model cannot serve these constraints; see `check`.
        """
        ...

    @abstractmethod
    def advance(self, state: ModelState, tokens: Int[Tensor, "R T"]) -> ModelState:
        """Return the state after one or several more tokens; -1 stands for no token."""
        ...

    @abstractmethod
    def take(self, state: ModelState, ancestors: Int64[Tensor, "Q"]) -> ModelState:
        """Return the state of these rows."""
        ...

    @abstractmethod
    def classes(self, state: ModelState, walk: AutomatonPosition) -> Expectation:
        """Return what is expected of every class of each prefix's automaton, at most C of them."""
        ...

    @abstractmethod
    def tokens(
        self, state: ModelState, walk: AutomatonPosition, tokens: Int64[Tensor, "R K"]
    ) -> Expectation:
        """Return what is expected of these tokens."""
        ...

    def all_tokens(self, state: ModelState, walk: AutomatonPosition) -> Expectation:
        """Return what is expected of every token of the vocabulary."""
        every = torch.arange(walk.automata.vocabulary.size, device=walk.states.device)
        return self.tokens(state, walk, every.expand(len(walk.states), -1))

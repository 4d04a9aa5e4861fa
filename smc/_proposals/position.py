"""Positions of prefixes in their automata, with the remaining token budgets.

Every proposal's state has the positions of its prefixes. The sampler uses them to decide whether a
prefix has ended:

    finished    in the automaton's final state: EOS was drawn or forced
    dead        outside the language, or out of budget; `LM` also ends a prefix that can't finish
                within the budget, because its target probability is zero
"""

from __future__ import annotations

from typing import NamedTuple, Protocol, TypeVar, runtime_checkable

import torch
from jaxtyping import Bool, Int, Int32, Int64
from torch import Tensor

from gcd import AutomatonBatch, BudgetMask
from gcd._tokens.token_automaton import UNREACHABLE
from smc._vocabulary.competition import Successors


class Batch(NamedTuple):
    """B examples that are sampled together, each with its own automaton and budget.

    Attributes:
        automata: one automaton per example, with states numbered consecutively over the batch.
        budgets: maximum number of tokens of each answer, including EOS.
    """

    automata: AutomatonBatch
    budgets: Int64[Tensor, "B"]


class AutomatonPosition(NamedTuple):
    """The automaton states of R prefixes, and their remaining budgets.

    Attributes:
        automata: the automata of the batch.
        mask: the budget mask, which allows tokens after which the text can be completed.
        states: state of each prefix; -1 once the prefix is outside the language.
        remaining: tokens that each prefix may still take, including EOS.
    """

    automata: AutomatonBatch
    mask: BudgetMask
    states: Int64[Tensor, "R"]
    remaining: Int64[Tensor, "R"]

    @property
    def walk(self) -> AutomatonPosition:
        """Return the object itself, so that it can serve as a proposal's whole state."""
        return self

    @property
    def finished(self) -> Bool[Tensor, "R"]:
        """True where the answer is complete."""
        return (self.states >= 0) & self.automata.is_final[self.states.clamp(min=0)]

    @property
    def running(self) -> Bool[Tensor, "R"]:
        """True where the prefix is neither finished nor dead, so that it takes another token."""
        return (self.states >= 0) & ~self.finished & (self.remaining > 0)

    @property
    def automaton_of_row(self) -> Int64[Tensor, "R"]:
        """The automaton of each prefix; arbitrary once the prefix is outside the language."""
        return self.automata.automaton_of[self.states.clamp(min=0)]

    def only(self, alive: Bool[Tensor, "R C"]) -> Int64[Tensor, "R"]:
        """Return the only token in these classes; -1 where they contain none or several."""
        start = self.automata.classes.start[self.automaton_of_row]
        sizes = torch.where(alive, start.diff(dim=1), 0)
        klass = sizes.argmax(dim=1, keepdim=True)
        first = start.gather(1, klass).squeeze(1).clamp(max=self.automata.classes.of.shape[1] - 1)
        token = self.automata.classes.tokens[self.automaton_of_row, first].long()
        return torch.where(sizes.sum(dim=1) == 1, token, -1)

    def successors(self) -> Successors:
        """Return the outcome of each token class."""
        after = self.automata.next_by_class(self.states)
        ends = (after >= 0) & self.automata.is_final[after.clamp(min=0)]
        return Successors(self.automata.classes, self.automaton_of_row, ends)

    def steps_after_classes(self) -> Int32[Tensor, "R C"]:
        """Return the fewest tokens from after a token of each class to the end, or `UNREACHABLE`.

        A class is allowed within the budget if this number is less than `remaining`, and completes
        the text if it is zero.
        """
        return self.mask.steps_after(self.states)

    def steps_after_tokens(self, tokens: Int64[Tensor, "R K"]) -> Int32[Tensor, "R K"]:
        """Return the fewest tokens from after each of these tokens to the end, or `UNREACHABLE`."""
        after = self.automata.next(self.states.unsqueeze(1).expand_as(tokens), tokens)
        steps = self.automata.steps_to_accept[after.clamp(min=0)]
        return torch.where(after >= 0, steps, UNREACHABLE)

    def take(self, rows: Int64[Tensor, "Q"]) -> AutomatonPosition:
        """Return the positions of these batch rows."""
        return self._replace(states=self.states[rows], remaining=self.remaining[rows])

    def advance(self, tokens: Int[Tensor, "R T"]) -> AutomatonPosition:
        """Advance by these tokens; -1 means no token, and an ended prefix stays unchanged."""
        states, remaining = self.states, self.remaining
        for token in tokens.long().unbind(dim=1):
            moves = (token >= 0) & (states >= 0) & (remaining > 0)
            moves &= ~self.automata.is_final[states.clamp(min=0)]
            after = self.automata.next(states, token.clamp(min=0))
            states = torch.where(moves, after, states)
            remaining = remaining - moves.long()
        return self._replace(states=states, remaining=remaining)


def start_position(batch: Batch) -> AutomatonPosition:
    """Return the positions of empty prefixes, one per example, each with its full budget."""
    budgets = batch.budgets
    return AutomatonPosition(
        automata=batch.automata,
        mask=BudgetMask(batch.automata, budgets),
        states=batch.automata.initial,
        remaining=budgets,
    )


@runtime_checkable
class Progress(Protocol):
    """Properties of R prefixes that the sampler uses; `AutomatonPosition` has them."""

    @property
    def finished(self) -> Bool[Tensor, "R"]:
        """True where the answer is complete."""
        ...

    @property
    def running(self) -> Bool[Tensor, "R"]:
        """True where the prefix takes another token."""
        ...

    @property
    def states(self) -> Int64[Tensor, "R"]:
        """The state of each prefix in its automaton; -1 once it is outside the language."""
        ...

    def successors(self) -> Successors:
        """Return the outcome of each token class."""
        ...


@runtime_checkable
class HasPosition(Protocol):
    """Member that every proposal's state must have; it may have others."""

    @property
    def walk(self) -> Progress:
        """The positions of the prefixes."""
        ...


State = TypeVar("State", bound=HasPosition)
"""The state of a proposal."""

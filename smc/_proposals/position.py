"""Positions of prefixes in their automata, with the remaining token budgets.

The state of every proposal has the positions of its prefixes, from which the sampler decides
whether a prefix has ended:

    finished    the automaton is in its final state: EOS was drawn or forced
    dead        the prefix has left the language, or its budget is used up; with `LM`, also a prefix
                that can't be completed within its budget, because its target probability is zero
"""

from __future__ import annotations

from typing import NamedTuple, Protocol, TypeVar, runtime_checkable

import torch
from jaxtyping import Bool, Int, Int32, Int64
from torch import Tensor

from gcd import AutomatonBatch, BudgetMask
from gcd._tokens.token_automaton import UNREACHABLE


class Batch(NamedTuple):
    """B examples that are sampled together, each with an automaton and a budget.

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
        mask: GCD's mask, which allows tokens after which the text can be completed in time.
        states: automaton state of each prefix; -1 once the prefix has left the language.
        remaining: number of tokens that each prefix may still take, including EOS.
    """

    automata: AutomatonBatch
    mask: BudgetMask
    states: Int64[Tensor, "R"]
    remaining: Int64[Tensor, "R"]

    @property
    def position(self) -> AutomatonPosition:
        """The object itself, so that a proposal can use it as its state (`HasPosition`)."""
        return self

    @property
    def finished(self) -> Bool[Tensor, "R"]:
        """True for prefixes that are complete answers."""
        return (self.states >= 0) & self.automata.is_final[self.states.clamp(min=0)]

    @property
    def running(self) -> Bool[Tensor, "R"]:
        """True for prefixes that take another token, because they are neither finished nor dead."""
        return (self.states >= 0) & ~self.finished & (self.remaining > 0)

    @property
    def automaton_of_row(self) -> Int64[Tensor, "R"]:
        """The index of each prefix's automaton; arbitrary once the prefix has left the language."""
        return self.automata.automaton_of[self.states.clamp(min=0)]

    @property
    def class_of_token(self) -> Int64[Tensor, "R V"]:
        """The class of every token in each prefix's automaton."""
        return self.automata.class_of[self.automaton_of_row].long()

    def only(self, alive: Bool[Tensor, "R C"]) -> Int64[Tensor, "R"]:
        """Return the only token in the allowed classes; -1 if they have several tokens or none."""
        start = self.automata.classes.start[self.automaton_of_row]
        sizes = torch.where(alive, start.diff(dim=1), 0)
        klass = sizes.argmax(dim=1, keepdim=True)
        first = start.gather(1, klass).squeeze(1).clamp(max=self.automata.classes.of.shape[1] - 1)
        token = self.automata.classes.tokens[self.automaton_of_row, first].long()
        return torch.where(sizes.sum(dim=1) == 1, token, -1)

    def ends(self, *, by_token: bool) -> Bool[Tensor, "R C"]:
        """Return whether each token class, or each token, ends the text."""
        after = self.automata.next_by_class(self.states)
        ends = (after >= 0) & self.automata.is_final[after.clamp(min=0)]
        return ends.gather(1, self.class_of_token) if by_token else ends

    def steps_after_classes(self) -> Int32[Tensor, "R C"]:
        """Return the fewest tokens from the state after each token class to the end of the text.

        The number is `UNREACHABLE` if the end can't be reached. A class is allowed within the
        budget if its number is less than `remaining`, and completes the text if it is zero.
        """
        return self.mask.steps_after(self.states)

    def steps_after_tokens(self, tokens: Int64[Tensor, "R K"]) -> Int32[Tensor, "R K"]:
        """Return the fewest tokens from the state after each given token to the end of the text.

        The number is `UNREACHABLE` if the end can't be reached.
        """
        after = self.automata.next(self.states.unsqueeze(1).expand_as(tokens), tokens)
        steps = self.automata.steps_to_accept[after.clamp(min=0)]
        return torch.where(after >= 0, steps, UNREACHABLE)

    def take(self, rows: Int64[Tensor, "Q"]) -> AutomatonPosition:
        """Return the states and budgets of the prefixes with these indices, which may repeat."""
        return self._replace(states=self.states[rows], remaining=self.remaining[rows])

    def advance(self, tokens: Int[Tensor, "R T"]) -> AutomatonPosition:
        """Return the automaton states and budgets after the given tokens.

        -1 means no token, and prefixes that have ended don't change.
        """
        states, remaining = self.states, self.remaining
        for token in tokens.long().unbind(dim=1):
            moves = (token >= 0) & (states >= 0) & (remaining > 0)
            moves &= ~self.automata.is_final[states.clamp(min=0)]
            after = self.automata.next(states, token.clamp(min=0))
            states = torch.where(moves, after, states)
            remaining = remaining - moves.long()
        return self._replace(states=states, remaining=remaining)


def start_position(batch: Batch) -> AutomatonPosition:
    """Return the initial states of empty prefixes, one per example, and their full budgets."""
    budgets = batch.budgets
    return AutomatonPosition(
        automata=batch.automata,
        mask=BudgetMask(batch.automata, budgets),
        states=batch.automata.initial,
        remaining=budgets,
    )


@runtime_checkable
class Progress(Protocol):
    """Properties of R prefixes that the sampler uses; `AutomatonPosition` implements them."""

    @property
    def finished(self) -> Bool[Tensor, "R"]:
        """True for prefixes that are complete answers."""
        ...

    @property
    def running(self) -> Bool[Tensor, "R"]:
        """True for prefixes that take another token."""
        ...

    @property
    def states(self) -> Int64[Tensor, "R"]:
        """The automaton state of each prefix; -1 once the prefix has left the language."""
        ...

    def ends(self, *, by_token: bool) -> Bool[Tensor, "R C"]:
        """Return whether each token class, or each token, ends the text."""
        ...


@runtime_checkable
class HasPosition(Protocol):
    """Protocol of a proposal's state, which must have the member `position` and may have others."""

    @property
    def position(self) -> Progress:
        """The positions of the prefixes in their automata."""
        ...


State = TypeVar("State", bound=HasPosition)
"""The state of a proposal."""

"""A prefix has a position in its automaton, and a number of tokens that it may still take.

Every proposal's state has the positions of its prefixes, and the sampler asks them when a prefix is
over:

    finished    in the automaton's final state: EOS was taken, drawn or forced
    dead        it left the language, or its budget is spent; `LM` also ends a prefix that can no
                longer finish in time, as its target has no mass there
"""

from __future__ import annotations

from typing import NamedTuple, Protocol, TypeVar, runtime_checkable

import torch
from jaxtyping import Bool, Int, Int32, Int64
from torch import Tensor

from gcd.tokens.batch import AutomatonBatch
from gcd.tokens.budget import BudgetMask
from gcd.tokens.token_automaton import UNREACHABLE
from smc.competition import Successors


class Batch(NamedTuple):
    """The B examples that are sampled together, each with its own automaton and budget.

    Attributes:
        automata: one automaton per example, states numbered through.
        budgets: most tokens of each answer, EOS included.
    """

    automata: AutomatonBatch
    budgets: Int64[Tensor, "B"]


class AutomatonPosition(NamedTuple):
    """The states of R prefixes in their automata, and what is left of their budgets.

    Attributes:
        automata: the automata of the batch.
        mask: which next tokens keep a prefix completable.
        states: state of each prefix; -1 once it left the language.
        remaining: tokens that each prefix may still take, EOS included.
    """

    automata: AutomatonBatch
    mask: BudgetMask
    states: Int64[Tensor, "R"]
    remaining: Int64[Tensor, "R"]

    @property
    def walk(self) -> AutomatonPosition:
        """Itself, so that a position can serve as a proposal's whole state."""
        return self

    @property
    def finished(self) -> Bool[Tensor, "R"]:
        """True where the answer is complete."""
        return (self.states >= 0) & self.automata.is_final[self.states.clamp(min=0)]

    @property
    def running(self) -> Bool[Tensor, "R"]:
        """True where another token is due, as the prefix is neither finished nor dead."""
        return (self.states >= 0) & ~self.finished & (self.remaining > 0)

    @property
    def automaton_of_row(self) -> Int64[Tensor, "R"]:
        """The automaton of each prefix; any, once it left the language."""
        return self.automata.automaton_of[self.states.clamp(min=0)]

    def only(self, alive: Bool[Tensor, "R C"]) -> Int64[Tensor, "R"]:
        """Return the one token of these classes, where there is one and no other, or -1."""
        start = self.automata.classes.start[self.automaton_of_row]
        sizes = torch.where(alive, start.diff(dim=1), 0)
        klass = sizes.argmax(dim=1, keepdim=True)
        first = start.gather(1, klass).squeeze(1).clamp(max=self.automata.classes.of.shape[1] - 1)
        token = self.automata.classes.tokens[self.automaton_of_row, first].long()
        return torch.where(sizes.sum(dim=1) == 1, token, -1)

    def successors(self) -> Successors:
        """Return where each class of tokens leads."""
        after = self.automata.next_by_class(self.states)
        ends = (after >= 0) & self.automata.is_final[after.clamp(min=0)]
        return Successors(self.automata.classes, self.automaton_of_row, ends)

    def steps_after_classes(self) -> Int32[Tensor, "R C"]:
        """Return the fewest tokens to the end after one of each class, or `UNREACHABLE`.

        A class is allowed within the budget where this is less than `remaining`, and completes the
        text where it is zero.
        """
        return self.mask.steps_after(self.states)

    def steps_after_tokens(self, tokens: Int64[Tensor, "R K"]) -> Int32[Tensor, "R K"]:
        """Do what `steps_after_classes` does, for some tokens of each row."""
        after = self.automata.next(self.states.unsqueeze(1).expand_as(tokens), tokens)
        steps = self.automata.steps_to_accept[after.clamp(min=0)]
        return torch.where(after >= 0, steps, UNREACHABLE)

    def take(self, rows: Int64[Tensor, "Q"]) -> AutomatonPosition:
        """Return the walks of these rows."""
        return self._replace(states=self.states[rows], remaining=self.remaining[rows])

    def advance(self, tokens: Int[Tensor, "R T"]) -> AutomatonPosition:
        """Walk on by these tokens; -1 stands for no token, and a prefix that is over stays."""
        states, remaining = self.states, self.remaining
        for token in tokens.long().unbind(dim=1):
            moves = (token >= 0) & (states >= 0) & (remaining > 0)
            moves &= ~self.automata.is_final[states.clamp(min=0)]
            after = self.automata.next(states, token.clamp(min=0))
            states = torch.where(moves, after, states)
            remaining = remaining - moves.long()
        return self._replace(states=states, remaining=remaining)


def start_position(batch: Batch) -> AutomatonPosition:
    """Return the walks of empty prefixes, one per example, each with its whole budget left."""
    budgets = batch.budgets
    return AutomatonPosition(
        automata=batch.automata,
        mask=BudgetMask(batch.automata, budgets),
        states=batch.automata.initial,
        remaining=budgets,
    )


@runtime_checkable
class Progress(Protocol):
    """What the sampler asks about R prefixes; a `AutomatonPosition` answers it."""

    @property
    def finished(self) -> Bool[Tensor, "R"]:
        """True where the answer is complete."""
        ...

    @property
    def running(self) -> Bool[Tensor, "R"]:
        """True where another token is due."""
        ...

    @property
    def states(self) -> Int64[Tensor, "R"]:
        """The state of each prefix in its automaton; -1 once it left the language."""
        ...

    def successors(self) -> Successors:
        """Return where each class of tokens leads."""
        ...


@runtime_checkable
class HasPosition(Protocol):
    """What every proposal's state has; the rest is up to the proposal."""

    @property
    def walk(self) -> Progress:
        """Which prefixes are finished, and which go on."""
        ...


State = TypeVar("State", bound=HasPosition)
"""The state of a proposal."""

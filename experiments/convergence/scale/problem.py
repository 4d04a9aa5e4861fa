"""A problem at scale is a constraint, a budget, and events that share its answers out.

Budgets are linear functions of the fewest tokens that any answer needs, as in the tool-calling
task, so that "tight" says the same of long and of short answers.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import gcd
from experiments.convergence.scale.truth import Event
from gcd.automata.automaton import Automaton


class Budget(NamedTuple):
    """A budget of `factor` times the fewest tokens of an answer, and `extra` more."""

    factor: int
    extra: int

    def tokens(self, constraint: gcd.TokenAutomaton) -> int:
        """Compute the budget for a constraint."""
        return self.factor * int(constraint.steps_to_accept[constraint.initial]) + self.extra


@dataclass(frozen=True)
class Problem:
    """What an answer may be, and what is asked about it.

    Attributes:
        name: unlike those of other problems.
        source: whose HMM is the language model, "toolcalls" or "stories"; see `source`.
        note: in a sentence, for tables.
        language: the constraint, over bytes.
        events: each answer is in exactly one.
        budget: of tokens.
        ending: how an answer ends, "token" or "accept"; see `gcd.lift`.
    """

    name: str
    source: str
    note: str
    language: Automaton
    events: tuple[Event, ...]
    budget: Budget
    ending: str = "token"

    def prepared(self, vocabulary: gcd.Vocabulary) -> Prepared:
        """Lift the problem to the tokens of its HMM.

        Raises:
            InfeasibleBudgetError: no answer fits the budget.
        """
        constraint = gcd.lift(self.language, vocabulary, eos=self.ending)
        budget = self.budget.tokens(constraint)
        gcd.check_budget(constraint, budget, self.name)
        return Prepared(self, constraint, budget)


class Prepared(NamedTuple):
    """A problem over tokens."""

    problem: Problem
    constraint: gcd.TokenAutomaton
    budget: int

    def identity(self) -> dict[str, Any]:
        """Give what determines its truth, but for the HMM, as plain values."""
        problem = self.problem
        return {
            "budget": self.budget,
            "ending": problem.ending,
            "language": problem.language.fingerprint.hex(),
            "events": {event.name: event.language.fingerprint.hex() for event in problem.events},
        }

"""A problem at scale is a constraint, a budget, and events that share its answers out.

Budgets are linear functions of the fewest tokens that any answer needs, as in the tool-calling
task, so that "tight" says the same of long and of short answers.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import gcd
from experiments.convergence.scale.truth import Event
from experiments.harness.budgets import budget_of
from gcd.automata.automaton import Automaton


@dataclass(frozen=True)
class EventProblem:
    """What an answer may be, and what is asked about it.

    Attributes:
        name: unlike those of other problems.
        source: whose HMM is the language model, "toolcalls" or "stories"; see `source`.
        note: in a sentence, for tables.
        language: the constraint, over bytes.
        events: each answer is in exactly one.
        budget: a factor of the fewest tokens of an answer, and tokens on top (`budget_of`).
        ending: how an answer ends, "token" or "accept"; see `gcd.lift`.
    """

    name: str
    source: str
    note: str
    language: Automaton
    events: tuple[Event, ...]
    budget: tuple[int, int]
    ending: str = "token"

    def lifted(self, vocabulary: gcd.Vocabulary) -> LiftedProblem:
        """Lift the problem to the tokens of its HMM.

        Raises:
            InfeasibleBudgetError: no answer fits the budget.
        """
        constraint = gcd.lift(self.language, vocabulary, eos=self.ending)
        budget = budget_of(self.budget, constraint)
        gcd.check_budget(constraint, budget, self.name)
        return LiftedProblem(self, constraint, budget)


class LiftedProblem(NamedTuple):
    """A problem over tokens."""

    problem: EventProblem
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

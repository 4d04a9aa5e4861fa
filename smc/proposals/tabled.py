"""A proposal may keep tables of constraints, and says how large, and which it refuses."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from gcd.tokens.token_automaton import TokenAutomaton


class Tabled(Protocol):
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

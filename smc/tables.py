"""Tables of completion probabilities, kept for the next call with the same constraints.

A table depends on the HMM, on the automata and on their budgets, not on particles or on how they
are resampled; so an experiment that goes through methods and numbers of particles on the same
examples needs each table once. Kept are the tables used last, within a bound in bytes. A table
serves every batch whose automata and budgets are among its own. Automata are held weakly: when one
is gone, nobody can ask for its table again, and the table goes too.
"""

from __future__ import annotations

import weakref
from collections import OrderedDict
from collections.abc import Sequence
from typing import NamedTuple

import torch
from jaxtyping import Int64
from torch import Tensor

from gcd.tokens.batch import AutomatonBatch
from gcd.tokens.token_automaton import TokenAutomaton
from hmm.model import HMM
from hmm.product import LookaheadTable, check_table, lookahead_table
from hmm.recursion import Completion


class _Kept(NamedTuple):
    """A table without its batch, which holds the automata.

    Attributes:
        automata: those of the batch that it was made for.
        budgets: of each.
        offset: where the states of each begin in `place`, and their number.
        table_parts: the other fields of `LookaheadTable`.
    """

    automata: tuple[weakref.ref[TokenAutomaton], ...]
    budgets: tuple[int, ...]
    offset: tuple[int, ...]
    place: Int64[Tensor, "states"]
    first_class: Int64[Tensor, "automata"]
    hmm: HMM
    table_parts: tuple[Tensor, Tensor, Completion, Completion | None]
    num_bytes: int

    def serve(
        self, hmm: HMM, batch: AutomatonBatch, budgets: Sequence[int]
    ) -> LookaheadTable | None:
        """The table for this batch, if all of it is here."""
        which = self.places(hmm, batch.automata, budgets)
        if which is None or self.place.device != batch.device:
            return None
        class_emission, class_size, completion, ever = self.table_parts
        return LookaheadTable(
            hmm=hmm,
            batch=batch,
            place=torch.cat([self.place[self.offset[i] : self.offset[i + 1]] for i in which]),
            class_emission=class_emission,
            first_class=self.first_class[which],
            class_size=class_size,
            completion=completion,
            ever=ever,
        )

    def places(
        self, hmm: HMM, automata: Sequence[TokenAutomaton], budgets: Sequence[int]
    ) -> list[int] | None:
        """Where these are among those that it was made for; None if some are not."""
        if self.hmm is not hmm:
            return None
        known = {
            (id(automaton()), budget): number
            for number, (automaton, budget) in enumerate(
                zip(self.automata, self.budgets, strict=True)
            )
        }
        wanted = [
            known.get((id(automaton), budget))
            for automaton, budget in zip(automata, budgets, strict=True)
        ]
        which = [number for number in wanted if number is not None]
        return which if len(which) == len(wanted) else None


class TableCache:
    """The tables used last.

    Args:
        max_bytes: most memory of one table, and of all that are kept.
        eventual: whether tables also say how probable completion is without a budget.
    """

    def __init__(self, max_bytes: int, *, eventual: bool = False) -> None:
        self.max_bytes = max_bytes
        self.eventual = eventual
        self._kept: OrderedDict[int, _Kept] = OrderedDict()
        self._made = 0

    @property
    def num_bytes(self) -> int:
        """Memory of the tables that are kept."""
        return sum(kept.num_bytes for kept in self._kept.values())

    def table(self, hmm: HMM, batch: AutomatonBatch, budgets: Sequence[int]) -> LookaheadTable:
        """The table for texts of these automata, from their beginning, of at most these lengths.

        Raises:
            ConstraintError: as `lookahead_table` does.
        """
        for key in reversed(self._kept):
            found = self._kept[key].serve(hmm, batch, budgets)
            if found is not None:
                self._kept.move_to_end(key)
                return found
        table = lookahead_table(
            hmm,
            batch,
            max(1, max(budgets) - 1),
            budgets=[(budget,) for budget in budgets],
            eventual=self.eventual,
            max_bytes=self.max_bytes,
        )
        self._keep(table, budgets)
        return table

    def check(self, hmm: HMM, automata: Sequence[TokenAutomaton], budgets: Sequence[int]) -> None:
        """Refuse what `table` would, without making it.

        Raises:
            ConstraintError: as there.
        """
        if any(kept.places(hmm, automata, budgets) is not None for kept in self._kept.values()):
            return
        check_table(hmm, automata, budgets, eventual=self.eventual, max_bytes=self.max_bytes)

    def clear(self) -> None:
        """Give the memory back."""
        self._kept.clear()

    def _keep(self, table: LookaheadTable, budgets: Sequence[int]) -> None:
        while self._kept and self.num_bytes + table.num_bytes > self.max_bytes:
            self._kept.popitem(last=False)
        kept, key = self._kept, self._made
        self._made += 1

        def forget(_: object) -> None:
            kept.pop(key, None)

        kept[key] = _Kept(
            automata=tuple(weakref.ref(automaton, forget) for automaton in table.batch.automata),
            budgets=tuple(budgets),
            offset=table.batch.offset,
            place=table.place,
            first_class=table.first_class,
            hmm=table.hmm,
            table_parts=(table.class_emission, table.class_size, table.completion, table.ever),
            num_bytes=table.num_bytes,
        )

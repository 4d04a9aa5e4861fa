"""Cache of completion-probability tables for later calls with the same constraints.

A table depends on the HMM, the automata and their budgets, but not on particles or resampling.
An experiment that runs several methods on the same examples therefore needs each table once. The
cache holds the most recently used tables within a bound in bytes. A table serves every batch whose
automata and budgets are a subset of the table's. Automata are held by weak references: when an
automaton is freed, its table is dropped. Threads may share a cache: one thread computes a table
while the others wait for it.

(`cachetools.LRUCache` would count the bytes, which takes four lines here, but doesn't support the
search. A table is found by the batches that it serves, not by a key, and each lookup in an
`LRUCache` marks the entry as recently used.)
"""

from __future__ import annotations

import weakref
from collections import OrderedDict
from collections.abc import Sequence
from contextlib import suppress
from functools import partial
from threading import Lock
from typing import NamedTuple

import torch
from jaxtyping import Int64
from torch import Tensor

from gcd import AutomatonBatch, TokenAutomaton
from hmm import HMM, LookaheadTable, lookahead_table
from hmm._product import check_table
from hmm._recursion import Completion


class _Kept(NamedTuple):
    """A cached table without its batch, which would keep the automata alive.

    Attributes:
        automata: the automata of the table's batch.
        budgets: the budget of each automaton.
        offset: start of each automaton's states in `number`, and the total at the end.
        table_parts: the other fields of `LookaheadTable`.
    """

    automata: tuple[weakref.ref[TokenAutomaton], ...]
    budgets: tuple[int, ...]
    offset: tuple[int, ...]
    number: Int64[Tensor, "states"]
    first_class: Int64[Tensor, "automata"]
    hmm: HMM
    table_parts: tuple[Tensor, Completion, Completion | None]
    num_bytes: int

    def serve(
        self, hmm: HMM, batch: AutomatonBatch, budgets: Sequence[int]
    ) -> LookaheadTable | None:
        """Return the table for this batch if it has all automata and budgets, else None."""
        numbers = self.find(hmm, batch.automata, budgets)
        if numbers is None or self.number.device != batch.device:
            return None
        class_emission, completion, unbounded = self.table_parts
        return LookaheadTable(
            hmm=hmm,
            batch=batch,
            number=torch.cat([self.number[self.offset[i] : self.offset[i + 1]] for i in numbers]),
            class_emission=class_emission,
            first_class=self.first_class[numbers],
            completion=completion,
            beta_unbounded=unbounded,
        )

    def find(
        self, hmm: HMM, automata: Sequence[TokenAutomaton], budgets: Sequence[int]
    ) -> list[int] | None:
        """Return the indices of these automata and budgets in the table; None if any is missing."""
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
        found = [number for number in wanted if number is not None]
        return found if len(found) == len(wanted) else None


class TableCache:
    """A cache of the most recently used tables, bounded in bytes.

    Args:
        max_bytes: memory limit for a single table, and for all cached tables together.
        eventual: whether tables include the probability of completion without a budget.
    """

    def __init__(self, max_bytes: int, *, eventual: bool = False) -> None:
        self.max_bytes = max_bytes
        self.eventual = eventual
        self._kept: OrderedDict[int, _Kept] = OrderedDict()
        self._made = 0
        self._lock = Lock()

    def __reduce__(self) -> tuple[partial[TableCache], tuple[()]]:
        """Pickle or copy the cache as an empty one."""
        return partial(TableCache, self.max_bytes, eventual=self.eventual), ()

    @property
    def num_bytes(self) -> int:
        """Memory of the cached tables in bytes."""
        # Copied to a list at once, because tables can be dropped with their automata at any time.
        return sum(kept.num_bytes for kept in list(self._kept.values()))

    def table(self, hmm: HMM, batch: AutomatonBatch, budgets: Sequence[int]) -> LookaheadTable:
        """Return the table for texts of these automata within these budgets.

        Raises:
            ConstraintError: `lookahead_table` raises it.
        """
        with self._lock:
            for key, kept in reversed(list(self._kept.items())):
                found = kept.serve(hmm, batch, budgets)
                if found is not None:
                    with suppress(KeyError):  # dropped meanwhile together with an automaton
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
        """Raise the errors that `table` would raise, without computing the table.

        Raises:
            ConstraintError: `table` would raise it.
        """
        kept = list(self._kept.values())
        if any(each.find(hmm, automata, budgets) is not None for each in kept):
            return
        check_table(hmm, automata, budgets, eventual=self.eventual, max_bytes=self.max_bytes)

    def clear(self) -> None:
        """Drop all tables."""
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
            number=table.number,
            first_class=table.first_class,
            hmm=table.hmm,
            table_parts=(table.class_emission, table.completion, table.beta_unbounded),
            num_bytes=table.num_bytes,
        )

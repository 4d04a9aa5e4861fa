"""Cache of tables of completion probabilities, for later calls with the same constraints.

A table (`hmm.LookaheadTable`) depends on the HMM, the automata and their budgets, but not on
particles or resampling. An experiment that runs several methods on the same examples therefore
needs each table once. The cache contains the most recently used tables, up to a limit in bytes. A
table can be used for every batch whose automata and budgets are a subset of the table's. The cache
has weak references to automata: when an automaton is freed, its tables are dropped. Threads may
share a cache. While one thread computes a table, other threads wait for it.

(`cachetools.LRUCache` would save the four lines that count bytes, but it finds a table by a key.
Here a table is found by checking for each one whether it can be used for a batch. An `LRUCache`
would mark every checked table as recently used.)
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
    """A cached table without its batch, which would prevent the automata from being freed.

    Attributes:
        automata: the automata of the table's batch.
        budgets: the budget of each automaton.
        offset: index in `number` at which each automaton's states start, followed by the total.
        number, first_class, hmm: as in `LookaheadTable`.
        table_parts: `class_emission`, `completion` and `beta_unbounded` of the `LookaheadTable`.
        num_bytes: bytes of the table.
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
        """Return the table for a batch; None if an automaton or a budget is missing in it."""
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
        """Return the indices of the automata and budgets in the table; None if any is missing."""
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
    """A cache of the most recently used tables, with a limit in bytes.

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
        """Total bytes of the cached tables."""
        # The list is a copy, because a table may be dropped at any time, with its automaton.
        return sum(kept.num_bytes for kept in list(self._kept.values()))

    def table(self, hmm: HMM, batch: AutomatonBatch, budgets: Sequence[int]) -> LookaheadTable:
        """Return the table for the automata of a batch within the given budgets."""
        with self._lock:
            for key, kept in reversed(list(self._kept.items())):
                found = kept.serve(hmm, batch, budgets)
                if found is not None:
                    with suppress(KeyError):  # the table was dropped meanwhile, with its automaton
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
        """Raise the errors that `table` would raise, without computing the table."""
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

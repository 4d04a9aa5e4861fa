"""P-GCD: probabilistic globally constrained decoding with the lookahead of a hidden Markov model.

The HMM is distilled from the language model (arXiv 2606.01926). The product of the HMM and the
automaton gives a table of completion probabilities for each automaton state and remaining budget
(`hmm._product`). The table is computed once per constraint and cached for later calls
(`TableCache`). Together with the distribution of the HMM's hidden state after a
prefix, it gives the probability of completion after each next token or class of tokens
(`hmm._lookahead`). `smc._proposals.twisted` turns these probabilities into a proposal.

Cost of a step: O(H) for each class and each of the top-k tokens of each prefix (`hmm._lookahead`),
and one product with the transition matrix for the filter.

**Cache of tables.** A table (`hmm.LookaheadTable`) depends on the HMM, the automata and their
budgets, but not on particles or resampling. An experiment that runs several methods on the same
examples therefore needs each table once. The cache contains the most recently used tables, up to a
limit in bytes. A table can be used for every batch whose automata and budgets are a subset of the
table's, so it isn't found by a key. The cache has weak references to automata: when an automaton is
freed, its tables are dropped. Threads may share a cache. While one thread computes a table, other
threads wait for it.
"""

from __future__ import annotations

import weakref
from collections import OrderedDict
from collections.abc import Callable, Sequence
from contextlib import suppress
from copy import copy
from functools import partial
from threading import Lock
from typing import NamedTuple

import torch
from jaxtyping import Float, Int, Int64
from torch import Tensor

from gcd import AutomatonBatch, TokenAutomaton
from hmm import (
    HMM,
    Expected,
    LookaheadTable,
    expect_all_tokens,
    expect_classes,
    expect_tokens,
    filter_step,
    lookahead_table,
    predict_first,
)
from hmm._product import MAX_BYTES, bytes_of_table, check_table
from hmm._recursion import Completion
from smc._proposals import AutomatonPosition, Batch
from smc._proposals.twisted import Expectation, Lookahead, Twisted, belief_of, needs_eventual


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


class HMMState(NamedTuple):
    """The HMM's state for R prefixes.

    Attributes:
        table: completion probabilities for the automata of the batch.
        predicted: P(hidden state that emits the next token | prefix); zeros if the prefix is
            impossible under the HMM.
    """

    table: LookaheadTable
    predicted: Float[Tensor, "R H"]


class HMMLookahead(Lookahead[HMMState]):
    """A lookahead based on a hidden Markov model; see `smc.Lookahead`.

    Args:
        hmm: HMM over the language model's vocabulary, on the language model's device.
        eventual: whether to compute also the probability of completion without a budget.
        max_bytes: memory limit in bytes for one table of completion probabilities, and for all
            cached tables together.

    Raises:
        ValueError: `hmm` is not an HMM, its parameters are not distributions, or `max_bytes` is
            less than 1.
    """

    def __init__(self, hmm: HMM, *, eventual: bool = False, max_bytes: int = MAX_BYTES) -> None:
        if not isinstance(hmm, HMM):
            raise ValueError(
                f"expected hmm to be an hmm.HMM, got {type(hmm).__name__}; pass the attribute .hmm "
                "of the result of hmm.load or hmm.em_step"
            )
        if max_bytes < 1:
            raise ValueError(f"expected max_bytes to be at least 1, got {max_bytes!r}")
        hmm.check()
        self.hmm = hmm
        self.eventual = eventual
        self.max_bytes = max_bytes
        self._wait = True
        self._tables = TableCache(max_bytes, eventual=eventual)

    def check(self, automata: Sequence[TokenAutomaton], budgets: Sequence[int]) -> None:
        """Raise the errors that `start` would raise, before any computation.

        Raises:
            ConstraintError: the HMM and the constraints have different vocabularies, or the table
                would exceed the memory limit.
        """
        self._tables.check(self.hmm, automata, budgets)

    def memory(self, automaton: TokenAutomaton, budget: int) -> int:
        """Return the size in bytes of one constraint's table.

        The table of a batch has at most the sum of the sizes of its constraints.
        """
        return bytes_of_table(self.hmm, automaton, budget, eventual=self.eventual)

    def free(self) -> None:
        """Release the cached tables."""
        self._tables.clear()

    def without_host_sync(self) -> HMMLookahead:
        """Return this lookahead without host synchronizations; both share the cached tables."""
        other = copy(self)
        other._wait = False
        return other

    def start(self, batch: Batch) -> HMMState:
        """Return the state of empty prefixes, one per example.

        The table of completion probabilities is computed, unless it is cached.

        Raises:
            ConstraintError: the HMM and the constraints differ in vocabulary or device, or the
                table would exceed the memory limit.
        """
        table = self._tables.table(self.hmm, batch.automata, batch.budgets.tolist())
        return HMMState(table, predict_first(self.hmm, len(batch.budgets)))

    def advance(self, state: HMMState, tokens: Int[Tensor, "R T"]) -> HMMState:
        """Return the state after one or more tokens per prefix; -1 means no token."""
        predicted = state.predicted
        for token in tokens.long().unbind(dim=1):
            filtered = filter_step(self.hmm, predicted, token.clamp(min=0)).filtered
            after = self.hmm.transition.forward(filtered)
            predicted = torch.where((token >= 0).unsqueeze(1), after, predicted)
        return state._replace(predicted=predicted)

    def take(self, state: HMMState, ancestors: Int64[Tensor, "Q"]) -> HMMState:
        """Return the state of the prefixes with these indices, which may repeat."""
        return state._replace(predicted=state.predicted[ancestors])

    def classes(self, state: HMMState, position: AutomatonPosition) -> Expectation:
        """Return the HMM's log-probabilities of all token classes of each prefix's automaton."""
        return self._expect(partial(expect_classes, wait=self._wait), state, position)

    def tokens(
        self, state: HMMState, position: AutomatonPosition, tokens: Int64[Tensor, "R K"]
    ) -> Expectation:
        """Return the HMM's log-probabilities of the given tokens."""
        return self._expect(partial(expect_tokens, wait=self._wait), state, position, tokens)

    def all_tokens(self, state: HMMState, position: AutomatonPosition) -> Expectation:
        """Return the HMM's log-probabilities of all tokens in the vocabulary."""
        return self._expect(partial(expect_all_tokens, wait=self._wait), state, position)

    def _expect(
        self,
        expect: Callable[..., Expected],
        state: HMMState,
        position: AutomatonPosition,
        *tokens: Tensor,
    ) -> Expectation:
        given = (state.predicted, position.states, position.remaining, *tokens)
        found = expect(state.table, *given)
        if not self.eventual:
            return Expectation(found.log_joint, found.log_mass)
        eventual = expect(state.table.without_budget, *given).log_joint
        return Expectation(found.log_joint, found.log_mass, eventual)

    def __repr__(self) -> str:
        return f"HMMLookahead({self.hmm.num_states} hidden states)"


class PGCD(Twisted[HMMState]):
    """Probabilistic globally constrained decoding, with an HMM over the same vocabulary.

    Args:
        hmm: HMM distilled from the language model's answers, without prompts.
        lookahead: how g depends on the HMM (`smc._proposals.twisted`). "conditional" or 1 is for
            language models that the HMM approximates well, and "in_time" or 0 for prompts that
            state the content of the answer. Numbers between 0 and 1 are between these two. "joint"
            is for comparison.
        exact_top_k, defense: as for `smc.Twisted`.
        max_bytes: as for `smc.HMMLookahead`.

    Raises:
        ValueError: an argument is invalid, or the HMM's parameters are not distributions.
    """

    def __init__(
        self,
        hmm: HMM,
        *,
        lookahead: str | float | int = "conditional",
        exact_top_k: int | None = 64,
        defense: float | int = 0.01,
        max_bytes: int = MAX_BYTES,
    ) -> None:
        belief_of("lookahead", lookahead)
        super().__init__(
            HMMLookahead(hmm, eventual=needs_eventual(lookahead), max_bytes=max_bytes),
            twist=lookahead,
            exact_top_k=exact_top_k,
            defense=defense,
        )
        self.hmm = hmm

    def __repr__(self) -> str:
        return (
            f"PGCD({self.hmm.num_states} hidden states, lookahead={self.twist!r}, "
            f"{self._options()})"
        )

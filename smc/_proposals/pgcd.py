"""P-GCD: probabilistic globally constrained decoding with the lookahead of a hidden Markov model.

The HMM is distilled from the language model (arXiv 2606.01926). The product of the HMM and the
automaton gives a table of completion probabilities for each automaton state and remaining budget
(`hmm._product`). The table is computed once per constraint and cached for later calls
(`smc._proposals.table_cache`). Together with the distribution of the HMM's hidden state after a
prefix, it gives the probability of completion after each next token or class of tokens
(`hmm._lookahead`). `smc._proposals.twisted` turns these probabilities into a proposal.

Cost of a step: O(H) for each class and each of the top-k tokens of each prefix (`hmm._lookahead`),
and one product with the transition matrix for the filter.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from copy import copy
from functools import partial
from typing import NamedTuple

import torch
from jaxtyping import Float, Int, Int64
from torch import Tensor

from gcd import TokenAutomaton
from hmm import (
    HMM,
    Expected,
    LookaheadTable,
    expect_all_tokens,
    expect_classes,
    expect_tokens,
    filter_step,
    predict_first,
)
from hmm._product import MAX_BYTES, bytes_of_table
from smc._proposals import AutomatonPosition, Batch
from smc._proposals.lookahead import Expectation, Lookahead
from smc._proposals.table_cache import TableCache
from smc._proposals.twisted import Twisted, belief_of, needs_eventual


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

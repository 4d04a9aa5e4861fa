"""P-GCD, probabilistic globally constrained decoding, looks ahead with a hidden Markov model.

The HMM is distilled from the language model (arXiv 2606.01926). Its product with the automaton is a
table of completion probabilities, by state and remaining budget (`hmm.product`), made once for a
constraint and kept for the next call with it (`smc.proposals.tables`). With the distribution of the
next hidden state, given a prefix, the table says how probably the prefix is completed after each
token or class of tokens (`hmm.lookahead`). `smc.proposals.twisted` says what is made of that.

Cost of a step: that of `hmm.lookahead`, O(H) for each class and each favourite of each prefix, and
one product with the transition matrix for the filter.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from copy import copy
from functools import partial
from typing import NamedTuple

import torch
from jaxtyping import Float, Int, Int64
from torch import Tensor

from gcd.tokens.token_automaton import TokenAutomaton
from hmm.inference import filter_step, predict_first
from hmm.lookahead import Expected, expect_all_tokens, expect_classes, expect_tokens
from hmm.model import HMM
from hmm.product import MAX_BYTES, LookaheadTable, bytes_of_table
from smc.proposals import AutomatonPosition, Batch
from smc.proposals.lookahead import Expectation, Lookahead
from smc.proposals.tables import TableCache
from smc.proposals.twisted import Twisted, belief_of, needs_eventual


class HMMState(NamedTuple):
    """What an HMM knows about R prefixes.

    Attributes:
        table: completion probabilities of the automata of the batch.
        predicted: P(hidden state of the next token | prefix); zeros if the HMM holds the prefix
            to be impossible.
    """

    table: LookaheadTable
    predicted: Float[Tensor, "R H"]


class HMMLookahead(Lookahead[HMMState]):
    """A hidden Markov model that looks ahead; see `smc.Lookahead`.

    Args:
        hmm: over the vocabulary of the language model, on its device.
        eventual: whether to compute the probability of completion without a budget as well.
        max_bytes: most memory that a table of completion probabilities may take, and that the
            tables kept for the next call may take together.

    Raises:
        ValueError: `hmm` is no HMM, its parameters are not distributions, or there is no room.
    """

    def __init__(self, hmm: HMM, *, eventual: bool = False, max_bytes: int = MAX_BYTES) -> None:
        if not isinstance(hmm, HMM):
            raise ValueError(
                f"hmm is {type(hmm).__name__}, not an HMM; give step.hmm of what em_step returned, "
                "hmm.load(directory).hmm of a checkpoint"
            )
        if max_bytes < 1:
            raise ValueError(f"max_bytes is a number of bytes, at least 1, not {max_bytes!r}")
        hmm.check()
        self.hmm = hmm
        self.eventual = eventual
        self.max_bytes = max_bytes
        self._wait = True
        self._tables = TableCache(max_bytes, eventual=eventual)

    def check(self, automata: Sequence[TokenAutomaton], budgets: Sequence[int]) -> None:
        """Refuse what `start` would refuse, before anything is computed.

        Raises:
            ConstraintError: the HMM has another vocabulary than the constraints, or the table would
                take more memory than is allowed.
        """
        self._tables.check(self.hmm, automata, budgets)

    def memory(self, automaton: TokenAutomaton, budget: int) -> int:
        """Return the bytes of the table of one constraint; several take at most the sum."""
        return bytes_of_table(self.hmm, automaton, budget, eventual=self.eventual)

    def free(self) -> None:
        """Give back the tables that are kept for the next call with the same constraints."""
        self._tables.clear()

    def without_host_sync(self) -> HMMLookahead:
        """Return this lookahead, with the same tables, as one that never waits for the device."""
        other = copy(self)
        other._wait = False
        return other

    def start(self, batch: Batch) -> HMMState:
        """Return one empty prefix per example; compute the table, unless it is kept.

        Raises:
            ConstraintError: the HMM has another vocabulary or another device than the constraints,
                or the table would take more memory than is allowed.
        """
        table = self._tables.table(self.hmm, batch.automata, batch.budgets.tolist())
        return HMMState(table, predict_first(self.hmm, len(batch.budgets)))

    def advance(self, state: HMMState, tokens: Int[Tensor, "R T"]) -> HMMState:
        """Condition on these tokens; -1 stands for no token."""
        predicted = state.predicted
        for token in tokens.long().unbind(dim=1):
            filtered = filter_step(self.hmm, predicted, token.clamp(min=0)).filtered
            after = self.hmm.transition.forward(filtered)
            predicted = torch.where((token >= 0).unsqueeze(1), after, predicted)
        return state._replace(predicted=predicted)

    def take(self, state: HMMState, ancestors: Int64[Tensor, "Q"]) -> HMMState:
        """Return the state of these rows."""
        return state._replace(predicted=state.predicted[ancestors])

    def classes(self, state: HMMState, walk: AutomatonPosition) -> Expectation:
        """Return what the HMM expects of every class of each prefix's automaton."""
        return self._expect(partial(expect_classes, wait=self._wait), state, walk)

    def tokens(
        self, state: HMMState, walk: AutomatonPosition, tokens: Int64[Tensor, "R K"]
    ) -> Expectation:
        """Return what the HMM expects of these tokens."""
        return self._expect(partial(expect_tokens, wait=self._wait), state, walk, tokens)

    def all_tokens(self, state: HMMState, walk: AutomatonPosition) -> Expectation:
        """Return what the HMM expects of every token."""
        return self._expect(partial(expect_all_tokens, wait=self._wait), state, walk)

    def _expect(
        self,
        expect: Callable[..., Expected],
        state: HMMState,
        walk: AutomatonPosition,
        *tokens: Tensor,
    ) -> Expectation:
        place = (state.predicted, walk.states, walk.remaining, *tokens)
        found = expect(state.table, *place)
        if not self.eventual:
            return Expectation(found.log_joint, found.log_mass)
        eventual = expect(state.table.without_budget, *place).log_joint
        return Expectation(found.log_joint, found.log_mass, eventual)

    def __repr__(self) -> str:
        return f"HMMLookahead({self.hmm.num_states} hidden states)"


class PGCD(Twisted[HMMState]):
    """Probabilistic globally constrained decoding, with an HMM over the model's vocabulary.

    Args:
        hmm: distilled from the language model; it has seen answers only, never prompts.
        lookahead: "conditional" or 1, the twist of a model that the HMM resembles; "in_time" or 0,
            for models that read prompts; a number between these; or, for comparison, "joint". See
            `smc.proposals.twisted`.
        exact_top_k, defence, potential: as for `Twisted`.
        max_bytes: as for `HMMLookahead`.

    Raises:
        ValueError: an argument makes no sense, or the HMM's parameters are not distributions.
    """

    def __init__(
        self,
        hmm: HMM,
        *,
        lookahead: str | float | int = "conditional",
        exact_top_k: int | None = 64,
        defence: float | int = 0.01,
        potential: bool = True,
        max_bytes: int = MAX_BYTES,
    ) -> None:
        belief_of("lookahead", lookahead)
        super().__init__(
            HMMLookahead(hmm, eventual=needs_eventual(lookahead), max_bytes=max_bytes),
            twist=lookahead,
            exact_top_k=exact_top_k,
            defence=defence,
            potential=potential,
        )
        self.hmm = hmm

    def __repr__(self) -> str:
        return (
            f"PGCD({self.hmm.num_states} hidden states, lookahead={self.twist!r}, "
            f"{self._options()})"
        )

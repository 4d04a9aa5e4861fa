"""Distinct prefixes are read once each: language model and proposal go on with them together.

Whatever the algorithm, a step extends some of R distinct prefixes by a token each. What depends on
tokens alone, namely the language model's log-probabilities, its cache and the proposal's state, is
kept by prefix (`Prefixes`), and `Reader` brings all of it one token further, in one forward pass.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Generic, NamedTuple

import torch
from jaxtyping import Bool, Float, Int64
from torch import Tensor

from smc.guide import DenseGuide, Guide
from smc.language_model import LanguageModel, Rows
from smc.proposals import Batch, Proposal, State
from smc.scores import Scores, scores_of


@dataclass(frozen=True, eq=False)
class Prefixes(Generic[State]):
    """R distinct prefixes that are not complete; row r is also the language model's row r.

    Attributes:
        example: index in the batch of the example each belongs to.
        log_p: log-probabilities of the next token, at the sampling temperature.
        state: the proposal's state.
    """

    example: Int64[Tensor, "R"]
    log_p: Float[Tensor, "R V"]
    state: State

    @property
    def num_rows(self) -> int:
        """R, the number of prefixes."""
        return self.example.shape[0]


class Fate(NamedTuple):
    """What became of M prefixes that were extended by a token.

    Attributes:
        finished: the answer is complete.
        runs: another token is due; these are the new prefixes, in this order.
    """

    finished: Bool[Tensor, "M"]
    runs: Bool[Tensor, "M"]

    @property
    def row(self) -> Int64[Tensor, "M"]:
        """The row of each among the new prefixes; -1 for those that do not go on."""
        return torch.where(self.runs, self.runs.cumsum(dim=0) - 1, -1)


class Reader(Generic[State]):
    """Language model and proposal, walking along the same prefixes.

    Args:
        lm: the language model.
        proposal: whose state is kept beside the model's.
        batch: automata and budgets of the B examples.
        temperature: that of p_lm.
        top_p: next tokens outside of the smallest set of this probability under q are left out.
    """

    def __init__(
        self,
        lm: LanguageModel,
        proposal: Proposal[State],
        batch: Batch,
        *,
        temperature: float,
        top_p: float,
    ) -> None:
        self.lm = lm
        self.proposal = proposal
        self.batch = batch
        self.temperature = temperature
        self.top_p = top_p
        self._memory: Rows | None = None

    def start(self, prompts: Sequence[Sequence[int]]) -> tuple[Fate, Prefixes[State]]:
        """Reads each prompt (token ids) once.

        Raises:
            FloatingPointError: the language model's log-probabilities are not numbers.
        """
        state = self.proposal.start(self.batch)  # it may refuse, so the model comes after it
        self._memory, log_p = self.lm.prefill(prompts)
        # An automaton that ends by itself may accept the empty answer: nothing is left to draw.
        fate = Fate(state.walk.finished, state.walk.running)
        kept = fate.runs.nonzero().squeeze(1)
        self._memory.reorder(kept)
        return fate, Prefixes(kept, self._tempered(log_p[kept]), self.proposal.take(state, kept))

    def extend(
        self, prefixes: Prefixes[State], parent: Int64[Tensor, "M"], token: Int64[Tensor, "M"]
    ) -> tuple[Fate, Prefixes[State]]:
        """Extends prefix `parent[m]` by `token[m]`, for each of M distinct new prefixes."""
        assert self._memory is not None, "prompts are read before anything follows them"
        state = self.proposal.take(prefixes.state, parent)
        state = self.proposal.advance(state, token.unsqueeze(1))
        fate = Fate(state.walk.finished, state.walk.running)
        kept = fate.runs.nonzero().squeeze(1)
        parent, token = parent[kept], token[kept]
        log_p = prefixes.log_p[:0]
        if len(kept):
            self._memory.reorder(parent)
            one = torch.ones_like(token)
            log_p = self._tempered(self._memory.extend(token.unsqueeze(1), one)[:, 0])
        return fate, Prefixes(prefixes.example[parent], log_p, self.proposal.take(state, kept))

    def guide(self, prefixes: Prefixes[State]) -> Guide:
        """Asks the proposal about every next token, and cuts its answer to the nucleus."""
        guide = self.proposal.guide(prefixes.state, prefixes.log_p)
        if self.top_p < 1:
            inside = nucleus(guide.tilted(prefixes.log_p), self.top_p)
            log_g = torch.where(inside, guide.log_g, -torch.inf)
            log_z = torch.logsumexp(prefixes.log_p + log_g, dim=1)
            guide = DenseGuide(log_g, log_z, guide.fallback)
        return guide

    def score(self, prefixes: Prefixes[State]) -> Scores:
        """Asks the proposal how it scores every next token, or every one in the nucleus."""
        if self.top_p < 1:
            return scores_of(self.guide(prefixes), prefixes.state.walk.outlook())
        return self.proposal.score(prefixes.state, prefixes.log_p)

    def _tempered(self, log_p: Float[Tensor, "R V"]) -> Float[Tensor, "R V"]:
        """p_lm at the sampling temperature, in the model's precision, float32 at least."""
        log_p = log_p.to(torch.promote_types(log_p.dtype, torch.float32))
        if self.temperature != 1:
            log_p = (log_p / self.temperature).log_softmax(dim=1)
        # A sum has NaN in it where any of its terms is one, and is one pass without a copy.
        if bool(log_p.sum(dim=1).isnan().any()):
            raise FloatingPointError(
                "the language model returned log-probabilities that are not numbers (NaN); "
                "its weights or its dtype are at fault: try float32 or bfloat16"
            )
        return log_p


def nucleus(log_q: Float[Tensor, "R V"], top_p: float) -> Bool[Tensor, "R V"]:
    """Finds the most probable tokens that together have at least probability top_p."""
    ordered, order = log_q.log_softmax(dim=1).sort(dim=1, descending=True, stable=True)
    before = ordered.exp().cumsum(dim=1) - ordered.exp()
    return torch.zeros_like(log_q, dtype=torch.bool).scatter(1, order, before < top_p)

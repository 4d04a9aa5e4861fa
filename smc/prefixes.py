"""Distinct prefixes are read once each: language model and proposal go on with them together.

Whatever the algorithm, a step extends some of R distinct prefixes by a token each, and by the run
of tokens that are forced behind it (`smc.forced`). What depends on tokens alone, namely the
language model's log-probabilities, its cache and the proposal's state, is kept by prefix
(`Prefixes`), and `Reader` brings all of it one step further, in one forward pass. It does not make
that pass by itself but yields what is to be read (`smc.reading`), so that several groups of
examples can share it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Generic, NamedTuple

import torch
from jaxtyping import Bool, Float, Float64, Int64
from torch import Tensor

from smc.forced import follow
from smc.guide import DenseGuide, Guide
from smc.language_model import LanguageModel, Rows
from smc.proposals import Batch, Proposal, State
from smc.reading import Reading, Steps
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
    """What became of M prefixes that were extended by a token, and by those forced behind it.

    Attributes:
        finished: the answer is complete.
        runs: another token is due; these are the new prefixes, in this order.
        tokens: what each was extended by; -1 beyond the length.
        forced: how many of these tokens were forced.
        log_p: log-probability of the forced ones, at the sampling temperature.
        log_g: log g of the last forced one; 0 where there is none.
        read: how many tokens the language model read for it.
    """

    finished: Bool[Tensor, "M"]
    runs: Bool[Tensor, "M"]
    tokens: Int64[Tensor, "M K"]
    forced: Int64[Tensor, "M"]
    log_p: Float64[Tensor, "M"]
    log_g: Float64[Tensor, "M"]
    read: Int64[Tensor, "M"]

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
        forced_runs: whether tokens that are forced are taken together, in one step.
    """

    def __init__(
        self,
        lm: LanguageModel,
        proposal: Proposal[State],
        batch: Batch,
        *,
        temperature: float,
        top_p: float,
        forced_runs: bool = True,
    ) -> None:
        self.lm = lm
        self.proposal = proposal
        self.batch = batch
        self.temperature = temperature
        self.top_p = top_p
        self.forced_runs = forced_runs
        self._rows: Rows | None = None  # of the prompts, until they are handed over
        self._held = torch.zeros(0, dtype=torch.int64)  # the model's row of each prefix

    def start(
        self, prompts: Sequence[Sequence[int]], most_rows: int
    ) -> Steps[tuple[Fate, Prefixes[State]]]:
        """Reads each prompt (token ids) once; `most_rows` is as for `Reading`.

        Raises:
            FloatingPointError: the language model's log-probabilities are not numbers.
        """
        state = self.proposal.start(self.batch)  # it may refuse, so the model comes after it
        self._rows, log_p = self.lm.prefill(prompts)
        every = torch.arange(len(prompts), device=log_p.device)
        self._held = every
        log_p = _numbers(self._tempered(log_p))
        return (yield from self._follow(every, state, every, most_rows, first=log_p))

    def extend(
        self,
        prefixes: Prefixes[State],
        parent: Int64[Tensor, "M"],
        token: Int64[Tensor, "M"],
        most_rows: int,
    ) -> Steps[tuple[Fate, Prefixes[State]]]:
        """Extends prefix `parent[m]` by `token[m]`, for each of M distinct new prefixes."""
        state = self.proposal.take(prefixes.state, parent)
        state = self.proposal.advance(state, token.unsqueeze(1))
        example = prefixes.example[parent]
        return (yield from self._follow(example, state, parent, most_rows, token=token))

    def _follow(
        self,
        example: Int64[Tensor, "M"],
        state: State,
        parent: Int64[Tensor, "M"],
        most_rows: int,
        *,
        token: Int64[Tensor, "M"] | None = None,
        first: Float[Tensor, "M V"] | None = None,
    ) -> Steps[tuple[Fate, Prefixes[State]]]:
        """Goes through what is forced after each prefix, and reads what is not read yet.

        That begins with `token`, the last one of each prefix, after what was read of its parent; or
        all of the prefix is read, and `first` is what the model said of the next token.
        """
        followed = follow(self.proposal, state, follows=self.forced_runs)
        walk, tokens = followed.state.walk, followed.tokens
        if token is not None:
            tokens = torch.cat([token.unsqueeze(1), tokens], dim=1)
        # An automaton that ends by itself may accept the empty answer: nothing is left to draw.
        # What ends a text needs no reading, only what comes before it.
        runs = walk.running
        read = ((tokens >= 0).sum(dim=1) - (~runs).long()).clamp(min=0)
        due = (runs | (followed.length > 0)).nonzero().squeeze(1)
        said, after = yield from self._read(
            parent[due], tokens[due], read[due], None if first is None else first[due], most_rows
        )
        log_p = torch.zeros_like(followed.log_g).index_copy(0, due, said)
        possible = ~log_p.isneginf()
        fate = Fate(
            finished=walk.finished & possible,
            runs=runs & possible,
            tokens=tokens,
            forced=followed.length,
            log_p=log_p,
            log_g=followed.log_g,
            read=read,
        )
        kept = fate.runs[due].nonzero().squeeze(1)
        self._held = self._held[kept]
        return fate, Prefixes(
            example[due[kept]],
            _numbers(after[kept]),
            self.proposal.take(followed.state, due[kept]),
        )

    def _read(
        self,
        parent: Int64[Tensor, "D"],
        tokens: Int64[Tensor, "D K"],
        read: Int64[Tensor, "D"],
        first: Float[Tensor, "D V"] | None,
        most_rows: int,
    ) -> Steps[tuple[Float64[Tensor, "D"], Float[Tensor, "D V"]]]:
        """Has the language model read the first `read` tokens after each of these prefixes.

        Returns:
            The log-probability of all tokens but the first (of that, too, where `first` is what the
            model says of it), and what the model says of the token after those that are read.
        """
        total = torch.zeros(len(parent), dtype=torch.float64, device=parent.device)
        self._held = self._held[parent]
        after = total.new_zeros(len(parent), 0) if first is None else first
        if first is not None and tokens.shape[1]:
            total = _plus(total, first, tokens[:, 0])
        if not bool((read > 0).any()):
            return total, after
        ahead = torch.nn.functional.pad(tokens, (0, 1), value=-1)
        start, longest = 0, int(read.max())
        while start < longest:
            run = tokens[:, start:longest].clamp(min=0)
            lengths = (read - start).clamp(min=0, max=run.shape[1])
            rows, self._rows = self._rows, None
            said = yield Reading(rows, self._held, run, lengths, most_rows)
            self._held = torch.arange(len(parent), device=parent.device)
            for t in range(said.shape[1]):
                here = (lengths > t).nonzero().squeeze(1)
                whole = len(here) == len(parent)
                log_p = self._tempered(said[:, t] if whole else said[here, t])
                total[here] = _plus(total[here], log_p, ahead[here, start + t + 1])
                ends = read[here] == start + t + 1
                if whole and bool(ends.all()):
                    return total, log_p
                if not after.shape[1]:
                    after = torch.zeros_like(log_p[:1]).repeat(len(parent), 1)
                after[here[ends]] = log_p[ends]
            start += said.shape[1]
        return total, after

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
        return log_p


def _plus(
    total: Float64[Tensor, "M"], log_p: Float[Tensor, "M V"], token: Int64[Tensor, "M"]
) -> Float64[Tensor, "M"]:
    """Adds the log-probability of a token to each total; -1 stands for no token.

    Nothing comes after what is impossible, whatever the model says there.
    """
    more = log_p.gather(1, token.clamp(min=0).unsqueeze(1)).squeeze(1).double()
    more = more.masked_fill((token < 0) | total.isneginf(), 0.0)
    return total + _numbers(more.unsqueeze(1)).squeeze(1)


def _numbers(log_p: Float[Tensor, "R V"]) -> Float[Tensor, "R V"]:
    """Refuses NaN. A sum has one where any of its terms is, and is one pass without a copy."""
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

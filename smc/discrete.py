"""The discrete particle filter keeps N distinct prefixes, each with its exact weight.

Particles that draw tokens at random meet each other: a language model that is sure of itself sends
most of them down the same way. This filter never draws a token. From its N prefixes i, of weights
W_i, it looks at *all* their continuations,

    candidates (i, v) of weight w = W_i p_lm(v | i),      v allowed by the proposal,

puts those that end into a pool of answers, and keeps N of the others without replacement, by
optimal selection (`smc.selection`): a candidate of score s survives with probability
pi = min(1, s / c), and W becomes w / pi. The sum of the pool estimates the evidence, the pool
divided by it the posterior, by text:

    E[ sum of the weights of the answers x in the pool ] = p_lm(x),    x in C, |x| <= n

for any score that is positive wherever w is and depends on the past only (`smc.scores`); s = w is
plain selection. Where nothing was ever left out the pool *is* the target (`Posterior.enumerated`).

What a proposal does not know makes candidates compete that have no weight: under `LM` tokens that
break the constraint, under `LCD` prefixes that the budget cuts off. They take places, and drop out.

**Finished answers** (`count_finished`) enter the threshold with their weights, as if they held a
place each, or a part of one. They are never dropped, so the prefixes that run share what is left,
and may be none: what is late and improbable beside the answers that are there is not read any
more.

Source: Fearnhead and Clifford (J. R. Statist. Soc. B 65, 2003) for jump models; Whiteley, Andrieu
and Doucet (arXiv 1011.2437) for the unbiased evidence. Stochastic beam search (Kool, van Hoof and
Welling 2019) is a relative: a sample without replacement of whole sequences.

Cost of a step: one forward pass over at most N prefixes of each example, and O(R V) memory traffic
for the candidates of R prefixes. The host waits for the device where sizes depend on data: how many
answers end, where a choice is to be made, how many prefixes go on.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Generic, NamedTuple

import torch
from jaxtyping import Bool, Float64, Int64
from torch import Tensor

from smc.draw import Breaks, Draw, Keys, Purpose
from smc.observation import Observation, Population, Watch
from smc.outcome import Outcome, Read, StepRecord, count_of, start_record
from smc.particles import appended
from smc.pool import Pool, effective
from smc.prefixes import Fate, Prefixes, Reader
from smc.proposals import State
from smc.reading import Steps
from smc.scores import Competition, Scores, compete
from smc.selection import Fixed, Group, Selection, select


class Texts(NamedTuple):
    """What prefixes say so far, and their weights.

    Attributes:
        example: index in the batch of the example that each belongs to, rising.
        tokens: theirs; -1 beyond their length.
        log_weight: log of W.
    """

    example: Int64[Tensor, "M"]
    tokens: Int64[Tensor, "M T"]
    log_weight: Float64[Tensor, "M"]

    @property
    def length(self) -> Int64[Tensor, "M"]:
        """Tokens of each."""
        return (self.tokens >= 0).sum(dim=1)

    def take(self, rows: Int64[Tensor, "K"] | Bool[Tensor, "M"]) -> Texts:
        """Returns some of them."""
        return Texts(*(field[rows] for field in self))

    def after(self, fate: Fate, gain: Float64[Tensor, "M"] | float = 0.0) -> Texts:
        """Returns them with the tokens that each was extended by.

        `gain` is that of the tokens which were chosen; those forced behind them have their own.
        """
        every = torch.arange(len(self.example), device=self.example.device)
        return Texts(
            self.example,
            appended(self.tokens, self.length, every, fate.tokens),
            self.log_weight + gain + fate.log_p,
        )


class DiscreteFilter(Generic[State]):
    """A discrete particle filter for one batch of examples.

    Args:
        reader: language model and proposal, for the B examples of the batch.
        examples: identity of each example, which names its random numbers.
        num_particles: N, the most prefixes that are kept of each example.
        count_finished: whether answers in the pool take places.
        share: part of the places that is given out by automaton state; see `smc.scores`.
        floor: least c, as a part of the sum of all scores; see `smc.selection.select`.
        draw: the seam of randomness.
        watch: is shown every step; nothing is made for it where there is none.
    """

    def __init__(
        self,
        reader: Reader[State],
        *,
        examples: Int64[Tensor, "B"],
        num_particles: int,
        count_finished: bool,
        share: float,
        floor: float,
        draw: Draw,
        watch: Watch | None = None,
    ) -> None:
        self.reader = reader
        self.batch = reader.batch
        self.examples = examples
        self.num_particles = num_particles
        self.count_finished = count_finished
        self.share = share
        self.floor = floor
        self.draw = draw
        self.watch = watch
        self.records: list[StepRecord] = []

    def steps(self, prompts: Sequence[Sequence[int]]) -> Steps[Outcome]:
        """Finds answers to the prompts (token ids).

        Yields what the language model is to read (`smc.reading.alone` runs it).

        Raises:
            FloatingPointError: the language model's log-probabilities are not numbers.
        """
        B, budgets = len(prompts), self.batch.budgets
        pool = Pool(B, int(budgets.max()), budgets.device)
        fate, prefixes = yield from self.reader.start(prompts, most_rows=B * self.num_particles)
        every = torch.arange(B, device=budgets.device)
        tokens = pool.tokens.new_full((B, pool.tokens.shape[1]), -1)
        texts = Texts(every, tokens, pool.log_weight.new_zeros(B)).after(fate)
        self.records += start_record(Read.of(fate, every, B), 1)
        whole = torch.ones(B, dtype=torch.bool, device=budgets.device)
        step = 0
        while True:
            # What was forced to its end has nothing left to compete for.
            self._end(texts.take(fate.finished), pool, step)
            texts = texts.take(fate.runs)
            if not prefixes.num_rows:
                return self._outcome(pool, whole)
            scores = self.reader.score(prefixes)
            ends = self._end_by_choice(prefixes, scores, texts, pool, step)
            log_weight = texts.log_weight
            rivals = compete(scores, prefixes.log_p, log_weight, prefixes.example, B, self.share)
            kept = self._select(prefixes, rivals, pool, step)
            example = prefixes.example[kept.row]
            # One prefix that is left may become N again.
            most = self.num_particles * len(torch.unique(example))
            fate, after = yield from self.reader.extend(prefixes, kept.row, kept.token, most)
            read = Read.of(fate, example, B)
            self._note(prefixes, log_weight, scores, kept, read)
            gain = prefixes.log_p[kept.row, kept.token].double() - kept.log_pi
            before, texts = texts, texts.take(kept.row).after(fate, gain)
            if self.watch is not None:
                goes = _population(texts, kept.row, fate.runs, finished=False)
                forced = _population(texts, kept.row, fate.finished, finished=True)
                self.watch(_observation(prefixes, before, scores, goes, [*ends, forced]))
            prefixes = after
            whole &= ~kept.dropped
            step += 1

    def _end(self, texts: Texts, pool: Pool, step: int) -> None:
        """Puts complete texts into the pool."""
        if len(texts.example):
            pool.add(
                texts.example,
                texts.log_weight,
                lambda some: texts.tokens[some],
                self._pool_number(step, first=2),
            )

    def _end_by_choice(
        self, prefixes: Prefixes[State], scores: Scores, texts: Texts, pool: Pool, step: int
    ) -> list[Population]:
        """Puts the candidates that complete a text into the pool; returns them if watched."""
        outlook = scores.outlook
        row, klass = (scores.alive & outlook.ends).nonzero(as_tuple=True)
        number = outlook.which[row]
        start = outlook.classes.start[number, klass]
        size = outlook.classes.start[number, klass + 1] - start
        pair = torch.arange(len(row), device=row.device).repeat_interleave(size)
        within = torch.arange(len(pair), device=row.device) - (size.cumsum(dim=0) - size)[pair]
        token = outlook.classes.tokens[number[pair], start[pair] + within].long()
        row = row[pair]
        weight = texts.log_weight[row] + prefixes.log_p[row, token].double()
        some = ~weight.isneginf()
        row, token = row[some], token[some]

        def tokens_of(kept: Int64[Tensor, "K"]) -> Int64[Tensor, "K T"]:
            ended = texts.tokens[row[kept]]
            ended.scatter_(1, texts.length[row[kept]].unsqueeze(1), token[kept].unsqueeze(1))
            return ended

        ended = texts.example[row], weight[some]
        pool.add(*ended, tokens_of, self._pool_number(step, first=0))
        if self.watch is None:
            return []
        every = torch.arange(len(row), device=row.device)
        whole = Texts(ended[0], tokens_of(every), ended[1])
        return [_population(whole, row, every >= 0, finished=True)]

    def _select(
        self, prefixes: Prefixes[State], rivals: Competition, pool: Pool, step: int
    ) -> Selection:
        """Keeps at most N of each example's candidates that go on."""

        def uniform(due: Int64[Tensor, "b"], breaks: Breaks) -> Float64[Tensor, "b"]:
            keys = Keys(self.examples[due], torch.zeros_like(due), step, Purpose.SELECTION)
            return self.draw(keys, breaks)

        fixed = None
        if self.count_finished:
            top, rest = pool.greatest(self.num_particles)
            fixed = Fixed(top + rivals.log_unit.unsqueeze(1), rest + rivals.log_unit)
        return select(
            prefixes.log_p,
            rivals.factors,
            Group.of(prefixes.example, len(self.examples)),
            self.num_particles,
            uniform,
            floor=self.floor,
            fixed=fixed,
        )

    def _pool_number(self, step: int, first: int) -> Callable[[int, int, Breaks], float]:
        """Uniform numbers, from number `first` on, by which the pool is pruned in this step."""

        def uniform(number: int, b: int, breaks: Breaks) -> float:
            name = self.examples[b : b + 1]
            keys = Keys(name, torch.full_like(name, first + number), step, Purpose.POOL)
            return float(self.draw(keys, breaks))

        return uniform

    def _note(
        self,
        prefixes: Prefixes[State],
        log_weight: Float64[Tensor, "R"],
        scores: Scores,
        kept: Selection,
        read: Read,
    ) -> None:
        """Keeps the step's record, which stays on the device until the end."""
        B = len(self.examples)
        running = count_of(prefixes.example, B)
        fallbacks = torch.zeros_like(running)
        if scores.fallback is not None:
            fallbacks = fallbacks.index_add(0, prefixes.example, scores.fallback.long())
        self.records.append(
            StepRecord(
                ess=effective(log_weight, prefixes.example, B),
                resampled=kept.dropped,
                running=running,
                alive=running,
                fallbacks=fallbacks,
                read=read.tokens,
                forced=read.forced,
            )
        )

    def _outcome(self, pool: Pool, whole: Bool[Tensor, "B"]) -> Outcome:
        """The pool, example by example."""
        order = pool.order
        tokens = pool.tokens[order]
        return Outcome(
            example=pool.example[order],
            tokens=tokens,
            length=(tokens >= 0).sum(dim=1),
            log_weight=pool.log_weight[order],
            finished=torch.ones_like(order, dtype=torch.bool),
            log_evidence=pool.log_sum,
            ess=pool.ess,
            enumerated=whole & ~pool.pruned & (self.reader.top_p == 1),
            records=self.records,
        )


def _population(
    texts: Texts,
    ancestor: Int64[Tensor, "M"],
    some: Bool[Tensor, "M"],
    *,
    finished: bool,
) -> Population:
    """Some texts that run after a step, or that ended in it, for who looks on."""
    texts = texts.take(some)
    flag = torch.full_like(texts.example, finished, dtype=torch.bool)
    return Population(
        texts.example, ancestor[some], texts.tokens, texts.length, texts.log_weight, flag, ~flag
    )


def _observation(
    prefixes: Prefixes[State],
    before: Texts,
    scores: Scores,
    after: Population,
    ended: Sequence[Population],
) -> Observation:
    """What a step was, for who looks on."""
    joined = Population(*(torch.cat(fields) for fields in zip(*ended, strict=True)))
    order = torch.argsort(joined.example, stable=True)
    return Observation(
        prefixes=prefixes,
        tilted=partial(scores.factors.applied, prefixes.log_p),
        example=prefixes.example,
        row=torch.arange(prefixes.num_rows, device=before.log_weight.device),
        tokens=before.tokens,
        length=before.length,
        log_weight=before.log_weight,
        after=after,
        ended=Population(*(field[order] for field in joined)),
    )

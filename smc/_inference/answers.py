"""Complete answers of the discrete filter, which are stored separately from its prefixes.

An answer is stored with its weight in the step in which it ends (docs/design.md, section 6). An
example with more than `MOST_ANSWERS` answers is pruned to this number, by the same selection as
prefixes (`smc._inference.selection.select_without_replacement`). This preserves the sum of the
weights, and every weight stays unbiased. In practice it only happens for automata without EOS,
where thousands of tokens may be the last token.

With the option `count_finished`, answers affect which prefixes are kept. The selection of prefixes
then needs the N largest weights of the answers, and the sum of the other weights
(`smc._inference.selection.FinishedScores`).
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import torch
from jaxtyping import Bool, Float, Float64, Int64
from torch import Tensor

from gcd import AutomatonBatch
from smc._forward.reader import count_of
from smc._inference.particles import Outcome, Particles, Population, StepRecord
from smc._inference.selection import FinishedScores, Selection, select_without_replacement
from smc._vocabulary.draw import Breaks, Draw, Keys, Purpose
from smc._vocabulary.factors import Factors, sums_by

MOST_ANSWERS = 1 << 16
"""Maximum number of answers of one example, which take about 60 MB if they have 100 tokens."""


class Ending(NamedTuple):
    """Data of a step, to find the answers that are completed by a next token.

    Attributes:
        factors: g of all next tokens of the R prefixes, by token class.
        ends: whether the tokens of each class are allowed and end the text.
        log_p: log-probabilities of the next token.
        log_weight: log W of each prefix; -inf for a prefix without a particle.
        slot: index of the particle that has each prefix.
        particles: the particles.
        step: number of each example's step.
    """

    factors: Factors
    ends: Bool[Tensor, "R C"]
    log_p: Float[Tensor, "R V"]
    log_weight: Float64[Tensor, "R"]
    slot: Int64[Tensor, "R"]
    particles: Particles
    step: Int64[Tensor, "B"]


class Pool(NamedTuple):
    """Complete answers of the discrete filter, as lists.

    Attributes:
        example: index in the batch of each answer's example.
        tokens: tokens of each answer; -1 beyond its length.
        log_pi: log pi of each token, as in `Particles`.
        log_weight, log_p: log weight and log p_lm of each answer.
        pruned: for each example, whether some of its answers were dropped.
        examples: number of each example, which is part of the keys of its random numbers.
        draw: the source of random numbers.
    """

    example: Int64[Tensor, "M"]
    tokens: Int64[Tensor, "M T"]
    log_pi: Float64[Tensor, "M T"]
    log_weight: Float64[Tensor, "M"]
    log_p: Float64[Tensor, "M"]
    pruned: Bool[Tensor, "B"]
    examples: Int64[Tensor, "B"]
    draw: Draw

    @classmethod
    def start(
        cls, automata: AutomatonBatch, N: int, most: int, draw: Draw, examples: Int64[Tensor, "B"]
    ) -> Pool:
        """Create empty lists for answers of at most `most` tokens."""
        del automata, N
        none = examples.new_zeros(0)
        pruned = torch.zeros_like(examples, dtype=torch.bool)
        weights = none.double()
        tokens = none.new_zeros(0, most)
        return cls(none, tokens, tokens.double(), weights, weights, pruned, examples, draw)

    def add_ended(self, ending: Ending) -> tuple[Pool, Callable[[], Population]]:
        """Add the answers that are completed by a next token.

        Returns:
            The pool, and a function that returns these answers for observers.
        """
        particles, classes = ending.particles, ending.factors.classes
        row, klass = ending.ends.nonzero(as_tuple=True)
        number = ending.factors.automaton_of_row[row]
        start = classes.start[number, klass]
        size = classes.start[number, klass + 1] - start
        pair = torch.arange(len(row), device=row.device).repeat_interleave(size)
        within = torch.arange(len(pair), device=row.device) - (size.cumsum(dim=0) - size)[pair]
        token = classes.tokens[number[pair], start[pair] + within].long()
        row = row[pair]
        log_p = ending.log_p[row, token].double()
        some = ~(ending.log_weight[row] + log_p).isneginf()
        row, token, log_p = row[some], token[some], log_p[some]
        slot, weight = ending.slot[row], ending.log_weight[row] + log_p

        def tokens_of(kept: Int64[Tensor, "K"]) -> Int64[Tensor, "K T"]:
            at = slot[kept]
            column = particles.length[at].unsqueeze(1)
            return particles.tokens[at, :-1].scatter_(1, column, token[kept].unsqueeze(1))

        N = len(particles.row) // len(self.examples)
        example, log_p = slot // N, particles.log_p[slot] + log_p
        added = self._add(
            example, weight, log_p, tokens_of, particles.log_pi[slot, :-1], ending.step, first=0
        )

        def show() -> Population:
            every = torch.arange(len(row), device=row.device)
            done = torch.ones_like(every, dtype=torch.bool)
            length = particles.length[slot] + 1
            text = tokens_of(every)
            return Population(example, slot, text, length, weight, done, ~done, ~done)

        return added, show

    def add_forced(self, particles: Particles, step: Int64[Tensor, "B"]) -> Pool:
        """Add the answers that forced tokens have completed."""
        done = particles.finished.nonzero().squeeze(1)
        if not len(done):
            return self
        N = len(particles.row) // len(self.examples)
        log_weight, log_p = particles.log_weight[done], particles.log_p[done]

        def tokens_of(kept: Int64[Tensor, "K"]) -> Int64[Tensor, "K T"]:
            return particles.tokens[done[kept], :-1]

        log_pi = particles.log_pi[done, :-1]
        return self._add(done // N, log_weight, log_p, tokens_of, log_pi, step, first=2)

    def note_parents(
        self, parent: Int64[Tensor, "P"], kept: Selection, step: Int64[Tensor, "B"]
    ) -> Pool:
        """Do nothing, because the lists have full texts, which don't need parent indices."""
        return self

    def greatest(self, most: int) -> FinishedScores:
        """Return the largest weights of each example's answers, and the sum of all others."""
        top = self.log_weight.new_full((len(self.examples), most), -torch.inf)
        rest = top[:, 0].clone()
        for b in range(len(self.examples)):
            mine = self.log_weight[self.example == b]
            values, index = mine.topk(min(most, len(mine)))
            top[b, : len(values)] = values
            rest[b] = mine.index_fill(0, index, -torch.inf).logsumexp(dim=0)
        return FinishedScores(top, rest)

    def most_probable(self) -> Float64[Tensor, "B"]:
        """Return the largest log p_lm of each example's answers; -inf without answers."""
        none = self.log_weight.new_full((len(self.examples),), -torch.inf)
        return none.scatter_reduce(0, self.example, self.log_p, "amax")

    def outcome(self, whole: Bool[Tensor, "B"], history: StepRecord) -> Outcome:
        """Return all answers; an example that lost some by pruning isn't marked as enumerated."""
        return outcome_of(
            self.example,
            self.tokens,
            self.log_pi,
            self.log_weight,
            self.log_p,
            whole & ~self.pruned,
            history,
        )

    def _add(
        self,
        example: Int64[Tensor, "M"],
        log_weight: Float64[Tensor, "M"],
        log_p: Float64[Tensor, "M"],
        tokens_of: Callable[[Int64[Tensor, "K"]], Int64[Tensor, "K T"]],
        log_pi: Float64[Tensor, "M T"],
        step: Int64[Tensor, "B"],
        first: int,
    ) -> Pool:
        """Add answers, and prune the pool."""

        def uniform(number: int, b: int, breaks: Breaks) -> float:
            name = self.examples[b : b + 1]
            keys = Keys(name, torch.full_like(name, number), step[b : b + 1], Purpose.POOL)
            return float(self.draw(keys, breaks))

        # New answers are pruned before their tokens are copied.
        stays, log_weight, pruned = self._prune(example, log_weight, partial(uniform, first))
        example = torch.cat([self.example, example[stays]])
        tokens = torch.cat([self.tokens, tokens_of(stays)])
        log_pi = torch.cat([self.log_pi, log_pi[stays]])
        log_p = torch.cat([self.log_p, log_p[stays]])
        log_weight = torch.cat([self.log_weight, log_weight])
        stays, log_weight, again = self._prune(example, log_weight, partial(uniform, first + 1))
        if len(stays) < len(example):
            example, tokens, log_p = example[stays], tokens[stays], log_p[stays]
            log_pi = log_pi[stays]
        return self._replace(
            example=example,
            tokens=tokens,
            log_pi=log_pi,
            log_weight=log_weight,
            log_p=log_p,
            pruned=self.pruned | pruned | again,
        )

    def _prune(
        self,
        example: Int64[Tensor, "M"],
        log_weight: Float64[Tensor, "M"],
        uniform: Callable[[int, Callable[[], Tensor]], float],
    ) -> tuple[Int64[Tensor, "K"], Float64[Tensor, "K"], Bool[Tensor, "B"]]:
        """Select at most `MOST_ANSWERS` answers per example.

        Returns:
            The indices of the answers that are kept, their new weights, and the examples that were
            pruned.
        """
        every, pruned = torch.arange(len(example), device=example.device), self.pruned.clone()
        if len(example) <= MOST_ANSWERS:
            return every, log_weight, pruned
        stays, log_weight = torch.ones_like(example, dtype=torch.bool), log_weight.clone()
        large = count_of(example, len(pruned)) > MOST_ANSWERS
        for b in large.nonzero().flatten().tolist():
            here = (example == b).nonzero().squeeze(1)
            kept, log_pi = select_without_replacement(
                log_weight[here], MOST_ANSWERS, partial(uniform, b)
            )
            log_weight[here[kept]] -= log_pi
            stays[here] = False
            stays[here[kept]] = True
            pruned[b] = True
        return every[stays], log_weight[stays], pruned


def outcome_of(
    example: Int64[Tensor, "M"],
    tokens: Int64[Tensor, "M T"],
    log_pi: Float64[Tensor, "M T"],
    log_weight: Float64[Tensor, "M"],
    log_p: Float64[Tensor, "M"],
    whole: Bool[Tensor, "B"],
    history: StepRecord,
) -> Outcome:
    """Sort the answers by example; estimate the evidence by the sum of their weights."""
    order, B = torch.sort(example, stable=True).indices, len(whole)
    return Outcome(
        example=example[order],
        tokens=tokens[order],
        length=(tokens[order] >= 0).sum(dim=1),
        log_weight=log_weight[order],
        log_p=log_p[order],
        finished=torch.ones_like(order, dtype=torch.bool),
        log_evidence=sums_by(log_weight, example, B),
        ess=effective(log_weight, example, B),
        enumerated=whole,
        history=history,
        log_pi=log_pi[order],
    )


def effective(
    log_weight: Float64[Tensor, "M"], example: Int64[Tensor, "M"], count: int
) -> Float64[Tensor, "B"]:
    """Return 1 / sum of W² over each example's normalized weights W; 0 if all weights are zero."""
    squares = sums_by(2 * log_weight, example, count)
    total = sums_by(log_weight, example, count)
    none = total.isneginf()
    return torch.where(none, 0.0, (2 * torch.where(none, 0.0, total) - squares).exp())

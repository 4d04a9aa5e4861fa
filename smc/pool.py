"""A pool collects the answers that are complete, each with its weight.

The discrete particle filter puts an answer here in the step in which it ends; it competes with
nothing any more. A pool of an example that grows beyond `MOST_ANSWERS` is pruned to that many by
the same selection that keeps prefixes (`smc.selection.systematic`), which leaves the sum of the
weights as it is, and every weight unbiased. That takes languages that end by themselves, where
thousands of tokens may be the last one; otherwise a prefix has one answer for each end-of-text id.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch
from jaxtyping import Float64, Int64
from torch import Tensor

from smc.outcome import count_of
from smc.scores import sums_by
from smc.selection import Fixed, systematic

MOST_ANSWERS = 1 << 16
"""Most answers of one example: some 60 MB where they are of 100 tokens."""


class Pool:
    """The complete answers of B examples.

    Args:
        num_examples: B.
        budget: T, the most tokens of an answer.
        device: where they are kept.
    """

    def __init__(self, num_examples: int, budget: int, device: torch.device) -> None:
        self.num_examples = num_examples
        self.budget = budget
        self.example = torch.zeros(0, dtype=torch.int64, device=device)
        self.tokens = torch.zeros(0, budget, dtype=torch.int64, device=device)
        self.log_weight = torch.zeros(0, dtype=torch.float64, device=device)
        self.pruned = torch.zeros(num_examples, dtype=torch.bool, device=device)

    def add(
        self,
        example: Int64[Tensor, "M"],
        log_weight: Float64[Tensor, "M"],
        tokens_of: Callable[[Int64[Tensor, "K"]], Int64[Tensor, "K T"]],
        uniform: Callable[[int, int, Callable[[], Tensor]], float],
    ) -> None:
        """Adds answers.

        Args:
            example: index in the batch, rising.
            log_weight: log of the weight of each answer.
            tokens_of: writes out the tokens of some of them; -1 beyond their length.
            uniform: uniform numbers of an example whose pool must be pruned, by index and number.
        """
        # What is new is pruned before its tokens are written out.
        stays, log_weight = self._pruned(example, log_weight, partial(uniform, 0))
        self.example = torch.cat([self.example, example[stays]])
        self.tokens = torch.cat([self.tokens, tokens_of(stays)])
        self.log_weight = torch.cat([self.log_weight, log_weight])
        stays, self.log_weight = self._pruned(self.example, self.log_weight, partial(uniform, 1))
        if len(stays) < len(self.example):
            self.example, self.tokens = self.example[stays], self.tokens[stays]

    def _pruned(
        self,
        example: Int64[Tensor, "M"],
        log_weight: Float64[Tensor, "M"],
        uniform: Callable[[int, Callable[[], Tensor]], float],
    ) -> tuple[Int64[Tensor, "K"], Float64[Tensor, "K"]]:
        """Which of these answers stay, at most `MOST_ANSWERS` of an example, and their weights."""
        every = torch.arange(len(example), device=example.device)
        if len(example) <= MOST_ANSWERS:
            return every, log_weight
        stays, log_weight = torch.ones_like(example, dtype=torch.bool), log_weight.clone()
        large = count_of(example, self.num_examples) > MOST_ANSWERS
        for b in large.nonzero().flatten().tolist():
            here = (example == b).nonzero().squeeze(1)
            kept, log_pi = systematic(log_weight[here], MOST_ANSWERS, partial(uniform, b))
            log_weight[here[kept]] -= log_pi
            stays[here] = False
            stays[here[kept]] = True
            self.pruned[b] = True
        return every[stays], log_weight[stays]

    def greatest(self, most: int) -> Fixed:
        """Returns the greatest weights of each example, and the sum of the others."""
        top = self.log_weight.new_full((self.num_examples, most), -torch.inf)
        rest = top[:, 0].clone()
        for b in range(self.num_examples):
            mine = self.log_weight[self.example == b]
            values, place = mine.topk(min(most, len(mine)))
            top[b, : len(values)] = values
            rest[b] = mine.index_fill(0, place, -torch.inf).logsumexp(dim=0)
        return Fixed(top, rest)

    @property
    def log_sum(self) -> Float64[Tensor, "B"]:
        """log of the sum of the weights of each example, the estimate of its evidence."""
        return sums_by(self.log_weight, self.example, self.num_examples)

    @property
    def ess(self) -> Float64[Tensor, "B"]:
        """1 / sum of W^2 over each example's normalised weights; zero without an answer."""
        return effective(self.log_weight, self.example, self.num_examples)

    @property
    def order(self) -> Int64[Tensor, "M"]:
        """The answers by example, those that ended first before the others."""
        return torch.sort(self.example, stable=True).indices


def effective(
    log_weight: Float64[Tensor, "M"], example: Int64[Tensor, "M"], count: int
) -> Float64[Tensor, "B"]:
    """Returns 1 / sum of W^2 over the normalised weights of each example; zero where none are."""
    squares = sums_by(2 * log_weight, example, count)
    total = sums_by(log_weight, example, count)
    none = total.isneginf()
    return torch.where(none, 0.0, (2 * torch.where(none, 0.0, total) - squares).exp())

"""Guaranteed bounds on the evidence, which hold for any random numbers.

Computing a prefix x gives p(x v) for *every* next token v. So a run knows the probability of the
answers that it has found, and of all *open branches*: continuations that it hasn't computed.

    lower = sum of p(a)     over the distinct token sequences a that were found
    open  = sum of p(x v)   over the computed prefixes x and the tokens v that are allowed after x
                            within the budget, if x v was neither computed nor found
    lower <= P_lm(C within n) <= lower + open = upper

Statistics of the particles can't detect branches that all particles missed, but these bounds
include them. The bounds depend neither on weights nor on the proposal. Prefixes of dead particles
count, too. An answer that resampling dropped counts as an open branch. The upper bound is loose if
much of an open branch leaves the constraint later or doesn't end in time, because only p(x v) is
known.

**Accounting** (`Frontier`). No data is stored per prefix. Once the tokens that a step takes from a
prefix are known, the probabilities of all allowed tokens are summed. In this sum, a taken token
that completes an answer counts with the answer's probability. Any other taken token counts as zero,
because its prefix has a row in the next step. Nothing is subtracted. Cost per step: one pass over R
x V numbers, without host synchronization.

**Rounding** is outward, by `ROUNDING` nats for sums in float64. The upper bound is also raised by
`NORMALIZATION` machine epsilons of the model's log-probabilities per remaining token, because
rounded probabilities of the next token may sum to more than one. In float32 a budget of 60 tokens
limits `certified` to 0.9999.

**Limits.** There are no bounds if the proposal's `position` is not a `smc.AutomatonPosition`. The
bounds rely on `Proposal.forced`: a forced token must be the only token that is allowed within the
budget.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from jaxtyping import Bool, Float, Float64, Int64
from torch import Tensor

from smc._forward.reader import Extension, Prefixes, Reader
from smc._inference.particles import Particles
from smc._proposals import AutomatonPosition
from smc._vocabulary.factors import log_sum_of_classes, sums_by

ROUNDING = 1e-9
"""Nats by which each bound is rounded outward."""
NORMALIZATION = 8
"""Machine epsilons by which the sum of the probabilities of the next token may exceed one."""


@dataclass(frozen=True)
class Bounds:
    """Bounds on the evidence (the probability of C within n tokens) and on the posterior.

    Attributes:
        log_lower: log of the probability of all found token sequences; -inf if none was found.
        log_upper: log of this probability plus the probability of all open branches, which are
            prefixes that weren't computed and may continue to other answers.
    """

    log_lower: float
    log_upper: float

    @property
    def certified(self) -> float:
        """The minimum share of the posterior that the found answers have, lower / upper.

        The share is one if the upper bound is zero.
        """
        return self._share(self.log_lower)

    def of_sequence(self, log_p: float) -> tuple[float, float]:
        """Return an interval for the posterior probability of a token sequence in C.

        Args:
            log_p: log p_lm of the sequence, including EOS, at the sampling temperature.
        """
        if self.log_lower == -math.inf:
            return self._share(log_p - ROUNDING), 1.0
        return self._share(log_p - ROUNDING), min(1.0, math.exp(log_p - self.log_lower))

    def of_text(self, log_p: float) -> tuple[float, float]:
        """Return an interval for the posterior probability of a text.

        The text may have tokenizations that weren't found. Therefore the upper end is one minus the
        minimum share of all other found texts.

        Args:
            log_p: log p_lm of the text, summed over its tokenizations that were found.
        """
        low, certified = self._share(log_p - ROUNDING), self.certified
        return low, min(1.0, 1.0 - certified + self._share(log_p + 2 * ROUNDING))

    def of_texts(self, log_p: Iterable[float]) -> tuple[float, float]:
        """Return an interval for the posterior probability of a set of texts.

        Args:
            log_p: as for `of_text`, for each found text in the set. The set may contain texts that
                weren't found.
        """
        values = sorted(log_p)
        top = values[-1] if values else -math.inf
        if top == -math.inf:
            return self.of_text(top)
        return self.of_text(top + math.log(math.fsum(math.exp(each - top) for each in values)))

    def _share(self, log_p: float) -> float:
        """Return exp(log_p) divided by the upper bound; one if the upper bound is zero."""
        return 1.0 if self.log_upper == -math.inf else math.exp(log_p - self.log_upper)


def bounds_of(log_found: float, log_upper: float) -> Bounds:
    """Return bounds, rounded outward."""
    return Bounds(min(0.0, log_found) - ROUNDING, min(0.0, log_upper + ROUNDING))


class Frontier(NamedTuple):
    """Probability of the found answers and of the open branches, in all steps so far.

    Attributes:
        log_upper: log of this probability, an upper bound on the evidence, for each example.
        first: for each row, the first row with the same prefix, if several rows may have the same
            prefix (static shapes); None otherwise.
    """

    log_upper: Float64[Tensor, "B"]
    first: Int64[Tensor, "P"] | None

    @classmethod
    def start(
        cls,
        reader: Reader[Any],
        prefixes: Prefixes[Any],
        extension: Extension,
        N: int,
        *,
        has_twins: bool,
    ) -> Frontier | None:
        """Return the `Frontier` before the first step; None if the run has no bounds."""
        position = prefixes.state.position
        if not isinstance(position, AutomatonPosition):
            return None
        over = torch.where(extension.finished, extension.forced_log_p, -torch.inf)
        each = torch.arange(len(over), device=over.device)
        return cls(over[::N].clone(), each // N * N if has_twins else None)

    def advance(
        self,
        prefixes: Prefixes[Any],
        before: Particles,
        row: Int64[Tensor, "P"],
        token: Int64[Tensor, "P"],
        runs: Bool[Tensor, "P"],
        extension: Extension,
    ) -> Frontier:
        """Add the open branches of a step, and the answers found in the step."""
        R, V = prefixes.log_p.shape
        if self.first is not None:
            row = self.first[row]
        # The probability of a taken token is replaced by that of the answer that it completes, or
        # by zero. It can only become smaller, and is rounded up in float32.
        taken = (row * V + token).masked_fill(~runs, 0)
        child = prefixes.log_p.flatten()[taken] + extension.forced_log_p
        child = child.masked_fill(extension.running, -torch.inf).to(prefixes.log_p)
        child = torch.where(child.isneginf(), child, child.nextafter(torch.ones_like(child)))
        child = child.masked_fill(~runs, torch.inf)
        left = prefixes.log_p.flatten().scatter_reduce(0, taken, child, "amin").view(R, V)
        first = self.first
        if first is not None:
            first = first_of_equal(taken, extension.running, len(first) // len(self.log_upper))
        return Frontier(self.close(prefixes, before, left), first)

    def close(
        self, prefixes: Prefixes[Any], before: Particles, left: Float[Tensor, "R V"]
    ) -> Float64[Tensor, "B"]:
        """Return the upper bound if the tokens with log-probabilities `left` remain open."""
        position = prefixes.state.position
        at = before.row.masked_fill(~before.running, 0)
        if self.first is not None:
            at = self.first[at]
        # All particles of a row have the same log p. A row without a running particle has -inf.
        log_p = before.log_p.masked_fill(~before.running, -torch.inf)
        nothing = log_p.new_full(left.shape[:1], -torch.inf)
        log_prefix = nothing.scatter_reduce(0, at, log_p, "amax")
        allowed = position.mask.class_mask(position.states, position.remaining)
        classes = position.automata.classes
        log_left = log_sum_of_classes(left, classes, position.automaton_of_row, allowed)
        # The logarithm of a small number has a larger rounding error.
        nats = torch.where(log_left.isneginf(), 0.0, log_left.abs())
        slack = NORMALIZATION * (1 + position.remaining) + nats
        slack = torch.finfo(prefixes.log_p.dtype).eps * slack
        mass = sums_by(log_prefix + log_left + slack, prefixes.example, len(self.log_upper))
        return torch.logaddexp(self.log_upper, mass)


def first_of_equal(
    key: Int64[Tensor, "P"], running: Bool[Tensor, "P"], N: int
) -> Int64[Tensor, "P"]:
    """Return, for each particle, the first running particle of its example with the same key.

    Cost: O(P N).
    """
    keys, runs = key.view(-1, N), running.view(-1, N)
    same = (keys.unsqueeze(2) == keys.unsqueeze(1)) & runs.unsqueeze(1)
    start = N * torch.arange(len(keys), device=key.device).unsqueeze(1)
    return (start + same.to(torch.int8).argmax(dim=2)).flatten()

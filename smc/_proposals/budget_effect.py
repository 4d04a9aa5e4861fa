"""Effect of the budget: the probability of tokens that only the budget forbids.

Let x be a prefix that can still be completed within the budget, with r tokens left, and v a next
token that the constraint allows. The budget *removes* v if a shortest completion after v takes r
tokens or more. Let m(x) be the sum of p_lm(v | x) over these tokens v. Then

    removed mass  =  sum of p_lm(x) m(x)  over all such prefixes x
                  =  P_lm( a text that obeys the constraint so far can no longer end in time ).

Together with the evidence it bounds the evidence without a budget:

    P_lm(C) <= P_lm(C within n) + removed mass

A sampler estimates the sum without bias, by the weights of the prefixes that it computes. Each
position in a run of forced tokens is evaluated, too (`smc._proposals.forced`), because near its end
the budget forces most tokens.

**Cost.** A pass over the vocabulary is needed only where the masks with and without the budget
differ: a next token leads further from the end than r allows (`TokenAutomaton.reach`, one number
per state). In static shapes, the pass is always made.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float, Float64, Int64
from torch import Tensor

from gcd._tokens.distances import UNREACHABLE
from smc._proposals.position import AutomatonPosition
from smc._vocabulary.factors import log_sum_of_classes, sums_by


@dataclass(frozen=True)
class BudgetEffect:
    """The probability that the budget removed, after the prefixes that were computed.

    Attributes:
        log_removed: log of the estimated probability of texts that obey the constraint up to a
            token after which they can't end within the budget. -inf if no token was removed.
        removed: this probability divided by the sum of it and the estimated evidence, from 0 to 1.
    """

    log_removed: float
    removed: float

    @classmethod
    def of(cls, log_removed: float, log_evidence: float) -> BudgetEffect:
        """Return the effect for an estimate of the log evidence."""
        if log_removed == -math.inf:
            return cls(log_removed, 0.0)
        return cls(log_removed, 1 / (1 + math.exp(min(700.0, log_evidence - log_removed))))


def binds(position: AutomatonPosition) -> Bool[Tensor, "R"]:
    """Return True for prefixes where the budget changes the mask of next tokens."""
    here, left = position.states.clamp(min=0), position.remaining
    in_time = (position.states >= 0) & (position.automata.steps_to_accept[here] <= left)
    return in_time & (position.automata.reach[here] >= left)


def compute_removed(
    position: AutomatonPosition,
    log_p: Float[Tensor, "Q V"],
    indices: Callable[[Bool[Tensor, "R"]], Int64[Tensor, "K"]],
    row: Int64[Tensor, "R"] | None = None,
) -> Float64[Tensor, "R"]:
    """Return the log-probability of the next tokens that only the budget forbids after R prefixes.

    `row` is the row of `log_p` for each prefix; None if there is one row per prefix.
    """
    does = binds(position)
    some = indices(does)
    nothing = torch.full_like(position.remaining, -torch.inf, dtype=torch.float64)
    if not len(some):
        return nothing
    position = position.take(some)
    steps = position.steps_after_classes()
    removed = (steps < UNREACHABLE) & (steps >= position.remaining.unsqueeze(1))
    if row is not None or len(some) < len(log_p):
        log_p = log_p[some if row is None else row[some]]
    classes = position.automata.classes
    log_sum = log_sum_of_classes(log_p, classes, position.automaton_of_row, removed)
    return nothing.index_copy(0, some, log_sum).masked_fill(~does, -torch.inf)


def add_removed(
    total: Float64[Tensor, "B"], log_weight: Float64[Tensor, "P"], mass: Float64[Tensor, "P"]
) -> Float64[Tensor, "B"]:
    """Add the removed mass after each particle to the sum of its example, in log space."""
    example = torch.arange(len(mass), device=mass.device) // (len(mass) // len(total))
    return torch.logaddexp(total, sums_by(log_weight + mass, example, len(total)))

"""Effect of the budget: the probability of tokens that only the budget forbids.

Let x be a prefix that can still be completed within the budget, with r tokens left, and v a next
token that the constraint allows. The budget *removes* v if a shortest completion after v takes r
tokens or more. Let m(x) be the sum of p_lm(v | x) over these tokens v. Then

    removed mass  =  sum of p_lm(x) m(x)  over all such prefixes x
                  =  P_lm( a text that obeys the constraint so far can no longer end in time ).

Together with the evidence it bounds the evidence without a budget:

    P_lm(C) <= P_lm(C within n) + removed mass

The two sides differ only by prefixes that would leave the constraint later. A sampler estimates the
sum without bias, by the weights of the prefixes that it computes. Each position in a run of forced
tokens is evaluated, too (`smc._proposals.forced`), because near its end the budget forces most
tokens. The probabilities of the removed tokens are summed directly, and not computed as a
difference.

**Cost.** A pass over the vocabulary is needed only for prefixes after which the budget can remove a
token. This is the case if a next token leads further from the end than r allows
(`TokenAutomaton.reach`, one number per state). For other prefixes a comparison is enough. In static
shapes, the pass is always made.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from jaxtyping import Bool, Float, Float64, Int64
from torch import Tensor

from gcd._tokens.distances import UNREACHABLE
from smc._proposals.position import AutomatonPosition
from smc._vocabulary.candidate_scores import sums_by
from smc._vocabulary.class_sums import MaskGuide

NEVER = UNREACHABLE
"""Value of `first` if no token was removed."""


@dataclass(frozen=True)
class BudgetEffect:
    """The effect of the budget on the answers to one prompt, after the prefixes that were computed.

    Attributes:
        budget: maximum number of tokens of an answer, including EOS.
        log_removed: log of the estimated probability that the budget removed. This is the
            probability of texts that obey the constraint up to a token after which they can't end
            in time. -inf if no token was removed.
        removed: the removed probability divided by the sum of this probability and the estimated
            evidence, from 0 to 1.
        first: length of the shortest prefix after which the budget removed a token; None if no
            token was removed.
        sufficient: the smallest budget that would not have removed a token after these prefixes.
    """

    budget: int
    log_removed: float
    removed: float
    first: int | None
    sufficient: int

    @property
    def binds(self) -> bool:
        """True if the budget removed a token after a computed prefix."""
        return self.first is not None


class Removed(NamedTuple):
    """Probability of the next tokens that only the budget forbids, at positions of M prefixes.

    Such tokens are called *removed*.

    Attributes:
        log_mass: log of a sum over the positions. Each term is the probability of the tokens from
            the first position to this position, times the probability of the removed next tokens.
        first: number of answer tokens before the first position with a removed token.
        sufficient: the smallest budget that removes no token at these positions.
    """

    log_mass: Float64[Tensor, "M"]
    first: Int64[Tensor, "M"]
    sufficient: Int64[Tensor, "M"]

    @classmethod
    def nothing(cls, log_g: Float64[Tensor, "M"]) -> Removed:
        """Return the values for M prefixes without removed tokens; `log_g` only gives the shape."""
        none = torch.zeros_like(log_g, dtype=torch.int64)
        return cls(torch.full_like(log_g, -torch.inf), none + NEVER, none)

    def spread(self, slots: Int64[Tensor, "M"], count: int) -> Removed:
        """Return the values for `count` prefixes; prefix i of this object has number `slots[i]`.

        The other prefixes have no removed tokens.
        """
        more = Removed.nothing(self.log_mass.new_zeros(count))
        pairs = zip(more, self, strict=True)
        return Removed(*(field.index_copy(0, slots, mine) for field, mine in pairs))

    def at(self, index: Int64[Tensor, "Q"]) -> Removed:
        """Return the values of the prefixes with these indices."""
        return Removed(*(field[index] for field in self))

    def plus(
        self,
        rows: Int64[Tensor, "K"],
        position: AutomatonPosition,
        used: Int64[Tensor, "K"],
        log_p: Float[Tensor, "K V"],
        log_before: Float64[Tensor, "K"],
    ) -> Removed:
        """Add the tokens that the budget removes at one more position of K of the prefixes.

        Args:
            rows: indices of the K prefixes.
            position: positions of the K prefixes in their automata.
            used: number of answer tokens before the position.
            log_p: log-probabilities of the next token at the position.
            log_before: log-probability of the tokens before the position.
        """
        log_mass = compute_removed(position, log_p)
        added = torch.logaddexp(self.log_mass[rows], log_before + log_mass)
        first = torch.where(added.isneginf(), NEVER, used)
        first = torch.minimum(self.first[rows], first)
        return self._replace(
            log_mass=self.log_mass.index_copy(0, rows, added),
            first=self.first.index_copy(0, rows, first),
        )


def binding(position: AutomatonPosition) -> Bool[Tensor, "R"]:
    """Return True for prefixes where the budget changes the mask of next tokens.

    Prefixes that can't be completed within their budgets have False.
    """
    here = position.states.clamp(min=0)
    in_time = (position.states >= 0) & (
        position.automata.steps_to_accept[here] <= position.remaining
    )
    return in_time & (position.automata.reach[here] >= position.remaining)


def sufficient_for(position: AutomatonPosition, used: Int64[Tensor, "R"]) -> Int64[Tensor, "R"]:
    """Return the smallest budget that removes no token after each prefix; 0 for ended prefixes.

    Args:
        position: positions of the prefixes in their automata.
        used: number of tokens of each prefix.
    """
    here = position.states.clamp(min=0)
    in_time = (position.states >= 0) & (
        position.automata.steps_to_accept[here] <= position.remaining
    )
    return torch.where(in_time, used + 1 + position.automata.reach[here], 0)


def compute_removed(
    position: AutomatonPosition, log_p: Float[Tensor, "R V"]
) -> Float64[Tensor, "R"]:
    """Return the log of the total probability of the next tokens that only the budget forbids."""
    steps = position.steps_after_classes()
    removed = (steps < UNREACHABLE) & (steps >= position.remaining.unsqueeze(1))
    return MaskGuide(log_p, removed, position.automata.classes, position.automaton_of_row).log_z


class Along:
    """Probability of the next tokens that only the budget forbids, summed along forced tokens.

    Whenever a forward pass has computed some of the forced tokens, `see` adds their part.

    Args:
        positions: positions of M prefixes in their automata, before each of K columns of tokens.
        tokens: the forced tokens of each prefix; -1 beyond the last one.
        budgets: the whole budget of each prefix.

    Attributes:
        removed: the sum so far.
    """

    def __init__(
        self,
        positions: Sequence[AutomatonPosition],
        tokens: Int64[Tensor, "M K"],
        budgets: Int64[Tensor, "M"],
    ) -> None:
        self.removed = Removed.nothing(torch.zeros_like(budgets, dtype=torch.float64))
        self._bound: list[bool] = []
        if not positions:
            return
        self._position = positions[0]._replace(
            states=torch.stack([position.states for position in positions], dim=1).flatten(),
            remaining=torch.stack([position.remaining for position in positions], dim=1).flatten(),
        )
        self._used = budgets.repeat_interleave(len(positions)) - self._position.remaining
        forced = tokens >= 0
        self._binds = binding(self._position).view_as(tokens) & forced
        enough = sufficient_for(self._position, self._used).view_as(tokens).masked_fill(~forced, 0)
        self.removed = self.removed._replace(sufficient=enough.amax(dim=1))
        self._bound = self._binds.any(dim=0).tolist()

    def see(
        self,
        column: int,
        rows: Int64[Tensor, "K"],
        log_before: Float64[Tensor, "K"],
        log_p: Float[Tensor, "Q V"],
        at: Int64[Tensor, "K"] | None = None,
    ) -> None:
        """Add the tokens that the budget removes at one column of forced tokens, for K prefixes.

        Args:
            column: index of the forced token.
            rows: indices of the K prefixes.
            log_before: log-probability of the earlier forced tokens of each of the K prefixes.
            log_p: log-probabilities of the next token, which include those of the forced token.
            at: the row of `log_p` for each of the K prefixes; None for the rows 0 to K - 1.
        """
        if column >= len(self._bound) or not self._bound[column]:
            return
        some = (self._binds[rows, column] & ~log_before.isneginf()).nonzero().squeeze(1)
        if len(some):
            prefix, known = rows[some], some if at is None else at[some]
            index = prefix * len(self._bound) + column
            self.removed = self.removed.plus(
                prefix,
                self._position.take(index),
                self._used[index],
                log_p[known],
                log_before[some],
            )


class Ledger(NamedTuple):
    """Effect of the budget in all steps so far, for each of B examples.

    Attributes:
        log_removed: log of the estimated probability of the tokens that only the budget forbids.
        first, sufficient: as in `BudgetEffect`, but with `NEVER` instead of None.
    """

    log_removed: Float64[Tensor, "B"]
    first: Int64[Tensor, "B"]
    sufficient: Int64[Tensor, "B"]

    @classmethod
    def empty(
        cls, position: object, budgets: Int64[Tensor, "B"], *, is_exact: bool
    ) -> Ledger | None:
        """Return the budget's effect before any step: zero, or None for a run without bounds."""
        if not (is_exact and isinstance(position, AutomatonPosition)):
            return None
        nothing = torch.full_like(budgets, -torch.inf, dtype=torch.float64)
        return cls(nothing, torch.full_like(budgets, NEVER), torch.zeros_like(budgets))

    def with_prefixes(
        self,
        position: AutomatonPosition,
        budgets: Int64[Tensor, "R"],
        log_p: Float[Tensor, "R V"],
        row: Int64[Tensor, "P"],
        log_weight: Float64[Tensor, "P"],
        indices: Callable[[Bool[Tensor, "R"]], Int64[Tensor, "K"]],
    ) -> Ledger:
        """Add the tokens that the budget removes after each prefix of a step.

        Args:
            position, log_p: positions of R prefixes in their automata, and their next-token
                log-probabilities.
            budgets: the whole budget of each prefix.
            row: the prefix of each of P particles.
            log_weight: weights of the particles, whose sum estimates p_lm(prefix); -inf for
                particles that are excluded.
            indices: function that returns the indices of a mask
                (`smc._forward.prefixes.Reader.indices`).
        """
        used = budgets - position.remaining
        some = indices(binding(position))
        removed = Removed.nothing(used.double())
        if len(some):
            zero = torch.zeros_like(some, dtype=torch.float64)
            rows = log_p if len(some) == len(log_p) else log_p[some]
            removed = removed.plus(some, position.take(some), used[some], rows, zero)
        removed = Removed(
            # In static shapes, `some` contains all rows, so the other rows are removed here.
            removed.log_mass.masked_fill(~binding(position), -torch.inf),
            torch.where(binding(position), removed.first, NEVER),
            sufficient_for(position, used),
        )
        return self.with_runs(removed.at(row), log_weight)

    def with_runs(self, removed: Removed, log_weight: Float64[Tensor, "P"]) -> Ledger:
        """Add the tokens that the budget removes along the forced run of each particle.

        Args:
            removed: the removed tokens along each particle's run.
            log_weight: weights of the particles before their runs.
        """
        B = len(self.first)
        counts = ~log_weight.isneginf()
        example = torch.arange(len(log_weight), device=log_weight.device) // (len(log_weight) // B)
        mass = sums_by(torch.where(counts, log_weight + removed.log_mass, -torch.inf), example, B)
        first = torch.where(counts, removed.first, NEVER).view(B, -1).amin(dim=1)
        most = torch.where(counts, removed.sufficient, 0).view(B, -1).amax(dim=1)
        return Ledger(
            torch.logaddexp(self.log_removed, mass),
            torch.minimum(self.first, first),
            torch.maximum(self.sufficient, most),
        )


def effect_of(
    budget: int, log_removed: float, first: int, sufficient: int, log_evidence: float
) -> BudgetEffect:
    """Return the `BudgetEffect` of one example.

    Args:
        budget: maximum number of tokens of an answer.
        log_removed, first, sufficient: the example's values in the `Ledger`.
        log_evidence: log of the estimated evidence.
    """
    share = 0.0
    if log_removed > -math.inf:
        share = 1 / (1 + math.exp(min(700.0, log_evidence - log_removed)))
    return BudgetEffect(budget, log_removed, share, None if first == NEVER else first, sufficient)

"""Scores of the candidates of the discrete particle filter: s = w g.

docs/design.md, section 6, explains the scores. A *candidate* is a prefix of weight W with a next
token v. The weight of the candidate is w = W p_lm(v), and g is the proposal's factor for v: 1 for
GCD, and the probability of completion for P-GCD. Scores are stored like guides, as one number per
class of tokens, and one number for each of a few tokens.

**The defensive mixture** is computed over all candidates of an example together, because its
prefixes compete with each other. Let G be the sum of w g and M the sum of w over these candidates.
Then

    s = (1 - eps) w g / G + eps w / M,           s = w if G = 0,

so a share eps of the slots is assigned by weight, regardless of the lookahead.

**Complete answers** that count toward the N slots have scores, too. The score of an answer is its
weight times (sum of s) / (sum of w), with the sums over the example's candidates. (With g = 1 for
answers and a lookahead that considers the end improbable, N answers would take all slots.)

Cost: O(R C) for R prefixes and C classes. If the proposal hasn't computed the probabilities of the
classes, they take one pass over R x V numbers (`smc._vocabulary.class_sums.top_k_and_class_sums`).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import torch
from jaxtyping import Bool, Float, Float64, Int64, Shaped
from torch import Tensor

from gcd._tokens.batch import TokenClasses
from smc._vocabulary.class_sums import MaskGuide, top_k_and_class_sums
from smc._vocabulary.factors import Factors, Guide, by_class_alone

LEAST_DEFENSE = 1e-3
"""Minimum share eps of the defensive mixture if some candidate has g = 0."""


class Successors(NamedTuple):
    """Token classes that complete the text, for each of R prefixes.

    Attributes:
        classes: token classes of each of B automata.
        automaton_of_row: the automaton of each prefix.
        ends: whether a token of each class completes the text.
    """

    classes: TokenClasses
    automaton_of_row: Int64[Tensor, "R"]
    ends: Bool[Tensor, "R C"]

    def of_tokens(self) -> Successors:
        """Return the same information for every token, with each token as a separate class."""
        alone = TokenClasses.singletons(self.classes.of.shape[1], self.automaton_of_row.device)
        class_of = self.classes.of[self.automaton_of_row].long()
        return Successors(
            alone, torch.zeros_like(self.automaton_of_row), self.ends.gather(1, class_of)
        )


class Masses(NamedTuple):
    """Log-probabilities of the next token under the language model.

    Attributes:
        by_class: log-probability of each class, without the tokens that have a separate factor;
            -inf for classes that aren't allowed.
        by_token: log-probability of each token with a separate factor; duplicates have -inf.
    """

    by_class: Float64[Tensor, "R C"]
    by_token: Float64[Tensor, "R K"]


@dataclass(frozen=True, eq=False)
class CandidateGuide:
    """A proposal's g for the candidates of R prefixes.

    Attributes:
        factors: log g; -inf where g is zero.
        alive: True for classes whose tokens are candidates; their g may be zero.
        successors: which of the classes complete the text.
        masses: probabilities under the language model; None if they aren't computed yet.
        defense: the share eps; None without a defensive mixture, if g is positive for every
            candidate.
        fallback: True for prefixes where g is zero for all candidates; None if there are no such
            prefixes.
        is_indicator: whether g is always zero or one, so that s = w.
    """

    factors: Factors
    alive: Bool[Tensor, "R C"]
    successors: Successors
    masses: Masses | None = None
    defense: float | None = None
    fallback: Bool[Tensor, "R"] | None = None
    is_indicator: bool = False


class SelectionScores(NamedTuple):
    """The scores of the candidates that don't complete the text; only these compete.

    Attributes:
        factors: log s(v) - log p(v) of each class or token; -inf for tokens that don't compete.
        log_unit: log of (sum of s) / (sum of w) of each example, which converts the weights of
            complete answers into scores.
    """

    factors: Factors
    log_unit: Float64[Tensor, "B"]


def candidates_of(guide: Guide, successors: Successors) -> CandidateGuide:
    """Return the tokens that a guide allows (g > 0) as candidates, with their factors g."""
    factors = getattr(guide, "factors", None)
    if not isinstance(factors, Factors):
        successors = successors.of_tokens()
        factors = by_class_alone(guide.log_g, successors.classes, successors.automaton_of_row)
    # log g = +inf becomes NaN, so that the check for NaN detects it.
    factors = factors._replace(
        by_class=factors.by_class.masked_fill(factors.by_class == torch.inf, torch.nan),
        by_token=factors.by_token.masked_fill(factors.by_token == torch.inf, torch.nan),
    )
    alive = ~factors.by_class.isneginf()
    if factors.tokens.shape[1]:
        klass = own_classes(factors)
        # A class is also alive if only its tokens with a separate g have a positive g.
        own = alive.new_zeros(alive.shape, dtype=torch.int8)
        own.scatter_reduce_(1, klass, (~factors.by_token.isneginf()).to(torch.int8), "amax")
        alive = alive | own.bool()
    return CandidateGuide(
        factors,
        alive,
        successors,
        fallback=guide.fallback,
        is_indicator=isinstance(guide, MaskGuide),
    )


def selection_scores(
    candidates: CandidateGuide,
    log_p: Float[Tensor, "R V"],
    log_weight: Float64[Tensor, "R"],
    example: Int64[Tensor, "R"],
    num_examples: int,
) -> SelectionScores:
    """Return the scores of all candidates that don't complete the text.

    Args:
        candidates: the candidates of the R prefixes.
        log_p: log-probabilities of the next token.
        log_weight: log W of each prefix.
        example: the example of each prefix.
        num_examples: B.
    """
    factors, ends = candidates.factors, candidates.successors.ends
    going, going_too = candidates.alive & ~ends, factors.tokens >= 0
    if factors.tokens.shape[1]:
        going_too = going.gather(1, own_classes(factors))
    weight = log_weight.unsqueeze(1)
    log_g = _Pair(
        factors.by_class.masked_fill(~going, -torch.inf),
        factors.by_token.masked_fill(~going_too, -torch.inf),
    )
    log_unit = log_weight.new_zeros(num_examples)
    if candidates.defense is not None or not candidates.is_indicator:
        masses = candidates.masses or _masses(candidates, log_p)
        log_w = _Pair(
            (masses.by_class + weight).masked_fill(~going, -torch.inf),
            (masses.by_token + weight).masked_fill(~going_too, -torch.inf),
        )
        if candidates.defense is not None:
            log_g = _mix_defense(
                log_g, log_w, _Pair(going, going_too), example, num_examples, candidates.defense
            )
        log_s = _Pair(*(g + w for g, w in zip(log_g, log_w, strict=True)))
        plain = log_w.sums(example, num_examples)
        log_unit = torch.where(plain.isneginf(), 0.0, log_s.sums(example, num_examples) - plain)
    mixed = factors._replace(
        by_class=(log_g.by_class + weight).contiguous(),
        by_token=(log_g.by_token + weight).contiguous(),
    )
    return SelectionScores(mixed, log_unit)


class _Pair(NamedTuple):
    """Logarithms of numbers: one for each class, and one for each token with a separate factor."""

    by_class: Shaped[Tensor, "R C"]
    by_token: Shaped[Tensor, "R K"]

    def sums(self, example: Int64[Tensor, "R"], count: int) -> Float64[Tensor, "B"]:
        """Return the log of the sum of all exp(values) of each example's prefixes."""
        return sums_by(torch.cat(self, dim=1).logsumexp(dim=1), example, count)


def _mix_defense(
    log_g: _Pair,
    log_w: _Pair,
    going: _Pair,
    example: Int64[Tensor, "R"],
    count: int,
    defense: float,
) -> _Pair:
    """Apply the defensive mixture to g.

    Args:
        log_g, log_w: log g and log w; -inf for candidates that don't compete.
        going: True for candidates that compete.
        example: the example of each prefix.
        count: B.
        defense: the share eps.
    """
    total = _Pair(*(g + w for g, w in zip(log_g, log_w, strict=True))).sums(example, count)
    plain = log_w.sums(example, count)
    fallback = total.isneginf() & ~plain.isneginf()
    without = [(g.isneginf() & ~w.isneginf()).any(dim=1) for g, w in zip(log_g, log_w, strict=True)]
    holes = torch.zeros_like(total).index_add(0, example, (without[0] | without[1]).double()) > 0
    eps = torch.full_like(total, defense).masked_fill(holes, max(defense, LEAST_DEFENSE))
    # If no candidate competes, these numbers aren't used, and only have to be finite.
    total, plain = (torch.where(x.isneginf(), 0.0, x) for x in (total, plain))
    by_g, by_w = torch.log1p(-eps) - total, eps.log() - plain

    def mix(g: Tensor, competes: Tensor) -> Tensor:
        defended = torch.logaddexp(
            g + by_g[example].unsqueeze(1), by_w[example].unsqueeze(1).expand_as(g)
        )
        defended = torch.where(fallback[example].unsqueeze(1), 0.0, defended)
        return defended.masked_fill(~competes, -torch.inf)

    return _Pair(*(mix(g, each) for g, each in zip(log_g, going, strict=True)))


def _masses(candidates: CandidateGuide, log_p: Float[Tensor, "R V"]) -> Masses:
    """Compute the class probabilities, for proposals that haven't computed them."""
    factors = candidates.factors
    classes = factors.classes
    if classes.are_tokens and not factors.tokens.shape[1]:
        return Masses(log_p.double(), factors.by_token)
    before = (factors.tokens.unsqueeze(2) == factors.tokens.unsqueeze(1)).tril(-1).any(dim=2)
    by_token = log_p.gather(1, factors.tokens).double().masked_fill(before, -torch.inf)
    others = log_p.scatter(1, factors.tokens, -torch.inf) if factors.tokens.shape[1] else log_p
    rest = top_k_and_class_sums(others, classes, factors.automaton_of_row, candidates.alive, 0)
    return Masses(rest.log_mass, by_token)


def own_classes(factors: Factors) -> Int64[Tensor, "R K"]:
    """Return the class of each token that has a separate factor."""
    return factors.classes.of[factors.automaton_of_row.unsqueeze(1), factors.tokens].long()


def sums_by(
    log_values: Float64[Tensor, "M"], group: Int64[Tensor, "M"], count: int
) -> Float64[Tensor, "G"]:
    """Return the log of the sum of exp(log_values) over each group; -inf for an empty group."""
    top = log_values.new_full((count,), -torch.inf)
    top = top.scatter_reduce(0, group, log_values, "amax")
    finite = torch.where(top.isneginf(), 0.0, top)
    return (
        torch.zeros_like(top).index_add(0, group, (log_values - finite[group]).exp()).log() + finite
    )

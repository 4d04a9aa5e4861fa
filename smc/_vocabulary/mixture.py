"""The defensive mixture, and scores of the candidates of the discrete particle filter.

**The defensive mixture.** A share eps of the distribution with g = 1 is mixed into q, because g has
no fixed scale, and may be zero for allowed tokens. Let w be the weights of some items, G the sum of
w g over them, and M the sum of w over the allowed ones. Then

    g' = (1 - eps) g + eps (G / M) 1{allowed},     g' = 1{allowed} if G = 0,

so that the sum of w g' is G, too. Particles mix over the next tokens of each prefix (`defend`),
with w = p_lm. The discrete filter mixes over all candidates of an example (`selection_scores`),
because its prefixes compete with each other.

**Scores** (docs/design.md, section 6). A *candidate* is a prefix of weight W with a next token v.
The weight of the candidate is w = W p_lm(v), and its score is s = w g'. With g = 1 for some tokens
and 0 for all others, s = w.

**Complete answers** that count toward the N slots have scores, too. The score of an answer is its
weight times (sum of s) / (sum of w), with the sums over the example's candidates. (With g = 1 for
answers and a lookahead that considers the end improbable, N answers would take all slots.)

Cost: O(R C) for R prefixes and C classes. If the proposal hasn't computed the probabilities of the
classes, they take one pass over R x V numbers (`smc._vocabulary.class_sums.top_k_and_class_sums`).
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from jaxtyping import Bool, Float, Float64, Int64
from torch import Tensor

from smc._vocabulary.class_sums import top_k_and_class_sums
from smc._vocabulary.factors import Factors

LEAST_DEFENSE = 1e-3
"""Minimum share eps of the defensive mixture if some allowed item has g = 0."""


class SelectionScores(NamedTuple):
    """The scores of the candidates that don't complete the text; only these compete.

    Attributes:
        factors: log s(v) - log p(v) of each class or token; -inf for tokens that don't compete.
        log_unit: log of (sum of s) / (sum of w) of each example, which converts the weights of
            complete answers into scores.
    """

    factors: Factors
    log_unit: Float64[Tensor, "B"]


def alive_of(factors: Factors) -> Bool[Tensor, "R C"]:
    """Return True for the classes that have allowed tokens."""
    if factors.alive is not None:
        return factors.alive
    alive = ~factors.by_class.isneginf()
    if not factors.tokens.shape[1]:
        return alive
    # A class is also alive if only its tokens with a separate g have a positive g.
    own = alive.new_zeros(alive.shape, dtype=torch.int8)
    positive = (~factors.by_token.isneginf()).to(torch.int8)
    return alive | own.scatter_reduce_(1, factors.class_of_token, positive, "amax").bool()


def defend(factors: Factors, log_p: Float[Tensor, "R V"]) -> Factors:
    """Return g with the defensive mixture over the next tokens of each prefix."""
    if factors.defense is None:
        return factors
    rows = torch.arange(len(log_p), device=log_p.device)
    log_g, log_w, allowed = factors.by_item, _log_mass(factors, log_p), _items(factors)
    zero = allowed & log_g.isneginf()
    mixed = _mix(log_g, log_w, allowed, zero, rows, len(rows), factors.defense)
    log_z = torch.where(mixed.fallback, mixed.log_plain, mixed.log_total)
    return factors.replace_items(mixed.log_g)._replace(
        log_z=log_z, fallback=mixed.fallback & ~log_z.isneginf()
    )


def selection_scores(
    factors: Factors,
    ends: Bool[Tensor, "R C"],
    log_p: Float[Tensor, "R V"],
    log_weight: Float64[Tensor, "R"],
    example: Int64[Tensor, "R"],
    num_examples: int,
) -> SelectionScores:
    """Return the scores of all candidates that don't complete the text."""
    going, weight = _items(factors, ~ends), log_weight.unsqueeze(1)
    log_g = factors.by_item.masked_fill(~going, -torch.inf)
    log_unit = log_weight.new_zeros(num_examples)
    if factors.defense is not None or not factors.is_mask:
        log_w = (_log_mass(factors, log_p) + weight).masked_fill(~going, -torch.inf)
        if factors.defense is not None:
            zero = log_g.isneginf() & ~log_w.isneginf()
            log_g = _mix(
                log_g, log_w, going, zero, example, num_examples, factors.defense
            ).log_g  # fmt: skip
        plain = _sums(log_w, example, num_examples)
        total = _sums(log_g + log_w, example, num_examples)
        log_unit = torch.where(plain.isneginf(), 0.0, total - plain)
    return SelectionScores(factors.replace_items(log_g + weight), log_unit)


class _Mixture(NamedTuple):
    """Log g' of each item, and for each group log G, log M, and whether G is zero."""

    log_g: Float64[Tensor, "R K"]
    log_total: Float64[Tensor, "G"]
    log_plain: Float64[Tensor, "G"]
    fallback: Bool[Tensor, "G"]


def _mix(
    log_g: Float64[Tensor, "R K"],
    log_w: Float[Tensor, "R K"],
    allowed: Bool[Tensor, "R K"],
    zero: Bool[Tensor, "R K"],
    group: Int64[Tensor, "R"],
    count: int,
    defense: float,
) -> _Mixture:
    """Apply the defensive mixture to K items of each row; `zero` are allowed items with g = 0."""
    total = _sums(log_g + log_w, group, count)
    plain = _sums(log_w.masked_fill(~allowed, -torch.inf), group, count)
    fallback = total.isneginf()
    holes = torch.zeros_like(total).index_add(0, group, zero.any(dim=1).double()) > 0
    eps = torch.full_like(total, defense).masked_fill(holes, max(defense, LEAST_DEFENSE))
    even = torch.where(fallback, 0.0, total - plain) + eps.log()
    mixed = torch.logaddexp(log_g + torch.log1p(-eps)[group].unsqueeze(1), even[group].unsqueeze(1))
    mixed = torch.where(fallback[group].unsqueeze(1), 0.0, mixed)
    return _Mixture(mixed.masked_fill(~allowed, -torch.inf), total, plain, fallback)


def _items(factors: Factors, of: Bool[Tensor, "R C"] | None = None) -> Bool[Tensor, "R CK"]:
    """Return whether each class, and then each token, is allowed and in a class of `of`."""
    alive = alive_of(factors) if of is None else alive_of(factors) & of
    if not factors.tokens.shape[1]:
        return alive
    return torch.cat([alive, alive.gather(1, factors.class_of_token)], dim=1)


def _log_mass(factors: Factors, log_p: Float[Tensor, "R V"]) -> Float[Tensor, "R CK"]:
    """Return the log-probability of each class without the K tokens, and then of each token."""
    classes, tokens = factors.classes, factors.tokens
    if factors.log_mass is not None:
        return factors.log_mass
    if classes.are_tokens and not tokens.shape[1]:
        return log_p
    before = (tokens.unsqueeze(2) == tokens.unsqueeze(1)).tril(-1).any(dim=2)
    by_token = log_p.gather(1, tokens).double().masked_fill(before, -torch.inf)
    others = log_p.scatter(1, tokens, -torch.inf) if tokens.shape[1] else log_p
    rest = top_k_and_class_sums(others, classes, factors.automaton_of_row, alive_of(factors), 0)
    return torch.cat([rest.log_mass, by_token], dim=1)


def _sums(
    log_values: Float[Tensor, "R K"], group: Int64[Tensor, "R"], count: int
) -> Float64[Tensor, "G"]:
    """Return the log of the sum of exp(values) over all rows of each group."""
    return sums_by(log_values.double().logsumexp(dim=1), group, count)


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

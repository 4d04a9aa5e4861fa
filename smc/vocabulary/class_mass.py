"""Sums of a language model's probabilities over the token classes of an automaton.

All tokens of a class lead to the same state, so a proposal needs to compute its g for hundreds of
classes rather than for a hundred thousand tokens. What is left to do over the whole vocabulary is
one pass that finds the K most probable of the allowed tokens and the probability of each class
without them (`top_k_and_class_mass`), and, where a token is drawn, one that adds log g to log p
(`Factors.applied`). Both are O(R V) and bound by memory. On the CPU they are compiled and read what
they need once; elsewhere they are a few tensor operations each, which do not wait for the device.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import torch
from jaxtyping import Bool, Float, Float64, Int64
from torch import Tensor

from gcd.support.threads import shared_out
from gcd.tokens.batch import TokenClasses
from smc.vocabulary import factors
from smc.vocabulary.factors import (
    FactorGuide,
    Factors,
    by_class_alone,
    check_rows,
    unsigned,
)
from smc.vocabulary.kernels import tying as kernels

FEW = 32  # where less than this part of the tokens is allowed, they are looked up one by one


class TopKAndClassMass(NamedTuple):
    """R rows of log-probabilities, summed by class.

    Attributes:
        tokens: the K likeliest tokens of the classes allowed; where fewer than K have any
            probability, the others are any tokens, and have none.
        best: their log-probabilities.
        log_mass: log-probability of each class without these tokens; -inf where not allowed.
    """

    tokens: Int64[Tensor, "R K"]
    best: Float64[Tensor, "R K"]
    log_mass: Float64[Tensor, "R C"]


def top_k_and_class_mass(
    log_p: Float[Tensor, "R V"],
    classes: TokenClasses,
    automaton_of_row: Int64[Tensor, "R"],
    alive: Bool[Tensor, "R C"],
    K: int,
) -> TopKAndClassMass:
    """Find the K most probable allowed tokens, and the probability of each class without them.

    Nothing is subtracted: a class that is left with little is as exact as any other.

    Args:
        log_p: log-probabilities of the next token, in float32 or float64, which is then the
            precision of each token's share; sums are in float64.
        classes: of tokens, in each of B automata.
        automaton_of_row: the automaton of each row.
        alive: the classes allowed.
        K: how many favourites, at most V.
    """
    check_rows(log_p, classes, automaton_of_row, alive)
    (R, C), V = alive.shape, log_p.shape[1]
    if not 0 <= K <= V:
        raise ValueError(f"expected at most {V} favorites, one for each token, got {K}")
    if log_p.device.type in factors.COMPILED_DEVICES:
        tokens = torch.empty(R, K, dtype=torch.int64, device="cpu")
        best, log_mass = (
            torch.empty(R, width, dtype=torch.float64, device="cpu") for width in (K, C)
        )
        shared_out(
            kernels.weigh,
            R,
            log_p.numpy(),
            unsigned(classes.of),
            classes.tokens.numpy(),
            classes.start.numpy(),
            automaton_of_row.numpy(),
            alive.numpy(),
            V // FEW,
            tokens.numpy(),
            best.numpy(),
            log_mass.numpy(),
        )
        return TopKAndClassMass(tokens, best, log_mass)
    of_row = classes.of[automaton_of_row].long()
    allowed = log_p.double().masked_fill(~alive.gather(1, of_row), -torch.inf)
    best, tokens = allowed.topk(K, dim=1)
    rest = allowed.scatter(1, tokens, -torch.inf)
    # Each class by its own scale, as a lookahead may leave nothing but the least likely one.
    top = torch.full((R, C), -torch.inf, dtype=torch.float64, device=log_p.device)
    top = top.scatter_reduce(1, of_row, rest, "amax")
    finite = torch.where(top.isneginf(), 0.0, top)
    p = (rest - finite.gather(1, of_row)).exp()
    return TopKAndClassMass(
        tokens, best, torch.zeros_like(top).scatter_add_(1, of_row, p).log() + finite
    )


@dataclass(frozen=True, eq=False)
class MaskGuide(FactorGuide):
    """The guide whose g is one for some classes of tokens, and zero for the others.

    Z is computed only where somebody asks for it: the discrete particle filter does not.

    Attributes:
        log_p: log-probabilities of the next token.
        alive: the classes of each row with g = 1.
        classes: of tokens, in each of B automata.
        automaton_of_row: the automaton of each row.
        fallback: see `smc.vocabulary.factors.Guide`; there is none.
    """

    log_p: Float[Tensor, "R V"]
    alive: Bool[Tensor, "R C"]
    classes: TokenClasses
    automaton_of_row: Int64[Tensor, "R"]
    fallback: None = None

    @cached_property
    def factors(self) -> Factors:  # type: ignore[override]
        """log g by class: zero, or -inf."""
        by_class = torch.zeros_like(self.alive, dtype=torch.float64)
        by_class.masked_fill_(~self.alive, -torch.inf)
        return by_class_alone(by_class, self.classes, self.automaton_of_row)

    @cached_property
    def log_z(self) -> Float64[Tensor, "R"]:
        """log of the probability of all tokens with g = 1."""
        if self.log_p.device.type in factors.COMPILED_DEVICES:
            rest = top_k_and_class_mass(
                self.log_p, self.classes, self.automaton_of_row, self.alive, 0
            )
            return rest.log_mass.logsumexp(dim=1)
        # Not by class: sums of many numbers at few places are slow there, and in no fixed order.
        mask = self.alive.gather(1, self.classes.of[self.automaton_of_row].long())
        return self.log_p.masked_fill(~mask, -torch.inf).logsumexp(dim=1).double()

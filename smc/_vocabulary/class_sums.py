"""Sums of a language model's probabilities over the token classes of an automaton.

All tokens of a class lead to the same state. So a proposal computes g for hundreds of classes,
instead of a hundred thousand tokens. Two passes over the whole vocabulary remain. One finds the K
most probable allowed tokens, and the probability of each class without them
(`top_k_and_class_sums`). The other sums p g when a token is drawn (`smc._vocabulary.compiled`).
Both are O(R V) and limited by memory bandwidth. On the CPU they are compiled loops that read their
inputs once. On other devices they are a few tensor operations without host synchronization.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from jaxtyping import Bool, Float, Float64, Int64
from torch import Tensor

from gcd._tokens.batch import TokenClasses
from hmm._threads import share_out
from smc._vocabulary import factors
from smc._vocabulary.factors import Factors, check_rows
from smc._vocabulary.kernels import loops

FEW = 32  # if less than 1/FEW of the tokens are allowed, only these tokens are read


class TopKAndClassSums(NamedTuple):
    """The most probable tokens and the class probabilities of R rows of log-probabilities.

    Attributes:
        tokens: the K most probable tokens of the allowed classes. If fewer than K have a positive
            probability, the others are arbitrary tokens with log-probability -inf.
        best: log-probability of each of these tokens.
        log_mass: log-probability of each class without these tokens; -inf for forbidden classes.
    """

    tokens: Int64[Tensor, "R K"]
    best: Float64[Tensor, "R K"]
    log_mass: Float64[Tensor, "R C"]


def top_k_and_class_sums(
    log_p: Float[Tensor, "R V"],
    classes: TokenClasses,
    automaton_of_row: Int64[Tensor, "R"],
    alive: Bool[Tensor, "R C"],
    K: int,
) -> TopKAndClassSums:
    """Find the K most probable allowed tokens, and the probability of each class without them.

    Nothing is subtracted, so a class with a small remaining probability is as exact as any other.
    """
    check_rows(log_p, classes, automaton_of_row, alive)
    (R, C), V = alive.shape, log_p.shape[1]
    if not 0 <= K <= V:
        raise ValueError(f"expected K to be from 0 to {V} (the vocabulary size), got {K}")
    if log_p.device.type in factors.COMPILED_DEVICES:
        found = weigh(log_p, Factors.mask(alive, classes, automaton_of_row), K)
        return TopKAndClassSums(found.tokens, found.best, found.log_mass)
    of_row = classes.of[automaton_of_row].long()
    allowed = log_p.double().masked_fill(~alive.gather(1, of_row), -torch.inf)
    best, tokens = allowed.topk(K, dim=1)
    rest = allowed.scatter(1, tokens, -torch.inf)
    # Each class has a separate scale, because a lookahead may allow only the least probable class.
    top = torch.full((R, C), -torch.inf, dtype=torch.float64, device=log_p.device)
    top = top.scatter_reduce(1, of_row, rest, "amax")
    finite = torch.where(top.isneginf(), 0.0, top)
    p = (rest - finite.gather(1, of_row)).exp()
    return TopKAndClassSums(
        tokens, best, torch.zeros_like(top).scatter_add_(1, of_row, p).log() + finite
    )


class Weighed(NamedTuple):
    """The K best tokens of R rows by log p + log g, and sums of p g over the others.

    Attributes:
        tokens: the K best tokens in descending order, followed by token 0.
        best: log p + log g of each of these tokens; -inf if there are fewer.
        log_mass: log sum of each class, without its tokens with a separate g.
        log_listed: log sum of the tokens with a separate g.
    """

    tokens: Int64[Tensor, "R K"]
    best: Float64[Tensor, "R K"]
    log_mass: Float64[Tensor, "R C"]
    log_listed: Float64[Tensor, "R"]


def weigh(log_p: Float[Tensor, "R V"], given: Factors, K: int) -> Weighed:
    """Find the K best tokens of each row on the CPU, and sum the others by class."""
    (R, V), C = log_p.shape, given.by_class.shape[1]
    tokens = torch.empty(R, K, dtype=torch.int64, device="cpu")
    best, log_mass, log_listed = (
        torch.empty(shape, dtype=torch.float64, device="cpu") for shape in ((R, K), (R, C), (R,))
    )
    found = Weighed(tokens, best, log_mass, log_listed)
    share_out(loops.weigh, R, log_p.numpy(), given.lines, V // FEW, *(x.numpy() for x in found))
    return found


def log_sum_of_classes(
    log_p: Float[Tensor, "R V"],
    classes: TokenClasses,
    automaton_of_row: Int64[Tensor, "R"],
    alive: Bool[Tensor, "R C"],
) -> Float64[Tensor, "R"]:
    """Return the log of the total probability of all tokens in the allowed classes."""
    if log_p.device.type in factors.COMPILED_DEVICES:
        rest = top_k_and_class_sums(log_p, classes, automaton_of_row, alive, 0)
        return rest.log_mass.logsumexp(dim=1)
    # Not summed by class, because scatter-adds of many numbers to few targets are slow and
    # nondeterministic.
    mask = alive.gather(1, classes.of[automaton_of_row].long())
    return log_p.masked_fill(~mask, -torch.inf).logsumexp(dim=1).double()

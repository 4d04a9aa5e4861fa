"""What a language model gives to classes of tokens, and a guide that knows classes only.

Within a class all tokens lead to the same state, so a lookahead is a matter of hundreds of classes
rather than a hundred thousand tokens. Two passes over the vocabulary are left: one that finds the
K likeliest of the tokens allowed and the mass of each class without them (`weigh_rest`), and, where
a token is drawn, one that adds log g to log p (`TiedGuide.tilted`). Both are O(R V) and bound by
memory. On the CPU they are compiled and read what they need once; elsewhere they are some passes
of tensor operations each, without waiting for the device.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from jaxtyping import Bool, Float, Float64, Int32, Int64
from torch import Tensor

from gcd.support.threads import shared_out
from gcd.tokens.batch import TokenClasses
from smc.kernels import tying as kernels

_COMPILED = ("cpu",)  # where the loops of `smc.kernels` run


class Rest(NamedTuple):
    """R rows of log-probabilities, by class.

    Attributes:
        tokens: the K likeliest tokens of the classes allowed; where fewer than K have any
            probability, the others are any tokens, and have none.
        best: their log-probabilities.
        log_mass: log-probability of each class without these tokens; -inf where not allowed.
    """

    tokens: Int64[Tensor, "R K"]
    best: Float64[Tensor, "R K"]
    log_mass: Float64[Tensor, "R C"]


def weigh_rest(
    log_p: Float[Tensor, "R V"],
    classes: TokenClasses,
    which: Int64[Tensor, "R"],
    alive: Bool[Tensor, "R C"],
    K: int,
) -> Rest:
    """The favourites, and what is left to the classes.

    Nothing is subtracted: a class that is left with little is known as well as any other.

    Args:
        log_p: log-probabilities of the next token, in float32 or float64, which is then the
            precision of each token's share; sums are in float64.
        classes: of tokens, in each of B automata.
        which: the automaton of each row.
        alive: the classes allowed.
        K: how many favourites, at most V.
    """
    R, C = alive.shape
    if log_p.device.type in _COMPILED:
        tokens = torch.empty(R, K, dtype=torch.int64)
        best, log_mass = (torch.empty(R, width, dtype=torch.float64) for width in (K, C))
        shared_out(
            kernels.weigh_rest,
            R,
            log_p.numpy(),
            _unsigned(classes.of),
            classes.tokens.numpy(),
            classes.start.numpy(),
            which.numpy(),
            alive.numpy(),
            tokens.numpy(),
            best.numpy(),
            log_mass.numpy(),
        )
        return Rest(tokens, best, log_mass)
    of_row = classes.of[which].long()
    allowed = log_p.double().masked_fill(~alive.gather(1, of_row), -torch.inf)
    best, tokens = allowed.topk(K, dim=1)
    rest = allowed.scatter(1, tokens, -torch.inf)
    # Each class by its own scale, as a lookahead may leave nothing but the least likely one.
    top = torch.full((R, C), -torch.inf, dtype=torch.float64, device=log_p.device)
    top = top.scatter_reduce(1, of_row, rest, "amax")
    finite = torch.where(top.isneginf(), 0.0, top)
    p = (rest - finite.gather(1, of_row)).exp()
    return Rest(tokens, best, torch.zeros_like(top).scatter_add_(1, of_row, p).log() + finite)


def even_guide(
    log_p: Float[Tensor, "R V"],
    classes: TokenClasses,
    which: Int64[Tensor, "R"],
    alive: Bool[Tensor, "R C"],
) -> TiedGuide:
    """The guide that is one for the classes alive and zero for the others."""
    R = len(log_p)
    by_class = torch.zeros_like(alive, dtype=torch.float64).masked_fill_(~alive, -torch.inf)
    if log_p.device.type in _COMPILED:
        log_z = weigh_rest(log_p, classes, which, alive, 0).log_mass.logsumexp(dim=1)
    else:
        # Not by class: sums of many numbers at few places are slow there, and in no fixed order.
        mask = alive.gather(1, classes.of[which].long())
        log_z = log_p.masked_fill(~mask, -torch.inf).logsumexp(dim=1).double()
    none = which.new_zeros(R, 0)
    return TiedGuide(by_class, none, by_class.new_zeros(R, 0), classes.of, which, log_z)


class TiedGuide(NamedTuple):
    """A `Guide` with one g for each class of tokens, and one for each of K tokens.

    Attributes:
        by_class: log g of the classes of each row.
        tokens: of each row, the tokens that have their own g; equal ones have equal g.
        by_token: log g of these.
        class_of: class of each token, in each of B automata.
        which: the automaton of each row.
        log_z: log sum_v p_lm(v) g(v); -inf where no token can be drawn.
        lost: rows where g is GCD's mask, for want of anything better.
    """

    by_class: Float64[Tensor, "R C"]
    tokens: Int64[Tensor, "R K"]
    by_token: Float64[Tensor, "R K"]
    class_of: Int32[Tensor, "B V"]
    which: Int64[Tensor, "R"]
    log_z: Float64[Tensor, "R"]
    lost: Bool[Tensor, "R"] | None = None

    @property
    def log_g(self) -> Float64[Tensor, "R V"]:
        """log g of every token."""
        return self.tilted(self.by_class.new_zeros(len(self.which), self.class_of.shape[1]))

    def at(self, rows: Int64[Tensor, "M"], tokens: Int64[Tensor, "M"]) -> Float64[Tensor, "M"]:
        """log g of one token each."""
        log_g = self.by_class[rows, self.class_of[self.which[rows], tokens].long()]
        own = self.tokens[rows] == tokens.unsqueeze(1)
        own_g = self.by_token[rows].masked_fill(~own, -torch.inf)
        if not own.shape[1]:
            return log_g
        return torch.where(own.any(dim=1), own_g.amax(dim=1), log_g)

    def tilted(self, log_p: Float[Tensor, "R V"]) -> Float64[Tensor, "R V"]:
        """log p(v) + log g(v), which is the log of Z q(v)."""
        if log_p.device.type in _COMPILED:
            out = torch.empty_like(log_p, dtype=torch.float64)
            shared_out(
                kernels.tilt,
                len(log_p),
                log_p.numpy(),
                _unsigned(self.class_of),
                self.which.numpy(),
                self.by_class.numpy(),
                self.tokens.numpy(),
                self.by_token.numpy(),
                out.numpy(),
            )
            return out
        log_g = self.by_class.gather(1, self.class_of[self.which].long())
        return log_p + log_g.scatter_(1, self.tokens, self.by_token)


def _unsigned(classes: Int32[Tensor, "B V"]) -> object:
    """Classes as unsigned numbers: as places in an array they need no check for negative ones."""
    return classes.numpy().view("uint32")

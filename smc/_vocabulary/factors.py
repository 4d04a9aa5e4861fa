"""Guides: a proposal's log g of every token, and log Z.

With p the language model's distribution of the next token, the sampler draws from

    q(v) = p(v) g(v) / Z,        Z = sum over v of p(v) g(v).

A guide has one row for each of R prefixes. `DenseGuide` has one number for every token. `TiedGuide`
has one number for every class of tokens, and one for each of a few tokens (`Factors`). A
`TiedGuide` is hundreds of times smaller than a `DenseGuide`, and is only expanded over the
vocabulary when a token is drawn. `MaskGuide` (`smc._vocabulary.class_sums`) allows or forbids each
class as a whole, and computes Z only on demand.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple, Protocol, runtime_checkable

import numpy as np
import torch
from jaxtyping import Bool, Float, Float64, Int32, Int64, Shaped, UInt32
from torch import Tensor

from gcd._arguments import check_indices, check_shape
from gcd._support.threads import share_out
from gcd._tokens.batch import TokenClasses
from smc._vocabulary.kernels import tying as kernels

COMPILED_DEVICES: tuple[str, ...] = ("cpu",)
"""Devices with compiled loops (`smc._vocabulary.kernels`); others use tensor operations."""


@runtime_checkable
class Guide(Protocol):
    """Factors g of a proposal q = p g / Z for R prefixes, as logarithms."""

    @property
    def log_g(self) -> Float64[Tensor, "R V"]:
        """Log g of every token; -inf for a forbidden token."""
        ...

    @property
    def log_z(self) -> Float64[Tensor, "R"]:
        """Log of the sum over v of p(v) g(v); -inf if no token can be drawn."""
        ...

    @property
    def fallback(self) -> Bool[Tensor, "R"] | None:
        """True for prefixes where g was zero and GCD's mask replaced it; None if there are none."""
        ...

    def at(self, rows: Int64[Tensor, "M"], tokens: Int64[Tensor, "M"]) -> Float64[Tensor, "M"]:
        """Return log g of one token for each given prefix."""
        ...

    def tilted(self, log_p: Float[Tensor, "R V"]) -> Float64[Tensor, "R V"]:
        """Return log p(v) + log g(v), which is log Z + log q(v)."""
        ...


class DenseGuide(NamedTuple):
    """Factors g of a proposal (guide), with a separate g for each token.

    Attributes:
        log_g: log g(v); -inf for a forbidden token.
        log_z: log of the sum over v of p(v) g(v); -inf if no token can be drawn.
        fallback: True for prefixes where GCD's mask replaced g; None if there are none.
    """

    log_g: Float64[Tensor, "R V"]
    log_z: Float64[Tensor, "R"]
    fallback: Bool[Tensor, "R"] | None = None

    def at(self, rows: Int64[Tensor, "M"], tokens: Int64[Tensor, "M"]) -> Float64[Tensor, "M"]:
        """Return log g of one token for each given prefix."""
        return self.log_g[rows, tokens]

    def tilted(self, log_p: Float[Tensor, "R V"]) -> Float64[Tensor, "R V"]:
        """Return log p(v) + log g(v), which is log Z + log q(v)."""
        return log_p + self.log_g


class Factors(NamedTuple):
    """A factor for every token, stored as one number per class, and one for each of K tokens.

    Attributes:
        by_class: log factor of each class of the row's automaton.
        tokens: the K tokens of each row that have a separate factor; equal tokens have equal
            factors.
        by_token: log factor of each of these tokens.
        classes: token classes of each of B automata.
        automaton_of_row: the automaton of each row.
    """

    by_class: Float64[Tensor, "R C"]
    tokens: Int64[Tensor, "R K"]
    by_token: Float64[Tensor, "R K"]
    classes: TokenClasses
    automaton_of_row: Int64[Tensor, "R"]

    def at(self, rows: Int64[Tensor, "M"], tokens: Int64[Tensor, "M"]) -> Float64[Tensor, "M"]:
        """Return the log factor of one token in each given row."""
        log_factor = self.by_class[
            rows, self.classes.of[self.automaton_of_row[rows], tokens].long()
        ]
        own = self.tokens[rows] == tokens.unsqueeze(1)
        own_factor = self.by_token[rows].masked_fill(~own, -torch.inf)
        if not own.shape[1]:
            return log_factor
        return torch.where(own.any(dim=1), own_factor.amax(dim=1), log_factor)

    def apply(self, log_p: Float[Tensor, "R V"]) -> Float64[Tensor, "R V"]:
        """Return log p(v) plus the log factor of v, in one pass over R x V numbers."""
        self.check(log_p)
        if log_p.device.type in COMPILED_DEVICES:
            out = torch.empty_like(log_p, dtype=torch.float64)
            share_out(
                kernels.tilt,
                len(log_p),
                log_p.numpy(),
                as_unsigned(self.classes.of),
                self.automaton_of_row.numpy(),
                self.by_class.numpy(),
                self.tokens.numpy(),
                self.by_token.numpy(),
                out.numpy(),
            )
            return out
        log_factor = self.by_class.gather(1, self.classes.of[self.automaton_of_row].long())
        return log_p + log_factor.scatter_(1, self.tokens, self.by_token)

    def check(self, log_p: Float[Tensor, "R V"]) -> None:
        """Raise ValueError if compiled code would read outside of these arrays or of `log_p`."""
        check_rows(log_p, self.classes, self.automaton_of_row, self.by_class)
        R, V = log_p.shape
        check_shape(self.tokens, (R, *self.tokens.shape[1:2]), "`tokens` (one row per prefix)")
        check_shape(self.by_token, tuple(self.tokens.shape), "`by_token` (one factor per token)")
        check_indices(self.tokens, V)


def check_rows(
    log_p: Float[Tensor, "R V"],
    classes: TokenClasses,
    automaton_of_row: Int64[Tensor, "R"],
    by_class: Shaped[Tensor, "R C"],
) -> None:
    """Raise ValueError if the arrays of R prefixes don't match the token classes."""
    (B, V), C = classes.of.shape, classes.start.shape[1] - 1
    R = len(automaton_of_row)
    if log_p.dtype not in (torch.float32, torch.float64):
        raise ValueError(f"expected log_p in float32 or float64, got {log_p.dtype}")
    check_shape(log_p, (R, V), "`log_p` (one row per prefix, one column per token)")
    check_shape(by_class, (R, C), "factors (one row per prefix, one column per token class)")
    check_indices(automaton_of_row, B, "automaton")


def by_class_alone(
    by_class: Float64[Tensor, "R C"], classes: TokenClasses, automaton_of_row: Int64[Tensor, "R"]
) -> Factors:
    """Return factors of classes, without factors of single tokens."""
    none = automaton_of_row.new_zeros(len(automaton_of_row), 0)
    return Factors(by_class, none, by_class.new_zeros(none.shape), classes, automaton_of_row)


class FactorGuide:
    """Base class of guides (a proposal's g) that store log g by token class, in `factors`."""

    factors: Factors

    @property
    def log_g(self) -> Float64[Tensor, "R V"]:
        """Log g of every token."""
        factors = self.factors
        shape = len(factors.automaton_of_row), factors.classes.of.shape[1]
        return factors.apply(factors.by_class.new_zeros(shape, dtype=torch.float32))

    def at(self, rows: Int64[Tensor, "M"], tokens: Int64[Tensor, "M"]) -> Float64[Tensor, "M"]:
        """Return log g of one token for each given prefix."""
        return self.factors.at(rows, tokens)

    def tilted(self, log_p: Float[Tensor, "R V"]) -> Float64[Tensor, "R V"]:
        """Return log p(v) + log g(v), which is log Z + log q(v)."""
        return self.factors.apply(log_p)


@dataclass(frozen=True, eq=False)
class TiedGuide(FactorGuide):
    """Factors g of a proposal (guide): one for each token class, and one for each of K tokens.

    Attributes:
        factors: log g.
        log_z: log of the sum over v of p(v) g(v); -inf if no token can be drawn.
        fallback: True for prefixes where GCD's mask replaced g; None if there are none.
    """

    factors: Factors
    log_z: Float64[Tensor, "R"]
    fallback: Bool[Tensor, "R"] | None = None


def as_unsigned(classes: Int32[Tensor, "B V"]) -> UInt32[np.ndarray, "B V"]:
    """Return the class of each token as unsigned integers, as compiled loops require."""
    return classes.numpy().view("uint32")

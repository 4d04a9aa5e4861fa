"""Guides: a proposal's log g of every token.

With p the language model's distribution of the next token, the sampler draws from

    q(v) = p(v) g(v) / Z,        Z = sum over v of p(v) g(v).

`Factors` stores g for R prefixes, with one number for each class of tokens, and one for each of a
few tokens. That is hundreds of times smaller than a number for every token, and is only expanded
over the vocabulary when a token is drawn. A g without structure has every token as its own class
(`Factors.dense`), and a mask has g = 1 for some classes and g = 0 for the others (`Factors.mask`).
Z is computed on demand, because the discrete particle filter doesn't need it.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from jaxtyping import Bool, Float, Float64, Int64, Shaped
from torch import Tensor

from gcd._arguments import check_indices, check_shape
from gcd._tokens.batch import TokenClasses
from hmm._threads import share_out
from smc._vocabulary.kernels.loops import Lines, tilt

COMPILED_DEVICES: tuple[str, ...] = ("cpu",)
"""Devices with compiled loops (`smc._vocabulary.kernels`); others use tensor operations."""


class Factors(NamedTuple):
    """Log g of every token: one number per class of tokens, and one for each of K tokens.

    Attributes:
        by_class: log g of each class of the row's automaton; -inf for forbidden tokens.
        tokens: the K tokens of each row that have a separate g; equal tokens have equal g.
        by_token: log g of each of these tokens.
        classes: token classes of each of B automata.
        automaton_of_row: the automaton of each row.
        alive: True for classes whose tokens are allowed, although g may be zero; None if g is
            positive for exactly the allowed tokens.
        defense: share eps of the defensive mixture (`smc._vocabulary.mixture`), which the sampler
            adds to this g; None for no mixture.
        log_mass: the model's log-probability of each class without the K tokens, and then of each
            of the K tokens (-inf for duplicates); None if it isn't computed yet.
        log_z: log of the sum over v of p(v) g(v); None if it isn't computed yet.
        fallback: True for prefixes where g is zero for every allowed token, so that GCD's mask
            replaces it; None if there are none.
        is_mask: whether g is always zero or one.
    """

    by_class: Float64[Tensor, "R C"]
    tokens: Int64[Tensor, "R K"]
    by_token: Float64[Tensor, "R K"]
    classes: TokenClasses
    automaton_of_row: Int64[Tensor, "R"]
    alive: Bool[Tensor, "R C"] | None = None
    defense: float | None = None
    log_mass: Float64[Tensor, "R CK"] | None = None
    log_z: Float64[Tensor, "R"] | None = None
    fallback: Bool[Tensor, "R"] | None = None
    is_mask: bool = False

    @classmethod
    def of_classes(
        cls,
        by_class: Float64[Tensor, "R C"],
        classes: TokenClasses,
        automaton_of_row: Int64[Tensor, "R"],
    ) -> Factors:
        """Return factors of classes, without a separate g of single tokens."""
        none = automaton_of_row.new_zeros(len(automaton_of_row), 0)
        return cls(by_class, none, by_class.new_zeros(none.shape), classes, automaton_of_row)

    @classmethod
    def dense(cls, log_g: Float64[Tensor, "R V"]) -> Factors:
        """Return factors with a separate g for every token; log g is -inf for forbidden tokens."""
        one = torch.zeros(len(log_g), dtype=torch.int64, device=log_g.device)
        return cls.of_classes(log_g, TokenClasses.singletons(log_g.shape[1], log_g.device), one)

    @classmethod
    def mask(
        cls, alive: Bool[Tensor, "R C"], classes: TokenClasses, automaton_of_row: Int64[Tensor, "R"]
    ) -> Factors:
        """Return g = 1 for the tokens of the given classes, and g = 0 for all others."""
        by_class = torch.zeros_like(alive, dtype=torch.float64).masked_fill_(~alive, -torch.inf)
        found = cls.of_classes(by_class, classes, automaton_of_row)
        return found._replace(alive=alive, is_mask=True)

    @property
    def log_g(self) -> Float64[Tensor, "R V"]:
        """Log g of every token."""
        shape = len(self.automaton_of_row), self.classes.of.shape[1]
        return self.apply(self.by_class.new_zeros(shape, dtype=torch.float32))

    @property
    def by_item(self) -> Float64[Tensor, "R CK"]:
        """Log g of each class, and then of each of the K tokens."""
        return torch.cat([self.by_class, self.by_token], dim=1)

    @property
    def class_of_token(self) -> Int64[Tensor, "R K"]:
        """The class of each of the K tokens."""
        return self.classes.of[self.automaton_of_row.unsqueeze(1), self.tokens].long()

    def replace_items(self, log_g: Float64[Tensor, "R CK"]) -> Factors:
        """Return only factors, with another g of each class and each of the K tokens."""
        C = self.by_class.shape[1]
        by_class, by_token = log_g[:, :C].contiguous(), log_g[:, C:].contiguous()
        return Factors(by_class, self.tokens, by_token, self.classes, self.automaton_of_row)

    def at(self, rows: Int64[Tensor, "M"], tokens: Int64[Tensor, "M"]) -> Float64[Tensor, "M"]:
        """Return log g of one token in each given row."""
        log_factor = self.by_class[
            rows, self.classes.of[self.automaton_of_row[rows], tokens].long()
        ]
        own = self.tokens[rows] == tokens.unsqueeze(1)
        own_factor = self.by_token[rows].masked_fill(~own, -torch.inf)
        if not own.shape[1]:
            return log_factor
        return torch.where(own.any(dim=1), own_factor.amax(dim=1), log_factor)

    def apply(self, log_p: Float[Tensor, "R V"]) -> Float64[Tensor, "R V"]:
        """Return log p(v) + log g(v), which is log Z + log q(v), in one pass over R x V numbers."""
        self.check(log_p)
        if log_p.device.type in COMPILED_DEVICES:
            out = torch.empty_like(log_p, dtype=torch.float64)
            share_out(tilt, len(log_p), log_p.numpy(), self.lines, out.numpy())
            return out
        log_factor = self.by_class.gather(1, self.classes.of[self.automaton_of_row].long())
        return log_p + log_factor.scatter_(1, self.tokens, self.by_token)

    @property
    def lines(self) -> Lines:
        """The factors in the form that compiled loops use."""
        classes = self.classes
        arrays = (classes.tokens, classes.start, self.automaton_of_row)
        separate = (self.by_class, self.tokens, self.by_token)
        unsigned = classes.of.numpy().view("uint32")
        return Lines(unsigned, *(each.numpy() for each in (*arrays, *separate)))

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
    (R, V), B, C = log_p.shape, len(classes.of), classes.start.shape[1] - 1
    if log_p.dtype not in (torch.float32, torch.float64):
        raise ValueError(f"expected log_p in float32 or float64, got {log_p.dtype}")
    check_shape(classes.of, (B, V), "token classes (one column per token)")
    check_shape(by_class, (R, C), "factors (one row per prefix, one column per token class)")
    check_shape(automaton_of_row, (R,), "automata of rows (one per prefix)")
    check_indices(automaton_of_row, B, "automaton")

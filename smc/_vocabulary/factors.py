"""Factors: a proposal's log g of every token, sums by class of p g, and the defensive mixture.

With p the language model's distribution of the next token, the sampler draws from

    q(v) = p(v) g(v) / Z,        Z = sum over v of p(v) g(v).

`Factors` stores g for R prefixes, with one number for each class of tokens, and one for each of a
few tokens. That is hundreds of times smaller than a number for every token, and is only expanded
over the vocabulary when a token is drawn. A g without structure has every token as its own class
(`Factors.dense`), and a mask has g = 1 for some classes and g = 0 for the others (`Factors.mask`).
Z is computed on demand, because the discrete particle filter doesn't need it.

**Sums by class.** All tokens of a class lead to the same state. So a proposal computes g for
hundreds of classes, instead of a hundred thousand tokens. Two passes over the vocabulary remain.
One finds the K most probable allowed tokens, and the probability of each class without them
(`top_k_and_class_sums`). The other sums p g when a token is drawn (`smc._vocabulary.passes`). Both
are O(R V) and limited by memory bandwidth. On the CPU they are compiled loops that read their
inputs once. On other devices they are a few tensor operations without host synchronization.

**The defensive mixture.** A share eps of the distribution with g = 1 is mixed into q, because g has
no fixed scale, and may be zero for allowed tokens. Let w be the weights of some items, G the sum of
w g over them, and M the sum of w over the allowed ones. Then

    g' = (1 - eps) g + eps (G / M) 1{allowed},     g' = 1{allowed} if G = 0,

so that the sum of w g' is G, too. Particles mix over the next tokens of each prefix (`defend`),
with w = p_lm. The discrete filter mixes over all candidates of an example (`selection_scores`),
because its prefixes compete with each other.

**Scores** (docs/design.md, section 6). A *candidate* is a prefix of weight W with a next token v.
The weight of the candidate is w = W p_lm(v), and its score is s = w g'. With g = 1 for some tokens
and 0 for all others, s = w. Complete answers that count toward the N slots have scores, too: their
weight times (sum of s) / (sum of w), with the sums over the example's candidates. (With g = 1 for
answers and a lookahead that considers the end improbable, N answers would take all slots.)
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from jaxtyping import Bool, Float, Float64, Int64, Shaped
from torch import Tensor

from gcd._arguments import check_tensors
from gcd._tokens.batch import TokenClasses
from hmm._threads import share_out
from smc._vocabulary.kernels.loops import Lines, tilt
from smc._vocabulary.kernels.loops import weigh as weigh_rows

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
        defense: share eps of the defensive mixture (`smc._vocabulary.factors`), which the sampler
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
        check_rows(log_p, self.classes, self.automaton_of_row, self.by_class, self)


def check_rows(
    log_p: Float[Tensor, "R V"],
    classes: TokenClasses,
    automaton_of_row: Int64[Tensor, "R"],
    by_class: Shaped[Tensor, "R C"],
    factors: Factors | None = None,
) -> None:
    """Raise ValueError if the arrays of R prefixes don't match the token classes."""
    (R, V), B, C = log_p.shape, len(classes.of), classes.start.shape[1] - 1
    if log_p.dtype not in (torch.float32, torch.float64):
        raise ValueError(f"expected log_p in float32 or float64, got {log_p.dtype}")
    shapes: list[tuple[Tensor, tuple[int, ...], str]] = [
        (classes.of, (B, V), "token classes (one column per token)"),
        (by_class, (R, C), "factors (one row per prefix, one column per token class)"),
        (automaton_of_row, (R,), "automata of rows (one per prefix)"),
    ]
    indices = [(automaton_of_row, B, "automaton", 0)]
    if factors is not None:
        tokens, by_token = factors.tokens, factors.by_token
        shapes += [
            (tokens, (R, *tokens.shape[1:2]), "`tokens` (one row per prefix)"),
            (by_token, tuple(tokens.shape), "`by_token` (one factor per token)"),
        ]
        indices.append((tokens, V, "token", 0))
    check_tensors(shapes, *indices)


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
    if log_p.device.type in COMPILED_DEVICES:
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
    share_out(weigh_rows, R, log_p.numpy(), given.lines, V // FEW, *(x.numpy() for x in found))
    return found


def log_sum_of_classes(
    log_p: Float[Tensor, "R V"],
    classes: TokenClasses,
    automaton_of_row: Int64[Tensor, "R"],
    alive: Bool[Tensor, "R C"],
) -> Float64[Tensor, "R"]:
    """Return the log of the total probability of all tokens in the allowed classes."""
    if log_p.device.type in COMPILED_DEVICES:
        rest = top_k_and_class_sums(log_p, classes, automaton_of_row, alive, 0)
        return rest.log_mass.logsumexp(dim=1)
    # Not summed by class, because scatter-adds of many numbers to few targets are slow and
    # nondeterministic.
    mask = alive.gather(1, classes.of[automaton_of_row].long())
    return log_p.masked_fill(~mask, -torch.inf).logsumexp(dim=1).double()


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
    log_g, log_w, allowed = (
        factors.by_item,
        _log_mass(factors, log_p),
        spread(alive_of(factors), factors),
    )
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
    going, weight = spread(alive_of(factors) & ~ends, factors), log_weight.unsqueeze(1)
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


def spread(by_class: Bool[Tensor, "R C"], factors: Factors) -> Bool[Tensor, "R CK"]:
    """Return the value of each class, and then that of the class of each of the K tokens."""
    if not factors.tokens.shape[1]:
        return by_class
    return torch.cat([by_class, by_class.gather(1, factors.class_of_token)], dim=1)


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

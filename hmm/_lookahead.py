"""Probabilities of the next token in an HMM, under a constraint and a remaining budget.

Let predicted(h) be the distribution of the hidden state that will emit the next token, given the
prefix: `initial` before the first token, filter · A afterward. With r tokens left, in state s,

    P(token in class c, completed within r | prefix)
        = sum over h of  predicted(h) · B_class[c, h] · beta_{r-1}(h, delta(s, c))          joint
    P(token in class c | prefix) = sum over h of  predicted(h) · B_class[c, h]              mass

and their ratio is the probability that the text is completed after such a token, the
Bayes-correct twist. With a token's emission instead of its class's, the same sums give the exact
values for the token. Summed over all classes, `joint` is P(completed within r | prefix).

Values are computed only for classes and tokens that are *alive*: after which the automaton can
reach its end in r - 1 tokens. All values are returned as logarithms, because they differ by
hundreds of orders of magnitude. A value of -inf means that the item is not alive, or has
probability zero in the HMM (possibly by underflow). The caller can distinguish these by the mask.

Cost for R prefixes with C classes each: O(R C H) for all classes, O(R V H) in the exact form, for
all V tokens; on the CPU only for those that are alive.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from jaxtyping import Bool, Float, Float64, Int64
from torch import Tensor

from gcd._support.indices import check_indices, check_shape
from gcd._support.threads import shared_out
from gcd._tokens.distances import fits
from hmm._kernels import lookahead as kernels
from hmm._product import LookaheadTable

_AT_ONCE = 1 << 24  # numbers in one temporary
_COMPILED = ("cpu",)  # devices on which the loops of `hmm._kernels` run


class Expected(NamedTuple):
    """Log-probabilities of K items (classes or tokens) as the next one, for R prefixes.

    Both are -inf if the text cannot be completed within the budget after the item.

    Attributes:
        log_joint: log P(the item is next, and the text is completed within the budget | prefix).
        log_mass: log P(the item is next | prefix).
    """

    log_joint: Float64[Tensor, "R K"]
    log_mass: Float64[Tensor, "R K"]


def expect_classes(
    table: LookaheadTable,
    predicted: Float[Tensor, "R H"],
    states: Int64[Tensor, "R"],
    remaining: Int64[Tensor, "R"],
    *,
    wait: bool = True,
) -> Expected:
    """Compute P(class, completed) of every class of each prefix's automaton.

    Columns past an automaton's number of classes are -inf.

    Args:
        table: lookahead table of the prefixes' automata.
        predicted: P(hidden state of the next token | prefix).
        states: states of the prefixes in their automata (numbered as in `table.batch`), or -1.
        remaining: tokens left, including the next token.
        wait: whether a host synchronization is allowed, to check that the table has every row. If
            it isn't, missing rows give meaningless numbers.

    Raises:
        ValueError: `remaining` exceeds `table.max_remaining`, and further levels differ.
    """
    table.batch.check_states(states)
    automaton = table.batch.automaton_of[states.clamp(min=0)]
    symbol = torch.arange(table.batch.widest, device=states.device).expand(len(states), -1)
    last = len(table.class_emission) - 1
    item = (table.first_class[automaton].unsqueeze(1) + symbol).clamp(max=last)
    emission = table.class_emission
    return _expect(table, predicted, states, remaining, symbol, item, emission, wait=wait)


def expect_tokens(
    table: LookaheadTable,
    predicted: Float[Tensor, "R H"],
    states: Int64[Tensor, "R"],
    remaining: Int64[Tensor, "R"],
    tokens: Int64[Tensor, "R K"],
    *,
    wait: bool = True,
) -> Expected:
    """Compute P(token, completed) of these tokens, as in `expect_classes`. Cost O(R K H)."""
    table.batch.check_states(states)
    check_indices(tokens, table.hmm.num_tokens)
    automaton = table.batch.automaton_of[states.clamp(min=0)]
    symbol = table.batch.class_of[automaton.unsqueeze(1), tokens].long()
    emission = table.hmm.emission
    return _expect(table, predicted, states, remaining, symbol, tokens, emission, wait=wait)


def expect_all_tokens(
    table: LookaheadTable,
    predicted: Float[Tensor, "R H"],
    states: Int64[Tensor, "R"],
    remaining: Int64[Tensor, "R"],
    *,
    wait: bool = True,
) -> Expected:
    """Compute P(token, completed) of every token, as in `expect_classes`. Cost O(R V H)."""
    every = torch.arange(table.hmm.num_tokens, device=states.device).expand(len(states), -1)
    return expect_tokens(table, predicted, states, remaining, every, wait=wait)


def _expect(
    table: LookaheadTable,
    predicted: Float[Tensor, "R H"],
    states: Int64[Tensor, "R"],
    remaining: Int64[Tensor, "R"],
    symbol: Int64[Tensor, "R K"],
    item: Int64[Tensor, "R K"],
    emission: Float[Tensor, "items H"],
    *,
    wait: bool,
) -> Expected:
    """Compute the log-probabilities of items, given their classes and rows of emissions.

    Raises:
        ValueError: the table has no row for one of them.
    """
    R, items = len(states), "token" if emission is table.hmm.emission else "class"
    check_shape(remaining, (R,), "remaining tokens, one number for each prefix")
    check_shape(predicted, (R, table.hmm.num_states), "distributions over hidden states")
    check_shape(item, (R, *item.shape[1:2]), f"{items} ids, a row for each prefix")
    check_indices(item, len(emission), items)
    if predicted.device.type in _COMPILED:
        return _compiled(table, predicted, states, remaining, symbol, item, emission)
    batch = table.batch
    place = batch.entries(states).gather(1, symbol)
    inside = place.clamp(min=0)
    alive = (place >= 0) & fits(batch.steps_after_flat[inside], remaining.unsqueeze(1))
    after = batch.delta_flat[inside] + batch.first_state[states.clamp(min=0)].unsqueeze(1)
    target = table.number[torch.where(alive, after, 0)]
    entry = table.row((remaining - 1).unsqueeze(1).expand_as(target), target)
    if wait and bool((alive & (entry < 0)).any()):
        raise _no_row(table, remaining)
    return _item_sums(table, predicted, item, emission, entry.clamp(min=0), alive)


def _no_row(table: LookaheadTable, remaining: Int64[Tensor, "R"]) -> ValueError:
    """Return the error that explains why the table has no row."""
    if not table.settled and bool((remaining > table.max_remaining + 1).any()):
        return ValueError(
            f"expected at most {table.max_remaining} tokens left after the next one, the limit of "
            f"the table, got {int(remaining.max()) - 1}; build the table for the whole budget"
        )
    return ValueError(
        "expected a prefix of a text within the table's budgets, got another one; build "
        "the table for its budget, or without budgets"
    )


def _compiled(
    table: LookaheadTable,
    predicted: Float[Tensor, "R H"],
    states: Int64[Tensor, "R"],
    remaining: Int64[Tensor, "R"],
    symbol: Int64[Tensor, "R K"],
    item: Int64[Tensor, "R K"],
    emission: Float[Tensor, "items H"],
) -> Expected:
    """Compute `_expect` in compiled loops, on the CPU."""
    predicted = predicted.to(table.completion.b.dtype)
    if emission.dtype != predicted.dtype or not emission.is_contiguous():
        used, item = item.unique(return_inverse=True)
        emission = emission[used].to(predicted.dtype)
    shape = symbol.shape
    log_joint, log_mass = (torch.empty(shape, dtype=torch.float64, device="cpu") for _ in range(2))
    missing = torch.zeros(len(states), dtype=torch.bool, device="cpu")
    tensors = (
        states.long(),
        remaining.long(),
        symbol.contiguous(),
        item.contiguous(),
        predicted.contiguous(),
        emission,
        log_joint,
        log_mass,
        missing,
    )
    arrays = (tensor.numpy() for tensor in tensors)
    shared_out(kernels.expect, len(states), table.compiled, *arrays)
    if missing.numpy().any():
        raise _no_row(table, remaining)
    return Expected(log_joint, log_mass)


def _item_sums(
    table: LookaheadTable,
    predicted: Float[Tensor, "R H"],
    item: Int64[Tensor, "R K"],
    emission: Float[Tensor, "items H"],
    entry: Int64[Tensor, "R K"],
    alive: Bool[Tensor, "R K"],
) -> Expected:
    """Sum emission times predicted over h, with beta (joint) and without (mass); any device."""
    R, K = item.shape
    joint, mass = predicted.new_zeros(R, K), predicted.new_zeros(R, K)
    step = max(1, _AT_ONCE // max(1, R * predicted.shape[1]))
    for first in range(0, K, step):
        some = slice(first, first + step)
        each = emission[item[:, some]].to(predicted.dtype) * predicted.unsqueeze(1)
        mass[:, some] = each.sum(dim=2)
        joint[:, some] = (each * table.completion.b[entry[:, some]]).sum(dim=2)
    log_joint = joint.double().log() + table.completion.log_scale[entry]
    return Expected(
        log_joint=log_joint.masked_fill(~alive, -torch.inf),
        log_mass=mass.double().log().masked_fill(~alive, -torch.inf),
    )

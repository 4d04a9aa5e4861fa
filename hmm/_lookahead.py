"""Probabilities of the next token in an HMM, under a constraint and a remaining budget.

Let predicted(h) be the distribution of the hidden state that will emit the next token, given the
prefix. (It is `initial` before the first token, and filter · A afterward.) With r tokens left, in
automaton state s,

    P(token in class c, completed within r | prefix)
        = sum over h of  predicted(h) · B_class[c, h] · beta_{r-1}(h, delta(s, c))          joint
    P(token in class c | prefix) = sum over h of  predicted(h) · B_class[c, h]              mass

The ratio joint / mass is the probability that the text is completed after such a token, which is
the Bayes-correct twist. With the emission of a single token instead of B_class, the same sums give
the exact values for this token. The sum of `joint` over all classes is P(completed within r |
prefix).

Values are computed only for classes and tokens that are *alive*: after them, the automaton can
reach its end in r - 1 tokens. All values are returned as logarithms, because they differ by
hundreds of orders of magnitude. A value of -inf means that the class or token is not alive, or that
it has probability zero in the HMM (possibly by underflow). The caller can distinguish the two cases
by GCD's mask.

Cost for R prefixes: O(R C H) for all classes if there are C classes, and O(R V H) for all V tokens.
On the CPU, only classes or tokens that are alive are computed.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from jaxtyping import Bool, Float, Float64, Int64
from torch import Tensor

from gcd._arguments import check_indices, check_tensors
from gcd._tokens.distances import fits
from hmm._kernels import lookahead as kernels
from hmm._product import LookaheadTable
from hmm._threads import share_out

_AT_ONCE = 1 << 24  # maximum number of entries of a temporary array
_COMPILED = ("cpu",)  # devices on which the compiled loops of `hmm._kernels` run


class Expected(NamedTuple):
    """Log-probabilities that each of K items (classes or tokens) comes next, for R prefixes.

    Both arrays are -inf if the text can't be completed within the budget after the item.

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
    """Compute the log-probabilities of all classes of each prefix's automaton.

    Columns beyond an automaton's number of classes are -inf.

    Args:
        table: lookahead table of the prefixes' automata.
        predicted: P(hidden state that emits the next token | prefix).
        states: automaton state of each prefix, numbered as in `table.batch`; -1 for none.
        remaining: number of tokens left for each prefix, including the next token.
        wait: whether to check that the table has all required rows, by a host synchronization.
            Without the check, missing rows give meaningless numbers. On the CPU they are always
            checked.

    Raises:
        ValueError: `remaining` exceeds `table.max_remaining` + 1 and the table isn't valid for
            larger budgets, or the table doesn't have a required row.
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
    """Compute the log-probabilities of the given tokens, in O(R K H).

    Args:
        table, predicted, states, remaining, wait: see `expect_classes`.
        tokens: K token ids for each prefix.

    Raises:
        ValueError: as for `expect_classes`, or a token is out of range.
    """
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
    """Compute the log-probabilities of all tokens, in O(R V H).

    See `expect_classes` for the arguments and errors.
    """
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
    """Compute the log-probabilities of items (classes or tokens)."""
    R, items = len(states), "token" if emission is table.hmm.emission else "class"
    shapes = (
        (remaining, (R,), "`remaining` (one number per prefix)"),
        (predicted, (R, table.hmm.num_states), "`predicted` (one distribution per prefix)"),
        (item, (R, *item.shape[1:2]), f"{items} ids (one row per prefix)"),
    )
    check_tensors(shapes, (item, len(emission), items, 0))
    if predicted.device.type in _COMPILED:
        return _expect_compiled(table, predicted, states, remaining, symbol, item, emission)
    batch = table.batch
    index = batch.entries(states).gather(1, symbol)
    inside = index.clamp(min=0)
    alive = (index >= 0) & fits(batch.steps_after_flat[inside], remaining.unsqueeze(1))
    after = batch.delta_flat[inside] + batch.first_state[states.clamp(min=0)].unsqueeze(1)
    target = table.number[torch.where(alive, after, 0)]
    entry = table.row((remaining - 1).unsqueeze(1).expand_as(target), target)
    if wait and bool((alive & (entry < 0)).any()):
        raise _no_row(table, remaining)
    return _item_sums(table, predicted, item, emission, entry.clamp(min=0), alive)


def _no_row(table: LookaheadTable, remaining: Int64[Tensor, "R"]) -> ValueError:
    """Return the error for a budget and state for which the table has no row of beta."""
    if not table.settled and bool((remaining > table.max_remaining + 1).any()):
        return ValueError(
            f"expected at most {table.max_remaining} tokens left after the next token, the maximum "
            f"of the table, got {int(remaining.max()) - 1}; build the table for the whole budget"
        )
    return ValueError(
        "expected prefixes of texts within the budgets of the lookahead table, got a prefix with "
        "another budget; build the table for this budget, or without budgets"
    )


def _expect_compiled(
    table: LookaheadTable,
    predicted: Float[Tensor, "R H"],
    states: Int64[Tensor, "R"],
    remaining: Int64[Tensor, "R"],
    symbol: Int64[Tensor, "R K"],
    item: Int64[Tensor, "R K"],
    emission: Float[Tensor, "items H"],
) -> Expected:
    """Compute the log-probabilities of items on the CPU, in compiled loops; see `_expect`."""
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
    share_out(kernels.expect, len(states), table.compiled, *arrays)
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
    """Compute the log-probabilities of items by tensor operations, on any device; see `_expect`.

    `entry` is the row of beta after each item. The sum of emission · predicted over h is the mass,
    and the sum of emission · predicted · beta is the joint probability.
    """
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

"""This module asks an HMM about the next token, under a constraint and a remaining budget.

Let predicted(h) be the distribution of the hidden state that will emit the next token, given the
prefix: `initial` before the first token, filter · A afterwards. With r tokens left, in state s,

    P(token in class c, completed within r | prefix)
        = sum over h of  predicted(h) · B_class[c, h] · beta_{r-1}(h, delta(s, c))          joint
    P(token in class c | prefix) = sum over h of  predicted(h) · B_class[c, h]              mass

and their ratio is the probability that the text is completed once such a token is there, the
Bayes-correct twist. The same sums with a token's own emission in place of its class's hold for the
token exactly. Summed over all classes, `joint` is P(completed within r | prefix).

Computed are the classes and tokens that are *alive*: after which the automaton can reach its end in
r - 1 tokens. All values are returned as logarithms, as they differ by hundreds of orders of
magnitude; -inf stands for what is not alive, and for what the HMM gives no probability (or so
little that it underflows in the HMM's type). Telling these apart is up to the caller, who has the
mask.

Cost for R prefixes with L live classes and D distinct live targets each: the sums are entries of
the product of emissions (C x H) with columns predicted(h) b(h, target), R (D + 1) of them. Where
many of the entries are wanted that is one matrix product of 2 C H R (D + 1) operations; where few
are, only these are summed, O(R L H). Of all V tokens, the exact form, it is one matrix product for
each live target, 2 V H R (D + 1): some 300 times as much.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from jaxtyping import Bool, Float, Float64, Int64
from torch import Tensor

from gcd.support.threads import shared_out
from gcd.tokens.distances import fits
from hmm.kernels import lookahead as kernels
from hmm.product import LookaheadTable

_DENSE = 16  # a matrix product computes this many entries in the time of one that is picked out
_AT_ONCE = 1 << 24  # numbers in one temporary
_COMPILED = ("cpu",)  # where the loops of `hmm.kernels` run


class Expected(NamedTuple):
    """What the HMM expects of K items (classes or tokens) that may come next, for R prefixes.

    Both logarithms are -inf where the automaton cannot be finished within the budget after the
    item.

    Attributes:
        log_joint: log P(the item is next, and the text is completed within the budget | prefix).
        log_mass: log P(the item is next | prefix).
    """

    log_joint: Float64[Tensor, "R K"]
    log_mass: Float64[Tensor, "R K"]


class _Columns(NamedTuple):
    """The sums over h that are wanted, as entries of a matrix product.

    Attributes:
        values: predicted(h) of each row, followed by predicted(h) b(h, target) of each distinct
            pair of a row and a live target.
        log_scale: log of what each column is short of.
        row: the row that each column belongs to.
        of_class: the column of each row and class; 0 where it is not alive.
        alive: the classes of each row that are alive.
    """

    values: Float[Tensor, "K H"]
    log_scale: Float64[Tensor, "K"]
    row: Int64[Tensor, "K"]
    of_class: Int64[Tensor, "R C"]
    alive: Bool[Tensor, "R C"]


def expect_classes(
    table: LookaheadTable,
    predicted: Float[Tensor, "R H"],
    states: Int64[Tensor, "R"],
    remaining: Int64[Tensor, "R"],
    *,
    wait: bool = True,
) -> Expected:
    """Computes what the HMM expects of every class of each prefix's automaton.

    Columns past an automaton's number of classes are -inf.

    Args:
        table: of the automata that the prefixes are in.
        predicted: P(hidden state of the next token | prefix).
        states: where the prefixes are in their automata (numbered through as in `table.batch`); -1
            is nowhere.
        remaining: tokens left, the next one included.
        wait: whether the host may wait for the device: to compute only what is alive, and to see
            whether the table has it. Otherwise shapes do not depend on data, every class costs
            O(H), and a table without a row gives numbers of no meaning.

    Raises:
        ValueError: more tokens are left than the table has rows for.
    """
    if predicted.device.type in _COMPILED:
        automaton = table.batch.automaton_of[states.clamp(min=0)]
        symbol = torch.arange(int(table.batch.num_classes.max())).expand(len(states), -1)
        last = len(table.class_emission) - 1
        item = (table.first_class[automaton].unsqueeze(1) + symbol).clamp(max=last)
        return _expect(table, predicted, states, remaining, symbol, item, table.class_emission)
    if not wait:
        return _every_class(table, predicted, states, remaining)
    columns = _columns(table, predicted, states, remaining)
    row, symbol = columns.alive.nonzero(as_tuple=True)
    joint, mass = _class_sums(table, columns, states, row, symbol).double().log()
    log_joint = joint + columns.log_scale[columns.of_class[row, symbol]]
    nothing = predicted.new_full(columns.alive.shape, -torch.inf, dtype=torch.float64)
    index = (row, symbol)
    return Expected(nothing.index_put(index, log_joint), nothing.index_put(index, mass))


def expect_tokens(
    table: LookaheadTable,
    predicted: Float[Tensor, "R H"],
    states: Int64[Tensor, "R"],
    remaining: Int64[Tensor, "R"],
    tokens: Int64[Tensor, "R K"],
    *,
    wait: bool = True,
) -> Expected:
    """Computes what is expected of these tokens, as `expect_classes` does. Cost O(R K H)."""
    if predicted.device.type in _COMPILED:
        emission, item = table.hmm.emission, tokens
        if emission.dtype != predicted.dtype:
            emission = emission[tokens.flatten()].to(predicted.dtype)
            item = torch.arange(tokens.numel()).view(tokens.shape)
        automaton = table.batch.automaton_of[states.clamp(min=0)]
        symbol = table.batch.class_of[automaton.unsqueeze(1), tokens].long()
        return _expect(table, predicted, states, remaining, symbol, item, emission)
    after = table.batch.next(states.unsqueeze(1).expand_as(tokens), tokens)
    steps = table.batch.steps_to_accept[after.clamp(min=0)]
    alive = (after >= 0) & fits(steps, remaining.unsqueeze(1))
    target = table.number[after.clamp(min=0)]
    entry = _entry(table, remaining, target, alive, wait=wait)
    return _item_sums(table, predicted, tokens, table.hmm.emission, entry, alive)


def _every_class(
    table: LookaheadTable,
    predicted: Float[Tensor, "R H"],
    states: Int64[Tensor, "R"],
    remaining: Int64[Tensor, "R"],
) -> Expected:
    """What is expected of all classes, alive or not, in static shapes."""
    batch = table.batch
    places = batch.entries(states)
    alive = (places >= 0) & (batch.steps_after_flat[places.clamp(min=0)] < remaining.unsqueeze(1))
    first = batch.first_state[states.clamp(min=0)].unsqueeze(1)
    after = batch.delta_flat[places.clamp(min=0)] + first
    target = table.number[torch.where(alive, after, 0)]
    entry = _entry(table, remaining, target, alive, wait=False)
    first = table.first_class[batch.automaton_of[states.clamp(min=0)]].unsqueeze(1)
    symbols = torch.arange(batch.widest, device=states.device)
    item = (first + symbols).clamp(max=len(table.class_emission) - 1)
    return _item_sums(table, predicted, item, table.class_emission, entry, alive)


def expect_all_tokens(
    table: LookaheadTable,
    predicted: Float[Tensor, "R H"],
    states: Int64[Tensor, "R"],
    remaining: Int64[Tensor, "R"],
) -> Expected:
    """Computes what is expected of every token, by one matrix product; cf. `expect_classes`."""
    columns = _columns(table, predicted, states, remaining)
    emission = table.hmm.emission
    V, R = emission.shape[0], len(states)
    class_of = table.batch.class_of[table.batch.automaton_of[states.clamp(min=0)]].long()
    joint, mass = predicted.new_empty(R, V), predicted.new_empty(R, V)
    step = max(1, _AT_ONCE // max(emission.shape[1], len(columns.values)))
    for first in range(0, V, step):
        some = slice(first, min(first + step, V))
        entries = columns.values @ emission[some].to(predicted.dtype).T
        mass[:, some] = entries[:R]
        joint[:, some] = entries.gather(0, columns.of_class.gather(1, class_of[:, some]))
    log_joint = joint.double().log() + columns.log_scale[columns.of_class.gather(1, class_of)]
    return _alive_only(log_joint, mass, columns.alive.gather(1, class_of))


def _alive_only(
    log_joint: Float64[Tensor, "R K"], mass: Float[Tensor, "R K"], alive: Bool[Tensor, "R K"]
) -> Expected:
    return Expected(
        log_joint=log_joint.masked_fill(~alive, -torch.inf),
        log_mass=mass.double().log().masked_fill(~alive, -torch.inf),
    )


def _entry(
    table: LookaheadTable,
    remaining: Int64[Tensor, "R"],
    target: Int64[Tensor, "R K"],
    alive: Bool[Tensor, "R K"],
    *,
    wait: bool = True,
) -> Int64[Tensor, "R K"]:
    """Rows that hold beta of states (of the table) after the next token; any, if not alive.

    Raises:
        ValueError: there is none.
    """
    entry = table.row((remaining - 1).unsqueeze(1).expand_as(target), target)
    if wait and bool((alive & (entry < 0)).any()):
        raise _no_row(table, remaining)
    return entry.clamp(min=0)


def _no_row(table: LookaheadTable, remaining: Int64[Tensor, "R"]) -> ValueError:
    """Why the table has none."""
    if not table.settled and bool((remaining > table.max_remaining + 1).any()):
        return ValueError(
            f"{int(remaining.max())} tokens are left, but the table ends at "
            f"{table.max_remaining} after the next one; build it for the whole budget"
        )
    return ValueError(
        "a prefix is where no text of the budgets that the table was made for comes to; build "
        "it for its budget, or without budgets"
    )


def _expect(
    table: LookaheadTable,
    predicted: Float[Tensor, "R H"],
    states: Int64[Tensor, "R"],
    remaining: Int64[Tensor, "R"],
    symbol: Int64[Tensor, "R K"],
    item: Int64[Tensor, "R K"],
    emission: Float[Tensor, "items H"],
) -> Expected:
    """What is expected of items that lead on as these classes do, with these rows of emissions.

    For the CPU.

    Raises:
        ValueError: as `_entry`.
    """
    batch, completion, shape = table.batch, table.completion, symbol.shape
    log_joint, log_mass = (torch.empty(shape, dtype=torch.float64) for _ in range(2))
    missing = torch.zeros(len(states), dtype=torch.bool)
    arrays = (
        states,
        remaining,
        symbol.contiguous(),
        item.contiguous(),
        predicted.contiguous(),
        emission,
        batch.num_classes[batch.automaton_of[states.clamp(min=0)]],
        batch.first_state[states.clamp(min=0)],
        batch.row_start,
        batch.delta_flat,
        batch.steps_after_flat,
        table.number,
        completion.entry,
        table.settled,
        completion.b,
        completion.log_scale,
        log_joint,
        log_mass,
        missing,
    )
    numbers = (part.numpy() if isinstance(part, Tensor) else part for part in arrays)
    shared_out(kernels.expect, len(states), *numbers)
    if bool(missing.any()):
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
    """For these rows of emissions the sum over h with b, and the one without. For any device."""
    R, K = item.shape
    joint, mass = predicted.new_zeros(R, K), predicted.new_zeros(R, K)
    step = max(1, _AT_ONCE // max(1, R * predicted.shape[1]))
    for first in range(0, K, step):
        some = slice(first, first + step)
        each = emission[item[:, some]].to(predicted.dtype) * predicted.unsqueeze(1)
        mass[:, some] = each.sum(dim=2)
        joint[:, some] = (each * table.completion.b[entry[:, some]]).sum(dim=2)
    log_joint = joint.double().log() + table.completion.log_scale[entry]
    return _alive_only(log_joint, mass, alive)


def _columns(
    table: LookaheadTable,
    predicted: Float[Tensor, "R H"],
    states: Int64[Tensor, "R"],
    remaining: Int64[Tensor, "R"],
) -> _Columns:
    """The columns whose products with emissions are wanted. Waits for the device to count them."""
    batch, here = table.batch, states.clamp(min=0)
    width = batch.num_classes[batch.automaton_of[here]].unsqueeze(1)
    symbols = torch.arange(int(batch.num_classes.max()), device=here.device)
    index = batch.row_start[here].unsqueeze(1) + torch.minimum(symbols, width - 1)
    alive = (symbols < width) & (states >= 0).unsqueeze(1)
    alive &= batch.steps_after_flat[index] < remaining.unsqueeze(1)
    after = batch.delta_flat[index] + batch.first_state[here].unsqueeze(1)
    target = table.number[torch.where(alive, after, 0)]
    entry = _entry(table, remaining, target, alive)
    R, rows = len(states), len(table.completion.b)
    row, symbol = alive.nonzero(as_tuple=True)
    pair, which = torch.unique(row * rows + entry[row, symbol], return_inverse=True)
    pair_row, pair_entry = pair // rows, pair % rows
    b = table.completion.b[pair_entry]
    of_class = torch.zeros_like(entry).index_put((row, symbol), which + R)
    scale = table.completion.log_scale[pair_entry]
    return _Columns(
        values=torch.cat([predicted, predicted[pair_row] * b]),
        log_scale=torch.cat([scale.new_zeros(R), scale]),
        row=torch.cat([torch.arange(R, device=row.device), pair_row]),
        of_class=of_class,
        alive=alive,
    )


def _class_sums(
    table: LookaheadTable,
    columns: _Columns,
    states: Int64[Tensor, "R"],
    row: Int64[Tensor, "P"],
    symbol: Int64[Tensor, "P"],
) -> Float[Tensor, "2 P"]:
    """For P pairs of a row and a live class, the sum over h with b, and the one without."""
    batch = table.batch
    automaton = batch.automaton_of[states.clamp(min=0)]
    first_class = table.first_class[automaton]
    klass, wanted = first_class[row] + symbol, torch.stack([columns.of_class[row, symbol], row])
    sums = columns.values.new_zeros(2, len(row))
    for first in torch.unique(first_class).tolist():
        mine = first_class == first
        width = int(batch.num_classes[automaton[mine.nonzero()[0, 0]]])
        pairs = mine[row].nonzero().squeeze(1)
        chosen = mine[columns.row].nonzero().squeeze(1)
        if _DENSE * 2 * len(pairs) >= width * len(chosen):
            number = torch.zeros_like(columns.row)
            number[chosen] = torch.arange(len(chosen), device=chosen.device)
            emission = table.class_emission[first : first + width]
            product = columns.values[chosen] @ emission.T
            sums[:, pairs] = product[number[wanted[:, pairs]], symbol[pairs]]
            continue
        step = max(1, _AT_ONCE // columns.values.shape[1])
        for some in pairs.split(step):
            emission = table.class_emission[klass[some]]
            for out, column in zip(sums, wanted, strict=True):
                out[some] = (columns.values[column[some]] * emission).sum(dim=1)
    return sums

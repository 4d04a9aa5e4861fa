"""This module does inference in an HMM: distributions of hidden states, likelihoods, samples.

With `predicted_t(h) = P(h_t = h | x_<t)` and `filtered_t(h) = P(h_t = h | x_<=t)`, the filter is

    predicted_1 = initial,      predicted_{t+1} = filtered_t A
    scale_t     = sum_h predicted_t(h) emission(x_t, h) = P(x_t | x_<t)
    filtered_t(h) = predicted_t(h) emission(x_t, h) / scale_t,      log P(x) = sum_t log scale_t

(Rabiner 1989, section V.A: each step is normalised, so a sequence of any length neither under- nor
overflows, without a logarithm of a sum anywhere). The way back is Bayes' rule alone: what comes
after h_{t+1} says nothing more of h_t, and P(h_t = i | h_{t+1} = j, x_<=t) is
filtered_t(i) A(i, j) / predicted_{t+1}(j). So

    P(h_T = i | x) = filtered_T(i),      ahead_{t+1}(j) = P(h_{t+1} = j | x) / predicted_{t+1}(j)
    P(h_t = i | x) = filtered_t(i) (A ahead_{t+1})(i)
    P(h_t = i, h_{t+1} = j | x) = filtered_t(i) A(i, j) ahead_{t+1}(j)

(the form that Rauch, Tung and Striebel gave the smoother of linear systems). It reads no emission
and no scale again, and each step hands on the whole probability, so that errors do not build up.

The last line is never built, T H² numbers a sequence: only its sum over time and sequences is
wanted, and that is one matrix product of all `filtered` with all `ahead`. So a sequence costs
three products a token, forward, backward, counts: 6 H² operations with a dense A. Everything is a
product over all sequences that are still going at time t; sequences are sorted by falling length,
which makes those the first rows, and no operation is spent on padding.

A sequence of probability zero has log-likelihood -inf and, having no posterior, posteriors of
zero: it adds nothing to any count. What lies behind a sequence's length is never read.
"""

from __future__ import annotations

import itertools
from typing import NamedTuple

import torch
from jaxtyping import Float, Int64
from torch import Tensor

from gcd.support.indices import check_indices, check_shape
from hmm.model import HMM

_ROWS_AT_ONCE = 16384
"""Rows of a product over all times that are copied together; bounds the copy's memory."""


class FilterStep(NamedTuple):
    """The result of one step of the filter.

    Attributes:
        filtered: P(state | tokens up to and with this one); zero if they have probability zero.
        log_likelihood: log P(this token | those before); -inf if it is impossible.
    """

    filtered: Float[Tensor, "B H"]
    log_likelihood: Float[Tensor, "B"]


class FilterResult(NamedTuple):
    """The filter's result at every position; zero behind each sequence's end.

    Attributes:
        filtered: P(h_t | x_<=t).
        predicted: P(h_t | x_<t).
        log_likelihood: log P(x), -inf for an impossible sequence.
    """

    filtered: Float[Tensor, "B T H"]
    predicted: Float[Tensor, "B T H"]
    log_likelihood: Float[Tensor, "B"]


class Marginals(NamedTuple):
    """The posterior over states, given whole sequences (the smoother's result).

    Attributes:
        states: P(h_t | x); zero behind each sequence's end and for impossible sequences.
        transition_counts: expected number of uses of each transition parameter, in the order and
            shapes of `transition.factors`, summed over sequences and times.
        log_likelihood: log P(x), -inf for an impossible sequence.
    """

    states: Float[Tensor, "B T H"]
    transition_counts: tuple[Tensor, ...]
    log_likelihood: Float[Tensor, "B"]


class Sample(NamedTuple):
    """Sequences drawn from the model.

    Attributes:
        tokens: padded behind each sequence's end with its last token.
        states: the states that emitted the tokens, padded with the last state.
        lengths: number of tokens, EOS included.
    """

    tokens: Int64[Tensor, "B T"]
    states: Int64[Tensor, "B T"]
    lengths: Int64[Tensor, "B"]


class Packed(NamedTuple):
    """Sequences sorted by falling length, stored time-major and without padding.

    Attributes:
        order: the sequence that each row belongs to; rows at time t are the first `sizes[t]`.
        sizes: how many sequences have a token at time t.
        offsets: where time t begins in the arrays below.
        tokens: all tokens, time by time.
    """

    order: Int64[Tensor, "B"]
    sizes: list[int]
    offsets: list[int]
    tokens: Int64[Tensor, "n"]

    def rows(self) -> list[slice]:
        """Return the slice of each time in arrays over all positions."""
        return [slice(start, stop) for start, stop in itertools.pairwise(self.offsets)]


class PackedMarginals(NamedTuple):
    """`Marginals` of packed sequences.

    Attributes:
        packed: the sequences.
        states: P(h_t | x).
        transition_counts: as in `Marginals`.
        log_likelihood: log P(x) in the order the sequences were given in.
    """

    packed: Packed
    states: Float[Tensor, "n H"]
    transition_counts: tuple[Tensor, ...]
    log_likelihood: Float[Tensor, "B"]


def predict_first(hmm: HMM, batch: int) -> Float[Tensor, "B H"]:
    """Return P(first state) for each of `batch` sequences, as a view of one row."""
    return hmm.initial.expand(batch, -1)


def filter_step(
    hmm: HMM, predicted: Float[Tensor, "B H"], tokens: Int64[Tensor, "B"]
) -> FilterStep:
    """Condition on one more token.

    Args:
        predicted: P(state that emits this token | tokens before it).
        tokens: one token a sequence.

    Returns:
        P(state | tokens up to this one) and log P(token | tokens before). The state that emits the
        *next* token is distributed as `transition.forward(filtered)` of the model.

    Raises:
        ValueError: for a token out of range (on a GPU nothing is looked at), or another number of
            tokens or states.
    """
    check_indices(tokens, hmm.num_tokens)
    check_shape(predicted, (*tokens.shape, hmm.num_states), "a distribution for each token")
    filtered = hmm.initial.new_empty(predicted.shape)
    scale = _condition(hmm, predicted, tokens, out=filtered)
    return FilterStep(filtered, scale.log())


def filter_all(
    hmm: HMM,
    tokens: Int64[Tensor, "B T"],
    lengths: Int64[Tensor, "B"],
) -> FilterResult:
    """Run the filter over whole sequences.

    Args:
        tokens: any values behind a sequence's length.
        lengths: number of tokens of each sequence, 0 to T.

    Raises:
        ValueError: for a length or a token out of range.
    """
    packed = pack(hmm, tokens, lengths)
    filtered, predicted, scale = _forward(hmm, packed, keep=True)
    return FilterResult(
        _unpack(packed, filtered, tokens.shape[1]),
        _unpack(packed, predicted, tokens.shape[1]),
        _log_likelihood(packed, scale),
    )


def log_likelihood(
    hmm: HMM,
    tokens: Int64[Tensor, "B T"],
    lengths: Int64[Tensor, "B"],
) -> Float[Tensor, "B"]:
    """Return log P(x) of each sequence; arguments as for `filter_all`, memory O(B H)."""
    packed = pack(hmm, tokens, lengths)
    return _log_likelihood(packed, _forward(hmm, packed, keep=False).scale)


def marginals(
    hmm: HMM,
    tokens: Int64[Tensor, "B T"],
    lengths: Int64[Tensor, "B"],
) -> Marginals:
    """Run the smoother: posterior of the state at every position, and expected transition counts.

    Arguments as for `filter_all`. Three products with A a token and O(B T H) memory.
    """
    result = packed_marginals(hmm, pack(hmm, tokens, lengths))
    states = _unpack(result.packed, result.states, tokens.shape[1])
    return Marginals(states, result.transition_counts, result.log_likelihood)


def packed_marginals(hmm: HMM, packed: Packed) -> PackedMarginals:
    """Do what `marginals` does, for packed sequences."""
    filtered, predicted, scale = _forward(hmm, packed, keep=True)
    # Below the floor a sum of products has lost terms that are no numbers any more, and dividing by
    # it might overflow: such a state is taken for less likely than it is, at worst impossible.
    limits = torch.finfo(filtered.dtype)
    floor = limits.tiny / limits.eps
    states, ahead = torch.empty_like(filtered), predicted  # in its place, once it was read
    going = 0
    for rows in reversed(packed.rows()):
        here = states[rows]
        size = len(here)
        here[going:] = 1  # those that end here
        if going:
            after = ahead[rows.stop : rows.stop + going]
            hmm.transition.backward(after, out=here[:going])
        here.mul_(filtered[rows])
        torch.div(here, predicted[rows].clamp_(min=floor), out=ahead[rows])
        going = size
    return PackedMarginals(
        packed,
        states,
        _transition_counts(hmm, packed, filtered, ahead),
        _log_likelihood(packed, scale),
    )


def sample(
    hmm: HMM,
    num: int,
    length: int,
    generator: torch.Generator | None = None,
    eos_id: int | None = None,
) -> Sample:
    """Draw sequences from the model: state, token, next state, ...

    Args:
        length: the most tokens of each.
        generator: on the model's device; None is torch's own.
        eos_id: a sequence ends with this token; None: all have the full length.
    """
    if num < 0 or length < 1:
        raise ValueError(f"cannot draw {num} sequences of {length} tokens")
    emission = hmm.emission
    states = torch.empty(num, length, dtype=torch.int64, device=hmm.device)
    tokens = torch.empty_like(states)
    ended = torch.zeros(num, dtype=torch.bool, device=hmm.device)
    lengths = torch.full((num,), length, device=hmm.device)
    for t in range(length):
        rows = hmm.transition.rows(states[:, t - 1]) if t else predict_first(hmm, num)
        state = _draw(rows, generator)
        token = _draw(emission[:, state].T.to(hmm.dtype), generator)
        if t:
            state = torch.where(ended, states[:, t - 1], state)
            token = torch.where(ended, tokens[:, t - 1], token)
        states[:, t], tokens[:, t] = state, token
        if eos_id is not None:
            lengths = torch.where(~ended & (token == eos_id), t + 1, lengths)
            ended = ended | (token == eos_id)
    return Sample(tokens, states, lengths)


def pack(
    hmm: HMM,
    tokens: Int64[Tensor, "B T"],
    lengths: Int64[Tensor, "B"],
) -> Packed:
    """Sort sequences by length and drop the padding; arguments as for `filter_all`.

    Raises:
        ValueError: for a length or a token out of range.
    """
    if tokens.dim() != 2:
        raise ValueError(f"expected a row of tokens for each sequence, got {tuple(tokens.shape)}")
    batch, width = tokens.shape
    for what, numbers in (("token", tokens), ("length", lengths)):
        check_indices(numbers[:0], 0, what)  # the type alone
    if lengths.shape != (batch,):
        raise ValueError(f"{batch} rows of tokens but {tuple(lengths.shape)} lengths; one for each")
    if batch and not 0 <= int(lengths.min()) <= int(lengths.max()) <= width:
        raise ValueError(
            f"lengths are {int(lengths.min())} to {int(lengths.max())}, tokens have {width} columns"
        )
    order = torch.argsort(lengths, descending=True, stable=True)
    times = torch.arange(width, device=tokens.device)
    inside = times.unsqueeze(1) < lengths[order].unsqueeze(0)
    sizes = [size for size in inside.sum(dim=1).tolist() if size]
    offsets = [0]
    for size in sizes:
        offsets.append(offsets[-1] + size)
    kept = tokens[order].T[inside]
    if kept.numel() and not 0 <= int(kept.min()) <= int(kept.max()) < hmm.num_tokens:
        raise ValueError(
            f"tokens are {int(kept.min())} to {int(kept.max())}, the HMM knows "
            f"{hmm.num_tokens}; is it distilled for this vocabulary?"
        )
    return Packed(order, sizes, offsets, kept)


def _draw(
    probabilities: Float[Tensor, "N K"], generator: torch.Generator | None
) -> Int64[Tensor, "N"]:
    return torch.multinomial(probabilities, 1, generator=generator).squeeze(1)


def _condition(
    hmm: HMM,
    predicted: Float[Tensor, "N H"],
    tokens: Int64[Tensor, "N"],
    out: Float[Tensor, "N H"],
) -> Float[Tensor, "N"]:
    """Write the posterior of the state to `out` and return its normaliser; zero where that is."""
    if hmm.emission.dtype == out.dtype:
        torch.index_select(hmm.emission, 0, tokens, out=out)
    else:
        out.copy_(hmm.emission.index_select(0, tokens))
    out.mul_(predicted)
    scale = out.sum(dim=-1)
    out.div_(torch.where(scale > 0, scale, 1.0).unsqueeze(-1))
    return scale


class _Forward(NamedTuple):
    """P(h_t | x_<=t), P(h_t | x_<t) and P(x_t | x_<t)."""

    filtered: Float[Tensor, "n H"]
    predicted: Float[Tensor, "n H"]
    scale: Float[Tensor, "n"]


def _forward(hmm: HMM, packed: Packed, *, keep: bool) -> _Forward:
    """Run the filter over packed positions; keep all states, or those of the last time alone."""
    total = len(packed.tokens)
    room = total if keep else max(packed.sizes, default=0)
    filtered = hmm.initial.new_empty(room, hmm.num_states)
    predicted, scale = torch.empty_like(filtered), hmm.initial.new_empty(total)
    before = 0
    for rows in packed.rows():
        size = rows.stop - rows.start
        here = rows if keep else slice(size)
        if rows.start == 0:
            predicted[here] = hmm.initial
        else:
            hmm.transition.forward(filtered[before : before + size], out=predicted[here])
        scale[rows] = _condition(hmm, predicted[here], packed.tokens[rows], out=filtered[here])
        before = rows.start if keep else 0
    return _Forward(filtered, predicted, scale)


def _log_likelihood(packed: Packed, scale: Float[Tensor, "n"]) -> Float[Tensor, "B"]:
    """Sum log P(x_t | x_<t) over each sequence, in the order given."""
    in_rows = scale.new_zeros(packed.order.shape[0])
    for rows in packed.rows():
        gains = scale[rows].log()
        in_rows[: len(gains)] += gains
    return torch.empty_like(in_rows).scatter_(0, packed.order, in_rows)


def _transition_counts(
    hmm: HMM, packed: Packed, filtered: Float[Tensor, "n H"], ahead: Float[Tensor, "n H"]
) -> tuple[Tensor, ...]:
    """Count the expected uses of every transition parameter, over all times and sequences."""
    counts = tuple(torch.zeros_like(factor) for factor in hmm.transition.factors)
    sizes, offsets = packed.sizes, packed.offsets
    if len(sizes) < 2:
        return counts
    # Row n of `ahead` at time t + 1 belongs to row n of `filtered` at time t.
    first = sizes[0]
    equal = sizes[0] == sizes[-1]
    for start in range(first, offsets[-1], _ROWS_AT_ONCE):
        stop = min(start + _ROWS_AT_ONCE, offsets[-1])
        if equal:
            before = filtered[start - first : stop - first]
        else:
            rows = torch.arange(start, stop, device=filtered.device)
            ends = torch.tensor(offsets[1:], device=filtered.device)
            time = torch.searchsorted(ends, rows, right=True)
            back = torch.tensor([0, *sizes[:-1]], device=filtered.device)
            before = filtered[rows - back[time]]
        used = hmm.transition.expected_counts(before, ahead[start:stop])
        for total, part in zip(counts, used, strict=True):
            total.add_(part)
    return counts


def _unpack(packed: Packed, values: Float[Tensor, "n H"], width: int) -> Float[Tensor, "B T H"]:
    """Bring values back to one row a sequence; zero behind its end."""
    result = values.new_zeros(packed.order.shape[0], width, values.shape[1])
    for t, rows in enumerate(packed.rows()):
        here = values[rows]
        result[packed.order[: len(here)], t] = here
    return result

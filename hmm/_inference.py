"""Inference in an HMM: distributions of hidden states, likelihoods, samples.

With `predicted_t(h) = P(h_t = h | x_<t)` and `filtered_t(h) = P(h_t = h | x_<=t)`, the filter is

    predicted_1 = initial,      predicted_{t+1} = filtered_t A
    scale_t     = sum_h predicted_t(h) emission(x_t, h) = P(x_t | x_<t)
    filtered_t(h) = predicted_t(h) emission(x_t, h) / scale_t,      log P(x) = sum_t log scale_t

(Rabiner 1989, section V.A). Each step is normalized, so sequences of any length don't underflow or
overflow, and log-sum-exp isn't needed. The backward pass only uses Bayes' rule. Given h_{t+1}, h_t
doesn't depend on later tokens, and P(h_t = i | h_{t+1} = j, x_<=t) is filtered_t(i) A(i, j) /
predicted_{t+1}(j). So

    P(h_T = i | x) = filtered_T(i),      ahead_{t+1}(j) = P(h_{t+1} = j | x) / predicted_{t+1}(j)
    P(h_t = i | x) = filtered_t(i) (A ahead_{t+1})(i)
    P(h_t = i, h_{t+1} = j | x) = filtered_t(i) A(i, j) ahead_{t+1}(j)

which has the form of the Rauch-Tung-Striebel smoother for linear systems. The backward pass doesn't
use emissions or scales. Each of its steps preserves the total probability, so errors don't
accumulate.

The last equation gives T H² numbers per sequence. EM only needs their sum over time and sequences,
which is a single matrix product of all `filtered` with all `ahead`. So a sequence takes three
products per token (forward, backward, counts), which are 6 H² operations with a dense A. Each
operation is a product over all sequences that have a token at time t. Sequences are sorted by
decreasing length, so that these sequences are the first rows, and padding isn't computed.

A sequence of probability zero has log-likelihood -inf and no posterior. Its posteriors are set to
zero, and it doesn't contribute to any count. Token values after a sequence's length are ignored.
"""

from __future__ import annotations

import itertools
from typing import NamedTuple

import torch
from jaxtyping import Float, Int64
from torch import Tensor

from gcd._arguments import check_indices, check_shapes
from hmm._model import HMM

_ROWS_AT_ONCE = 16384
"""Maximum number of rows copied at once for transition counts; limits the copy's memory."""


class FilterStep(NamedTuple):
    """Result of one step of the filter.

    Attributes:
        filtered: P(state | tokens up to and including this one); zero if these tokens have
            probability zero.
        log_likelihood: log P(this token | tokens before it); -inf if the token is impossible.
    """

    filtered: Float[Tensor, "B H"]
    log_likelihood: Float[Tensor, "B"]


class FilterResult(NamedTuple):
    """Filtered and predicted distributions at every position; zero after each sequence's end.

    Attributes:
        filtered: P(h_t | x_<=t).
        predicted: P(h_t | x_<t).
        log_likelihood: log P(x); -inf for an impossible sequence.
    """

    filtered: Float[Tensor, "B T H"]
    predicted: Float[Tensor, "B T H"]
    log_likelihood: Float[Tensor, "B"]


class Marginals(NamedTuple):
    """Posterior distributions of the states, given whole sequences (the smoother's result).

    Attributes:
        states: P(h_t | x); zero after each sequence's end and for impossible sequences.
        transition_counts: expected number of uses of each transition parameter, summed over
            sequences and times, in the order and shapes of `transition.factors`.
        log_likelihood: log P(x); -inf for an impossible sequence.
    """

    states: Float[Tensor, "B T H"]
    transition_counts: tuple[Tensor, ...]
    log_likelihood: Float[Tensor, "B"]


class Sample(NamedTuple):
    """Sequences drawn from the model.

    Attributes:
        tokens: the tokens; after its end, a sequence is padded with its last token.
        states: the states that emitted the tokens, padded with the last state.
        lengths: number of tokens of each sequence, including EOS.
    """

    tokens: Int64[Tensor, "B T"]
    states: Int64[Tensor, "B T"]
    lengths: Int64[Tensor, "B"]


class Packed(NamedTuple):
    """Sequences sorted by decreasing length, stored time by time and without padding.

    Attributes:
        order: index of the sequence in each row. At time t, only the first `sizes[t]` rows have a
            token.
        sizes: number of sequences that have a token at time t.
        offsets: index at which time t starts in arrays over all positions.
        tokens: the tokens at all positions.
    """

    order: Int64[Tensor, "B"]
    sizes: list[int]
    offsets: list[int]
    tokens: Int64[Tensor, "n"]

    def rows(self) -> list[slice]:
        """Return, for each time, the slice of its tokens in arrays over all positions."""
        return [slice(start, stop) for start, stop in itertools.pairwise(self.offsets)]


class PackedMarginals(NamedTuple):
    """Result of the smoother (`Marginals`) for packed sequences.

    Attributes:
        packed: the sequences.
        states: P(h_t | x) at each position.
        transition_counts: as in `Marginals`.
        log_likelihood: log P(x), in the original order of the sequences.
    """

    packed: Packed
    states: Float[Tensor, "n H"]
    transition_counts: tuple[Tensor, ...]
    log_likelihood: Float[Tensor, "B"]


def predict_first(hmm: HMM, batch: int) -> Float[Tensor, "B H"]:
    """Return P(first state) for each of `batch` sequences, as an expanded view of one row."""
    return hmm.initial.expand(batch, -1)


def filter_step(
    hmm: HMM, predicted: Float[Tensor, "B H"], tokens: Int64[Tensor, "B"]
) -> FilterStep:
    """Update the filter: condition each sequence's state on one more token.

    Args:
        hmm: the model.
        predicted: P(state that emits the token | tokens before it).
        tokens: one token per sequence.

    Returns:
        P(state | tokens up to this one) and log P(token | tokens before it). The distribution of
        the state that emits the *next* token is `forward(filtered)` of the HMM's transition.

    Raises:
        ValueError: a token is out of range (not checked on a GPU), or the number of tokens or
            states is wrong.
    """
    check_indices(tokens, hmm.num_tokens)
    shape = (*tokens.shape, hmm.num_states)
    check_shapes((predicted, shape, "`predicted` (one distribution per token)"))
    filtered = hmm.initial.new_empty(predicted.shape)
    scale = _condition(hmm, predicted, tokens, out=filtered)
    return FilterStep(filtered, scale.log())


def filter_all(
    hmm: HMM,
    tokens: Int64[Tensor, "B T"],
    lengths: Int64[Tensor, "B"],
) -> FilterResult:
    """Compute the filtered and predicted state distributions of whole sequences.

    Args:
        hmm: the model.
        tokens: token ids; values after a sequence's length are ignored.
        lengths: number of tokens of each sequence, 0 to T.

    Raises:
        ValueError: a length or a token is out of range.
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
    """Return log P(x) of each sequence, in O(B H) memory; see `filter_all` for the arguments."""
    packed = pack(hmm, tokens, lengths)
    return _log_likelihood(packed, _forward(hmm, packed, keep=False).scale)


def marginals(
    hmm: HMM,
    tokens: Int64[Tensor, "B T"],
    lengths: Int64[Tensor, "B"],
) -> Marginals:
    """Compute the posterior state distributions and the expected transition counts.

    See `filter_all` for the arguments. Cost: three products with A per token, and O(B T H) memory.
    """
    result = compute_packed_marginals(hmm, pack(hmm, tokens, lengths))
    states = _unpack(result.packed, result.states, tokens.shape[1])
    return Marginals(states, result.transition_counts, result.log_likelihood)


def compute_packed_marginals(hmm: HMM, packed: Packed) -> PackedMarginals:
    """Compute the posterior state distributions and transition counts of packed sequences."""
    filtered, predicted, scale = _forward(hmm, packed, keep=True)
    # Smaller predicted probabilities have lost subnormal terms, and dividing by them could
    # overflow. So they are raised to this floor. The posterior of such a state is then too small.
    limits = torch.finfo(filtered.dtype)
    floor = limits.tiny / limits.eps
    states, ahead = torch.empty_like(filtered), predicted  # `ahead` overwrites `predicted`
    going = 0
    for rows in reversed(packed.rows()):
        here = states[rows]
        size = len(here)
        here[going:] = 1  # the sequences that end at this time
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
    """Draw token sequences from the model.

    Args:
        hmm: the model.
        num: number of sequences.
        length: maximum number of tokens of each sequence.
        generator: a generator on the model's device; None is torch's default generator.
        eos_id: token that ends a sequence. With None, all sequences have the maximum length.
    """
    if num < 0 or length < 1:
        raise ValueError(
            "expected at least 0 sequences (num) of at least 1 token (length), got "
            f"num={num} and length={length}"
        )
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
    """Sort sequences by length and remove the padding; see `filter_all` for the arguments."""
    if tokens.dim() != 2:
        raise ValueError(
            "expected tokens of shape (B, T), one row per sequence, got shape "
            f"{tuple(tokens.shape)}"
        )
    batch, width = tokens.shape
    for what, numbers in (("token", tokens), ("length", lengths)):
        check_indices(numbers[:0], 0, what)  # without values, only the type is checked
    if lengths.shape != (batch,):
        raise ValueError(
            f"expected {batch} lengths, one per sequence, got shape {tuple(lengths.shape)}"
        )
    if batch and not 0 <= int(lengths.min()) <= int(lengths.max()) <= width:
        raise ValueError(
            f"expected lengths from 0 to {width}, the number of token columns, got lengths from "
            f"{int(lengths.min())} to {int(lengths.max())}"
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
            f"expected tokens from 0 to {hmm.num_tokens - 1}, as in the HMM, got tokens from "
            f"{int(kept.min())} to {int(kept.max())}; use an HMM distilled for this vocabulary"
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
    """Write the distribution of the state, given one more token, to `out`; return P(token).

    If a token has probability zero, its row of `out` is zero.
    """
    if hmm.emission.dtype == out.dtype:
        torch.index_select(hmm.emission, 0, tokens, out=out)
    else:
        out.copy_(hmm.emission.index_select(0, tokens))
    out.mul_(predicted)
    scale = out.sum(dim=-1)
    out.div_(torch.where(scale > 0, scale, 1.0).unsqueeze(-1))
    return scale


class _Forward(NamedTuple):
    """Results of the filter: P(h_t | x_<=t), P(h_t | x_<t) and P(x_t | x_<t) at all positions."""

    filtered: Float[Tensor, "n H"]
    predicted: Float[Tensor, "n H"]
    scale: Float[Tensor, "n"]


def _forward(hmm: HMM, packed: Packed, *, keep: bool) -> _Forward:
    """Run the filter over packed sequences.

    Args:
        keep: whether to return the distributions at all positions. Otherwise, only P(x_t | x_<t) of
            the result is meaningful.
    """
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
    """Return log P(x), the sum of log P(x_t | x_<t), of each sequence in the original order."""
    in_rows = scale.new_zeros(packed.order.shape[0])
    for rows in packed.rows():
        gains = scale[rows].log()
        in_rows[: len(gains)] += gains
    return torch.empty_like(in_rows).scatter_(0, packed.order, in_rows)


def _transition_counts(
    hmm: HMM, packed: Packed, filtered: Float[Tensor, "n H"], ahead: Float[Tensor, "n H"]
) -> tuple[Tensor, ...]:
    """Sum the expected uses of every transition parameter over all times and sequences."""
    counts = tuple(torch.zeros_like(factor) for factor in hmm.transition.factors)
    sizes, offsets = packed.sizes, packed.offsets
    if len(sizes) < 2:
        return counts
    # Row n at time t and row n at time t + 1 belong to the same sequence.
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
    """Convert packed values to one row per sequence, with zeros after the sequence's end."""
    result = values.new_zeros(packed.order.shape[0], width, values.shape[1])
    for t, rows in enumerate(packed.rows()):
        here = values[rows]
        result[packed.order[: len(here)], t] = here
    return result

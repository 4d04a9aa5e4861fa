"""Expectation-maximization (EM): fits an HMM to sequences, in batches, on any number of machines.

EM only needs expected counts: of first states, of uses of each transition parameter, and of pairs
of a token and the state that emits it. Counts of several sequences, batches or machines can be
added. An EM step therefore has four parts:

    expected_statistics   E-step: counts of a batch; 6 H² operations per token (hmm._inference)
    +, all_reduce         add the counts of several batches, and of several processes
    blend                 stepwise EM only: s <- (1 - rho) s + rho s_batch, so old counts decay
    maximize              M-step: add pseudo-counts to the counts, and normalize

An EM step also makes a few passes over the V x H emissions and their counts. These passes work in
place. Writing to new memory would take five times as long, because the operating system allocates
it page by page.

Full-batch EM never decreases the likelihood (Baum et al. 1970; Dempster, Laird & Rubin 1977). With
pseudo-counts it never decreases the posterior under the corresponding Dirichlet prior. `blend` with
decreasing step sizes rho_k = (k + 2)^-kappa, kappa in (1/2, 1], is stepwise EM (Cappé & Moulines,
arXiv 0712.4273; Liang & Klein, NAACL 2009), which needs fewer passes over the data than full-batch
EM.

**Multiple processes.** Each process computes the counts of its share of a batch. `all_reduce` adds
the counts of all processes if `torch.distributed` is initialized, and otherwise returns them
unchanged. The following parts of the step are the same in every process, so all processes have the
same model.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from jaxtyping import Float, Int64
from torch import Tensor

from hmm import _inference as inference
from hmm._inference import PackedMarginals
from hmm._model import HMM
from hmm._transition import Dense


class Statistics(NamedTuple):
    """Expected counts over a set of sequences; the counts of several sets can be added.

    Attributes:
        initial: expected number of sequences whose first state is h.
        transition: expected number of uses of each transition parameter, `(H, H)`.
        emission: emission[v, h] is the expected number of tokens v emitted in state h.
        log_likelihood: sum of log P over the sequences, in float64; -inf if a sequence is
            impossible.
        sequences, tokens: number of sequences, and of their tokens. If the counts are multiplied by
            a factor, these numbers are multiplied by it, too.
    """

    initial: Float[Tensor, "H"]
    transition: tuple[Tensor, ...]
    emission: Float[Tensor, "V H"]
    log_likelihood: Float[Tensor, ""]
    sequences: Float[Tensor, ""]
    tokens: Float[Tensor, ""]

    @classmethod
    def zeros(cls, hmm: HMM) -> Statistics:
        """Return counts of zero, in the shapes of a model's parameters."""
        scalar = torch.zeros((), dtype=torch.float64, device=hmm.device)
        return cls(
            torch.zeros_like(hmm.initial),
            tuple(torch.zeros_like(factor) for factor in hmm.transition.factors),
            torch.zeros_like(hmm.emission, dtype=hmm.dtype),
            *(scalar.clone() for _ in range(3)),
        )

    def map(self, function: Callable[..., Tensor], *others: Statistics) -> Statistics:
        """Apply a function to corresponding arrays of these counts and of `others`."""

        def apply(*values: Any) -> Any:
            several = isinstance(values[0], tuple)
            return tuple(map(function, *values)) if several else function(*values)

        return Statistics(*map(apply, self, *others))

    def __add__(self, other: object) -> Statistics:
        """Return the sum of two sets of counts."""
        if not isinstance(other, Statistics):
            return NotImplemented
        return self.map(torch.add, other)

    def scale_(self, factor: float | int) -> Statistics:
        """Multiply all counts by `factor`, **in place**."""
        return self.map(lambda values: values.mul_(factor))


class PseudoCounts(NamedTuple):
    """Numbers that the M-step adds to the counts before normalization, as a Dirichlet prior does.

    Attributes:
        initial, transition: a number to add to each count.
        emission: a number to add to each count, or one number per token. With numbers proportional
            to the tokens' frequencies, states with few counts have emissions close to these
            frequencies.
    """

    initial: float = 0.0
    transition: float = 0.0
    emission: float | Tensor = 0.0


def expected_statistics(
    hmm: HMM,
    tokens: Int64[Tensor, "B T"],
    lengths: Int64[Tensor, "B"],
    *,
    into: Statistics | None = None,
) -> Statistics:
    """Compute the expected counts of sequences under a model (the E-step).

    Args:
        hmm: the model.
        tokens: token ids; values after a sequence's length are ignored.
        lengths: number of tokens of each sequence, 0 to T.
        into: counts to which the new counts are added **in place**, and which are returned. This
            avoids allocating V x H numbers per batch.

    Raises:
        ValueError: a length or a token is out of range.
    """
    result = inference.compute_packed_marginals(hmm, inference.pack(hmm, tokens, lengths))
    total = Statistics.zeros(hmm) if into is None else into
    packed = result.packed
    if packed.sizes:
        total.initial.add_(result.states[: packed.sizes[0]].sum(dim=0))
    for sum_, part in zip(total.transition, result.transition_counts, strict=True):
        sum_.add_(part)
    _add_emissions(total.emission, result)

    total.log_likelihood.add_(result.log_likelihood.double().sum())
    total.sequences.add_(len(tokens))
    total.tokens.add_(len(packed.tokens))
    return total


def _add_emissions(total: Float[Tensor, "V H"], result: PackedMarginals) -> None:
    """Add the posterior of the hidden state at each position to the row of the position's token.

    The order of additions is always the same, so the rounding is reproducible. On a CPU they are
    sequential. On a GPU, `index_put_` sorts them, whereas `index_add_` adds in an arbitrary order.
    """
    for rows in result.packed.rows():
        tokens, states = result.packed.tokens[rows], result.states[rows]
        if total.is_cuda:
            total.index_put_((tokens,), states, accumulate=True)
        else:
            total.index_add_(0, tokens, states)


def all_reduce(statistics: Statistics) -> Statistics:
    """Sum the counts of all processes of `torch.distributed`, **in place**.

    With one process, the counts are unchanged.
    """

    def reduce(values: Tensor) -> Tensor:
        dist.all_reduce(values)
        return values

    several = dist.is_available() and dist.is_initialized()
    return statistics.map(reduce) if several else statistics


def blend(old: Statistics, new: Statistics, step_size: float | int) -> Statistics:
    """Mix counts as in stepwise EM, (1 - rho) old + rho new, **overwriting** `new`.

    Both counts must represent the same number of sequences (see `Statistics.scale_`). Otherwise the
    relative weight of pseudo-counts would change from step to step.
    """
    _check_step_size(step_size)
    if step_size == 1:
        return new  # without 0 · old, which is NaN if the old log-likelihood is -inf
    return new.scale_(step_size).map(
        lambda after, before: after.add_(before, alpha=1 - step_size), old
    )


def _check_step_size(step_size: float | int) -> None:
    if not 0 < step_size <= 1:
        raise ValueError(f"expected a step_size (of stepwise EM) in (0, 1], got {step_size}")


def step_size(step: int, decay: float | int = 0.7, delay: float | int = 2.0) -> float:
    """Return the weight (k + delay)^-decay of the new counts in step k = 0, 1, ... of stepwise EM.

    The weights decrease as Cappé and Moulines recommend.
    """
    return float((step + delay) ** -decay)


def maximize(
    statistics: Statistics,
    pseudo_counts: PseudoCounts | float | int = 0.0,
    *,
    emission_dtype: torch.dtype | None = None,
) -> HMM:
    """Return the most probable model, given expected counts (the M-step).

    Args:
        statistics: counts of all sequences and processes.
        pseudo_counts: numbers added to the counts. A single number is used for initial, transition
            and emission counts.
        emission_dtype: type of the emissions; by default the type of the counts.

    Returns:
        The model whose distributions are the normalized counts. States without counts have uniform
        distributions.

    Raises:
        ValueError: pseudo-counts are negative, or their number isn't the number of tokens.
    """
    if not isinstance(pseudo_counts, PseudoCounts):
        pseudo_counts = PseudoCounts(pseudo_counts, pseudo_counts, pseudo_counts)
    emission = torch.as_tensor(
        pseudo_counts.emission, dtype=statistics.emission.dtype, device=statistics.emission.device
    )
    if emission.dim() and emission.shape != statistics.emission.shape[:1]:
        raise ValueError(
            f"expected one pseudo-count for all emissions, or {len(statistics.emission)}, one per "
            f"token, got shape {tuple(emission.shape)}"
        )
    for name, value in zip(PseudoCounts._fields, (*pseudo_counts[:2], emission), strict=True):
        if not bool(torch.as_tensor(value, device=emission.device).min() >= 0):
            raise ValueError(f"expected {name} pseudo-counts of at least 0, got {value}")
    columns = emission.unsqueeze(1) if emission.dim() else emission
    [transitions] = statistics.transition
    return HMM(
        _normalize(statistics.initial + pseudo_counts.initial, -1),
        Dense(_normalize(transitions + pseudo_counts.transition, -1)),
        _normalize(statistics.emission + columns, 0).to(emission_dtype),
    )


def _normalize(counts: Float[Tensor, "..."], dim: int) -> Float[Tensor, "..."]:
    """Divide an array by its sums along `dim`, in place; zero sums give uniform distributions."""
    total = counts.sum(dim=dim, keepdim=True)
    empty = total < torch.finfo(counts.dtype).tiny
    if bool(empty.any()):
        counts = torch.where(empty, 1.0, counts)
        total = torch.where(empty, float(counts.shape[dim]), total)
    return counts.div_(total)


Batch = tuple[Tensor, Tensor]
"""Tokens (B x T) and lengths (B) of the sequences that this process computes."""


class Step(NamedTuple):
    """State of stepwise EM: everything that the next step needs.

    Attributes:
        hmm: the model after the M-step.
        statistics: the blended counts from which `hmm` was computed; None before the first step.
        step: number of M-steps so far.
        log_likelihood: log-likelihood per token of the last batch, under the model *before* the
            M-step of this batch.
    """

    hmm: HMM
    statistics: Statistics | None = None
    step: int = 0
    log_likelihood: float = float("nan")


def em_step(
    state: Step,
    batches: Iterable[Batch],
    *,
    pseudo_counts: PseudoCounts | float | int = 0.0,
    step_size: float | int = 1.0,
    num_sequences: float | int | None = None,
) -> Step:
    """Take one step of EM: an E-step over some batches, summed over processes, and an M-step.

    Args:
        state: the state to start from, which isn't changed; `Step(hmm)` at first.
        batches: the sequences that this process computes, as pairs (tokens, lengths) with B x T
            token ids and B numbers. Passing all data with `step_size=1` is full-batch EM.
        pseudo_counts: see `maximize`.
        step_size: weight of the new counts; see `blend`. The first step always has weight one.
        num_sequences: number of sequences to which the counts are scaled, such as the size of the
            data. The effect of pseudo-counts then doesn't depend on the batch size. None doesn't
            scale the counts.

    Raises:
        ValueError: there are no sequences; all sequences are empty or have probability zero; the
            step size is not in (0, 1]; or the model is in half precision, which can't represent
            counts.
    """
    _check_step_size(step_size)
    if state.hmm.dtype not in (torch.float32, torch.float64):
        raise ValueError(
            f"expected an HMM in float32 or float64 for EM, got "
            f"{str(state.hmm.dtype).removeprefix('torch.')}; pass hmm.to(dtype=torch.float32)"
        )
    counts = Statistics.zeros(state.hmm)
    for tokens, lengths in batches:
        expected_statistics(state.hmm, tokens, lengths, into=counts)
    counts = all_reduce(counts)
    seen, mass = float(counts.tokens), float(counts.initial.sum())
    if not mass > 0:
        raise ValueError(
            f"expected sequences that the HMM can generate, but all {float(counts.sequences):g} "
            "sequences are empty or have probability zero; add data, or start from an HMM without "
            "zero probabilities"
        )
    log_likelihood = float(counts.log_likelihood) / max(seen, 1.0)
    if num_sequences is not None:
        counts.scale_(num_sequences / float(counts.sequences))
    if state.statistics is not None:
        counts = blend(state.statistics, counts, step_size)
    hmm = maximize(counts, pseudo_counts, emission_dtype=state.hmm.emission.dtype)
    return Step(hmm, counts, state.step + 1, log_likelihood)

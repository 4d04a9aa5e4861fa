"""Expectation-maximization: fits an HMM to sequences, in batches, on any number of machines.

An HMM is an exponential family, so EM needs only expected counts of the data: of first states, of
uses of each transition parameter, of (token, state) pairs. Counts of sequences, batches and
machines can be added, so there are four steps:

    expected_statistics   E-step: counts of a batch, 6 H² operations a token (hmm._inference)
    +, all_reduce         counts of several batches, of several processes
    blend                 mini-batches: old counts decay, s <- (1 - rho) s + rho s_batch
    maximize              M-step: counts plus pseudo-counts, normalized

In addition, a step makes a few passes over the V x H emissions and their counts. They are done in
place: writing to new memory costs five times as much, because the operating system allocates it
page by page.

Full-batch EM never lowers the likelihood (Baum et al. 1970; Dempster, Laird & Rubin 1977). With
pseudo-counts it never lowers the posterior under the corresponding Dirichlet prior. `blend` with
falling step sizes rho_k = (k + 2)^-kappa, kappa in (1/2, 1], is stepwise EM (Cappé & Moulines,
arXiv 0712.4273; Liang & Klein, NAACL 2009), which needs fewer passes over the data than full-batch
EM.

**Multiple processes** each process their share of a batch; `all_reduce` adds the counts if
`torch.distributed` is initialized and otherwise returns them unchanged. The following steps are the
same everywhere, so every process has the same model and there is a single code path.
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
from hmm._transition import from_factors


class Statistics(NamedTuple):
    """Expected counts over some sequences; counts of several sets of sequences can be added.

    Attributes:
        initial: expected number of first states h.
        transition: expected number of uses of each transition parameter: `(H, H)`, or the two
            Monarch factors.
        emission: emission[v, h] is the expected number of tokens v emitted in state h.
        log_likelihood: sum of log P over the sequences, including impossible ones, in float64.
        sequences: number of sequences, scaled as the counts are.
        tokens: number of tokens, scaled as the counts are.
    """

    initial: Float[Tensor, "H"]
    transition: tuple[Tensor, ...]
    emission: Float[Tensor, "V H"]
    log_likelihood: Float[Tensor, ""]
    sequences: Float[Tensor, ""]
    tokens: Float[Tensor, ""]

    @classmethod
    def zeros(cls, hmm: HMM) -> Statistics:
        """Return the counts of no sequences, in the shapes of this model."""
        scalar = torch.zeros((), dtype=torch.float64, device=hmm.device)
        return cls(
            torch.zeros_like(hmm.initial),
            tuple(torch.zeros_like(factor) for factor in hmm.transition.factors),
            torch.zeros_like(hmm.emission, dtype=hmm.dtype),
            *(scalar.clone() for _ in range(3)),
        )

    def map(self, function: Callable[..., Tensor], *others: Statistics) -> Statistics:
        """Apply a function to each array, together with the same array of each of `others`."""

        def mapped(*values: Any) -> Any:
            several = isinstance(values[0], tuple)
            return tuple(map(function, *values)) if several else function(*values)

        return Statistics(*map(mapped, self, *others))

    def __add__(self, other: object) -> Statistics:
        """Return the counts of both sets of sequences together."""
        if not isinstance(other, Statistics):
            return NotImplemented
        return self.map(torch.add, other)

    def scale_(self, factor: float | int) -> Statistics:
        """Multiply all counts by `factor`, **in place**."""
        return self.map(lambda values: values.mul_(factor))


class PseudoCounts(NamedTuple):
    """Pseudo-counts that are added before normalization, as a Dirichlet prior does.

    Attributes:
        initial, transition: a number added to each entry.
        emission: a number added to each entry, or one number for each token. With numbers
            proportional to the tokens' frequencies, states with few observations fall back on these
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
    """Compute the expected counts of these sequences under a model (the E-step).

    Args:
        hmm: the model.
        tokens: any values after a sequence's length.
        lengths: number of tokens of each sequence, 0 to T.
        into: counts to add to, **in place**, and to return. This saves memory traffic over V x H
            numbers for small batches and large vocabularies.

    Raises:
        ValueError: if a length or a token is out of range.
    """
    result = inference.packed_marginals(hmm, inference.pack(hmm, tokens, lengths))
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
    """Add to total[v] the posteriors of the states at the positions of token v.

    The order of additions is always the same: sequential on a CPU; on a GPU `index_put_` sorts
    them, where `index_add_` would let threads race.
    """
    for rows in result.packed.rows():
        tokens, states = result.packed.tokens[rows], result.states[rows]
        if total.is_cuda:
            total.index_put_((tokens,), states, accumulate=True)
        else:
            total.index_add_(0, tokens, states)


def all_reduce(statistics: Statistics) -> Statistics:
    """Sum the counts of all processes, **in place**; a no-op with one process."""

    def reduced(values: Tensor) -> Tensor:
        dist.all_reduce(values)
        return values

    several = dist.is_available() and dist.is_initialized()
    return statistics.map(reduced) if several else statistics


def blend(old: Statistics, new: Statistics, step_size: float | int) -> Statistics:
    """Mix counts as in stepwise EM, (1 - rho) old + rho new, **in place of** `new`.

    Both must represent the same number of sequences (see `Statistics.scale_`), or the relative
    weight of pseudo-counts would change from step to step.

    Raises:
        ValueError: unless 0 < step_size <= 1.
    """
    _check_step_size(step_size)
    if step_size == 1:
        return new  # not 0 · old, which is NaN where an old log-likelihood is -inf
    return new.scale_(step_size).map(
        lambda after, before: after.add_(before, alpha=1 - step_size), old
    )


def _check_step_size(step_size: float | int) -> None:
    if not 0 < step_size <= 1:
        raise ValueError(f"expected a step size of stepwise EM in (0, 1], got {step_size}")


def step_size(step: int, decay: float | int = 0.7, delay: float | int = 2.0) -> float:
    """Return (k + delay)^-decay, the falling sequence of Cappé and Moulines; k counts from 0."""
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
        pseudo_counts: added to each entry; a number is used for all three parts.
        emission_dtype: type of the emissions; by default the counts' type.

    Returns:
        The normalized counts. A state without counts gets uniform distributions.

    Raises:
        ValueError: if pseudo-counts are negative, or their number isn't the number of tokens.
    """
    if not isinstance(pseudo_counts, PseudoCounts):
        pseudo_counts = PseudoCounts(pseudo_counts, pseudo_counts, pseudo_counts)
    emission = torch.as_tensor(
        pseudo_counts.emission, dtype=statistics.emission.dtype, device=statistics.emission.device
    )
    if emission.dim() and emission.shape != statistics.emission.shape[:1]:
        raise ValueError(
            f"expected {len(statistics.emission)} pseudo-counts, one for each token, or one "
            f"number, got shape {tuple(emission.shape)}"
        )
    for name, value in zip(PseudoCounts._fields, (*pseudo_counts[:2], emission), strict=True):
        if not bool(torch.as_tensor(value, device=emission.device).min() >= 0):
            raise ValueError(f"expected pseudo-counts of at least 0, got {value} for {name}")
    columns = emission.unsqueeze(1) if emission.dim() else emission
    transition = from_factors(
        tuple(
            _normalized(counts + pseudo_counts.transition, -1) for counts in statistics.transition
        )
    )
    return HMM(
        _normalized(statistics.initial + pseudo_counts.initial, -1),
        transition,
        _normalized(statistics.emission + columns, 0).to(emission_dtype),
    )


def _normalized(counts: Float[Tensor, "..."], dim: int) -> Float[Tensor, "..."]:
    """Divide a new array by its sums, in place; distributions with a zero sum become uniform."""
    total = counts.sum(dim=dim, keepdim=True)
    empty = total < torch.finfo(counts.dtype).tiny
    if bool(empty.any()):
        counts = torch.where(empty, 1.0, counts)
        total = torch.where(empty, float(counts.shape[dim]), total)
    return counts.div_(total)


Batch = tuple[Tensor, Tensor]
"""Tokens (B x T) and lengths (B): this process's share of a batch."""


class Step(NamedTuple):
    """State of stepwise EM, which is all that the next step needs.

    Attributes:
        hmm: the model after the M-step.
        statistics: the blended counts that `hmm` was made from; None before the first step.
        step: number of M-steps so far.
        log_likelihood: log-likelihood of the last batch per token, under the model *before* its
            M-step.
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
    """Take one step of EM: the E-step of some batches, summed over processes, and one M-step.

    Args:
        state: the state to start from; `Step(hmm)` at first. Unchanged.
        batches: this process's share of the batches, as pairs (tokens, lengths) of B x T ids and B
            numbers. All data with `step_size=1` is full-batch EM.
        pseudo_counts: see `maximize`.
        step_size: weight of the new counts; see `blend`. The first step uses weight one.
        num_sequences: number of sequences to scale the counts to, such as the size of the data, so
            that pseudo-counts don't depend on the batch size. None: no scaling.

    Raises:
        ValueError: if there are no sequences, or all have probability zero; if the step size is not
            in (0, 1]; if the model is in half precision, which can't represent counts.
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
            f"expected sequences that the model can generate, got {float(counts.sequences):g}, all "
            "empty or impossible; add data, or start from positive parameters"
        )
    log_likelihood = float(counts.log_likelihood) / max(seen, 1.0)
    if num_sequences is not None:
        counts.scale_(num_sequences / float(counts.sequences))
    if state.statistics is not None:
        counts = blend(state.statistics, counts, step_size)
    hmm = maximize(counts, pseudo_counts, emission_dtype=state.hmm.emission.dtype)
    return Step(hmm, counts, state.step + 1, log_likelihood)

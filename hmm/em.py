"""Expectation-maximisation fits an HMM to sequences, in batches, on any number of machines.

An HMM is an exponential family, so all that EM needs of data are expected counts: of first states,
of uses of each transition parameter, of (token, state) pairs. They add, over sequences, batches
and machines, and that is the whole design:

    expected_statistics   E-step: counts of a batch, 6 H² operations a token (hmm.inference)
    +, all_reduce         counts of several batches, of several processes
    blend                 mini-batches: old counts fade, s <- (1 - rho) s + rho s_batch
    maximize              M-step: counts plus pseudo-counts, normalised

Beside those operations a step makes a few passes over the V x H emissions and their counts. They
are done in place: memory that is new costs five times what writing to it does, as the operating
system hands it out page by page.

Full-batch EM never lowers the likelihood (Baum et al. 1970; Dempster, Laird & Rubin 1977); with
pseudo-counts it never lowers the posterior under the Dirichlet prior they stand for. `blend` with
falling step sizes rho_k = (k + 2)^-kappa, kappa in (1/2, 1], is stepwise EM (Cappé & Moulines,
arXiv 0712.4273; Liang & Klein, NAACL 2009), which needs a few passes where full batches need many.

**Many processes** each take their share of a batch; `all_reduce` adds the counts where
`torch.distributed` is initialised and returns them as they are where not. What follows is then the
same everywhere, so every process holds the same model and the code has one path.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from jaxtyping import Float, Int64
from torch import Tensor

from hmm import inference
from hmm.inference import PackedMarginals
from hmm.model import HMM
from hmm.transition import from_factors


class Statistics(NamedTuple):
    """Expected counts over some sequences; they add.

    Attributes:
        initial: of first states.
        transition: of uses of each transition parameter: `(H, H)`, or the two Monarch factors.
        emission: emission[v, h], of token v seen in state h.
        log_likelihood: sum of log P over the sequences, in float64. It counts impossible ones.
        sequences: number of sequences, scaled as the counts are.
        tokens: number of tokens seen, scaled as the counts are.
    """

    initial: Float[Tensor, "H"]
    transition: tuple[Tensor, ...]
    emission: Float[Tensor, "V H"]
    log_likelihood: Float[Tensor, ""]
    sequences: Float[Tensor, ""]
    tokens: Float[Tensor, ""]

    @classmethod
    def zeros(cls, hmm: HMM) -> Statistics:
        """Return the counts of no sequences at all, in the shapes of this model."""
        scalar = torch.zeros((), dtype=torch.float64, device=hmm.device)
        return cls(
            torch.zeros_like(hmm.initial),
            tuple(torch.zeros_like(factor) for factor in hmm.transition.factors),
            torch.zeros_like(hmm.emission, dtype=hmm.dtype),
            *(scalar.clone() for _ in range(3)),
        )

    def map(self, function: Callable[..., Tensor], *others: Statistics) -> Statistics:
        """Apply a function to each array (and to the same one of the others)."""

        def mapped(*values: Any) -> Any:
            several = isinstance(values[0], tuple)
            return tuple(map(function, *values)) if several else function(*values)

        return Statistics(*map(mapped, self, *others))

    def __add__(self, other: object) -> Statistics:
        """The counts of both sets of sequences together."""
        if not isinstance(other, Statistics):
            return NotImplemented
        return self.map(torch.add, other)

    def scale_(self, factor: float | int) -> Statistics:
        """Count every sequence `factor` times; **in place**."""
        return self.map(lambda values: values.mul_(factor))


class PseudoCounts(NamedTuple):
    """Counts added to every parameter before normalising: a Dirichlet prior.

    Attributes:
        initial, transition: added to each entry.
        emission: added to each entry of a state's distribution; or one number for each token. With
            numbers proportional to the tokens' frequencies, states that were seen little fall back
            on those.
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
    """The E-step computes the expected counts of these sequences under this model.

    Args:
        tokens: any values behind a sequence's length.
        lengths: number of tokens of each sequence, 0 to T.
        into: counts to add to, **in place**, and to return: saves passes over V x H numbers where
            batches are small and vocabularies large.

    Raises:
        ValueError: for a length or a token out of range.
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
    """Add to total[v] the posteriors of the states at the places of token v.

    In the same order every time: one after the other on a CPU; on a GPU `index_put_` sorts them,
    where `index_add_` would let threads race.
    """
    for rows in result.packed.rows():
        tokens, states = result.packed.tokens[rows], result.states[rows]
        if total.is_cuda:
            total.index_put_((tokens,), states, accumulate=True)
        else:
            total.index_add_(0, tokens, states)


def all_reduce(statistics: Statistics) -> Statistics:
    """Add the counts of all processes up, **in place**; with one process nothing changes."""

    def reduced(values: Tensor) -> Tensor:
        dist.all_reduce(values)
        return values

    several = dist.is_available() and dist.is_initialized()
    return statistics.map(reduced) if several else statistics


def blend(old: Statistics, new: Statistics, step_size: float | int) -> Statistics:
    """Mix counts as stepwise EM does, (1 - rho) old + rho new, **in place of** `new`.

    Both must stand for the same number of sequences (see `Statistics.scale_`), or pseudo-counts
    would weigh differently from step to step.

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
        raise ValueError(f"the step size of stepwise EM is in (0, 1], not {step_size}")


def step_size(step: int, decay: float | int = 0.7, delay: float | int = 2.0) -> float:
    """Return (k + delay)^-decay, the falling sequence of Cappé and Moulines; k counts from 0."""
    return float((step + delay) ** -decay)


def maximize(
    statistics: Statistics,
    pseudo_counts: PseudoCounts | float | int = 0.0,
    *,
    emission_dtype: torch.dtype | None = None,
) -> HMM:
    """The M-step returns the most probable model, given expected counts.

    Args:
        statistics: counts of all sequences and processes.
        pseudo_counts: added to each entry; a number is used for all three parts.
        emission_dtype: type to store emissions in; None is that of the counts.

    Returns:
        The normalised counts. A state with no count at all gets uniform distributions.

    Raises:
        ValueError: for negative pseudo-counts, or as many of them as there are no tokens.
    """
    if not isinstance(pseudo_counts, PseudoCounts):
        pseudo_counts = PseudoCounts(pseudo_counts, pseudo_counts, pseudo_counts)
    emission = torch.as_tensor(
        pseudo_counts.emission, dtype=statistics.emission.dtype, device=statistics.emission.device
    )
    if emission.dim() and emission.shape != statistics.emission.shape[:1]:
        raise ValueError(
            f"{tuple(emission.shape)} pseudo-counts for {len(statistics.emission)} tokens; give "
            "one for each token, or one number"
        )
    for name, value in zip(PseudoCounts._fields, (*pseudo_counts[:2], emission), strict=True):
        if not bool(torch.as_tensor(value, device=emission.device).min() >= 0):
            raise ValueError(f"pseudo-counts are not negative, {name}'s are {value}")
    columns = emission.unsqueeze(1) if emission.dim() else emission
    transition = from_factors(
        tuple(
            _normalised(counts + pseudo_counts.transition, -1) for counts in statistics.transition
        )
    )
    return HMM(
        _normalised(statistics.initial + pseudo_counts.initial, -1),
        transition,
        _normalised(statistics.emission + columns, 0).to(emission_dtype),
    )


def _normalised(counts: Float[Tensor, "..."], dim: int) -> Float[Tensor, "..."]:
    """Divide a fresh array by its sums; make it uniform where these are zero."""
    total = counts.sum(dim=dim, keepdim=True)
    empty = total < torch.finfo(counts.dtype).tiny
    if bool(empty.any()):
        counts = torch.where(empty, 1.0, counts)
        total = torch.where(empty, float(counts.shape[dim]), total)
    return counts.div_(total)


Batch = tuple[Tensor, Tensor]
"""Tokens (B x T) and lengths (B): this process's share of a batch."""


class Step(NamedTuple):
    """The state of stepwise EM: everything needed to go on, and the last batch's likelihood.

    Attributes:
        hmm: the model after the M-step.
        statistics: the blended counts it was made of; None before the first step.
        step: number of M-steps so far.
        log_likelihood: of the last batch, under the model *before* its M-step, a seen token.
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
    """Take one step of EM: E-steps of some batches, all-reduced, then one M-step.

    Args:
        state: where to start; `Step(hmm)` at first. Unchanged.
        batches: pairs (tokens, lengths) of B x T ids and B numbers, this process's share of each.
            All of the data with `step_size=1` is full-batch EM.
        pseudo_counts: see `maximize`.
        step_size: share of the new counts; see `blend`. The first step takes them as they are.
        num_sequences: how many sequences the counts are scaled to stand for (the size of the
            data), so that pseudo-counts mean the same for each batch size. None: as many as there
            are.

    Raises:
        ValueError: if there is no sequence at all, or every one has probability zero; for a step
            size out of (0, 1]; for a model in half precision, in which counts cannot be kept.
    """
    _check_step_size(step_size)
    if state.hmm.dtype not in (torch.float32, torch.float64):
        raise ValueError(
            f"the HMM is in {str(state.hmm.dtype).removeprefix('torch.')}, too coarse for counts; "
            "give hmm.to(dtype=torch.float32)"
        )
    counts = Statistics.zeros(state.hmm)
    for tokens, lengths in batches:
        expected_statistics(state.hmm, tokens, lengths, into=counts)
    counts = all_reduce(counts)
    seen, mass = float(counts.tokens), float(counts.initial.sum())
    if not mass > 0:
        raise ValueError(
            f"nothing to learn from: {float(counts.sequences):g} sequences, all of them empty or "
            "impossible under the model; give data, or start from parameters that are positive"
        )
    log_likelihood = float(counts.log_likelihood) / max(seen, 1.0)
    if num_sequences is not None:
        counts.scale_(num_sequences / float(counts.sequences))
    if state.statistics is not None:
        counts = blend(state.statistics, counts, step_size)
    hmm = maximize(counts, pseudo_counts, emission_dtype=state.hmm.emission.dtype)
    return Step(hmm, counts, state.step + 1, log_likelihood)

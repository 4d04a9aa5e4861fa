"""Runs of a sampler, and their distance from the exact posterior with intervals.

A run is an example of `smc.sample` on the cached model, so thousands of runs are one batch.

Over R independent runs of a method with N particles:

    law          mean of the runs' posteriors: the law of one answer drawn from one run, where a
                 dead run gives none. Its total variation to the exact posterior is the bias of an
                 answer.
    evidence     relative bias mean(Z) / Z - 1 of the estimates.
    read         prefixes that the language model computes in a run, without the prompt: the cost.

**An estimated total variation is too large.** The mean of R posteriors differs from the law by
noise, and the distance sums it over all answers. If the law were exactly right, the estimate would
be about

    floor = 1/2 sum over answers of sqrt(2 / pi · var / R),

with the answers' variances over runs. The floor is reported with each figure: a figure near its
floor is an upper bound, and the noise is negligible for a figure far above it. With one particle of
SMC, resampling does nothing, so the exact law of a single sample is reported instead. Runs of the
discrete filter that left nothing out are exact as well.

Intervals are basic bootstrap over runs (Davison and Hinkley 1997, 5.2), clipped to the range of the
estimated quantity. (Resampled means are noisier than the mean itself, so percentile intervals of
distances would lie above the distance.)
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Bool, Float64, Int64
from scipy import sparse

import smc
from experiments.exact.cached import CachedLM
from experiments.exact.truth import total_variation
from experiments.tables import Interval
from gcd import TokenAutomaton

_RESAMPLES = 200
_LEVEL = 0.95
_ROWS = 1 << 14  # particles of one batch


class Runs(NamedTuple):
    """Results of independent runs.

    Attributes:
        posterior: posterior of each run over texts; rows sum to one, or to zero for dead runs.
        log_evidence: estimates; -inf for dead runs.
        read: prefixes computed by the language model, without the prompt.
        enumerated: whether a run left nothing out and is exact.
    """

    posterior: sparse.csr_matrix
    log_evidence: Float64[np.ndarray, "runs"]
    read: Int64[np.ndarray, "runs"]
    enumerated: Bool[np.ndarray, "runs"]

    @classmethod
    def of(cls, posteriors: Sequence[smc.Posterior], texts: Mapping[bytes, int]) -> Runs:
        """Collect the results of `smc.sample` for a prompt of one token."""
        shares = [share for each in posteriors for share in each.probabilities]
        columns = [texts[answer] for each in posteriors for answer in each.answers]
        ends = np.cumsum([0, *(len(each.answers) for each in posteriors)])
        return cls(
            sparse.csr_matrix((shares, columns, ends), shape=(len(posteriors), len(texts))),
            np.array([each.log_evidence for each in posteriors], dtype=np.float64),
            np.array([each.diagnostics.tokens - 1 for each in posteriors]),
            np.array([each.enumerated for each in posteriors]),
        )


def sample_runs(
    lm: CachedLM,
    constraint: TokenAutomaton,
    texts: Sequence[bytes],
    runs: int,
    **settings: Any,
) -> Runs:
    """Make independent runs, numbered as the examples of `smc.sample`.

    A run that left nothing out doesn't depend on random numbers. If the first run is of this kind,
    no other run is made.

    Args:
        lm: the cached model.
        constraint: the restricted constraint.
        texts: all answers.
        runs: maximum number of runs.
        settings: max_tokens, particles, proposal, algorithm, seed and options of `smc.sample`.
    """

    def make(numbers: Sequence[int]) -> list[smc.Posterior]:
        return smc.sample(
            lm,
            [[0]] * len(numbers),
            constraint,
            example_ids=list(numbers),
            max_rows=_ROWS,
            hooks=smc.Hooks(forced_runs=False),  # so that every token of a run counts as read
            **settings,
        )

    found = make([0])
    if not found[0].enumerated and runs > 1:
        found += make(range(1, runs))
    return Runs.of(found, {text: i for i, text in enumerate(texts)})


def estimate(
    runs: Runs,
    particles: int,
    posterior: Float64[np.ndarray, "texts"],
    log_evidence: float,
    seed: int = 0,
) -> dict[str, Any]:
    """Measure runs of a number of particles against the exact posterior and log evidence.

    The seed is that of the bootstrap. The result has the total variation `tv` of the law with its
    `tv_floor`, and the relative `evidence_bias`. It also has `dead` as a share of the runs, the
    mean `read`, and `enumerated`, whether the runs left nothing out. Intervals have the keys
    `..._low` and `..._high`.
    """
    ratio = np.exp(runs.log_evidence - log_evidence)
    tv, bias = _intervals(runs.posterior, ratio, posterior, seed)
    law = np.asarray(runs.posterior.mean(axis=0)).ravel()
    squares = np.asarray(runs.posterior.multiply(runs.posterior).mean(axis=0)).ravel()
    # "No answer" is an outcome as well.
    dead = float(np.isneginf(runs.log_evidence).mean())
    variances = np.append(np.maximum(squares - law**2, 0), dead * (1 - dead))
    return {
        "runs": len(ratio),
        "particles": particles,
        **tv.as_record("tv"),
        "tv_floor": 0.5 * float(np.sqrt(2 / math.pi * variances / len(ratio)).sum()),
        **bias.as_record("evidence_bias"),
        "dead": dead,
        "read": float(runs.read.mean()),
        "enumerated": bool(runs.enumerated.all()),
    }


def _intervals(
    laws: sparse.csr_matrix,
    ratio: Float64[np.ndarray, "runs"],
    posterior: Float64[np.ndarray, "texts"],
    seed: int,
) -> tuple[Interval, Interval]:
    """Return the total variation and the bias of the evidence, with bootstrap intervals."""
    from scipy import stats  # slow to import

    count = len(ratio)

    def measure(rows: Int64[np.ndarray, "*B R"], axis: int = -1) -> Float64[np.ndarray, "2 *B"]:
        """Return both measures of some runs."""
        counts = np.stack([np.bincount(row, minlength=count) for row in rows.reshape(-1, count)])
        distance = total_variation(np.asarray(counts @ laws) / count, posterior)
        bias = ratio[rows].mean(axis=-1) - 1
        return np.stack([distance.reshape(bias.shape), bias])

    everything = np.arange(count)
    values = low = high = measure(everything)
    if count > 1:  # all resamples of one run are equal
        low, high = stats.bootstrap(
            (everything,), measure, n_resamples=_RESAMPLES, confidence_level=_LEVEL,
            method="basic", vectorized=True, rng=np.random.default_rng(seed),
        ).confidence_interval  # fmt: skip
    low = np.maximum([0, -1], np.minimum(low, values))
    high = np.minimum([1, math.inf], np.maximum(high, values))
    tv, bias = (Interval(*map(float, each)) for each in zip(values, low, high, strict=True))
    return tv, bias

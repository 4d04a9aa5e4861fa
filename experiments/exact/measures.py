"""Runs of a sampler, and their distance from the exact posterior with intervals.

A run is an example of `smc.sample` on the cached model, so thousands of runs are one batch.

Over R independent runs of a method with N particles:

    law          mean of the runs' posteriors: the law of one answer drawn from one run, where a
                 dead run gives none. Its total variation to the exact posterior is the bias of an
                 answer.
    one run      mean total variation of a single run's posterior: bias and noise together. An exact
                 sampler of N draws also has some (`truth.floor_of_draws`).
    evidence     relative bias mean(Z) / Z - 1 and relative variance var(Z) / Z² of the estimates.
    ESS / N      of the final weights, zero for a dead run; meaningless for the discrete filter,
                 whose answers aren't drawn.
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
        ess: effective sample size of the final weights; zero for dead runs.
        read: prefixes computed by the language model, without the prompt.
        enumerated: whether a run left nothing out and is exact.
    """

    posterior: sparse.csr_matrix
    log_evidence: Float64[np.ndarray, "runs"]
    ess: Float64[np.ndarray, "runs"]
    read: Int64[np.ndarray, "runs"]
    enumerated: Bool[np.ndarray, "runs"]

    @property
    def dead(self) -> np.ndarray:
        """Runs without an answer."""
        return np.isneginf(self.log_evidence)

    @classmethod
    def of(cls, posteriors: Sequence[smc.Posterior], texts: Mapping[bytes, int]) -> Runs:
        """Collect the results of `smc.sample` for a prompt of one token."""
        shares = [share for each in posteriors for share in each.probabilities]
        columns = [texts[answer] for each in posteriors for answer in each.answers]
        ends = np.cumsum([0, *(len(each.answers) for each in posteriors)])
        return cls(
            sparse.csr_matrix((shares, columns, ends), shape=(len(posteriors), len(texts))),
            np.array([each.log_evidence for each in posteriors], dtype=np.float64),
            np.array([each.ess for each in posteriors], dtype=np.float64),
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
            forced_runs=False,  # so that every token of a run counts as read
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
    """Measure runs against the exact posterior and evidence.

    Args:
        runs: independent runs.
        particles: particles of each run.
        posterior: exact posterior.
        log_evidence: exact log evidence.
        seed: seed of the bootstrap.

    Returns:
        A dictionary with `runs` and `particles`; the total variation `tv` of the law, and
        `tv_floor`; the mean `one_run_tv`; and `evidence_bias` and `evidence_variance`, relative.
        It also has `ess` as a share of N, `dead` as a share of the runs, the mean `read`, and
        `enumerated`, whether the runs left nothing out. Intervals have the keys
        `..._low` and `..._high`.
    """
    from scipy import stats  # slow to import

    R = runs.posterior.shape[0]
    ratio = np.exp(runs.log_evidence - log_evidence)

    def measure(rows: Int64[np.ndarray, "*B R"], axis: int = -1) -> Float64[np.ndarray, "3 *B"]:
        """Return total variation, bias and variance of the evidence of some runs."""
        counts = np.stack([np.bincount(row, minlength=R) for row in rows.reshape(-1, R)])
        distance = total_variation(np.asarray(counts @ runs.posterior) / R, posterior)
        chosen = ratio[rows]
        bias, variance = chosen.mean(axis=-1) - 1, chosen.var(axis=-1)
        return np.stack([distance.reshape(bias.shape), bias, variance])

    everything = np.arange(R)
    values = measure(everything)
    low = high = values
    if R > 1:  # all resamples of one run are equal
        low, high = stats.bootstrap(
            (everything,),
            measure,
            n_resamples=_RESAMPLES,
            confidence_level=_LEVEL,
            method="basic",
            vectorized=True,
            rng=np.random.default_rng(seed),
        ).confidence_interval
    low = np.maximum([0, -1, 0], np.minimum(low, values))
    high = np.minimum([1, math.inf, math.inf], np.maximum(high, values))

    law = np.asarray(runs.posterior.mean(axis=0)).ravel()
    squares = np.asarray(runs.posterior.multiply(runs.posterior).mean(axis=0)).ravel()
    # "No answer" is an outcome as well.
    dead = float(runs.dead.mean())
    variances = np.append(np.maximum(squares - law**2, 0), dead * (1 - dead))
    floor = 0.5 * float(np.sqrt(2 / math.pi * variances / R).sum())
    intervals = [Interval(*map(float, each)) for each in zip(values, low, high, strict=True)]
    tv, bias, variance = intervals
    return {
        "runs": R,
        "particles": particles,
        **tv.as_record("tv"),
        "tv_floor": floor,
        "one_run_tv": _one_run(runs.posterior, posterior),
        **bias.as_record("evidence_bias"),
        **variance.as_record("evidence_variance"),
        "ess": float(runs.ess.mean()) / particles,
        "dead": dead,
        "read": float(runs.read.mean()),
        "enumerated": bool(runs.enumerated.all()),
    }


def _one_run(laws: sparse.csr_matrix, posterior: Float64[np.ndarray, "texts"]) -> float:
    """Return the mean total variation between single runs' posteriors and the exact posterior.

    For a posterior that sums to one, the total variation is the sum of the probability by which
    answers exceed the exact one. For a dead run it is 1.
    """
    excess = np.maximum(laws.data - posterior[laws.indices], 0.0)
    dead = laws.shape[0] - len(np.unique(np.repeat(np.arange(laws.shape[0]), np.diff(laws.indptr))))
    return (float(excess.sum()) + dead) / laws.shape[0]

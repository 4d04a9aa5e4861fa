"""How far runs of a sampler are from the truth, with intervals.

Over R independent runs of a method with N particles:

    law          the mean of the runs' posteriors: the law of one answer drawn from one run, where a
                 dead run gives none. Its total variation to the exact posterior says how biased
                 an answer is.
    one run      the mean total variation of a single run's posterior: bias and noise together. An
                 exact sampler of N draws has some, too (`exact.floor_of_draws`).
    evidence     relative bias mean(Z) / Z - 1 and relative variance var(Z) / Z² of its estimates.
    ESS / N      of the final weights, zero for a dead run.

**A total variation that is estimated is too large.** The mean of R posteriors differs from the law
by noise, and distances add it up over all answers. Were the law exactly right, what would be seen
is about

    floor = 1/2 sum over answers of sqrt(2 / pi · var / R),

with the answers' variances over runs. So this floor stands beside each figure: a figure near its
floor says "at most this", one far above it is hardly touched. With one particle
nothing needs to be estimated, since resampling does nothing: the law is that of a single sample,
which is computed exactly and stands in the figure's place.

Intervals are basic bootstrap over runs (Davison and Hinkley 1997, 5.2): the spread of resampled
totals around the estimate, turned over, cut at [0, 1]. (Resampled means are noisier than the mean
itself, and percentiles of their distances would lie above the distance.)
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
from jaxtyping import Float64
from scipy import sparse

from experiments.convergence.sampler import Runs

_RESAMPLES = 200
_LEVEL = 0.95


class Estimate(NamedTuple):
    """What runs of one method with one number of particles say.

    Attributes:
        runs, particles: how many.
        law: mean posterior over the runs.
        tv, tv_low, tv_high: total variation of the law, with its interval.
        tv_floor: what a law without bias would show, from noise alone.
        one_run_tv: mean total variation of one run.
        evidence_bias, evidence_bias_low, evidence_bias_high: relative.
        evidence_variance, evidence_variance_low, evidence_variance_high: relative.
        ess: of the final weights, a share of N.
        dead: share of the runs.
    """

    runs: int
    particles: int
    law: Float64[np.ndarray, "texts"]
    tv: float
    tv_low: float
    tv_high: float
    tv_floor: float
    one_run_tv: float
    evidence_bias: float
    evidence_bias_low: float
    evidence_bias_high: float
    evidence_variance: float
    evidence_variance_low: float
    evidence_variance_high: float
    ess: float
    dead: float


def estimate(
    runs: Runs,
    particles: int,
    posterior: Float64[np.ndarray, "texts"],
    log_evidence: float,
    seed: int = 0,
) -> Estimate:
    """Measures runs against the exact posterior and evidence."""
    R = runs.posterior.shape[0]
    counts = np.random.default_rng(seed).multinomial(R, np.full(R, 1 / R), _RESAMPLES)
    law = np.asarray(runs.posterior.mean(axis=0)).ravel()
    tv = float(_distance(law[None], posterior)[0])
    resampled = _distance(np.asarray(counts @ runs.posterior) / R, posterior)
    low, high = _basic(tv, resampled, 0.0, 1.0)
    squares = np.asarray(runs.posterior.multiply(runs.posterior).mean(axis=0)).ravel()
    # "No answer" is an outcome like the others.
    dead = float(runs.dead.mean())
    variances = np.append(np.maximum(squares - law**2, 0), dead * (1 - dead))
    floor = 0.5 * float(np.sqrt(2 / math.pi * variances / R).sum())

    ratio = np.exp(runs.log_evidence - log_evidence)
    means = counts @ ratio / R
    second = counts @ ratio**2 / R
    bias, variance = float(ratio.mean()) - 1, float(ratio.var())
    bias_low, bias_high = _basic(bias, means - 1, -1.0, math.inf)
    variance_low, variance_high = _basic(variance, second - means**2, 0.0, math.inf)
    return Estimate(
        runs=R,
        particles=particles,
        law=law,
        tv=tv,
        tv_low=low,
        tv_high=high,
        tv_floor=floor,
        one_run_tv=_one_run(runs.posterior, posterior),
        evidence_bias=bias,
        evidence_bias_low=bias_low,
        evidence_bias_high=bias_high,
        evidence_variance=variance,
        evidence_variance_low=variance_low,
        evidence_variance_high=variance_high,
        ess=float(runs.ess.mean()) / particles,
        dead=dead,
    )


def _distance(
    laws: Float64[np.ndarray, "B texts"], posterior: Float64[np.ndarray, "texts"]
) -> Float64[np.ndarray, "B"]:
    """Total variation of each law; what is missing to one is the outcome "no answer"."""
    missing = np.maximum(0.0, 1.0 - laws.sum(axis=1))
    return 0.5 * (np.abs(laws - posterior).sum(axis=1) + missing)


def _one_run(laws: sparse.csr_matrix, posterior: Float64[np.ndarray, "texts"]) -> float:
    """Mean total variation of the rows, of which few entries are not zero.

    For a law that sums to one it is the sum of what the law has too much; and of a dead run, 1.
    """
    excess = np.maximum(laws.data - posterior[laws.indices], 0.0)
    dead = laws.shape[0] - len(np.unique(np.repeat(np.arange(laws.shape[0]), np.diff(laws.indptr))))
    return (float(excess.sum()) + dead) / laws.shape[0]


def _basic(
    value: float, resampled: Float64[np.ndarray, "B"], least: float, most: float
) -> tuple[float, float]:
    """The basic bootstrap interval, within bounds."""
    low, high = np.quantile(resampled, [(1 - _LEVEL) / 2, (1 + _LEVEL) / 2])
    bounds = (2 * value - float(high), 2 * value - float(low))
    return max(least, min(bounds[0], value)), min(most, max(bounds[1], value))

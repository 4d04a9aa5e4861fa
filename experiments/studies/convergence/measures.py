"""These measures say, with intervals, how far runs of a sampler are from the truth.

Over R independent runs of a method with N particles:

    law          the mean of the runs' posteriors: the law of one answer drawn from one run, where a
                 dead run gives none. Its total variation to the exact posterior says how biased
                 an answer is.
    one run      the mean total variation of a single run's posterior: bias and noise together. An
                 exact sampler of N draws has some, too (`exact.floor_of_draws`).
    evidence     relative bias mean(Z) / Z - 1 and relative variance var(Z) / Z² of its estimates.
    ESS / N      of the final weights, zero for a dead run. It means nothing for the answers of a
                 pool, which were not drawn.
    read         prefixes that the language model read in a run, the prompt aside: its cost.

**A total variation that is estimated is too large.** The mean of R posteriors differs from the law
by noise, and distances add it up over all answers. Were the law exactly right, what would be seen
is about

    floor = 1/2 sum over answers of sqrt(2 / pi · var / R),

with the answers' variances over runs. So this floor stands beside each figure: a figure near its
floor says "at most this", one far above it is hardly touched. With one particle
of SMC nothing needs to be estimated, since resampling does nothing: the law is that of a single
sample, which is computed exactly and stands in the figure's place. Nor where the discrete filter
left nothing out.

Intervals are basic bootstrap over runs (Davison and Hinkley 1997, 5.2), cut at the bounds of what
is estimated: the spread of resampled values around the estimate, turned over. (Resampled means are
noisier than the mean itself, and percentiles of their distances would lie above the distance.)
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from jaxtyping import Float64, Int64
from scipy import sparse

from experiments.harness.summary import Interval
from experiments.studies.convergence.exact import total_variation
from experiments.studies.convergence.sampler import Runs

_RESAMPLES = 200
_LEVEL = 0.95


def estimate(
    runs: Runs,
    particles: int,
    posterior: Float64[np.ndarray, "texts"],
    log_evidence: float,
    seed: int = 0,
) -> dict[str, Any]:
    """Measure runs against the exact posterior and evidence.

    Args:
        runs: independent ones.
        particles: of each.
        posterior: the exact one.
        log_evidence: the exact one.
        seed: of the bootstrap.

    Returns:
        By name: how many `runs` and `particles`; the `law`; its total variation `tv`, and
        `tv_floor`; the mean `one_run_tv`; `evidence_bias` and `evidence_variance`, both relative;
        `ess` as a share of N; `dead` as a share of the runs; the mean `read`; and whether the runs
        left nothing out, `enumerated`. Ends of intervals are called `..._low` and `..._high`.
    """
    from scipy import stats  # a third of a second, which the command line need not wait for

    R = runs.posterior.shape[0]
    ratio = np.exp(runs.log_evidence - log_evidence)

    def measured(rows: Int64[np.ndarray, "*B R"], axis: int = -1) -> Float64[np.ndarray, "3 *B"]:
        """Total variation, bias and variance of the evidence, of some runs, repeated or not."""
        counts = np.stack([np.bincount(row, minlength=R) for row in rows.reshape(-1, R)])
        distance = total_variation(np.asarray(counts @ runs.posterior) / R, posterior)
        chosen = ratio[rows]
        bias, variance = chosen.mean(axis=-1) - 1, chosen.var(axis=-1)
        return np.stack([distance.reshape(bias.shape), bias, variance])

    everything = np.arange(R)
    values = measured(everything)
    low = high = values
    if R > 1:  # one run, resampled, is always the same
        low, high = stats.bootstrap(
            (everything,),
            measured,
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
    # "No answer" is an outcome like the others.
    dead = float(runs.dead.mean())
    variances = np.append(np.maximum(squares - law**2, 0), dead * (1 - dead))
    floor = 0.5 * float(np.sqrt(2 / math.pi * variances / R).sum())
    intervals = [Interval(*map(float, each)) for each in zip(values, low, high, strict=True)]
    tv, bias, variance = intervals
    return {
        "runs": R,
        "particles": particles,
        "law": law,
        **tv.named("tv"),
        "tv_floor": floor,
        "one_run_tv": _one_run(runs.posterior, posterior),
        **bias.named("evidence_bias"),
        **variance.named("evidence_variance"),
        "ess": float(runs.ess.mean()) / particles,
        "dead": dead,
        "read": float(runs.read.mean()),
        "enumerated": bool(runs.enumerated.all()),
    }


def _one_run(laws: sparse.csr_matrix, posterior: Float64[np.ndarray, "texts"]) -> float:
    """Mean total variation of the rows, of which few entries are not zero.

    For a law that sums to one it is the sum of what the law has too much; and of a dead run, 1.
    """
    excess = np.maximum(laws.data - posterior[laws.indices], 0.0)
    dead = laws.shape[0] - len(np.unique(np.repeat(np.arange(laws.shape[0]), np.diff(laws.indptr))))
    return (float(excess.sum()) + dead) / laws.shape[0]

"""This module compares independent runs with the exact answer.

log evidence      mean and standard deviation over the runs that found an answer; and the
                  logarithm of the mean evidence over all runs, which is unbiased before the
                  logarithm and dominated by few runs where the deviation is large
total variation   between the exact marginal of the events and the mean of the runs' marginals,
                  1/2 (sum |p - m| + 1 - sum m): a dead run has no answer, which counts against
                  it. What noise over the runs alone would show, were the mean exact, is
                  1/2 sum of sqrt(2 / pi) times the standard error of each event's mean
of one run        the mean total variation of a single run's marginal
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

import smc
from experiments.convergence.exact import total_variation
from experiments.convergence.scale.truth import Event, Truth, marginal


def measured(
    posteriors: Sequence[smc.Posterior], events: Sequence[Event], exact: Truth
) -> dict[str, Any]:
    """Compute the measures of independent runs of one arm, as plain values."""
    logs = [None if p.dead else p.log_evidence for p in posteriors]
    found = [value for value in logs if value is not None]
    marginals = np.array([marginal(posterior, events) for posterior in posteriors])
    mean = marginals.mean(axis=0)
    error = marginals.std(axis=0) / math.sqrt(max(1, len(marginals) - 1))
    diagnostics = [posterior.diagnostics for posterior in posteriors]
    return {
        "runs": len(posteriors),
        "dead": len(posteriors) - len(found),
        "mean_log_evidence": float(np.mean(found)) if found else None,
        "sd_log_evidence": float(np.std(found, ddof=1)) if len(found) > 1 else None,
        "log_mean_evidence": _log_mean(found, len(posteriors)),
        "total_variation": float(total_variation(mean, exact.marginal)),
        "total_variation_noise": float(math.sqrt(2 / math.pi) * error.sum() / 2),
        "total_variation_one_run": float(total_variation(marginals, exact.marginal).mean()),
        "tokens": float(np.mean([each.tokens for each in diagnostics])),
        "lm_calls": float(np.mean([each.lm_calls for each in diagnostics])),
        "seconds": round(float(np.mean([each.seconds for each in diagnostics])), 5),
        "ess": float(np.mean([posterior.ess for posterior in posteriors])),
        "log_evidences": logs,
        "marginals": [[float(f"{share:.9g}") for share in each] for each in marginals],
    }


def _log_mean(logs: Sequence[float], runs: int) -> float | None:
    """The logarithm of the mean of exp, dead runs as zeros; None where all are dead."""
    return float(np.logaddexp.reduce(logs)) - math.log(runs) if logs else None

"""This module sums rows up by means over examples, with bootstrap intervals.

Every example counts in every denominator: a row whose particles all died is an answer that was
not given, hence wrong, invalid and unfinished. Intervals are percentile bootstrap over examples
(Efron and Tibshirani 1993, chapter 13): requests are what results would vary over.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
from scipy import stats

from experiments.harness.methods import METHODS
from experiments.harness.results import Row

_RESAMPLES = 2000
_LEVEL = 0.95


class Interval(NamedTuple):
    """A mean with the ends of its 95 % bootstrap interval."""

    mean: float
    low: float
    high: float


def bootstrap(values: Sequence[float], seed: int = 0) -> Interval:
    """Compute the mean and its percentile interval, a function of the values and the seed.

    Raises:
        ValueError: there are no values.
    """
    sample = np.asarray(values, float)
    if sample.size == 0:
        raise ValueError("no values to average")
    mean = float(sample.mean())
    if sample.size == 1:  # resampled, it is always the same
        return Interval(mean, mean, mean)
    low, high = stats.bootstrap(
        (sample,),
        np.mean,
        n_resamples=_RESAMPLES,
        confidence_level=_LEVEL,
        method="percentile",
        rng=np.random.default_rng(seed),
    ).confidence_interval
    return Interval(mean, float(low), float(high))


def summarize(rows: Sequence[Row], seed: int = 0) -> list[dict[str, Any]]:
    """Sum up the rows of each method and number of particles, in order of first appearance."""
    groups: dict[tuple[str, int], list[Row]] = {}
    for row in rows:
        groups.setdefault((row["method"], row["particles"]), []).append(row)
    records = []
    for (method, particles), group in groups.items():
        alive = [r for r in group if not r["dead"]]
        accuracy = bootstrap([r["weighted_accuracy"] for r in group], seed)
        majority = bootstrap([float(r["majority_correct"]) for r in group], seed)
        records.append(
            {
                "method": method,
                "particles": particles,
                "examples": len(group),
                "weighted_accuracy": accuracy.mean,
                "weighted_accuracy_low": accuracy.low,
                "weighted_accuracy_high": accuracy.high,
                "majority_accuracy": majority.mean,
                "majority_accuracy_low": majority.low,
                "majority_accuracy_high": majority.high,
                "valid": _mean(r["valid"] for r in group),
                "complete": _mean(r["complete"] for r in group),
                "share_finished": _mean(r["share_finished"] for r in group),
                "dead": sum(r["dead"] for r in group),
                "ess_fraction": _mean(r["ess"] / particles for r in alive) if alive else None,
                "log_evidence": _mean(
                    r["log_evidence"] for r in alive if r["log_evidence"] is not None
                ),
                "lm_calls": sum(r["lm_calls"] for r in group),
                "tokens": sum(r["tokens"] for r in group),
                "seconds": sum(r["seconds"] for r in group),
            }
        )
    return records


def as_table(summary: Sequence[dict[str, Any]]) -> pd.DataFrame:
    """Turn the summary into a table of percentages, intervals and totals."""
    return pd.DataFrame(
        {
            "method": METHODS[s["method"]].title,
            "particles": s["particles"],
            "examples": s["examples"],
            "accuracy (weighted) %": _with_interval(s, "weighted_accuracy"),
            "accuracy (majority) %": _with_interval(s, "majority_accuracy"),
            "valid %": _percent(s["valid"]),
            "complete %": _percent(s["complete"]),
            "particles finished %": _percent(s["share_finished"]),
            "dead rows": s["dead"],
            "ESS/N": "–" if s["ess_fraction"] is None else f"{s['ess_fraction']:.2f}",
            "LM calls": s["lm_calls"],
            "tokens": s["tokens"],
            "seconds": f"{s['seconds']:.1f}",
        }
        for s in summary
    )


def as_markdown(table: pd.DataFrame) -> str:
    """Write a table in Markdown, its columns aligned so that the source reads well, too."""
    cells = [list(table.columns), *([str(v) for v in row] for row in table.itertuples(index=False))]
    widths = [max(len(row[i]) for row in cells) for i in range(len(table.columns))]
    lines = ["| " + " | ".join(c.ljust(w) for c, w in zip(row, widths, strict=True)) + " |"
             for row in cells]  # fmt: skip
    rule = "|" + "|".join("-" * (w + 2) for w in widths) + "|"
    return "\n".join([lines[0], rule, *lines[1:]])


def _mean(values: Any) -> float | None:
    numbers = [float(v) for v in values]
    return float(np.mean(numbers)) if numbers else None


def _percent(value: float) -> str:
    return f"{100 * value:.1f}"


def _with_interval(record: dict[str, Any], key: str) -> str:
    low, high = record[f"{key}_low"], record[f"{key}_high"]
    return f"{100 * record[key]:.1f} [{100 * low:.1f}, {100 * high:.1f}]"

"""This module sums up rows of the query task: shares that compile, are right, are spelled alike.

Execution accuracy counts the questions with a measure alone (`experiments.sql.judge`); everything
else counts all of them, and a dead row is an answer that was not given, so wrong in every metric.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd

from experiments.harness.arms import Arm
from experiments.harness.results import Row
from experiments.harness.summary import as_table, bootstrap, summarize

_EXECUTION = ("weighted_accuracy", "majority_accuracy")
_SHARES = ("prepares", "exact_match")  # posterior-weighted, and in the rows under these names
Summary = list[dict[str, Any]]


def summarize_queries(rows: Sequence[Row], seed: int = 0) -> Summary:
    """Sum up the rows of each arm and number of particles, in order of first appearance."""
    summary = summarize(rows, seed)
    judged = {
        (Arm.of(record), record["particles"]): record
        for record in summarize([row for row in rows if row["judged"]], seed)
    }
    for record in summary:
        place = Arm.of(record), record["particles"]
        own = [row for row in rows if (Arm.of(row), row["particles"]) == place]
        record["judged"] = judged[place]["examples"]
        for name in _EXECUTION:
            for end in ("", "_low", "_high"):
                record[f"{name}{end}"] = judged[place][f"{name}{end}"]
        for name in _SHARES:
            record |= _share(own, name, seed)
    return summary


def _share(rows: Sequence[Row], name: str, seed: int) -> dict[str, float]:
    examples: dict[str, list[float]] = {}
    for row in rows:
        examples.setdefault(row["example"], []).append(row[name])
    found = bootstrap([float(np.mean(values)) for values in examples.values()], seed)
    return {name: found.mean, f"{name}_low": found.low, f"{name}_high": found.high}


def as_query_table(summary: Summary) -> pd.DataFrame:
    """Turn the summary into a table of percentages, intervals and totals."""
    table = as_table(summary)
    table.insert(3, "prepares %", [f"{100 * record['prepares']:.1f}" for record in summary])
    table.insert(
        6,
        "exact match %",
        [
            f"{100 * r['exact_match']:.1f} "
            f"[{100 * r['exact_match_low']:.1f}, {100 * r['exact_match_high']:.1f}]"
            for r in summary
        ],
    )
    return table.rename(columns=lambda name: name.replace("accuracy (", "execution accuracy ("))

"""This module sums up rows of the query task: shares that compile, are right, are spelled alike.

Execution accuracy counts the questions with a measure alone (`experiments.sql.judge`); everything
else counts all of them, and a dead row is an answer that was not given, so wrong in every metric.
"""

from __future__ import annotations

from collections.abc import Sequence
from operator import itemgetter
from typing import Any

import pandas as pd

from experiments.harness.arms import Arm
from experiments.harness.results import Row
from experiments.harness.summary import as_table, bootstrap, by_example, summarize
from experiments.harness.tables import with_interval

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
            shares = by_example(own, itemgetter(name))
            record |= bootstrap([*shares.values()], seed).named(name)
    return summary


def as_query_table(summary: Summary) -> pd.DataFrame:
    """Turn the summary into a table of percentages, intervals and totals."""
    table = as_table(summary)
    table.insert(3, "prepares %", [f"{100 * record['prepares']:.1f}" for record in summary])
    table.insert(6, "exact match %", [with_interval(r, "exact_match") for r in summary])
    return table.rename(columns=lambda name: name.replace("accuracy (", "execution accuracy ("))

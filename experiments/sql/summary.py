"""This module sums up rows of the query task: shares that compile, are right, are spelled alike.

Execution accuracy counts the questions with a measure alone (`experiments.sql.judge`); everything
else counts all of them, and a dead row is an answer that was not given, so wrong in every metric.
"""

from __future__ import annotations

from collections.abc import Sequence
from operator import itemgetter
from typing import Any

import pandas as pd

from experiments.harness.results import Row
from experiments.harness.summary import Group, as_table, summarize
from experiments.harness.tables import with_interval

_EXECUTION = ("weighted_accuracy", "majority_accuracy")
_SHARES = ("prepares", "exact_match")  # posterior-weighted, and in the rows under these names
Summary = list[dict[str, Any]]


def summarize_queries(rows: Sequence[Row], seed: int = 0) -> Summary:
    """Sum up the rows of each arm and number of particles, in order of first appearance."""
    summary = summarize(rows, seed, {name: itemgetter(name) for name in _SHARES})
    judged = summarize([row for row in rows if row["judged"]], seed)
    by_group = {Group.of(record): record for record in judged}
    for record in summary:
        own = by_group[Group.of(record)]
        record |= {key: value for key, value in own.items() if key.startswith(_EXECUTION)}
        record["judged"] = own["examples"]
    return summary


def as_query_table(summary: Summary) -> pd.DataFrame:
    """Turn the summary into a table of percentages, intervals and totals."""
    table = as_table(summary)
    table.insert(3, "prepares %", [f"{100 * record['prepares']:.1f}" for record in summary])
    table.insert(6, "exact match %", [with_interval(r, "exact_match") for r in summary])
    return table.rename(columns=lambda name: name.replace("accuracy (", "execution accuracy ("))

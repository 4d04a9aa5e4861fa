"""Paired comparison of methods on the same examples, with intervals of the differences.

Examples differ far more from each other than methods do on one example, so methods are compared by
their differences on the same examples. Let d_i be the accuracy (or another measure) of a method on
example i minus that of the reference, each averaged over repetitions. The interval of the mean of d
is computed by resampling the examples. If it excludes zero, the difference is larger than the
choice of examples explains.

Methods with the same number of particles differ in cost, so each record also has language model
calls and seconds relative to the reference.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from experiments.harness.algorithms import Arm
from experiments.harness.metrics import (
    LOG_EVIDENCE,
    WEIGHTED,
    Interval,
    Measure,
    Metric,
    bootstrap,
    by_example,
    example_of,
    group_rows,
    number,
    with_interval,
)
from experiments.harness.results import Row
from experiments.harness.summary import Group, Table, titles_in

REFERENCE = "gcd"
"""Default reference method (`task.reference`)."""
COMPARED = (WEIGHTED, LOG_EVIDENCE)
"""Metrics to compare the methods of tasks with correct answers."""


def differences(
    rows: Sequence[Row],
    seed: int = 0,
    compared: Sequence[Metric] = COMPARED,
    reference: str = REFERENCE,
) -> list[dict[str, Any]]:
    """Compare each method with the reference, with equal particles and the same algorithm.

    Args:
        rows: rows of a run.
        seed: seed of the resamples, which otherwise depend only on the number of examples.
        compared: metrics to compare the methods by.
        reference: the reference method.

    Returns:
        One record for each group of rows that can be compared with the reference. For the key of
        each metric it has the mean difference, its interval (`key_low`, `key_high`) and the
        number of examples with both values (`key_examples`), or nothing without such examples.
        `lm_calls_ratio` and `seconds_ratio` are ratios of sums over examples, None if the
        reference's sum is zero.
    """
    groups = group_rows(rows, Group.of)
    found = []
    for group, own in groups.items():
        other = groups.get(group._replace(arm=Arm(reference, group.arm.algorithm)))
        if other is None or group.arm.method == reference:
            continue
        intervals: dict[str, Any] = {}
        for metric in compared:
            name = metric.name
            if one := difference(own, other, metric.of, seed, whole=metric.whole):
                intervals |= {**one.interval.as_record(name), f"{name}_examples": one.examples}
        found.append(
            {
                **({"style": group.style} if group.style else {}),
                **group.arm._asdict(),
                "particles": group.particles,
                "reference": reference,
                "examples": len(group_rows(own, example_of)),
                **intervals,
                "lm_calls_ratio": _ratio(own, other, "lm_calls"),
                "seconds_ratio": _ratio(own, other, "seconds"),
            }
        )
    return found


class Difference(NamedTuple):
    """Mean paired difference of two arms, over the examples that both have."""

    examples: int
    interval: Interval


def difference(
    own: Sequence[Row], other: Sequence[Row], value: Measure, seed: int, *, whole: bool = False
) -> Difference | None:
    """Compare two arms example by example.

    Returns:
        None if no example has both values, or if `whole` is set and a row has no value.
    """
    if whole and any(value(row) is None for row in (*own, *other)):
        return None
    ours, theirs = by_example(own, value), by_example(other, value)
    differences = [ours[example] - theirs[example] for example in ours if example in theirs]
    return Difference(len(differences), bootstrap(differences, seed)) if differences else None


def as_paired_table(
    found: Sequence[dict[str, Any]], compared: Sequence[Metric] = COMPARED
) -> Table:
    """Format differences as a table."""
    titles = titles_in(found)
    return [
        {
            **titles(d),
            "particles": d["particles"],
            **{
                metric.points: with_interval(d, metric.name, metric.digits, metric.scale, sign="+")
                + (
                    f" (of {n})"
                    if (n := d.get(f"{metric.name}_examples", 0)) and n < d["examples"]
                    else ""
                )
                for metric in compared
            },
            "LM calls, times": number(d["lm_calls_ratio"]),
            "seconds, times": number(d["seconds_ratio"]),
        }
        for d in found
    ]


def _ratio(own: Sequence[Row], other: Sequence[Row], key: str) -> float | None:
    """Return a ratio of means over rows; None if the denominator is zero."""
    below = float(np.mean([row[key] for row in other]))
    return float(np.mean([row[key] for row in own])) / below if below else None

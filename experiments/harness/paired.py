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

from collections.abc import Mapping, Sequence
from operator import itemgetter
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np

from experiments.harness.algorithms import Arm
from experiments.harness.results import Row
from experiments.harness.summary import (
    Group,
    Interval,
    Measure,
    Table,
    bootstrap,
    by_example,
    example_of,
    grouped,
    number,
    titles_in,
    with_interval,
)

REFERENCE = "gcd"
"""Default reference method (`task.reference`)."""


class Compared(NamedTuple):
    """A measure that methods are compared by, and its format in tables.

    Attributes:
        title: column title.
        value: the measure of a row, or None.
        digits: digits after the decimal point.
        scale: factor; 100 for shares in percentage points.
        whole: whether all rows of both methods must have a value. A mean over answered requests
            alone would favor a method that leaves the hard requests unanswered.
    """

    title: str
    value: Measure
    digits: int = 1
    scale: float = 100
    whole: bool = False


ACCURACY = MappingProxyType(
    {
        "weighted_accuracy": Compared(
            "accuracy (weighted), points", itemgetter("weighted_accuracy")
        ),
        "log_evidence": Compared("log evidence", itemgetter("log_evidence"), 2, 1, whole=True),
    }
)
"""Measures of tasks with correct answers."""
FINISHED = MappingProxyType({"valid": Compared("finished and valid, points", itemgetter("valid"))})
"""Additional measures if budgets are multiples of an answer's tokens."""


def differences(
    rows: Sequence[Row],
    seed: int = 0,
    compared: Mapping[str, Compared] = ACCURACY,
    reference: str = REFERENCE,
) -> list[dict[str, Any]]:
    """Compare each method with the reference, with equal particles and the same algorithm.

    Args:
        rows: rows of a run.
        seed: seed of the resamples, which otherwise depend only on the number of examples.
        compared: measures by their key in the records.
        reference: the reference method.

    Returns:
        One record for each group of rows that can be compared with the reference. For each
        key of `compared` it has the mean difference, its interval (`key_low`, `key_high`) and the
        number of examples with both values (`key_examples`), or nothing without such examples.
        `lm_calls_ratio` and `seconds_ratio` are ratios of sums over examples, None if the
        reference's sum is zero.
    """
    groups = grouped(rows, Group.of)
    found = []
    for group, own in groups.items():
        other = groups.get(group._replace(arm=Arm(reference, group.arm.algorithm)))
        if other is None or group.arm.method == reference:
            continue
        intervals: dict[str, Any] = {}
        for name, measure in compared.items():
            if one := difference(own, other, measure.value, seed, whole=measure.whole):
                intervals |= {**one.interval.named(name), f"{name}_examples": one.examples}
        found.append(
            {
                **({"style": group.style} if group.style else {}),
                **group.arm._asdict(),
                "particles": group.particles,
                "reference": reference,
                "examples": len(grouped(own, example_of)),
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
    found: Sequence[dict[str, Any]], compared: Mapping[str, Compared] = ACCURACY
) -> Table:
    """Format differences as a table."""
    titles = titles_in(found)
    return [
        {
            **titles(d),
            "particles": d["particles"],
            **{
                measure.title: with_interval(d, name, measure.digits, measure.scale, sign="+")
                + (
                    f" (of {n})"
                    if (n := d.get(f"{name}_examples", 0)) and n < d["examples"]
                    else ""
                )
                for name, measure in compared.items()
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

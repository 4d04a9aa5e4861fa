"""This module compares methods on the same examples: differences to one, with paired intervals.

Examples differ far more from each other than methods do on one of them. So the interval is that of
the difference, example by example: with d_i the accuracy (or another measure) of a method on
example i minus that of the reference (each a mean over repetitions), the mean of d over resampled
examples, the same resamples for both methods. Where it does not contain zero, the two differ on
these examples by more than the choice of examples explains.

Particles of different methods cost differently, so beside the difference stands what a method took
for it: language model calls and seconds, as multiples of the reference's.
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
"""The method that the others are compared with, unless `task.reference` says otherwise."""


class Compared(NamedTuple):
    """A measure in which methods are compared, and how tables show it.

    Attributes:
        title: of a column.
        value: the measure of a row; None where it has none.
        digits: after the point.
        scale: 100 makes points of a percent out of shares.
        whole: whether methods are compared only if all of their rows have a value. A mean over the
            requests that were answered would favour who leaves the hard ones unanswered.
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
"""What tasks with right answers are compared by."""
FINISHED = MappingProxyType({"valid": Compared("finished and valid, points", itemgetter("valid"))})
"""What methods are compared by, too, where budgets are multiples of an answer's tokens."""


def differences(
    rows: Sequence[Row],
    seed: int = 0,
    compared: Mapping[str, Compared] = ACCURACY,
    reference: str = REFERENCE,
) -> list[dict[str, Any]]:
    """Compare each method with the reference, at equal particles under the same algorithm.

    Args:
        rows: of a run.
        seed: of the resamples, which depend on nothing else but the number of examples.
        compared: what is compared, by the names that records give the differences.
        reference: the method that the others are compared with.

    Returns:
        One record for each group of rows that has a counterpart; none for the reference itself.
        Each name of `compared` has the mean difference, `name_low` and `name_high` its interval,
        `name_examples` how many have values of both methods, and nothing where none has.
        `lm_calls_ratio` and `seconds_ratio` are ratios of sums over examples, None where the
        reference took nothing.
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
    """How much more of something one arm has than another, over the examples that both have."""

    examples: int
    interval: Interval


def difference(
    own: Sequence[Row], other: Sequence[Row], value: Measure, seed: int, *, whole: bool = False
) -> Difference | None:
    """Compare two arms example by example.

    Returns:
        None without an example that both have, and if it is to be the `whole` of both arms, but a
        row has no value.
    """
    if whole and any(value(row) is None for row in (*own, *other)):
        return None
    ours, theirs = by_example(own, value), by_example(other, value)
    differences = [ours[example] - theirs[example] for example in ours if example in theirs]
    return Difference(len(differences), bootstrap(differences, seed)) if differences else None


def as_paired_table(
    found: Sequence[dict[str, Any]], compared: Mapping[str, Compared] = ACCURACY
) -> Table:
    """Turn differences into a table."""
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
    """A ratio of means over rows; None where there is nothing to divide by."""
    below = float(np.mean([row[key] for row in other]))
    return float(np.mean([row[key] for row in own])) / below if below else None

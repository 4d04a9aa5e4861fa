"""This module sums rows up by means over examples, with bootstrap intervals.

Every example counts in every denominator: a row whose particles all died is an answer that was
not given, hence wrong, invalid and unfinished. Intervals are percentile bootstrap over examples
(Efron and Tibshirani 1993, chapter 13): requests are what results would vary over, so an example
that was repeated counts once, by the mean of its repetitions. How far the log evidence of one
example varies over them is its standard deviation, averaged over examples.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
from scipy import stats

from experiments.harness.algorithms import is_discrete
from experiments.harness.arms import Arm
from experiments.harness.results import Row
from experiments.harness.tables import number, with_interval

_RESAMPLES = 2000
_LEVEL = 0.95


class Interval(NamedTuple):
    """A mean with the ends of its 95 % bootstrap interval."""

    mean: float
    low: float
    high: float

    def named(self, name: str) -> dict[str, float]:
        """Give the values as records of a summary have them, under this name."""
        return {name: self.mean, f"{name}_low": self.low, f"{name}_high": self.high}


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


class Group(NamedTuple):
    """What rows are summed up over examples by.

    Attributes:
        style: of the answers, in a task whose rows have one; else empty.
        arm: the method and algorithm.
        particles: N.
    """

    style: str
    arm: Arm
    particles: int

    @classmethod
    def of(cls, record: Mapping[str, Any]) -> Group:
        """Give the group of a row, or of a record of a summary."""
        return cls(record.get("style", ""), Arm.of(record), record["particles"])


def grouped(rows: Iterable[Row]) -> dict[Group, list[Row]]:
    """Put the rows of each group together, in order of first appearance."""
    groups: dict[Group, list[Row]] = {}
    for row in rows:
        groups.setdefault(Group.of(row), []).append(row)
    return groups


def by_example(rows: Iterable[Row], value: Callable[[Row], float]) -> dict[str, float]:
    """Compute the mean of a value over the repetitions of each example."""
    values: dict[str, list[float]] = {}
    for row in rows:
        values.setdefault(row["example"], []).append(value(row))
    return {example: float(np.mean(own)) for example, own in values.items()}


def summarize(rows: Sequence[Row], seed: int = 0) -> list[dict[str, Any]]:
    """Sum up the rows of each group, in order of first appearance."""
    return [_record(group, own, seed) for group, own in grouped(rows).items()]


def _record(named: Group, group: Sequence[Row], seed: int) -> dict[str, Any]:
    """The sums of one group."""
    arm, particles = named.arm, named.particles
    examples: dict[str, list[Row]] = {}
    for row in group:
        examples.setdefault(row["example"], []).append(row)

    alive = [r for r in group if not r["dead"]]
    accuracy = bootstrap([*by_example(group, lambda r: r["weighted_accuracy"]).values()], seed)
    majority = bootstrap([*by_example(group, lambda r: r["majority_correct"]).values()], seed)
    evidence = [
        [r["log_evidence"] for r in own if r["log_evidence"] is not None]
        for own in examples.values()
    ]
    return {
        **({"style": named.style} if named.style else {}),
        **arm._asdict(),
        "particles": particles,
        "examples": len(examples),
        "repeats": max(map(len, examples.values())),
        **accuracy.named("weighted_accuracy"),
        **majority.named("majority_accuracy"),
        "valid": _mean(r["valid"] for r in group),
        "complete": _mean(r["complete"] for r in group),
        "share_finished": _mean(r["share_finished"] for r in group),
        "enumerated": _mean(r["enumerated"] for r in group),
        "dead": sum(r["dead"] for r in group),
        # The answers of a pool were not drawn: its ESS is no share of N.
        "ess_fraction": None
        if is_discrete(arm.algorithm)
        else _mean(r["ess"] / particles for r in alive),
        "log_evidence": _mean(float(np.mean(values)) for values in evidence if values),
        "log_evidence_sd": _mean(float(np.std(v, ddof=1)) for v in evidence if len(v) > 1),
        "read": _mean(r["read"] for r in group),
        "forced": _mean(r["forced"] for r in group),
        "lm_calls": sum(r["lm_calls"] for r in group),
        "tokens": sum(r["tokens"] for r in group),
        "seconds": sum(r["seconds"] for r in group),
        "lm_calls_each": _mean(r["lm_calls"] for r in group),
        "tokens_each": _mean(r["tokens"] for r in group),
        "seconds_each": _mean(r["seconds"] for r in group),
    }


def as_table(summary: Sequence[dict[str, Any]]) -> pd.DataFrame:
    """Turn the summary into a table: percentages, intervals, and the costs of one example."""
    repeated = any(s["repeats"] > 1 for s in summary)
    titles = titles_in(summary)
    return pd.DataFrame(
        {
            **titles(s),
            "particles": s["particles"],
            "examples": s["examples"],
            "accuracy (weighted) %": with_interval(s, "weighted_accuracy"),
            "accuracy (majority) %": with_interval(s, "majority_accuracy"),
            "valid %": number(100 * s["valid"], 1),
            "complete %": number(100 * s["complete"], 1),
            "particles finished %": number(100 * s["share_finished"], 1),
            "enumerated %": number(100 * s["enumerated"], 1),
            "dead rows": s["dead"],
            "ESS/N": number(s["ess_fraction"], 2),
            "log evidence": number(s["log_evidence"], 3),
            **({"its sd": number(s["log_evidence_sd"], 3)} if repeated else {}),
            "read": number(s["read"], 0),
            "forced": number(s["forced"], 0),
            "LM calls": number(s["lm_calls_each"], 1),
            "tokens": number(s["tokens_each"], 0),
            "seconds": number(s["seconds_each"], 2),
        }
        for s in summary
    )


def titles_in(records: Sequence[Mapping[str, Any]]) -> Callable[[Mapping[str, Any]], Row]:
    """Give the function to the cells that name a record among these: the style where it varies."""
    several = len(styles_in(records)) > 1

    def titles(record: Mapping[str, Any]) -> Row:
        return {**({"style": record["style"]} if several else {}), **Arm.of(record).titles}

    return titles


def styles_in(records: Iterable[Mapping[str, Any]]) -> list[str]:
    """Give the styles of rows or records, in order of first appearance; "" where they have none."""
    return list(dict.fromkeys(record.get("style", "") for record in records))


def _mean(values: Iterable[float]) -> float | None:
    """The mean; None of nothing."""
    numbers = [float(v) for v in values]
    return float(np.mean(numbers)) if numbers else None

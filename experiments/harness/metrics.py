"""Metrics: what a column of a comparison measures, how it is aggregated, and how it is printed.

A `Metric` is all that a new measure of a task needs. A task passes its metrics to
`experiments.harness.comparison.report`. From there they reach `summary.json`, the table with a
sentence on each metric's meaning, paired differences, wandb, and the report page. Functions that
depend on rows only, not on the configuration, also apply to rows that earlier runs wrote.

A metric is averaged over examples; an example's repetitions count once, with their mean. Intervals
are percentile bootstrap over examples (Efron and Tibshirani 1993, chapter 13).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from operator import itemgetter
from typing import Any, NamedTuple, TypeVar

import numpy as np

from experiments.harness.results import Row

_RESAMPLES = 2000
_LEVEL = 0.95
K = TypeVar("K")
Measure = Callable[[Row], float | None]
example_of: Callable[[Row], str] = itemgetter("example")


def group_rows(rows: Iterable[Row], by: Callable[[Row], K]) -> dict[K, list[Row]]:
    """Group rows by a key such as `Group.of`, in order of first appearance."""
    groups: dict[K, list[Row]] = {}
    for row in rows:
        groups.setdefault(by(row), []).append(row)
    return groups


def by_example(rows: Iterable[Row], value: Measure) -> dict[str, float]:
    """Compute the mean of a value over each example's repetitions, ignoring None."""
    found = {
        example: [known for row in own if (known := value(row)) is not None]
        for example, own in group_rows(rows, example_of).items()
    }
    return {example: float(np.mean(values)) for example, values in found.items() if values}


class Interval(NamedTuple):
    """A mean with its 95% bootstrap interval."""

    mean: float
    low: float
    high: float

    def as_record(self, name: str) -> dict[str, float]:
        """Return the mean and the ends of the interval under their keys in summary records."""
        return {name: self.mean, f"{name}_low": self.low, f"{name}_high": self.high}


def bootstrap(values: Sequence[float], seed: int = 0) -> Interval:
    """Compute the mean and its percentile interval, deterministic in the values and the seed.

    Raises:
        ValueError: there are no values.
    """
    sample = np.asarray(values, float)
    if sample.size == 0:
        raise ValueError("expected at least one value to average, got none")
    mean = float(sample.mean())
    if sample.size == 1:  # all resamples are equal
        return Interval(mean, mean, mean)
    return Interval(mean, *_ends(tuple(sample.tolist()), seed))


@lru_cache(maxsize=1024)  # tables, figures and the page ask for the same intervals
def _ends(values: tuple[float, ...], seed: int) -> tuple[float, float]:
    """Compute the ends of a percentile interval of the mean."""
    from scipy import stats  # slow to import

    low, high = stats.bootstrap(
        (np.array(values),),
        np.mean,
        n_resamples=_RESAMPLES,
        confidence_level=_LEVEL,
        method="percentile",
        rng=np.random.default_rng(seed),
    ).confidence_interval
    return float(low), float(high)


@dataclass(frozen=True)
class Metric:
    """A measure of rows: its key, its column, its meaning, its aggregation and its format.

    Attributes:
        name: key of the metric in summary records, in wandb and on the report page.
        title: column title in tables; " %" at the end marks a share in percent.
        meaning: completes the sentence "`title` is ..." below the table; empty for no sentence.
        value: the measure of a row, or None for a row without it; by default the column `name`.
        overall: computes the mean and its interval from the rows of a group and a seed, for a
            measure that isn't a mean over examples; by default the mean of `value`.
        digits: digits after the decimal point.
        scale: factor; 100 for shares in percent.
        sign: "+" for a difference, which is printed with its sign.
        interval: whether the table shows the interval.
        compared: whether methods are compared by their paired differences in the metric.
        whole: whether a comparison requires values in all rows of both methods. A mean over
            answered requests alone would favor a method that leaves hard requests unanswered.
        label: name of the metric in figures; by default the title.
    """

    name: str
    title: str
    meaning: str = ""
    value: Measure | None = None
    overall: Callable[[Sequence[Row], int], Interval] | None = None
    digits: int = 1
    scale: float = 100
    sign: str = ""
    interval: bool = True
    compared: bool = False
    whole: bool = False
    label: str = ""

    def of(self, row: Row) -> float | None:
        """Return the measure of a row."""
        return row.get(self.name) if self.value is None else self.value(row)

    def aggregate(self, rows: Sequence[Row], seed: int = 0) -> dict[str, float | None]:
        """Return the mean and its interval under their keys in summary records.

        They are None without values.
        """
        if self.overall is not None:
            return {**self.overall(rows, seed).as_record(self.name)}
        values = [*by_example(rows, self.of).values()]
        nothing = dict.fromkeys((self.name, f"{self.name}_low", f"{self.name}_high"))
        return {**bootstrap(values, seed).as_record(self.name)} if values else nothing

    def cell(self, record: Mapping[str, Any]) -> str:
        """Format the metric of a summary record."""
        shown = record if self.interval else {self.name: record.get(self.name)}
        return with_interval(shown, self.name, self.digits, self.scale, self.sign)

    @property
    def words(self) -> str:
        """The title without the percent sign."""
        return self.title.removesuffix(" %")

    @property
    def points(self) -> str:
        """Column title of differences."""
        return self.title if self.words == self.title else f"{self.words}, points"


def number(value: float | None, digits: int = 2) -> str:
    """Format a number; a dash for None."""
    return "–" if value is None else f"{value:.{digits}f}"


def with_interval(
    record: Mapping[str, Any], key: str, digits: int = 1, scale: float = 100, sign: str = ""
) -> str:
    """Format a figure of a summary, with its interval in brackets.

    Args:
        record: has the figure under `key`, and optionally its interval under `key_low` and
            `key_high`.
        key: key of the figure; None is shown as a dash.
        digits: digits after the decimal point.
        scale: factor; 100 for shares in percent.
        sign: "+" for differences.
    """
    figures = [record.get(f"{key}{end}") for end in ("", "_low", "_high")]
    mean, low, high = (
        None if each is None else f"{scale * each:{sign}.{digits}f}" for each in figures
    )
    if mean is None:
        return "–"
    return mean if low is None or high is None else f"{mean} [{low}, {high}]"


def _best_over_majority(row: Row) -> float | None:
    """Return the correctness of the best answer minus that of the answer with the largest weight.

    The best answer is the one that the model finds most probable.
    """
    return row["best_correct"] - row["majority_correct"] if "best_correct" in row else None


WEIGHTED = Metric(
    "weighted_accuracy",
    "accuracy (weighted) %",
    compared=True,
    label="posterior-weighted accuracy",
)
"""The metric that figures and the terminal show by default."""
ACCURACIES = (
    WEIGHTED,
    Metric("majority_accuracy", "accuracy (majority) %", value=itemgetter("majority_correct")),
    Metric("best_accuracy", "accuracy (best) %", value=lambda row: row.get("best_correct")),
    Metric("best_over_majority", "best minus majority", value=_best_over_majority, sign="+"),
)
"""Metrics of tasks with correct answers."""
VALID = Metric("valid", "valid %", interval=False)
LOG_EVIDENCE = Metric("log_evidence", "log evidence", digits=2, scale=1, compared=True, whole=True)


def cells(record: Mapping[str, Any], metrics: Iterable[Metric]) -> dict[str, str]:
    """Return the table cells of some metrics, by column title."""
    return {metric.title: metric.cell(record) for metric in metrics}


def merge_metrics(metrics: Iterable[Metric]) -> tuple[Metric, ...]:
    """Return the metrics of every comparison and those of a task, in the order of the columns.

    A task's metric replaces one of every comparison that has the same name.
    """
    return tuple({m.name: m for m in (*ACCURACIES, VALID, *metrics)}.values())

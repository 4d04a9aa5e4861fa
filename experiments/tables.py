"""Tables of rows: metrics, means with intervals, paired differences, and the paper's own tables.

    python -m experiments.tables table1 RUN...     # of the paper; also table2, table3 and figure2
    python -m experiments.tables readme RUN...     # finished answers by budget

A RUN is a run directory, or an archive of one such as those in data/rows; the rows of several are
joined, and rows with the same key count once.

A `Metric` is all that a new measure of a task needs. A task passes its metrics to
`experiments.results.report`. From there they reach `summary.json`, the table with a
sentence on each metric's meaning, paired differences, wandb, and the report page.

Every example counts in every denominator, once: its repetitions count with their mean. A row whose
particles all died counts as an answer that is wrong, invalid and unfinished. Intervals are 95%
percentile bootstrap over examples (Efron and Tibshirani 1993, chapter 13). Examples differ far more
from each other than methods do on one example, so methods are compared by their differences on the
same examples.
"""

from __future__ import annotations

import argparse
import json
import sys
import tarfile
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from operator import itemgetter
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

import numpy as np

from experiments.arms import METHODS, Arm, is_discrete, method_of
from experiments.tasks import Row, key_of

if TYPE_CHECKING:
    from pandas import DataFrame

K = TypeVar("K")
Measure = Callable[[Row], float | None]
"""A value of a row; None for a row without it."""
Table = list[dict[str, Any]]
"""Rows with equal keys, which are the column titles."""
REFERENCE = "gcd"
"""Default reference method of paired differences (`task.reference`)."""
_RESAMPLES = 2000


class Group(NamedTuple):
    """Rows that are summarized together, over examples.

    Attributes:
        style: style of the answers, if the task's rows have one; otherwise empty.
        method: key of `METHODS`, optionally with the name of an HMM (`pgcd:H64`).
        algorithm: key of `ALGORITHMS`.
        particles: N.
    """

    style: str
    method: str
    algorithm: str
    particles: int

    @classmethod
    def of(cls, record: Mapping[str, Any]) -> Group:
        """Return the group of a row or of a summary record."""
        style = record.get("style") or ""
        return cls(style, record["method"], record["algorithm"], record["particles"])

    @property
    def arm(self) -> Arm:
        """Method and algorithm."""
        return Arm(self.method, self.algorithm)


def example_of(row: Row) -> str:
    """Return the example of a row."""
    return str(row["example"])


def group_rows(rows: Iterable[Row], by: Callable[[Row], K]) -> dict[K, list[Row]]:
    """Group rows by a key such as `Group.of`, in order of first appearance."""
    groups: dict[K, list[Row]] = {}
    for row in rows:
        groups.setdefault(by(row), []).append(row)
    return groups


# -- means, intervals, metrics


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
        (np.array(values),), np.mean, n_resamples=_RESAMPLES, confidence_level=0.95,
        method="percentile", rng=np.random.default_rng(seed),
    ).confidence_interval  # fmt: skip
    return float(low), float(high)


def by_example(rows: Iterable[Row], value: Measure) -> dict[str, float]:
    """Compute the mean of a value over each example's repetitions, ignoring None."""
    found = {
        example: [known for row in own if (known := value(row)) is not None]
        for example, own in group_rows(rows, example_of).items()
    }
    return {example: float(np.mean(values)) for example, values in found.items() if values}


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
        """Return the mean and its interval under their keys in summary records, or None."""
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
    """Format the figure under `key`, with the interval under `key_low` and `key_high` if any."""
    figures = [record.get(f"{key}{end}") for end in ("", "_low", "_high")]
    mean, low, high = (
        None if each is None else f"{scale * each:{sign}.{digits}f}" for each in figures
    )
    if mean is None:
        return "–"
    return mean if low is None or high is None else f"{mean} [{low}, {high}]"


def _best_over_majority(row: Row) -> float | None:
    """Return the correctness of the most probable answer minus that of the heaviest one."""
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
COMPARED = (WEIGHTED, LOG_EVIDENCE)
"""Metrics to compare the methods of tasks with correct answers."""


def cells(record: Mapping[str, Any], metrics: Iterable[Metric]) -> dict[str, str]:
    """Return the table cells of some metrics, by column title."""
    return {metric.title: metric.cell(record) for metric in metrics}


def merge_metrics(metrics: Iterable[Metric]) -> tuple[Metric, ...]:
    """Return the metrics of every comparison and a task's, which replace those of their name."""
    return tuple({m.name: m for m in (*ACCURACIES, VALID, *metrics)}.values())


# -- share of the evidence found


def evidence_found(rows: Sequence[Row]) -> Measure:
    """Compare each evidence estimate with the best known evidence of its example.

    A method without an answer to an example has no log evidence there, so means of the log evidence
    are over different examples for different methods. The share of the evidence is zero for such an
    example, so its mean is over all examples. The reference is the enumerated evidence if some row
    has it. Otherwise it is the estimate, averaged over repetitions, of the best group of this run.
    The best group is that with the most answered examples; of several, that with the highest mean
    log evidence. (The more an estimate varies, the lower is its expected logarithm.)

    Returns:
        A function that returns the share of a row: 0 if it is dead, or if it has no estimate while
        other rows of its arm have one; None for arms without estimates, and without a reference.
    """
    estimating = {Arm.of(r) for r in _estimates(rows)}
    reference = {**_nearest_estimates(rows)[1], **_list_enumerated(rows)}

    def share(row: Row) -> float | None:
        if row["example"] not in reference:
            return None
        log_evidence = row.get("log_evidence")
        if row.get("dead") or log_evidence is None:
            return 0.0 if row.get("dead") or Arm.of(row) in estimating else None
        return float(np.exp(log_evidence - reference[row["example"]]))

    return share


def evidence_reference(rows: Sequence[Row]) -> str:
    """Describe the reference of `evidence_found`; empty without estimates."""
    group, nearest = _nearest_estimates(rows)
    if group is None:
        return ""
    enumerated, total = _list_enumerated(rows), len({example_of(row) for row in rows})
    particles = f"{group.particles} particle{'s' * (group.particles > 1)}"
    reference = f"the estimate of {', '.join(group.arm.titles.values())}, {particles}"
    if enumerated:
        rest = f", else {reference}" if nearest.keys() - enumerated.keys() else ""
        count = f"{len(enumerated)} of {total} requests"
        reference = f"the evidence itself, enumerated ({count}){rest}"
    return f"Evidence found is a share of {reference}; it is 0 for requests without an answer."


def _estimates(rows: Sequence[Row]) -> list[Row]:
    """Return the rows with an estimate of the evidence."""
    return [r for r in rows if r.get("log_evidence") is not None and not r.get("dead")]


def _list_enumerated(rows: Sequence[Row]) -> dict[str, float]:
    """Return the enumerated log evidence by example."""
    return {r["example"]: r["log_evidence"] for r in _estimates(rows) if r.get("enumerated")}


def _nearest_estimates(rows: Sequence[Row]) -> tuple[Group | None, dict[str, float]]:
    """Return the best group (see `evidence_found`), and its log evidence by example."""
    grouped = group_rows(_estimates(rows), lambda row: Group.of(row)._replace(style=""))
    found = {
        group: {
            example: float(np.logaddexp.reduce(logs) - np.log(len(logs)))
            for example, repeated in group_rows(own, example_of).items()
            for logs in [[r["log_evidence"] for r in repeated]]
        }
        for group, own in grouped.items()
    }
    nearness = {g: (len(own), float(np.mean([*own.values()]))) for g, own in found.items()}
    best = max(found, key=lambda group: nearness[group], default=None)
    return best, found[best] if best else {}


# -- summary of a run

_MEANS = ("complete", "share_finished", "enumerated", "read", "forced")
_COSTS = ("lm_calls", "tokens", "seconds")


def summarize(
    rows: Sequence[Row], seed: int = 0, metrics: Iterable[Metric] = ()
) -> list[dict[str, Any]]:
    """Summarize the rows of each group, in order of first appearance.

    Args:
        rows: rows of a run.
        seed: seed of the bootstrap.
        metrics: metrics of the task, besides those of every comparison.
    """
    every = (*merge_metrics(metrics), Metric("evidence_found", "", value=evidence_found(rows)))
    return [
        _record(group, own, {k: v for m in every for k, v in m.aggregate(own, seed).items()})
        for group, own in group_rows(rows, Group.of).items()
    ]


def _record(group: Group, rows: Sequence[Row], metrics: Mapping[str, Any]) -> dict[str, Any]:
    """Summarize one group; `metrics` are the means of its metrics with their intervals."""
    import pandas as pd  # slow to import

    frame = pd.DataFrame(
        [{k: v for k, v in row.items() if not isinstance(v, list | dict)} for row in rows]
    )
    evidence = frame.dropna(subset="log_evidence").astype({"log_evidence": float})
    estimates = evidence.groupby("example", sort=False)["log_evidence"]
    repeats = frame.groupby("example")["method"].count()
    # The discrete filter doesn't draw its answers, so its ESS isn't a share of N.
    drawn = frame[~frame["dead"].astype(bool)] if not is_discrete(group.algorithm) else frame[:0]
    named = group._asdict()
    if not group.style:
        del named["style"]
    record = {
        **named,
        "examples": len(repeats),
        "repeats": int(repeats.max()),
        **metrics,
        **{key: _mean(frame[key]) for key in _MEANS},
        "dead": int(frame["dead"].sum()),
        "ess_fraction": _mean(drawn["ess"] / group.particles),
        "log_evidence": _mean(estimates.mean()),
        "log_evidence_examples": len(estimates),
        "log_evidence_sd": _mean(estimates.std().dropna()),
        **{key: frame[key].sum().item() for key in _COSTS},
        **{f"{key}_each": _mean(frame[key]) for key in _COSTS},
    }
    return record | _reliability(frame)


def _reliability(frame: DataFrame) -> dict[str, float | None]:
    """Average columns that rows of earlier versions don't have."""
    found: dict[str, float | None] = {}
    if "reliability" in frame:
        told = frame.dropna(subset="reliability")
        found["certified"] = _mean(told["certified"].dropna())
        found["reliable"] = _mean(told["reliability"].isin(("certified", "estimated")))
    if "budget_removed" in frame:
        found["budget_removed"] = _mean(frame["budget_removed"].dropna())
    return found


def _mean(values: Any) -> float | None:
    """Return the mean of a column, or None without values."""
    return float(np.mean(values.to_numpy(float))) if len(values) else None


def as_table(summary: Sequence[dict[str, Any]], metrics: Iterable[Metric] = ()) -> Table:
    """Format the summary as a table: percentages, intervals, and costs per example."""
    every = merge_metrics(metrics)
    repeated = any(s["repeats"] > 1 for s in summary)
    with_budget = any("budget_removed" in s for s in summary)  # the HMM alone has none
    titles = titles_in(summary)
    table = []
    for s in summary:
        line = {**titles(s), "particles": s["particles"], "examples": s["examples"]}
        line |= cells(s, every)
        line["complete %"] = _percent(s["complete"])
        line["particles finished %"] = _percent(s["share_finished"])
        line["enumerated %"] = _percent(s["enumerated"])
        if "reliable" in s:
            line["certified %"] = _percent(s["certified"])
            line["reliable %"] = _percent(s["reliable"])
        if with_budget:
            line["removed by budget %"] = _percent(s.get("budget_removed"))
        line |= {
            "dead rows": s["dead"],
            "ESS/N": number(s["ess_fraction"], 2),
            "evidence found %": share_of_evidence(s),
            "log evidence": log_evidence_of(s),
        }
        if repeated:
            line["its sd"] = number(s["log_evidence_sd"], 3)
        line |= {
            "read": number(s["read"], 0),
            "forced": number(s["forced"], 0),
            "LM calls": number(s["lm_calls_each"], 1),
            "tokens": number(s["tokens_each"], 0),
            "seconds": number(s["seconds_each"], 2),
        }
        table.append(line)
    return table


def share_of_evidence(record: Mapping[str, Any]) -> str:
    """Format the share of the evidence found; "> 1000" if the estimates vary too much."""
    found = record["evidence_found"]
    return "> 1000" if found is not None and found > 10 else with_interval(record, "evidence_found")


def log_evidence_of(record: Mapping[str, Any], digits: int = 3) -> str:
    """Format a mean log evidence, with the number of examples if some have none."""
    some, every = record["log_evidence_examples"], record["examples"]
    return number(record["log_evidence"], digits) + (f" (of {some})" if 0 < some < every else "")


def titles_in(records: Sequence[Mapping[str, Any]]) -> Callable[[Mapping[str, Any]], Row]:
    """Return a function from a record to the cells that name it, with its style if they differ."""
    several = len(styles_in(records)) > 1

    def titles(record: Mapping[str, Any]) -> Row:
        return {**({"style": record["style"]} if several else {}), **Arm.of(record).titles}

    return titles


def styles_in(records: Iterable[Mapping[str, Any]]) -> list[str]:
    """Return the styles of rows or records, in order of first appearance; "" for none."""
    return list(dict.fromkeys(record.get("style", "") for record in records))


def _percent(share: float | None) -> str:
    """Format a share in percent; a dash for None."""
    return number(None if share is None else 100 * share, 1)


# -- paired differences


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
        `lm_calls_ratio` and `seconds_ratio` are ratios of means, None if the reference has zero.
    """
    groups = group_rows(rows, Group.of)
    found = []
    for group, own in groups.items():
        other = groups.get(group._replace(method=reference))
        if other is None or group.method == reference:
            continue
        intervals: dict[str, Any] = {}
        for metric in compared:
            name = metric.name
            if one := difference(own, other, metric.of, seed, whole=metric.whole):
                intervals |= {**one.interval.as_record(name), f"{name}_examples": one.examples}
        named = {key: value for key, value in group._asdict().items() if value != ""}
        found.append(
            {
                **named,
                "reference": reference,
                "examples": len({example_of(row) for row in own}),
                **intervals,
                "lm_calls_ratio": _ratio(own, other, "lm_calls"),
                "seconds_ratio": _ratio(own, other, "seconds"),
            }
        )
    return found


def as_paired_table(
    found: Sequence[dict[str, Any]], compared: Sequence[Metric] = COMPARED
) -> Table:
    """Format differences as a table."""
    titles = titles_in(found)
    table = []
    for d in found:
        line = {**titles(d), "particles": d["particles"]}
        for metric in compared:
            n = d.get(f"{metric.name}_examples", 0)
            shown = with_interval(d, metric.name, metric.digits, metric.scale, sign="+")
            line[metric.points] = shown + (f" (of {n})" if 0 < n < d["examples"] else "")
        line["LM calls, times"] = number(d["lm_calls_ratio"])
        line["seconds, times"] = number(d["seconds_ratio"])
        table.append(line)
    return table


def _ratio(own: Sequence[Row], other: Sequence[Row], key: str) -> float | None:
    """Return a ratio of means over rows; None if the denominator is zero."""
    below = float(np.mean([row[key] for row in other]))
    return float(np.mean([row[key] for row in own])) / below if below else None


# -- layout


def without_constants(table: Table) -> tuple[Table, str]:
    """Remove columns that are constant or equal to another column.

    Returns:
        The other columns, and a sentence that describes the removed ones (empty if there are none).
    """
    if len(table) < 2:
        return table, ""
    columns = {name: [str(row[name]) for row in table] for name in table[0]}
    said = [f"{name} {cells[0]}" for name, cells in columns.items() if len(set(cells)) == 1]
    kept = {name: cells for name, cells in columns.items() if len(set(cells)) > 1}
    shares: list[str] = []
    for name in [name for name in kept if name.endswith("%")]:
        other = next((share for share in shares if kept[share] == kept[name]), None)
        if other is None:
            shares.append(name)
        else:
            del kept[name]
            said.append(f"{name} as {other}")
    rest = [{name: row[name] for name in kept} for row in table]
    return rest, f"In every row: {', '.join(said)}." if said else ""


def as_markdown(table: Table) -> str:
    """Format a table in Markdown with aligned columns."""
    head, *rows = _pad(table)
    rule = "|" + "|".join("-" * (len(cell) + 2) for cell in head) + "|"
    lines = ["| " + " | ".join(row) + " |" for row in (head, *rows)]
    return "\n".join([lines[0], rule, *lines[1:]])


def as_columns(table: Table) -> str:
    """Format a table for a terminal with aligned columns."""
    return "\n".join("  ".join(row).rstrip() for row in _pad(table))


def _pad(table: Table) -> list[list[str]]:
    """Return the cells of the header and the rows, padded to the width of their column."""
    cells = [list(table[0]), *(list(map(str, row.values())) for row in table)]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    return [[c.ljust(w) for c, w in zip(row, widths, strict=True)] for row in cells]


# -- the paper's tables

STYLES = {"json": "JSON", "python": "Python"}


def read_rows_of(paths: Iterable[Path]) -> list[Row]:
    """Read the rows of run directories and archives; a key that several have counts once.

    Raises:
        ValueError: a path has no rows.
    """
    rows: dict[Any, Row] = {}
    for path in paths:
        try:
            if path.is_dir():
                text = (path / "results.jsonl").read_text(encoding="utf-8")
            else:
                with tarfile.open(path) as archive:
                    text = archive.extractfile("results.jsonl").read().decode()  # type: ignore[union-attr]
        except (OSError, KeyError, tarfile.TarError) as error:
            raise ValueError(
                f"expected a run with rows in {path}, got {error}; give a run directory, or an "
                "archive of its results.jsonl"
            ) from error
        for row in map(json.loads, text.splitlines()):
            rows.setdefault((row.get("style"), key_of(row)), row)
    return list(rows.values())


def pivot(
    rows: Sequence[Row], line: Callable[[Row], str], column: Callable[[Row], str], name: str
) -> Table:
    """Lay out the mean over examples of a share, in %, with a line and a column for each title."""
    import pandas as pd

    frame = pd.DataFrame(
        {"": map(line, rows), "column": map(column, rows), "example": map(example_of, rows),
         "share": [100.0 * row[name] for row in rows]}
    )  # fmt: skip
    each = frame.groupby(["", "column", "example"])["share"].mean()
    means = each.groupby(["", "column"]).mean().unstack()
    means = means.reindex(index=frame[""].unique(), columns=frame["column"].unique())
    shown = means.map("{:.1f}".format).mask(means.isna(), "–")
    return shown.reset_index().to_dict("records")


def _method(row: Row) -> str:
    return method_of(row["method"]).title


def _drawn(rows: Iterable[Row]) -> list[Row]:
    """Return the rows of SMC with methods that the project has, in order of style and particles."""
    found = [
        row
        for row in rows
        if not is_discrete(row["algorithm"]) and row["method"].partition(":")[0] in METHODS
    ]
    return sorted(found, key=lambda row: (row.get("style") or "", row["particles"]))


def _style(row: Row) -> str:
    style = row.get("style") or ""
    return STYLES.get(style, style)


def _particles(row: Row) -> str:
    return f"N = {row['particles']}"


def table1(rows: Sequence[Row]) -> Table:
    """Lay out Table 1: % of answers within constraint and budget, by style and particles."""
    return pivot(_drawn(rows), _method, lambda row: f"{_style(row)}, {_particles(row)}", "valid")


def table2(rows: Sequence[Row]) -> Table:
    """Lay out Table 2: milliseconds per token and the ratio to the model alone, by method."""
    times = {
        method: float(np.median([row["ms_per_token"] for row in own]))
        for method, own in group_rows(rows, itemgetter("method")).items()
    }
    floor = times.get("lm")
    return [
        {"": method, "ms per token": number(time), "x LM": number(floor and time / floor)}
        for method, time in times.items()
    ]


def table3(rows: Sequence[Row]) -> Table:
    """Lay out Table 3: accuracy in % in the first style, by method or HMM, and by particles."""
    shown = ("lcd", "gcd", "pgcd")
    drawn = [row for row in _drawn(rows) if row["method"].partition(":")[0] in shown]
    first = [row for row in drawn if row.get("style") in (None, drawn[0].get("style"))]
    return pivot(first, _method, _particles, "weighted_accuracy")


def figure2(rows: Sequence[Row]) -> Table:
    """Lay out the points of Figure 2: accuracy in % by particles, a line per style and arm."""

    def line(row: Row) -> str:
        return ", ".join(filter(None, [_style(row), *Arm.of(row).titles.values()]))

    return pivot(_drawn(rows), line, _particles, "weighted_accuracy")


def readme(rows: Sequence[Row]) -> Table:
    """Lay out README's second table: % of finished and valid answers, by budget."""
    return pivot([row for row in _drawn(rows) if row["particles"] == 1], _style, _method, "valid")


PAPER = {each.__name__: each for each in (table1, table2, table3, figure2, readme)}
"""The tables of the command line, by name. To add a table, add a function from rows to a table."""


def main() -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(prog="experiments.tables", description=__doc__)
    parser.add_argument("table", choices=PAPER, help="name of the table")
    parser.add_argument("runs", nargs="+", type=Path, metavar="RUN", help="directory or archive")
    given = parser.parse_args()
    try:
        print(as_markdown(PAPER[given.table](read_rows_of(given.runs))))
    except (ValueError, KeyError) as error:
        sys.exit(f"error: {error}")


if __name__ == "__main__":
    main()

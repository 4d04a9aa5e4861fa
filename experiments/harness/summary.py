"""Summaries of rows: means over examples with bootstrap intervals, and their tables.

Every example counts in every denominator. A row whose particles all died counts as an answer that
is wrong, invalid and unfinished. `experiments.harness.metrics` defines means and intervals. The
standard deviation of the log evidence over repetitions is averaged over examples.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from experiments.harness.algorithms import Arm, is_discrete
from experiments.harness.metrics import (
    Measure,
    Metric,
    cells,
    example_of,
    group_rows,
    merge_metrics,
    number,
    with_interval,
)
from experiments.harness.results import Row

Table = list[dict[str, Any]]
"""Rows with equal keys, which are the column titles."""


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


_SHARES = ("complete", "share_finished", "enumerated")
_AHEAD = ("drafted", "used", "landed")
_COSTS = ("lm_calls", "tokens", "seconds")


class Group(NamedTuple):
    """Rows that are summarized together, over examples.

    Attributes:
        style: style of the answers, if the task's rows have one; otherwise empty.
        arm: method and algorithm.
        particles: N.
    """

    style: str
    arm: Arm
    particles: int

    @classmethod
    def of(cls, record: Mapping[str, Any]) -> Group:
        """Return the group of a row or of a summary record."""
        return cls(record.get("style", ""), Arm.of(record), record["particles"])


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
    return [_record(group, own, seed, every) for group, own in group_rows(rows, Group.of).items()]


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
    enumerated, total = len(_list_enumerated(rows)), len({example_of(row) for row in rows})
    particles = f"{group.particles} particle{'s' * (group.particles > 1)}"
    reference = f"the estimate of {', '.join(group.arm.titles.values())}, {particles}"
    if enumerated:
        reference = f"the evidence itself, enumerated ({enumerated} of {total} requests)" + (
            f", else {reference}" if nearest.keys() - _list_enumerated(rows).keys() else ""
        )
    return f"Evidence found is a share of {reference}; it is 0 for requests without an answer."


def _estimates(rows: Sequence[Row]) -> list[Row]:
    """Return the rows with an estimate of the evidence."""
    return [r for r in rows if r.get("log_evidence") is not None and not r.get("dead")]


def _list_enumerated(rows: Sequence[Row]) -> dict[str, float]:
    """Return the enumerated log evidence by example."""
    return {r["example"]: r["log_evidence"] for r in _estimates(rows) if r.get("enumerated")}


def _nearest_estimates(rows: Sequence[Row]) -> tuple[Group | None, dict[str, float]]:
    """Return the best group (see `evidence_found`), and its log evidence by example."""
    found = {
        group: {
            example: float(np.logaddexp.reduce(logs) - np.log(len(logs)))
            for example, repeated in group_rows(own, example_of).items()
            for logs in [[r["log_evidence"] for r in repeated]]
        }
        for group, own in group_rows(
            _estimates(rows), lambda row: Group("", Arm.of(row), row["particles"])
        ).items()
    }
    nearness = {g: (len(own), float(np.mean([*own.values()]))) for g, own in found.items()}
    best = max(found, key=lambda group: nearness[group], default=None)
    return best, found[best] if best else {}


def _record(
    named: Group, group: Sequence[Row], seed: int, metrics: Iterable[Metric]
) -> dict[str, Any]:
    """Summarize one group."""
    arm, particles = named.arm, named.particles
    examples = group_rows(group, example_of).values()
    alive = [r for r in group if not r["dead"]]
    evidence = [
        [r["log_evidence"] for r in own if r["log_evidence"] is not None] for own in examples
    ]

    return {
        **({"style": named.style} if named.style else {}),
        **arm._asdict(),
        "particles": particles,
        "examples": len(examples),
        "repeats": max(map(len, examples)),
        **_aggregate(metrics, group, seed),
        **{key: _mean(r[key] for r in group) for key in _SHARES},
        "dead": sum(r["dead"] for r in group),
        **_reliability(group),
        **_budget(group),
        # The discrete filter doesn't draw its answers, so its ESS isn't a share of N.
        "ess_fraction": None
        if is_discrete(arm.algorithm)
        else _mean(r["ess"] / particles for r in alive),
        "log_evidence": _mean(float(np.mean(values)) for values in evidence if values),
        "log_evidence_examples": sum(bool(values) for values in evidence),
        "log_evidence_sd": _mean(float(np.std(v, ddof=1)) for v in evidence if len(v) > 1),
        "read": _mean(r["read"] for r in group),
        "forced": _mean(r["forced"] for r in group),
        **{key: _mean(r.get(key, 0) for r in group) for key in _AHEAD},
        **{key: sum(r[key] for r in group) for key in _COSTS},
        **{f"{key}_each": _mean(r[key] for r in group) for key in _COSTS},
    }


def _aggregate(
    metrics: Iterable[Metric], group: Sequence[Row], seed: int
) -> dict[str, float | None]:
    """Return the means of all metrics with their intervals."""
    found: dict[str, float | None] = {}
    for metric in metrics:
        found |= metric.aggregate(group, seed)
    return found


def _reliability(group: Sequence[Row]) -> dict[str, float | None]:
    """Average the reliability of posteriors; rows of earlier versions don't have it."""
    told = [row for row in group if "reliability" in row]
    if not told:
        return {}
    return {
        "certified": _mean(row["certified"] for row in told if row["certified"] is not None),
        "reliable": _mean(row["reliability"] in ("certified", "estimated") for row in told),
    }


def _budget(group: Sequence[Row]) -> dict[str, float | None]:
    """Average the probability that the budget removed; rows of earlier versions don't have it."""
    told = [row["budget_removed"] for row in group if "budget_removed" in row]
    return {"budget_removed": _mean(each for each in told if each is not None)} if told else {}


def as_table(summary: Sequence[dict[str, Any]], metrics: Iterable[Metric] = ()) -> Table:
    """Format the summary as a table: percentages, intervals, and costs per example."""
    every = merge_metrics(metrics)
    repeated = any(s["repeats"] > 1 for s in summary)
    with_budget = any("budget_removed" in s for s in summary)  # the HMM alone has none
    titles = titles_in(summary)
    return [
        {
            **titles(s),
            "particles": s["particles"],
            "examples": s["examples"],
            **cells(s, every),
            "complete %": number(100 * s["complete"], 1),
            "particles finished %": number(100 * s["share_finished"], 1),
            "enumerated %": number(100 * s["enumerated"], 1),
            **(
                {
                    "certified %": number(s["certified"] and 100 * s["certified"], 1),
                    "reliable %": number(100 * s["reliable"], 1),
                }
                if "reliable" in s
                else {}
            ),
            **(
                {"removed by budget %": number(_percent(s.get("budget_removed")), 1)}
                if with_budget
                else {}
            ),
            "dead rows": s["dead"],
            "ESS/N": number(s["ess_fraction"], 2),
            "evidence found %": share_of_evidence(s),
            "log evidence": log_evidence_of(s),
            **({"its sd": number(s["log_evidence_sd"], 3)} if repeated else {}),
            "read": number(s["read"], 0),
            "forced": number(s["forced"], 0),
            **_read_ahead(s, summary),
            "LM calls": number(s["lm_calls_each"], 1),
            "tokens": number(s["tokens_each"], 0),
            "seconds": number(s["seconds_each"], 2),
        }
        for s in summary
    ]


def share_of_evidence(record: Mapping[str, Any]) -> str:
    """Format the share of the evidence found; "> 1000" if the estimates vary too much."""
    found = record["evidence_found"]
    return "> 1000" if found is not None and found > 10 else with_interval(record, "evidence_found")


def log_evidence_of(record: Mapping[str, Any], digits: int = 3) -> str:
    """Format a mean log evidence, with the number of examples if some have none."""
    some, every = record["log_evidence_examples"], record["examples"]
    return number(record["log_evidence"], digits) + (f" (of {some})" if 0 < some < every else "")


def _read_ahead(record: Mapping[str, Any], among: Sequence[Mapping[str, Any]]) -> Row:
    """Return the table cells on read-ahead tokens; empty if no record in `among` has any."""
    if not any(each.get("drafted") for each in among):
        return {}
    share = each = ""
    if record["drafted"]:
        share = f" ({100 * record['used'] / record['drafted']:.0f}%)"
        each = f" ({record['landed'] / record['lm_calls_each']:.2f} a call)"
    return {
        "read ahead": number(record["drafted"], 1),
        "of it used": number(record["used"], 1) + share,
        "choices without a pass": number(record["landed"], 1) + each,
    }


def titles_in(records: Sequence[Mapping[str, Any]]) -> Callable[[Mapping[str, Any]], Row]:
    """Return a function from a record to the table cells that name it.

    The cells include the style of answers if `records` have several styles.
    """
    several = len(styles_in(records)) > 1

    def titles(record: Mapping[str, Any]) -> Row:
        return {**({"style": record["style"]} if several else {}), **Arm.of(record).titles}

    return titles


def styles_in(records: Iterable[Mapping[str, Any]]) -> list[str]:
    """Return the styles of rows or records, in order of first appearance; "" for none."""
    return list(dict.fromkeys(record.get("style", "") for record in records))


def _percent(share: float | None) -> float | None:
    """Return a share in percent, or None."""
    return None if share is None else 100 * share


def _mean(values: Iterable[float]) -> float | None:
    """Return the mean, or None without values."""
    numbers = [float(v) for v in values]
    return float(np.mean(numbers)) if numbers else None

"""Content of a report page as plain values: summaries, differences, rows and traces.

A page is one file of less than `MOST_BYTES`, and figures, rows and traces each get a share of it.
Whole examples (or figures) that don't fit are left out, and a note says what was left out.
"""

from __future__ import annotations

import base64
import json
import math
from collections.abc import Iterable, Sequence
from functools import partial
from itertools import combinations
from operator import itemgetter
from typing import Any, NamedTuple

from experiments.harness.algorithms import ALGORITHMS
from experiments.harness.methods import METHODS, method_of
from experiments.harness.results import Row
from experiments.report.directory import RunData
from experiments.report.traces import TOP, Trace
from experiments.tables import REFERENCE, difference, evidence_found, example_of, group_rows

MOST_BYTES = 10_000_000
FIGURE_BYTES, ROW_BYTES, TRACE_BYTES, TABLE_BYTES = 1_500_000, 3_200_000, 2_400_000, 300_000
"""Bytes for figures (base64 adds a third), rows, traces, and Markdown tables (longer in HTML).
One million bytes are left for the rest."""
_PAIRS = 150
"""Maximum number of pairs of arms to compare; each takes milliseconds per measure."""
_COMPARED = (
    "weighted_accuracy", "majority_correct", "best_correct", "valid", "evidence_found",
    "log_evidence", "ess", "read", "forced", "seconds",
)  # fmt: skip
"""Columns of rows whose differences are shown, before those of the task's metrics."""


class Content(NamedTuple):
    """Content of a page.

    Attributes:
        data: plain values for the scripts.
        table: Markdown; empty if it is too large.
        figures: name and `data:` URL of each figure.
        notes: sentences on what was left out.
    """

    data: dict[str, Any]
    table: str
    figures: tuple[tuple[str, str], ...]
    notes: tuple[str, ...]


def content_of(run: RunData) -> Content:
    """Collect the content of the page of a run, leaving out what doesn't fit."""
    notes: list[str] = []
    rows = [row for row in run.rows if _is_row(row)]
    summary = records_of(run)
    shown, dropped = _fitting(rows, ROW_BYTES)
    if dropped:
        total = len({row["example"] for row in rows})
        notes.append(
            f"Answers of {total - dropped} of {total} examples are on this page ({len(shown)} of "
            f"{len(rows)} rows); all are in results.jsonl."
        )
    traces = _in_order(run)
    traced, untraced = _fitting(traces, TRACE_BYTES)
    if untraced:
        total = len({trace["example"] for trace in traces})
        notes.append(
            f"Traces of {total - untraced} of {total} examples are on this page; all are in "
            "traces.jsonl."
        )
    tokens = {token: text for trace in traced for token, text in trace["tokens"].items()}
    traced = [{k: v for k, v in trace.items() if k != "tokens"} for trace in traced]
    metrics = _metrics(run)
    found, compared = differences(rows, [*metrics])
    if not compared:
        notes.append(f"Differences are shown for the first {_PAIRS} pairs of methods only.")
    data = {
        "top": TOP,
        "titles": {**_titles([*rows, *summary]), "metrics": metrics},
        "summary": summary,
        "differences": found,
        "rows": shown,
        "tokens": tokens,
        "traces": traced,
    }
    table = run.table
    if len(table.encode()) > TABLE_BYTES:
        table = ""
        notes.append("The table is left out for its size: table.md.")
    return Content(data, table, _figures(run, notes), tuple(notes))


def records_of(run: RunData) -> list[dict[str, Any]]:
    """Return the summary records of a run, one per arm and number of particles.

    A record's `style` is the part of the run that it describes: a style of answers, or a problem.
    """
    summary = run.summary
    if isinstance(summary.get("methods"), list):
        return list(summary["methods"])
    if isinstance(summary.get("problems"), list):
        found = [
            {"style": problem.get("name", ""), **estimate}
            for problem in summary["problems"] if isinstance(problem, dict)
            for estimate in problem.get("estimates", ())
        ]  # fmt: skip
    else:
        rows = summary.get("rows")
        found = [{"style": row.get("example", ""), **row}
                 for row in (rows if isinstance(rows, list) else ()) if _is_row(row)]  # fmt: skip
    flat = (int, float, str, bool, type(None))
    return [{k: v for k, v in record.items() if isinstance(v, flat)} for record in found]


def _metrics(run: RunData) -> dict[str, str]:
    """Return the titles of the metrics of a run's task; earlier versions didn't write them."""
    metrics = run.summary.get("metrics")
    return dict(metrics) if isinstance(metrics, dict) else {}


def differences(
    rows: Sequence[Row], metrics: Iterable[str] = (), seed: int = 0
) -> tuple[list[dict[str, Any]], bool]:
    """Compare all arms with each other, example by example, at equal particles.

    A record has the difference of a measure between `first` and `second`, with its 95% interval
    over the same resamples of examples (`experiments.tables`).

    Args:
        rows: rows of the run.
        metrics: columns of the task's metrics; columns that rows don't have are left out.
        seed: seed of the bootstrap.

    Returns:
        The records, and whether all pairs are included.
    """
    share = evidence_found(rows)
    rows = [{**row, "evidence_found": share(row)} for row in rows]
    groups = {
        group: group_rows(own, itemgetter("method", "algorithm"))
        for group, own in group_rows(rows, lambda r: (r.get("style", ""), r["particles"])).items()
    }
    pairs = [
        (group, first, second)
        for group, arms in groups.items()
        for first, second in combinations(arms, 2)
    ]
    measures = dict.fromkeys((*_COMPARED, *metrics))
    # Pairs far from the reference are dropped first.
    pairs.sort(key=lambda p: REFERENCE not in (p[1][0], p[2][0]))
    found = []
    for (style, particles), first, second in pairs[:_PAIRS]:
        ours, theirs = (groups[style, particles][arm] for arm in (first, second))
        for measure in measures:
            value, whole = partial(_number, key=measure), measure == "log_evidence"
            compared = difference(ours, theirs, value, seed, whole=whole)
            if compared is not None:
                found.append(
                    {
                        "style": style,
                        "particles": particles,
                        "first": list(first),
                        "second": list(second),
                        "measure": measure,
                        "examples": compared.examples,
                        **compared.interval._asdict(),
                    }
                )
    return found, len(pairs) <= _PAIRS


def embed(values: Any) -> str:
    """Format plain values as JSON that is safe within a script element."""
    text = json.dumps(_finite(values), ensure_ascii=False, separators=(",", ":"))
    for character in "<>&\u2028\u2029":
        text = text.replace(character, f"\\u{ord(character):04x}")
    return text


def _number(row: Row, key: str) -> float | None:
    """Return a row's value if it is a finite number, otherwise None."""
    value = row.get(key)
    return value if isinstance(value, int | float) and math.isfinite(value) else None


def _is_row(row: Any) -> bool:
    """Return whether a row is about an example and a method, as in tasks with records."""
    return isinstance(row, dict) and {"example", "method", "algorithm", "particles"} <= row.keys()


def _finite(values: Any) -> Any:
    """Replace infinities and NaN, which JSON doesn't have, by None."""
    if isinstance(values, dict):
        return {key: _finite(value) for key, value in values.items()}
    if isinstance(values, list | tuple):
        return [_finite(value) for value in values]
    return None if isinstance(values, float) and not math.isfinite(values) else values


def _fitting(rows: Sequence[Row], most: int) -> tuple[list[Row], int]:
    """Keep examples with all of their rows, in order, as long as they fit.

    Returns:
        Their rows in the given order, and the number of examples that were left out.
    """
    sizes = {
        example: sum(len(embed(row).encode()) + 1 for row in own)
        for example, own in group_rows(rows, example_of).items()
    }
    kept, taken = set(), 0
    for example, size in sizes.items():
        if taken + size <= most:
            kept.add(example)
            taken += size
    return [row for row in rows if row["example"] in kept], len(sizes) - len(kept)


def _in_order(run: RunData) -> list[Trace]:
    """Return the traces of a run by example, in the order of its rows."""
    examples = dict.fromkeys(map(example_of, filter(_is_row, run.rows)))
    position = {example: i for i, example in enumerate(examples)}
    return sorted(run.traces, key=lambda trace: position.get(trace["example"], len(position)))


def _titles(records: Iterable[Row]) -> dict[str, dict[str, Any]]:
    """Return titles and colors of methods and titles of algorithms; unknown names are kept."""
    methods, algorithms = {}, {}
    for record in records:
        method, algorithm = str(record["method"]), str(record["algorithm"])
        known = method.partition(":")[0] in METHODS
        methods[method] = (
            {"title": method_of(method).title, "color": method_of(method).color}
            if known
            else {"title": method, "color": None}
        )
        algorithms[algorithm] = (
            ALGORITHMS[algorithm].title if algorithm in ALGORITHMS else algorithm
        )
    return {"methods": methods, "algorithms": algorithms}


def _figures(run: RunData, notes: list[str]) -> tuple[tuple[str, str], ...]:
    """Return the figures as `data:` URLs, and note those that are left out."""
    found, taken = [], 0
    for path in run.figures:
        size = path.stat().st_size
        if taken + size > FIGURE_BYTES:
            notes.append(f"The figure {path.stem} is left out for its size: {path.name}.")
            continue
        taken += size
        image = base64.b64encode(path.read_bytes()).decode()
        found.append((path.stem, f"data:image/png;base64,{image}"))
    return tuple(found)

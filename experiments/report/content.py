"""Content of a report page as plain values: table, figures and traces.

A page is one file of less than `MOST_BYTES`, and figures and traces each get a share of it.
Whole examples (or figures) that don't fit are left out, and a note says what was left out.
"""

from __future__ import annotations

import base64
import json
import math
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

from experiments.harness.algorithms import ALGORITHMS
from experiments.harness.methods import method_of
from experiments.harness.results import Row
from experiments.report.directory import RunData
from experiments.report.traces import TOP, Trace
from experiments.tables import example_of, group_rows

MOST_BYTES = 10_000_000
FIGURE_BYTES, TRACE_BYTES, TABLE_BYTES = 1_500_000, 5_600_000, 300_000
"""Bytes for figures (base64 adds a third), traces, and Markdown tables (longer in HTML).
One million bytes are left for the rest."""
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
    data = {
        "top": TOP,
        "titles": _titles(traced),
        "tokens": tokens,
        "traces": traced,
        "shown": _first_shown(run.rows, traced),
    }
    table = run.table
    if len(table.encode()) > TABLE_BYTES:
        table = ""
        notes.append("The table is left out for its size: table.md.")
    return Content(data, table, _figures(run, notes), tuple(notes))


def _first_shown(rows: Sequence[Row], traces: Sequence[Trace]) -> str | None:
    """Return the first traced example on which methods differ, or the first if there is none."""
    texts: dict[tuple[Any, ...], set[str | None]] = {}
    for row in filter(_is_row, rows):
        key = (row["example"], row["algorithm"], row["particles"], row.get("repeat"))
        answers = row.get("answers")
        texts.setdefault(key, set()).add(answers[0]["text"] if answers else None)
    differing = {key[0] for key, different in texts.items() if len(different) > 1}
    examples = [trace["example"] for trace in traces]
    return next((each for each in examples if each in differing), next(iter(examples), None))


def embed(values: Any) -> str:
    """Format plain values as JSON that is safe within a script element."""
    text = json.dumps(_finite(values), ensure_ascii=False, separators=(",", ":"))
    for character in "<>&\u2028\u2029":
        text = text.replace(character, f"\\u{ord(character):04x}")
    return text


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


def _titles(records: Iterable[Row]) -> dict[str, dict[str, str]]:
    """Return the titles of methods and algorithms."""
    methods, algorithms = {}, {}
    for record in records:
        methods[record["method"]] = method_of(record["method"]).title
        algorithms[record["algorithm"]] = ALGORITHMS[record["algorithm"]].title
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

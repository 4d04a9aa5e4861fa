"""Writer of `report.html`, a self-contained page that needs neither network nor server.

The page is a template with embedded style sheet, scripts, figures (as `data:` URLs) and plain
values as JSON, from which the scripts make the particle explorer. Its content security policy
forbids loading anything. A page has less than `MOST_BYTES`, and figures and traces each get a share
of it. Whole examples (or figures) that don't fit are left out, and a note says what was left out.

`run.json` has the task and the format version of a run's files. A directory with another version is
refused with an error.
"""

from __future__ import annotations

import base64
import json
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from markupsafe import Markup

from experiments.arms import ALGORITHMS, method_of
from experiments.files import read_json, write_json
from experiments.report.traces import TOP, Trace, read_traces
from experiments.rows import REPORT, Row, read_rows, refuse_cut_short
from experiments.tables import example_of, group_rows

_HERE = Path(__file__).parent / "page"
_SCRIPTS = ("base.js", "genealogy.js", "explorer.js", "main.js")
FORM = 1
"""Format version of run directories; increase it when the meaning of rows or summaries changes."""
_ABOUT = "run.json"
MOST_BYTES = 10_000_000
FIGURE_BYTES, TRACE_BYTES, TABLE_BYTES = 1_500_000, 5_600_000, 300_000
"""Bytes for figures (base64 adds a third), traces, and Markdown tables (longer in HTML).
One million bytes are left for the rest."""


# -- the run directory


@dataclass(frozen=True)
class RunData:
    """Files of a finished run.

    Attributes:
        directory: the run directory.
        table: Markdown.
        rows: lines of `results.jsonl`; empty for a task without rows.
        traces: traces of some examples; see `experiments.report.traces`.
        figures: images.
    """

    directory: Path
    table: str
    rows: tuple[Row, ...]
    traces: tuple[Trace, ...]
    figures: tuple[Path, ...]

    @property
    def title(self) -> str:
        """The first heading of the table."""
        for line in self.table.splitlines():
            if line.startswith("#"):
                return line.lstrip("# ")
        return self.directory.name


def write_about(directory: Path, task: str) -> None:
    """Write the task and the format version of a run directory."""
    write_json({"task": task, "form": FORM}, directory / _ABOUT)


def read_run(directory: Path) -> RunData:
    """Read a finished run.

    Raises:
        ValueError: the run isn't finished, a file is damaged, or the format version differs.
    """
    again = "give the directory of a finished run, or repeat the command that makes it"
    if not (directory / "table.md").is_file():
        raise ValueError(f"expected a finished run in {directory}, got no table.md; {again}")
    if not (directory / _ABOUT).is_file():
        raise ValueError(
            f"expected {_ABOUT} in {directory}, which an earlier version didn't write; repeat the "
            "command that made the run, which keeps its rows"
        )
    about = read_json(directory / _ABOUT, remedy=again)
    if about.get("form") != FORM or not isinstance(about.get("task"), str):
        raise ValueError(
            f"expected a run in the file format {FORM} in {directory}, got {about.get('form')!r}; "
            "repeat the run, or make the report with the version that made the run"
        )
    return RunData(
        directory=directory,
        table=(directory / "table.md").read_text(encoding="utf-8"),
        rows=tuple(_rows(directory, again)),
        traces=tuple(read_traces(directory)),
        figures=tuple(sorted(directory.glob("*.png"))),
    )


def _rows(directory: Path, again: str) -> list[Row]:
    """Return the rows of a run; none for a task without rows."""
    path = directory / "results.jsonl"
    if not path.is_file():
        return []
    refuse_cut_short(path, again)
    return read_rows(path, needs=())  # lines of some tasks aren't about an example and a method


# -- the page


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


def write_report(directory: Path) -> Path:
    """Write the page of a finished run to its directory, and return the file.

    Raises:
        ValueError: the directory isn't a finished run, or the page is too large even after
            traces and figures were left out.
    """
    run, path = read_run(directory), directory / REPORT
    page = render(content_of(run), run.title)
    size = len(page.encode())
    if size >= MOST_BYTES:
        raise ValueError(
            f"expected a page of less than {MOST_BYTES} bytes, but {path} would have {size}; give "
            "fewer methods and particles"
        )
    path.write_text(page, encoding="utf-8")
    return path


def render(content: Content, title: str) -> str:
    """Return the HTML of the page."""
    import jinja2  # slow to import
    from markdown_it import MarkdownIt

    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(_HERE),
        autoescape=True,
        trim_blocks=True,
        lstrip_blocks=True,
        undefined=jinja2.StrictUndefined,
    )
    # Answers may contain URLs and markup, which must not become elements of the page.
    markdown = MarkdownIt("commonmark", {"html": False}).enable("table")
    markdown.disable(["link", "image", "autolink", "reference"])
    return environment.get_template("report.html").render(
        title=title,
        style=Markup(_text("report.css")),
        scripts=[Markup(_text(name)) for name in _SCRIPTS],
        data=Markup(embed(content.data)),
        table=Markup(markdown.render(content.table)),
        figures=content.figures,
        notes=content.notes,
    )


def _text(name: str) -> str:
    return (_HERE / name).read_text(encoding="utf-8")

"""Reader of run directories of any task: table, summary, rows, traces and figures.

`run.json` has the task and the format version of the files. A directory with another version is
refused with an error.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from experiments.harness.results import KEYED, Row, read_rows, refuse_cut_short
from experiments.report.traces import Trace, read_traces
from hmm._files import read_json, write_json

FORM = 1
"""Format version of run directories; increase it when the meaning of rows or summaries changes."""
_ABOUT = "run.json"


@dataclass(frozen=True)
class RunData:
    """Files of a finished run.

    Attributes:
        directory: the run directory.
        task: name of the task.
        identity: everything that determines the results.
        summary: plain values.
        table: Markdown.
        rows: lines of `results.jsonl`; empty for a task without rows.
        traces: traces of some examples; see `experiments.report.traces`.
        figures: images.
    """

    directory: Path
    task: str
    identity: dict[str, Any]
    summary: dict[str, Any]
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
    summary = read_json(directory / "summary.json", remedy=again)
    return RunData(
        directory=directory,
        task=about["task"],
        identity=read_json(directory / "identity.json", remedy=again),
        summary=summary,
        table=(directory / "table.md").read_text(encoding="utf-8"),
        rows=tuple(_rows(directory, summary, again)),
        traces=tuple(read_traces(directory)),
        figures=tuple(sorted(directory.glob("*.png"))),
    )


def _rows(directory: Path, summary: dict[str, Any], again: str) -> list[Row]:
    """Return the rows of a run, which must agree with its summary."""
    path, about = directory / "results.jsonl", directory / "summary.json"
    parts = [summary.get(key) for key in ("methods", "problems", "rows")]
    if not path.is_file():
        if any(parts):
            raise ValueError(f"expected {path}, which {about} summarizes, got no file; {again}")
        return []
    if not any(parts):
        raise ValueError(f"expected {about} to summarize {path}, got no summary; {again}")
    problems = summary.get("problems")
    for arm in _arms(summary):
        missing = [key for key in KEYED[1:] if not isinstance(arm, dict) or key not in arm]
        if missing:
            raise ValueError(
                f"expected {', '.join(missing)} in each record of {about}, got {arm!r}; {again}"
            )
    refuse_cut_short(path, again)
    # Lines about a whole problem don't belong to an example and a method.
    needs = ("name", "estimates") if isinstance(problems, list) else KEYED
    return read_rows(path, needs=needs)


def _arms(summary: dict[str, Any]) -> list[Any]:
    """Return the summary records by method and number of particles, if the task has them."""
    if isinstance(summary.get("methods"), list):
        return list(summary["methods"])
    problems = summary.get("problems")
    named = problems if isinstance(problems, list) else ()
    return [arm for each in named if isinstance(each, dict) for arm in each.get("estimates", ())]

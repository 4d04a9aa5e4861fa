"""Reader of run directories of any task: table, rows, traces and figures.

`run.json` has the task and the format version of the files. A directory with another version is
refused with an error.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from experiments.harness.results import Row, read_rows, refuse_cut_short
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

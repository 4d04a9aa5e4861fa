"""Comparison of several runs on one page: `python -m experiments.compare RUN RUN ...`.

The runs are directories of one task, which may differ in models, methods, seeds or any other
setting. The page overlays the runs and compares them example by example; `rows.csv` has the rows of
all runs with the differing settings.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

import pandas as pd

from experiments.harness.processes import errors_in_one_line
from experiments.harness.results import fingerprint
from experiments.report.directory import RunData, names_of, read_run
from experiments.report.page import NAME, write_page


def compare(directories: Sequence[Path], out: Path | None = None) -> Path:
    """Write page and table, and return their directory.

    Args:
        directories: directories of at least two finished runs.
        out: output directory; by default in `runs/`, named after the compared runs.

    Raises:
        ValueError: a directory is given twice, isn't a finished run, or is of another version or
            task; the message names it.
    """
    resolved = [directory.resolve() for directory in directories]
    if len(set(resolved)) < len(resolved) or len(resolved) < 2:
        raise ValueError(
            f"expected two or more different runs, got {', '.join(map(str, directories)) or 'none'}"
        )
    runs = [read_run(directory) for directory in directories]
    for run in runs:
        if run.task != runs[0].task:
            raise ValueError(
                f"expected runs of one task, got the task {run.task} in {run.directory} and the "
                f"task {runs[0].task} in {runs[0].directory}"
            )
    _refuse_other_records(runs)
    digest = fingerprint([run.identity for run in runs])
    out = out or Path(f"runs/compare-{runs[0].task}-{digest}")
    out.mkdir(parents=True, exist_ok=True)
    merge(runs).to_csv(out / "rows.csv", index=False)
    write_page(runs, out / NAME, f"{runs[0].task}: {len(runs)} runs compared")
    return out


def merge(runs: Sequence[RunData]) -> pd.DataFrame:
    """Return a table of all runs' rows without the column `answers`.

    The column `run` names each run by the settings in which the runs differ.
    """
    return pd.DataFrame(
        {"run": name, **{k: v for k, v in row.items() if k != "answers"}}
        for name, run in zip(names_of(runs), runs, strict=True)
        for row in run.rows
    )


def _refuse_other_records(runs: Sequence[RunData]) -> None:
    """Refuse runs on different records, as examples are compared by name."""
    key = "records_sha256"
    for run in runs:
        if run.identity.get(key) != runs[0].identity.get(key):
            raise ValueError(
                f"expected runs on the same records, but {run.directory} has other records than "
                f"{runs[0].directory} ({key} is {run.identity.get(key)} and "
                f"{runs[0].identity.get(key)}); repeat a run with the data.* and "
                "task.num_examples of the other"
            )


def main() -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(prog="experiments.compare", description=__doc__)
    parser.add_argument("runs", nargs="+", type=Path, metavar="RUN", help="run directory")
    parser.add_argument("--out", type=Path, help="output directory (default: in runs/)")
    arguments = parser.parse_args()
    with errors_in_one_line():
        out = compare(arguments.runs, arguments.out)
        print(f"Results: {out}/ ({NAME}, rows.csv)")


if __name__ == "__main__":
    main()

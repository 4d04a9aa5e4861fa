"""One page and one table over several runs: `python -m experiments.compare RUN RUN ...`.

Runs are directories of one task, which may differ in models, methods, seeds or anything else. The
page is that of a run, with the runs laid over each other and compared example by example;
`rows.csv` has their rows, and what sets each run apart, in one table.
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
    """Write page and table; returns their directory.

    Args:
        directories: of finished runs, two at least.
        out: where to write; by default a directory in `runs/`, named after what is compared.

    Raises:
        ValueError: a directory is given twice, is no finished run, is of another version, or is of
            another task than the first; each is named.
    """
    places = [directory.resolve() for directory in directories]
    if len(set(places)) < len(places) or len(places) < 2:
        raise ValueError(
            f"two or more different runs are needed, got {', '.join(map(str, directories)) or '-'}"
        )
    runs = [read_run(directory) for directory in directories]
    for run in runs:
        if run.task != runs[0].task:
            raise ValueError(
                f"{run.directory} is a run of the task {run.task}, {runs[0].directory} one of "
                f"{runs[0].task}: compare runs of one task"
            )
    _refuse_other_records(runs)
    digest = fingerprint([run.identity for run in runs])
    out = out or Path(f"runs/compare-{runs[0].task}-{digest}")
    out.mkdir(parents=True, exist_ok=True)
    merged(runs).to_csv(out / "rows.csv", index=False)
    write_page(runs, out / NAME, f"{runs[0].task}: {len(runs)} runs compared")
    return out


def merged(runs: Sequence[RunData]) -> pd.DataFrame:
    """Put the rows of all runs into one table, named by what sets each apart; no answers."""
    return pd.DataFrame(
        {"run": name, **{k: v for k, v in row.items() if k != "answers"}}
        for name, run in zip(names_of(runs), runs, strict=True)
        for row in run.rows
    )


def _refuse_other_records(runs: Sequence[RunData]) -> None:
    """Examples are compared by name, so names must mean the same."""
    key = "records_sha256"
    for run in runs:
        if run.identity.get(key) != runs[0].identity.get(key):
            raise ValueError(
                f"{run.directory} has other records than {runs[0].directory} ({key} "
                f"{run.identity.get(key)} and {runs[0].identity.get(key)}): compare runs on the "
                "same data, with the same data.* and task.num_examples"
            )


def main() -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(prog="experiments.compare", description=__doc__)
    parser.add_argument("runs", nargs="+", type=Path, metavar="RUN", help="a run directory")
    parser.add_argument("--out", type=Path, help="where to write (default: in runs/)")
    arguments = parser.parse_args()
    with errors_in_one_line():
        out = compare(arguments.runs, arguments.out)
        print(f"Results: {out}/ ({NAME}, rows.csv)")


if __name__ == "__main__":
    main()

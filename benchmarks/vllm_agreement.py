"""One experiment in two engines: `model.engine=transformers` and `model.engine=vllm`.

    python -m experiments.run +task=xlam run_dir=runs/xlam-transformers
    python -m experiments.run +task=xlam model.engine=vllm run_dir=runs/xlam-vllm
    python -m benchmarks.vllm_agreement runs/xlam-transformers runs/xlam-vllm

Prints a table with a row per method. Cells with two values have those of the first run and of the
second. Both runs have the same records, prompts and constraints, but different random numbers. So
the log evidence of a record differs by d, whose stated standard error e combines those of both
rows. *Within* counts the records with |d| <= 1.64 e + 0.001, which should be about 90% (0.001 nats
allow for rounding in float32). *Not collapsed* are those that neither run labels "collapsed".
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
from collections import defaultdict
from pathlib import Path
from typing import Any

from benchmarks.vllm import head, line
from experiments.harness.methods import method_of

METRICS = {"commongen": "expected_rouge_l"}
_METRIC = "weighted_accuracy"
_ROUNDING = 1e-3


def rows_of(run: Path) -> dict[tuple[Any, ...], dict[str, Any]]:
    """Read a run's rows by style, method, algorithm, particles, repetition and example."""
    names = ("style", "method", "algorithm", "particles", "repeat", "example")
    with (run / "results.jsonl").open(encoding="utf-8") as file:
        rows = [json.loads(text) for text in file]
    return {tuple(row.get(name) for name in names): row for row in rows}


def metric_of(run: Path, style: Any, method: str) -> str:
    """Return the task's metric of a method with its interval, in percent."""
    summary = json.loads((run / "summary.json").read_text(encoding="utf-8"))
    name = METRICS.get(json.loads((run / "run.json").read_text())["task"], _METRIC)
    for record in summary["methods"]:
        if (record.get("style"), record["method"]) == (style, method):
            values = (100 * record[name + end] for end in ("", "_low", "_high"))
            return "{:.1f} [{:.1f}, {:.1f}]".format(*values)
    raise ValueError(f"{run} has no row for {method}")


def agreement(pairs: list[tuple[dict[str, Any], dict[str, Any]]]) -> tuple[str, ...]:
    """Compare the log evidence of the records of one method."""
    known = [pair for pair in pairs if None not in (each["log_evidence"] for each in pair)]
    columns = [[row["log_evidence"] for row in column] for column in zip(*known, strict=True)]
    differences = [b - a for a, b in zip(*columns, strict=True)]
    errors = [math.hypot(*(each["log_evidence_error"] for each in pair)) for pair in known]
    within = [
        abs(difference) <= 1.64 * error + _ROUNDING
        for difference, error in zip(differences, errors, strict=True)
    ]
    kept = [
        fits
        for fits, pair in zip(within, known, strict=True)
        if "collapsed" not in (each["reliability"] for each in pair)
    ]
    error = statistics.stdev(differences) / math.sqrt(len(differences))
    return (
        " / ".join(f"{statistics.mean(column):.2f}" for column in columns),
        f"{statistics.mean(differences):+.3f} +- {error:.3f}",
        f"{sum(within)} of {len(within)}",
        f"{sum(kept)} of {len(kept)}",
    )


def main() -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(prog="benchmarks.vllm_agreement", description=__doc__)
    parser.add_argument("first", type=Path, help="run directory")
    parser.add_argument("second", type=Path, help="run directory")
    given = parser.parse_args()
    runs = given.first, given.second
    first, second = map(rows_of, runs)
    by_method = defaultdict(list)
    for key, row in first.items():
        if key in second:
            by_method[key[:2]].append((row, second[key]))
    print(
        head(
            "budget", "method", "finished %", "metric, first run", "metric, second run",
            "log evidence", "difference", "within", "within, not collapsed", "seconds per record",
        )
    )  # fmt: skip
    for (style, method), pairs in by_method.items():
        columns = list(zip(*pairs, strict=True))

        def means(name: str, scale: float, columns: Any = columns) -> str:
            return " / ".join(
                f"{scale * statistics.mean(row[name] for row in column):.1f}" for column in columns
            )

        cells = (
            style or "default", method_of(method).title, means("share_finished", 100),
            *(metric_of(run, style, method) for run in runs), *agreement(pairs),
            means("seconds", 1),
        )  # fmt: skip
        print(line(*cells))


if __name__ == "__main__":
    main()

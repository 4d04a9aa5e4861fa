"""This module reports on the task at scale: table, summary, wandb."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pandas as pd

from experiments.convergence.scale.problem import LiftedProblem
from experiments.convergence.scale.truth import Truth
from experiments.harness.arms import Arm
from experiments.harness.results import Row
from experiments.harness.run import Run
from experiments.harness.tables import as_markdown, number
from experiments.harness.tracking import log_shown

_LEGEND = """The language model is an HMM, so evidence and marginals of the events are exact. Log
evidence: mean and standard deviation over runs that found an answer, and the logarithm of the
mean evidence over all runs. TV: total variation of the mean of the runs' marginals to the exact
one; a dead run counts against it. Behind ± stands what noise over the runs alone would show, were
the mean exact; then the mean total variation of one run. Tokens: read by the language model, and
seconds, both a run; the table of completion probabilities, which is made once, took the seconds
beside them."""

_LISTS = ("log_evidences", "marginals")  # in rows, not in the summary


def report(
    run: Run,
    problems: Sequence[LiftedProblem],
    truths: Sequence[Truth],
    rows: Sequence[Row],
) -> None:
    """Write, print and log the results.

    Args:
        problems: in the order of the rows.
        truths: of each problem.
        rows: one for each problem, arm and number of particles.
    """
    parts = ["## Convergence at scale", as_markdown(_problem_table(problems, truths))]
    for each, exact in zip(problems, truths, strict=True):
        mine = [row for row in rows if row["example"] == each.problem.name]
        marginal = ", ".join(
            f"{event.name} {share:.4f}"
            for event, share in zip(each.problem.events, exact.marginal, strict=True)
        )
        parts += [
            f"### {each.problem.name}",
            f"{each.problem.note}. Exact: log evidence {exact.log_evidence:.4f}; {marginal}.",
            as_markdown(pd.DataFrame(map(_line, mine))),
        ]
    summary = {
        "problems": {
            each.problem.name: {
                "budget": each.budget,
                "log_evidence": exact.log_evidence,
                "events": [event.name for event in each.problem.events],
                "marginal": exact.marginal.tolist(),
            }
            for each, exact in zip(problems, truths, strict=True)
        },
        "rows": [{k: v for k, v in row.items() if k not in _LISTS} for row in rows],
        "seed": run.config.seed,
    }

    shown = {"rows": pd.DataFrame(summary["rows"])}
    text = "\n\n".join([*parts, _LEGEND]) + "\n"
    run.report(text, summary, lambda tracked: log_shown(tracked, shown, {}), ["results.jsonl"])


def _problem_table(problems: Sequence[LiftedProblem], truths: Sequence[Truth]) -> pd.DataFrame:
    return pd.DataFrame(
        {
            "problem": each.problem.name,
            "budget": each.budget,
            "fewest tokens": int(each.constraint.steps_to_accept[each.constraint.initial]),
            "states": each.constraint.num_states,
            "events": len(each.problem.events),
            "log evidence": f"{exact.log_evidence:.4f}",
        }
        for each, exact in zip(problems, truths, strict=True)
    )


def _line(row: Row) -> dict[str, Any]:
    return {
        **Arm.of(row).titles,
        "N": row["particles"],
        "log evidence": number(row["mean_log_evidence"], 3),
        "sd": number(row["sd_log_evidence"], 3),
        "log of mean": number(row["log_mean_evidence"], 3),
        "TV": f"{row['total_variation']:.4f} ± {row['total_variation_noise']:.4f}",
        "TV of one run": f"{row['total_variation_one_run']:.4f}",
        "tokens": number(row["tokens"], 0),
        "seconds": number(row["seconds"], 3),
        "table": number(row["table_seconds"], 1),
        "dead": f"{row['dead']} of {row['runs']}",
    }

"""Report of the convergence study: tables, figures and wandb."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pandas as pd

from experiments.arms import Arm, arms_in
from experiments.results import write_results
from experiments.tables import Table, as_markdown
from experiments.tasks import Run, as_lines
from experiments.tracking import name_of, numbers_of

Report = dict[str, Any]
"""A problem, its exact solution, and its `estimates`; a line of `results.jsonl`."""

GOAL = 0.1
_AT = 16  # particles at which arms are compared
_DRAWN = 1e-5  # smallest distance in figures
_KEYS = ["method", "algorithm", "particles"]


def report(run: Run, reports: Sequence[Report], notes: Sequence[str]) -> None:
    """Write, print and log the results.

    Args:
        run: the run.
        reports: one report per problem.
        notes: sentences about the HMMs.
    """
    frame = frame_of(reports)
    (run.directory / "results.jsonl").write_text(as_lines(reports), encoding="utf-8")
    problems = [{k: v for k, v in r.items() if k not in ("strings", "posterior", "prompt_ids")}
                for r in reports]  # fmt: skip
    summary = {"overview": overview(frame), "notes": list(notes), "seed": run.config.seed,
               "problems": problems}  # fmt: skip
    figures = {name: run.directory / f"{name}.png" for name in ("medians", "reads")}
    for name, path in figures.items():
        plot(frame, reports, path, name)

    means = frame.groupby(_KEYS, sort=False).mean(numeric_only=True).reset_index()
    numbers = {name_of(each): numbers_of(each) for each in means.to_dict("records")}
    write_results(
        run,
        table_of(reports, notes),
        summary,
        tables={"overview": summary["overview"]},
        figures=figures,
        numbers={"problems": len(reports), **numbers},
        rows=frame.to_dict("records"),
    )


def frame_of(reports: Sequence[Report]) -> pd.DataFrame:
    """Return all estimates, with the column `best`: the exact total variation, or the estimate."""
    rows = [{"example": r["name"], **e} for r in reports for e in r["estimates"]]
    frame = pd.DataFrame(rows)
    frame["tv_exact"] = pd.to_numeric(frame["tv_exact"])
    frame["best"] = frame["tv_exact"].fillna(frame["tv"])
    return frame


def table_of(reports: Sequence[Report], notes: Sequence[str]) -> str:
    """Format the overview and the problems in Markdown."""
    frame = frame_of(reports)
    at = choose_particles(frame)
    parts = [f"## Convergence to the exact posterior of {Path(reports[0]['model']).name}"]
    parts += [_OVERVIEW.format(count=len(reports), goal=GOAL), as_markdown(overview(frame))]
    parts += [_PROBLEMS.format(at=at), as_markdown(_problem_table(reports, frame, at))]
    parts += [f"- {note}" for note in notes]
    return "\n\n".join(parts) + "\n"


_OVERVIEW = """For each number of particles N, a cell has the number of problems (of {count}) on
which the law of one answer is within {goal} of the posterior in total variation, and the median
total variation. `read` is the median number of prefixes that the language model computes."""

_PROBLEMS = """Here *n* is the budget, and *tree* the number of prefixes that can be completed
within it. The next columns are exact: the log evidence, for a single sample of LCD the probability
that it is an answer (valid), and the total variation of its law and of GCD's. The others have the
total variation of one answer with N = {at}; where it isn't exact, the number after ± is what noise
over the runs would show if the law were exact. `results.jsonl` has the answers, and the intervals
for every number of particles."""


def choose_particles(frame: pd.DataFrame) -> int:
    """Return the particles at which arms are compared: 16, or the most if there aren't 16."""
    counts = frame["particles"]
    return _AT if (counts == _AT).any() else int(counts.max())


def overview(frame: pd.DataFrame) -> Table:
    """Return medians over problems, with a row per method and algorithm."""
    table = []
    for arm in arms_in(frame.to_dict("records")):
        own = _of(frame, arm)
        row: dict[str, Any] = dict(arm.titles)
        for n, some in own.groupby("particles"):
            within = int((some["best"] <= GOAL).sum())
            row[f"N={n}"] = f"{within}; {some['best'].median():.2g}"
        at = choose_particles(frame)
        row[f"read, N={at}"] = f"{own[own['particles'] == at]['read'].median():.4g}"
        table.append(row)
    return table


def _of(frame: pd.DataFrame, arm: Arm) -> pd.DataFrame:
    """Return the estimates of an arm."""
    return frame[(frame["method"] == arm.method) & (frame["algorithm"] == arm.algorithm)]


def _problem_table(reports: Sequence[Report], frame: pd.DataFrame, at: int) -> Table:
    """Return a row per problem, with the total variation of every arm."""
    chosen = frame[frame["particles"] == at].set_index(["example", "method", "algorithm"])
    return [
        {
            "problem": r["name"].replace("|", r"\|"),
            "n": r["budget"],
            "tree": r["prefixes"],
            "log evidence": f"{r['log_evidence']:.4f}",
            "LCD: valid": f"{r['lcd']['share_valid']:.3g}",
            "LCD: TV": f"{r['lcd']['total_variation']:.4f}",
            "GCD: TV": f"{r['gcd']['total_variation']:.4f}",
            **{
                ", ".join(arm.titles.values()): _tv(chosen.loc[(r["name"], *arm)])
                for arm in arms_in(r["estimates"])
            },
        }
        for r in reports
    ]


def _tv(row: pd.Series) -> str:
    """Format a total variation, with its noise unless it is exact."""
    return f"{row['best']:.2g}" + (
        f" ±{row['tv_floor']:.1g}" if math.isnan(row["tv_exact"]) else ""
    )


def plot(frame: pd.DataFrame, reports: Sequence[Report], path: Path, what: str) -> None:
    """Plot total variations: "medians" over problems, or "reads" with a panel for each problem."""
    # Importing matplotlib takes half a second.
    from matplotlib.figure import Figure
    from matplotlib.lines import Line2D

    from experiments.figures import legend_of

    if what == "medians":
        medians = frame.groupby(_KEYS, sort=False)[["best", "read"]].median().reset_index()
        panels = [("", medians, "particles"), ("", medians, "read")]
    else:
        panels = [(r["name"], frame[frame["example"] == r["name"]], "read") for r in reports]
    columns = min(5, len(panels))
    lines = math.ceil(len(panels) / columns)
    size = (12, 6.2) if what == "medians" else (1.2 + 3 * columns, 1.3 + 2.9 * lines)
    figure = Figure(figsize=size, layout="constrained")
    axes = figure.subplots(lines, columns, sharey=True, squeeze=False)
    for axis in axes.flat[len(panels) :]:
        axis.set_visible(False)
    for axis, (name, own, key) in zip(axes.flat, panels, strict=False):
        _panel(axis, own, key)
        shown = name if len(name) <= 40 else name[:39] + "…"
        axis.set_title(shown.replace("$", r"\$"), fontsize=10)
    for axis in axes[:, 0]:
        axis.set_ylabel("total variation")
    handles = legend_of(arms_in(frame.to_dict("records")), size=5)
    handles.append(Line2D([], [], color="0.85", linewidth=5, label=f"total variation of {GOAL}"))
    abreast = min(len(handles), max(2, int(size[0] / 2.2)))
    figure.legend(handles=handles, loc="outside lower center", ncols=abreast, frameon=False)
    figure.savefig(path, dpi=130)


def _panel(axis: Any, own: pd.DataFrame, key: str) -> None:
    """Draw a line for each arm."""
    from experiments.figures import log_axis, plain

    axis.axhline(GOAL, color="0.85", linewidth=4, zorder=0)
    for arm in arms_in(own.to_dict("records")):
        rows = _of(own, arm).sort_values("particles")
        x = rows[key].clip(lower=0.5)  # zero prefixes on a logarithmic axis
        axis.plot(x, rows["best"].clip(lower=_DRAWN), **arm.style, markersize=4, linewidth=1.2)
    log_axis(axis)
    axis.set_xlabel("particles" if key == "particles" else "prefixes read a run")
    axis.set_yscale("log")
    axis.set_ylim(_DRAWN * 0.7, 1.3)
    plain(axis)

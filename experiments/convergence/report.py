"""This module reports on the convergence task: results, table, summary, two figures, wandb.

The headline is the number of particles from which on the law of one drawn answer is within a total
variation of `GOAL` of the exact posterior, the smallest one that was tried. (More particles are not
always better: where they make resampling more frequent, it may do harm.) Ratios between methods
are taken problem by problem, then the median over problems. What was not reached counts as twice
the largest number tried, so a ratio is then a bound: at least (or at most) that.
"""

from __future__ import annotations

import json
import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pandas as pd
import wandb

from experiments.convergence.figures import GOAL, plot_particles, plot_time, tv_of
from experiments.harness.methods import METHODS
from experiments.harness.run import Run
from experiments.harness.summary import as_markdown

_SHOWN = (1, 4, 16, 64, 256)
_AT = 16  # particles at which the diagnostics are shown

Report = dict[str, Any]


def report(run: Run, reports: Sequence[Report], notes: Sequence[str]) -> None:
    """Write, print and log the results.

    Args:
        run: the run.
        reports: one for each problem, a line of `results.jsonl`.
        notes: what there is to say about the HMMs.
    """
    text = "".join(json.dumps(r, ensure_ascii=False) + "\n" for r in reports)
    (run.directory / "results.jsonl").write_text(text, encoding="utf-8")
    summary = {"headline": headline(reports), "notes": list(notes), "seed": run.config.seed,
               "problems": [_without_posteriors(r) for r in reports]}  # fmt: skip
    figures = {"particles": run.directory / "particles.png"}
    plot_particles(reports, figures["particles"])
    if run.config.task.timed_runs > 0:
        figures["time"] = run.directory / "time.png"
        plot_time(reports, figures["time"])

    def log(tracked: wandb.Run) -> None:
        images = {name: wandb.Image(str(path)) for name, path in figures.items()}
        rows = pd.DataFrame(_rows(reports))
        tracked.log({"estimates": wandb.Table(dataframe=rows.astype(str)), **images})
        tracked.summary.update({"headline": summary["headline"]})

    files = ["results.jsonl", *(path.name for path in figures.values())]
    run.report(table_of(reports, notes), summary, log, files)


def reached(report: Report, method: str) -> int | None:
    """Find the fewest particles tried from which on a method is within `GOAL`; None for none."""
    found = None
    for e in sorted(_of(report, method), key=lambda e: -e["particles"]):
        if tv_of(e) > GOAL:
            break
        found = int(e["particles"])
    return found


def headline(reports: Sequence[Report]) -> dict[str, Any]:
    """Sum up the particles needed, their medians, and the ratios that were the goal.

    Of all problems, and of the *hard* ones, where one sample of GCD is not within `GOAL` already,
    so that there is something to converge to.
    """
    methods = _methods(reports)
    hard = [r for r in reports if r["gcd"]["total_variation"] > GOAL]
    return {
        "goal": GOAL,
        "most_particles": _most(reports),
        "needed": {m: {r["name"]: reached(r, m) for r in reports} for m in methods},
        "all": _medians(reports, methods, _most(reports)),
        "hard": _medians(hard, methods, _most(reports)) if hard else None,
    }


def _medians(reports: Sequence[Report], methods: Sequence[str], most: int) -> dict[str, Any]:
    """Of these problems: median particles needed, ratios to other methods and their medians."""

    def needed(method: str) -> list[int]:
        return [count if (count := reached(r, method)) is not None else 2 * most for r in reports]

    ratios = {
        f"{ours}_to_{other}": [a / b for a, b in zip(needed(ours), needed(other), strict=True)]
        for ours in filter(_not_a_mask, methods)
        for other in ("gcd", "lcd")
        if other in methods
    }
    return {
        "problems": [r["name"] for r in reports],
        "median_needed": {m: statistics.median(needed(m)) for m in methods},
        "ratios": ratios,
        "median_ratio": {name: statistics.median(values) for name, values in ratios.items()},
    }


def _not_a_mask(method: str) -> bool:
    """Whether a method does more than to forbid tokens; its share of particles is reported."""
    return METHODS[method].indicator is None


def _most(reports: Sequence[Report]) -> int:
    return max(e["particles"] for r in reports for e in r["estimates"])


def table_of(reports: Sequence[Report], notes: Sequence[str]) -> str:
    """Write everything in Markdown: the headline, the problems, and every method on each."""
    methods = _methods(reports)
    parts = ["## Convergence to the exact posterior", _headline_text(headline(reports))]
    parts.append(as_markdown(_problem_table(reports)))
    parts.append(
        "Exact, no Monte Carlo: the evidence, and of a single sample the share that is an answer "
        "and the total variation of its law."
    )
    parts.append(as_markdown(_needed_table(reports, methods)))
    counts = {e["particles"] for r in reports for e in r["estimates"]}
    shown = [n for n in _SHOWN if n in counts] or sorted(counts)
    for one in reports:
        parts += [f"### {one['name']}", _described(one), as_markdown(_method_table(one, shown))]
    parts.append(_LEGEND.format(at=_AT if _AT in counts else max(counts)))
    parts += [f"- {note}" for note in notes]
    return "\n\n".join(parts) + "\n"


_LEGEND = """TV of one answer: total variation between the exact posterior and the law of one
answer drawn from one run (a dead run gives none), with its 95 % interval; exact with one particle.
Behind ± stands what noise over the runs alone would show, were the law exact. With {at} particles:
mean total variation of one run's posterior, beside that of an exact sampler of as many draws;
relative bias (95 % interval) and variance of the evidence estimate; ESS / N; dead runs; median
seconds of a real run, its table made before."""


def _headline_text(found: dict[str, Any]) -> str:
    most = found["most_particles"]
    lines = [
        f"Particles from which on the law of one answer is within {found['goal']} in total "
        f"variation (what is not reached by {most} counts as {2 * most}):"
    ]
    titles = {
        "all": "all {count} problems",
        "hard": "the {count} problems where one sample of GCD is not within it already",
    }
    for key, title in titles.items():
        part = found[key]
        if part is None:
            continue
        needed = ", ".join(
            f"{METHODS[m].title} {_count(n, most)}" for m, n in part["median_needed"].items()
        )
        lines.append(f"- median over {title.format(count=len(part['problems']))}: {needed}.")
        for other, goal in (("gcd", "a quarter"), ("lcd", "a tenth")):
            shares = [
                f"{METHODS[ours].title} {part['median_ratio'][f'{ours}_to_{other}']:.3g}"
                for ours in filter(_not_a_mask, found["needed"])
                if f"{ours}_to_{other}" in part["median_ratio"]
            ]
            if shares:
                lines.append(
                    f"  Share of {METHODS[other].title}'s particles, median of the problems' own "
                    f"ratios: {', '.join(shares)} (the goal was at most {goal})."
                )
    return lines[0] + "\n\n" + "\n".join(lines[1:])


def _problem_table(reports: Sequence[Report]) -> pd.DataFrame:
    return pd.DataFrame(
        {
            "problem": _cell(r["name"]),
            "model": _cell(Path(r["model"]).name),
            "budget": r["budget"],
            "answers within it": sum(p > 0 for p in r["posterior"]),
            "prefixes": r["prefixes"],
            "log evidence": f"{r['log_evidence']:.4f}",
            "LCD: valid": f"{r['lcd']['share_valid']:.3g}",
            "LCD: TV": f"{r['lcd']['total_variation']:.4f}",
            "GCD: valid": f"{r['gcd']['share_valid']:.3g}",
            "GCD: TV": f"{r['gcd']['total_variation']:.4f}",
        }
        for r in reports
    )


def _needed_table(reports: Sequence[Report], methods: Sequence[str]) -> pd.DataFrame:
    """Particles to the goal."""
    found = headline(reports)
    most = found["most_particles"]
    rows = [
        {f"particles to TV {GOAL}": _cell(r["name"])}
        | {
            METHODS[m].title: _count(found["needed"][m][r["name"]] or 2 * most, most)
            for m in methods
        }
        for r in reports
    ]
    for key, title in (("all", "median"), ("hard", "median of the hard ones")):
        if found[key] is not None:
            medians = found[key]["median_needed"]
            shown = {METHODS[m].title: _count(medians[m], most) for m in methods}
            rows.append({f"particles to TV {GOAL}": title} | shown)
    return pd.DataFrame(rows)


def _method_table(report: Report, shown: Sequence[int]) -> pd.DataFrame:
    rows = []
    for method in _methods([report]):
        by = {e["particles"]: e for e in _of(report, method)}
        row: dict[str, Any] = {"method": METHODS[method].title}
        for n in shown:
            row[f"TV of one answer, N={n}"] = _tv(by[n]) if n in by else "–"
        at = by.get(_AT) or by[max(by)]
        row["one run / exact sampler"] = (
            f"{at['one_run_tv']:.3f} / {at['exact_sampler_one_run_tv']:.3f}"
        )
        row["evidence: bias"] = (
            f"{at['evidence_bias']:+.2g} [{at['evidence_bias_low']:+.2g}, "
            f"{at['evidence_bias_high']:+.2g}]"
        )
        row["variance"] = f"{at['evidence_variance']:.3g}"
        row["ESS/N"] = f"{at['ess']:.2f}"
        row["dead %"] = f"{100 * at['dead']:.1f}"
        row["seconds"] = "–" if at["seconds"] is None else f"{at['seconds']:.3g}"
        rows.append(row)
    return pd.DataFrame(rows)


def _tv(e: dict[str, Any]) -> str:
    if e["tv_exact"] is not None:
        return f"{e['tv_exact']:.3f}"
    return f"{e['tv']:.3f} [{e['tv_low']:.3f}, {e['tv_high']:.3f}] ±{e['tv_floor']:.3f}"


def _described(report: Report) -> str:
    start = report["prompt"] if isinstance(report["prompt"], str) else f"{report['prompt']}"
    tail = start if len(start) <= 70 else "…" + start[-70:]
    top = sorted(zip(report["posterior"], report["strings"], strict=True), reverse=True)[:3]
    likely = ", ".join(f"`{_inline(text)}` {p:.3g}" for p, text in top if p > 0)
    tables = {e["table_seconds"] for e in report["estimates"]} - {None}
    table = f" The lookahead table takes {1000 * min(tables):.3g} ms." if tables else ""
    note = f"{report['note'][:1].upper()}{report['note'][1:]}. " if report["note"] else ""
    return f"{note}After `{_inline(tail)}`; most probable: {likely}.{table}"


def _inline(text: str) -> str:
    """As a piece of code in Markdown."""
    return json.dumps(text, ensure_ascii=False)[1:-1].replace("`", "'").replace('\\"', '"')


def _cell(text: str) -> str:
    """As it can stand in a table of Markdown."""
    return text.replace("|", r"\|")


def _count(value: float, most: int) -> str:
    return f"more than {most}" if value > most else f"{value:g}"


def _methods(reports: Sequence[Report]) -> list[str]:
    return list(dict.fromkeys(e["method"] for r in reports for e in r["estimates"]))


def _of(report: Report, method: str) -> list[dict[str, Any]]:
    return [e for e in report["estimates"] if e["method"] == method]


def _rows(reports: Sequence[Report]) -> list[dict[str, Any]]:
    return [
        {"problem": r["name"], **{k: v for k, v in e.items() if k != "posterior"}}
        for r in reports
        for e in r["estimates"]
    ]


def _without_posteriors(report: Report) -> Report:
    kept = {k: v for k, v in report.items() if k not in ("strings", "posterior", "prompt_ids")}
    kept["estimates"] = [
        {k: v for k, v in e.items() if k != "posterior"} for e in report["estimates"]
    ]
    return kept

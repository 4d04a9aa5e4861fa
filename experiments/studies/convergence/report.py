"""Report of the convergence study: results, table, summary, figures and wandb."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from experiments.arms import Arm, is_discrete
from experiments.rows import Run, as_lines
from experiments.studies.convergence.headline import (
    GOAL,
    LEAST,
    SMALL,
    Report,
    arms_of,
    choose_particles,
    estimates_of,
    headline,
)
from experiments.tables import Table, as_markdown
from experiments.tracking import LoggedArm, log_shown, log_summary, split_arms

if TYPE_CHECKING:
    import wandb

_SHOWN = (1, 4, 16, 64, 256)


def report(run: Run, reports: Sequence[Report], notes: Sequence[str]) -> None:
    """Write, print and log the results.

    Args:
        run: the run.
        reports: one report per problem, a line of `results.jsonl`.
        notes: sentences about the HMMs.
    """
    # Importing matplotlib takes half a second.
    from experiments.studies.convergence.figures import plot_medians, plot_panels

    (run.directory / "results.jsonl").write_text(as_lines(reports), encoding="utf-8")
    summary = {"headline": headline(reports), "notes": list(notes), "seed": run.config.seed,
               "problems": [_without_posteriors(r) for r in reports]}  # fmt: skip
    drawn = {"particles": "particles", "reads": "read"}
    figures = {name: run.directory / f"{name}.png" for name in ("medians", *drawn)}
    plot_medians(reports, figures["medians"])
    for name, key in drawn.items():
        plot_panels(reports, figures[name], key)

    def log(tracked: wandb.Run) -> None:
        log_shown(tracked, {}, figures)
        log_summary(tracked, {"headline": summary["headline"]})

    files = ["results.jsonl", *(path.name for path in figures.values())]
    run.report(table_of(reports, notes), summary, log, files, arms=_split_arms(reports))


def table_of(reports: Sequence[Report], notes: Sequence[str]) -> str:
    """Format the headline, the problems, and every arm on each problem in Markdown."""
    found = headline(reports)
    model = Path(reports[0]["model"]).name
    parts = [f"## Convergence to the exact posterior of {model}", _describe_headline(found)]
    parts.append(as_markdown(_headline_table(found)))
    parts.append(as_markdown(_problem_table(reports)))
    parts.append(
        "This table is exact. For a single sample of LCD and of GCD, it has the probability that "
        "the sample is an answer (valid), and the total variation of its law (TV)."
    )
    counts = {e["particles"] for r in reports for e in r["estimates"]}
    shown = [n for n in _SHOWN if n in counts] or sorted(counts)
    at = choose_particles(reports)
    for one in reports:
        table = _arm_table(one, shown, at, found)
        parts += [f"### {one['name']}", _describe(one), as_markdown(table)]
    parts.append(_LEGEND.format(at=at, goal=GOAL))
    parts += [f"- {note}" for note in notes]
    return "\n\n".join(parts) + "\n"


_LEGEND = """TV of one answer is the total variation between the exact posterior and the law of one
answer drawn from one run, with its 95% interval. (A run whose particles all died gives no answer.)
It is exact with one particle of SMC, and if the discrete filter left nothing out. The number after
± is the total variation that noise over the runs would show if the law were exact. `to {goal}` is
the fewest particles from which on the total variation is within {goal}. The other columns are for
{at} particles. `read` is the mean number of prefixes that the language model computes, without the
prompt. The next column has the mean total variation of one run's posterior, and that of an exact
sampler with as many draws. Bias (with its 95% interval) and variance are those of the evidence
estimate, relative to the evidence. ESS / N is undefined for the discrete filter. The last column is
the share of runs whose particles all died."""


def _describe_headline(found: dict[str, Any]) -> str:
    """Describe the columns of the headline table."""
    most, at = found["most_particles"], found["compared_at"]
    reference = Arm(*found["reference"].split("/")).titles
    return (
        f"`particles` is the number from which on the law of one answer is within {found['goal']} "
        f"of the posterior in total variation, as the median over all {len(found['problems'])} "
        f"problems. `of the hard` is the median over the {len(found['hard'])} hard problems, on "
        "which one sample of GCD isn't within this distance. If the distance isn't reached with "
        f"{most} particles, the number counts as {2 * most}. `worst` is the largest total "
        f"variation with {at} particles. `4N over N` is the largest ratio of the total variation "
        f"with 4N particles to that with N, if the former exceeds the noise by more than {SMALL:g}."
        f" The last columns have the total variation relative to that of {reference['method']} "
        f"({reference['algorithm']}), if both read the number of prefixes that the latter reads "
        "with the given number of particles. They are medians; the number of problems on which "
        "both can read as many is in brackets."
    )


def _headline_table(found: dict[str, Any]) -> Table:
    """Return the headline table, with a row per method and algorithm."""
    most = found["most_particles"]
    arms = found["arms"].values()
    equal = dict.fromkeys(n for each in arms for n in each["equal_reads"])
    return [
        {
            **Arm.of(each).titles,
            "particles": _count(each["median_needed"], most),
            "of the hard": _count(each["median_needed_hard"], most),
            "worst": _place(each["worst"], "tv"),
            "4N over N": _place(each["growth"], "ratio"),
            **{
                f"equal reads, its {n}": _format_comparison(each["equal_reads"].get(n))
                for n in equal
            },
        }
        for each in arms
    ]


def _place(found: dict[str, Any] | None, key: str) -> str:
    """Format a figure with its problem."""
    if found is None:
        return "–"
    at = f", N={found['particles']}" if "particles" in found else ""
    return f"{found[key]:.3g} ({_cell(found['problem'])}{at})"


def _format_comparison(found: dict[str, Any] | None) -> str:
    if found is None or found["median"] is None:
        return "–"
    return f"{found['median']:.3g} ({found['problems']})"


def _problem_table(reports: Sequence[Report]) -> Table:
    return [
        {
            "problem": _cell(r["name"]),
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
    ]


def _arm_table(report: Report, shown: Sequence[int], at: int, found: dict[str, Any]) -> Table:
    """Return a table of one problem, with a row per method and algorithm."""
    rows = []
    for arm in arms_of([report]):
        by = {e["particles"]: e for e in estimates_of(report, arm)}
        row: dict[str, Any] = dict(arm.titles)
        for n in shown:
            row[f"TV of one answer, N={n}"] = _tv(by[n]) if n in by else "–"
        most = found["most_particles"]
        needed = found["arms"][arm.label]["needed"][report["name"]]
        row[f"to {GOAL}"] = _count(needed or 2 * most, most)
        e = by[at]
        row[f"read, N={at}"] = f"{e['read']:.1f}"
        row["one run / exact sampler"] = (
            f"{e['one_run_tv']:.3f} / {e['exact_sampler_one_run_tv']:.3f}"
        )
        row["evidence: bias"] = (
            f"{e['evidence_bias']:+.2g} [{e['evidence_bias_low']:+.2g}, "
            f"{e['evidence_bias_high']:+.2g}]"
        )
        row["variance"] = f"{e['evidence_variance']:.3g}"
        row["ESS/N"] = "–" if is_discrete(arm.algorithm) else f"{e['ess']:.2f}"
        row["dead %"] = f"{100 * e['dead']:.1f}"
        rows.append(row)
    return rows


def _tv(e: dict[str, Any]) -> str:
    if e["tv_exact"] is not None:
        return f"{e['tv_exact']:.3f}" if e["tv_exact"] > LEAST else "0"
    digits = 3 if e["tv"] >= 0.01 else 5
    low, high, floor = (f"{e[key]:.{digits}f}" for key in ("tv_low", "tv_high", "tv_floor"))
    return f"{e['tv']:.{digits}f} [{low}, {high}] ±{floor}"


def _describe(report: Report) -> str:
    start = report["prompt"] if isinstance(report["prompt"], str) else f"{report['prompt']}"
    tail = start if len(start) <= 70 else "…" + start[-70:]
    top = sorted(zip(report["posterior"], report["strings"], strict=True), reverse=True)[:3]
    likely = ", ".join(f"`{_inline(text)}` {p:.3g}" for p, text in top if p > 0)
    note = f"{report['note'][:1].upper()}{report['note'][1:]}. " if report["note"] else ""
    return f"{note}After `{_inline(tail)}`; most probable: {likely}."


def _inline(text: str) -> str:
    """Format text as inline code in Markdown."""
    return json.dumps(text, ensure_ascii=False)[1:-1].replace("`", "'").replace('\\"', '"')


def _cell(text: str) -> str:
    """Escape text for a Markdown table."""
    return text.replace("|", r"\|")


def _count(value: float | None, most: int) -> str:
    if value is None:
        return "–"
    return f"more than {most}" if value > most else f"{value:g}"


def _split_arms(reports: Sequence[Report]) -> list[LoggedArm]:
    """Return the arms for wandb: estimates as examples, their means over problems as measures."""
    rows = [
        {"example": report["name"], **e}
        for report in map(_without_posteriors, reports)
        for e in report["estimates"]
    ]
    import pandas as pd

    names = ["method", "algorithm", "particles"]
    means = pd.DataFrame(rows).groupby(names, sort=False).mean(numeric_only=True).reset_index()
    return split_arms(means.to_dict("records"), rows, {})


def _without_posteriors(report: Report) -> Report:
    kept = {k: v for k, v in report.items() if k not in ("strings", "posterior", "prompt_ids")}
    kept["estimates"] = [
        {k: v for k, v in e.items() if k != "posterior"} for e in report["estimates"]
    ]
    return kept

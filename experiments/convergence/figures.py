"""This module draws total variation against particles and against time, a panel per problem."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from matplotlib.lines import Line2D
from matplotlib.ticker import FixedLocator, FuncFormatter, NullFormatter, NullLocator

from experiments.harness.figures import plain, plt
from experiments.harness.methods import METHODS

_LEAST = 1e-3  # what is closer than that is drawn there
GOAL = 0.1


def plot_particles(reports: Sequence[dict[str, Any]], path: Path) -> None:
    """Draw the total variation of the law of one answer against particles."""
    counts = sorted({e["particles"] for report in reports for e in report["estimates"]})

    def axis_of(axis: Any) -> None:
        axis.set_xscale("log", base=2)
        shown = counts if len(counts) < 6 else counts[::2]
        axis.xaxis.set_major_locator(FixedLocator(shown))
        axis.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))

    _plot(reports, path, "particles", "particles", axis_of)


def plot_time(reports: Sequence[dict[str, Any]], path: Path) -> None:
    """Draw the total variation of the law of one answer against seconds of one real run."""
    seconds = [e["seconds"] for r in reports for e in r["estimates"] if e["seconds"]]
    lowest, highest = math.floor(math.log10(min(seconds))), math.ceil(math.log10(max(seconds)))
    ticks = [d * 10.0**k for k in range(lowest, highest + 1) for d in (1, 2, 5)]

    def axis_of(axis: Any) -> None:
        axis.set_xscale("log")
        # At least a decade, so that equal times look equal.
        low, high = axis.get_xlim()
        spare = max(1.0, (10 / (high / low)) ** 0.5)
        axis.set_xlim(low / spare, high * spare)
        axis.xaxis.set_major_locator(FixedLocator(ticks))
        axis.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
        axis.xaxis.set_minor_locator(NullLocator())

    _plot(reports, path, "seconds", "seconds a run, real model", axis_of)


def _plot(
    reports: Sequence[dict[str, Any]], path: Path, key: str, label: str, axis_of: Any
) -> None:
    columns = min(5, len(reports))
    lines = math.ceil(len(reports) / columns)
    figure, axes = plt.subplots(
        lines,
        columns,
        figsize=(1.2 + 3.0 * columns, 1.3 + 2.9 * lines),
        sharey=True,
        squeeze=False,
        layout="constrained",
    )
    methods = list(dict.fromkeys(e["method"] for r in reports for e in r["estimates"]))
    for axis in axes.flat[len(reports) :]:
        axis.set_visible(False)
    for place, (axis, report) in enumerate(zip(axes.flat, reports, strict=False)):
        _panel(axis, report, methods, key)
        axis_of(axis)
        axis.set_title(_title(report["name"]), fontsize=10)
        if place + columns >= len(reports):
            axis.set_xlabel(label)
        if place % columns == 0:
            axis.set_ylabel("total variation")
    handles = [
        Line2D([], [], color=m.colour, marker=m.marker, markersize=5, label=m.title)
        for m in (METHODS[name] for name in methods)
    ]
    handles.append(
        Line2D([], [], color="0.45", linestyle="--", label="exact sampler, as many draws")
    )
    handles.append(Line2D([], [], color="0.8", linewidth=4, label=f"total variation of {GOAL}"))
    figure.legend(
        handles=handles, loc="outside lower center", ncols=min(5, len(handles)), frameon=False
    )
    figure.savefig(path, dpi=130)
    plt.close(figure)


def _title(name: str) -> str:
    """A problem's name as it is: not as a formula, nor wider than its panel."""
    return (name if len(name) <= 40 else name[:39] + "…").replace("$", r"\$")


def _panel(axis: Any, report: dict[str, Any], methods: Sequence[str], key: str) -> None:
    axis.axhline(GOAL, color="0.85", linewidth=4, zorder=0)
    for method in methods:
        rows = [e for e in report["estimates"] if e["method"] == method and e[key] is not None]
        rows.sort(key=lambda e: e["particles"])
        x = [e[key] for e in rows]
        colour = METHODS[method].colour
        axis.plot(
            x,
            [max(_LEAST, tv_of(e)) for e in rows],
            color=colour,
            marker=METHODS[method].marker,
            markersize=4,
            # Times are noisy, and lines from point to point only say which is next.
            linewidth=1.2 if key == "particles" else 0.6,
        )
        if key == "particles":
            axis.fill_between(
                x,
                [max(_LEAST, e["tv_low"] if e["tv_exact"] is None else tv_of(e)) for e in rows],
                [max(_LEAST, e["tv_high"] if e["tv_exact"] is None else tv_of(e)) for e in rows],
                color=colour,
                alpha=0.15,
                linewidth=0,
            )
    if key == "particles":
        rows = [e for e in report["estimates"] if e["method"] == methods[0]]
        axis.plot(
            [e["particles"] for e in rows],
            [max(_LEAST, e["exact_sampler_tv"]) for e in rows],
            color="0.45",
            linestyle="--",
            linewidth=1,
        )
    else:
        # Seconds are not draws: the floor of the most draws that any point has.
        floor = min(e["exact_sampler_tv"] for e in report["estimates"])
        axis.axhline(max(_LEAST, floor), color="0.45", linestyle="--", linewidth=1)
    axis.set_yscale("log")
    axis.set_ylim(_LEAST * 0.8, 1.3)
    axis.yaxis.set_major_locator(FixedLocator([1e-3, 1e-2, 1e-1, 1]))
    axis.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axis.yaxis.set_minor_formatter(NullFormatter())
    if key == "particles":
        axis.xaxis.set_minor_locator(NullLocator())
    plain(axis)


def tv_of(estimate: dict[str, Any]) -> float:
    """Give the total variation of the law of one answer: exact if known, else estimated."""
    exact = estimate["tv_exact"]
    return float(estimate["tv"] if exact is None else exact)

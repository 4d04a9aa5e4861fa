"""Figures of total variation against particles and prefixes read.

There is a panel for each problem, and a figure of the medians over problems. Methods have colors
and markers, algorithms have line styles.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from operator import itemgetter
from pathlib import Path
from statistics import median
from typing import Any

from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import FixedLocator, FuncFormatter, NullFormatter, NullLocator

from experiments.arms import Arm
from experiments.figures import legend_of, log_axis, plain
from experiments.studies.convergence.headline import GOAL, Report, arms_of, estimates_of, tv_of
from experiments.tables import group_rows

_LEAST = 1e-5  # smaller distances are drawn here
_NOTHING = 0.5  # zero prefixes on a logarithmic axis
_EXACT = "exact sampler, as many draws"
LABELS = {"particles": "particles", "read": "prefixes read a run"}
"""Horizontal axes of panels: columns of estimates and their labels."""
_FEW = 8  # maximum number of arms with intervals in a panel


def plot_medians(reports: Sequence[Report], path: Path) -> None:
    """Plot medians over problems of the total variation against particles and against reads."""
    arms = arms_of(reports)
    figure = Figure(figsize=(12, 6.2), layout="constrained")
    axes = figure.subplots(1, 2, sharey=True)
    for axis, key in zip(axes, ("particles", "read"), strict=True):
        axis.axhline(GOAL, color="0.85", linewidth=4, zorder=0)
        for arm in arms:
            points = _medians(reports, arm)
            x = [max(_NOTHING, point[key]) for point in points]
            y = [max(_LEAST, point["tv"]) for point in points]
            axis.plot(x, y, **arm.style, markersize=4, linewidth=1.2)
        _distances(axis)
        plain(axis)
    axes[0].set_ylabel("total variation, median over problems")
    axes[0].set_xlabel("particles")
    _particles_axis(axes[0], reports)
    axes[1].set_xlabel("prefixes read a run, median over problems")
    log_axis(axes[1])
    _legend(figure, arms, exact=False)
    figure.savefig(path, dpi=130)


def _medians(reports: Sequence[Report], arm: Arm) -> list[dict[str, float]]:
    """Return medians over problems, by particles."""
    every = (e for report in reports for e in estimates_of(report, arm))
    return [
        {"particles": n, "read": median(e["read"] for e in own), "tv": median(map(tv_of, own))}
        for n, own in sorted(group_rows(every, itemgetter("particles")).items())
    ]


def _particles_axis(axis: Any, reports: Sequence[Report]) -> None:
    counts = sorted({e["particles"] for report in reports for e in report["estimates"]})
    axis.set_xscale("log", base=2)
    axis.xaxis.set_major_locator(FixedLocator(counts if len(counts) < 6 else counts[::2]))
    axis.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axis.xaxis.set_minor_locator(NullLocator())


def _distances(axis: Any) -> None:
    """Set up the axis of total variations."""
    axis.set_yscale("log")
    axis.set_ylim(_LEAST * 0.7, 1.3)
    axis.yaxis.set_major_locator(FixedLocator([10.0**k for k in range(-5, 1)]))
    axis.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axis.yaxis.set_minor_formatter(NullFormatter())


def _legend(figure: Any, arms: Sequence[Arm], *, exact: bool) -> None:
    handles = legend_of(arms, size=5)
    if exact:
        handles.append(Line2D([], [], color="0.6", linewidth=2.5, label=_EXACT))
    handles.append(Line2D([], [], color="0.85", linewidth=5, label=f"total variation of {GOAL}"))
    columns = min(len(handles), max(2, int(figure.get_figwidth() / 2.2)))
    figure.legend(handles=handles, loc="outside lower center", ncols=columns, frameon=False)


def plot_panels(reports: Sequence[Report], path: Path, key: str) -> None:
    """Plot the total variation of the law of one answer, with a panel for each problem.

    Args:
        reports: one report per problem.
        path: the image file.
        key: key of `LABELS`; the horizontal axis.
    """
    columns = min(5, len(reports))
    lines = math.ceil(len(reports) / columns)
    size = (1.2 + 3.0 * columns, 1.3 + 2.9 * lines)
    figure = Figure(figsize=size, layout="constrained")
    axes = figure.subplots(lines, columns, sharey=True, squeeze=False)
    arms = arms_of(reports)
    for axis in axes.flat[len(reports) :]:
        axis.set_visible(False)
    for index, (axis, report) in enumerate(zip(axes.flat, reports, strict=False)):
        _panel(axis, report, arms, key)
        if key == "particles":
            _particles_axis(axis, reports)
        else:
            log_axis(axis)
        axis.set_title(_title(report["name"]), fontsize=10)
        if index + columns >= len(reports):
            axis.set_xlabel(LABELS[key])
        if index % columns == 0:
            axis.set_ylabel("total variation")
    _legend(figure, arms, exact=True)
    figure.savefig(path, dpi=130)


def _title(name: str) -> str:
    """Return a problem's name, truncated and without math mode."""
    return (name if len(name) <= 40 else name[:39] + "…").replace("$", r"\$")


def _panel(axis: Any, report: Report, arms: Sequence[Arm], key: str) -> None:
    axis.axhline(GOAL, color="0.85", linewidth=4, zorder=0)
    for arm in arms:
        rows = estimates_of(report, arm)
        x = [max(_NOTHING, e[key]) if key == "read" else e[key] for e in rows]
        axis.plot(
            x,
            [max(_LEAST, tv_of(e)) for e in rows],
            **arm.style,
            markersize=4 if len(arms) <= _FEW else 3,
            linewidth=1.2 if len(arms) <= _FEW else 0.9,
        )
        if key == "particles" and len(arms) <= _FEW:
            axis.fill_between(
                x,
                [max(_LEAST, e["tv_low"] if e["tv_exact"] is None else tv_of(e)) for e in rows],
                [max(_LEAST, e["tv_high"] if e["tv_exact"] is None else tv_of(e)) for e in rows],
                color=arm.style["color"],
                alpha=0.15,
                linewidth=0,
            )
    exact = {"color": "0.6", "linewidth": 2.5, "alpha": 0.7, "zorder": 0}
    if key == "particles":
        floors = {e["particles"]: e["exact_sampler_tv"] for e in report["estimates"]}
        axis.plot(sorted(floors), [max(_LEAST, floors[n]) for n in sorted(floors)], **exact)
    else:
        # The floor depends on draws, not on prefixes: show that of the most draws.
        floor = min(e["exact_sampler_tv"] for e in report["estimates"])
        axis.axhline(max(_LEAST, floor), **exact)
    _distances(axis)
    plain(axis)

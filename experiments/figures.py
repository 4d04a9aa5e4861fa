"""Figures of comparisons: accuracy and evidence by particles and by prefixes read."""

from __future__ import annotations

import textwrap
from collections.abc import Callable, Mapping, Sequence
from operator import itemgetter
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import (
    FixedLocator,
    FuncFormatter,
    LogLocator,
    NullLocator,
    ScalarFormatter,
)

from experiments.arms import ALGORITHMS, Arm, arms_in, method_of
from experiments.config import FACTORS, multiple_in
from experiments.tables import WEIGHTED, Group, Metric, styles_in

Records = Sequence[dict[str, Any]]
"""Records of `summarize`."""
PERCENT = FuncFormatter(lambda share, _: f"{100 * share:g}%")
_TITLE_WIDTH = 80  # characters per line of the title
_SETTINGS_WIDTH = 125  # characters per line of the settings


def plain(axis: Any) -> None:
    """Draw a faint grid, and hide the top and right spines."""
    axis.grid(alpha=0.3)
    axis.spines[["top", "right"]].set_visible(False)


def log_axis(axis: Any) -> None:
    """Make the horizontal axis logarithmic, with plain numbers at 1, 2 and 5."""
    axis.set_xscale("log")
    low, high = axis.get_xlim()
    spare = max(1.0, (10 / (high / low)) ** 0.5)
    axis.set_xlim(low / spare, high * spare)  # at least a decade
    axis.xaxis.set_major_locator(LogLocator(subs=(1, 2, 5) if high / low < 1e3 else (1,)))
    axis.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axis.xaxis.set_minor_locator(NullLocator())


def legend_of(arms: Sequence[Arm], size: float = 6) -> list[Line2D]:
    """Make legend entries: color and marker per method, line style per algorithm.

    Args:
        arms: the arms of the figure.
        size: marker size in points.
    """
    methods = [method_of(name) for name in dict.fromkeys(arm.method for arm in arms)]
    variants = [ALGORITHMS[name] for name in dict.fromkeys(arm.algorithm for arm in arms)]
    handles = [
        Line2D([], [], color=m.color, marker=m.marker, markersize=size, label=m.title)
        for m in methods
    ]
    if len(variants) == 1:
        return handles
    for handle in handles:
        handle.set_linestyle("none")
    return [
        *handles,
        *(Line2D([], [], color="0.3", linestyle=v.line, label=v.title) for v in variants),
    ]


def plot_all(
    summary: Records,
    differences: Records,
    directory: Path,
    title: str,
    settings: str,
    metric: Metric = WEIGHTED,
) -> dict[str, Path]:
    """Write the figures of a comparison, and return their files by name.

    Each of `COMPARISONS` has two panels side by side for each style of answers, in which an arm is
    a line over its numbers of particles. A run with budgets that are multiples also has a figure of
    the budgets.

    Args:
        summary: records of `experiments.tables.summarize`.
        differences: records of `experiments.tables.differences`.
        directory: directory of the images.
        title: the question of the comparison.
        settings: the settings, in smaller print.
        metric: a share with an interval.
    """
    styles, files = styles_in(summary), {}
    for name, draw in COMPARISONS.items():
        figure = Figure(figsize=(10, 0.6 + 4 * len(styles)), layout="constrained")
        axes = figure.subplots(len(styles), 2, squeeze=False)
        for style, panels in zip(styles, axes, strict=True):
            draw([s for s in summary if s.get("style", "") == style], panels, metric)
            for axis in panels:
                plain(axis)
                if len(styles) > 1:
                    axis.set_title(style if ":" in style else f"{style} style", fontsize="medium")
        files[name] = _finish(figure, summary, title, settings, directory / f"{name}.png")
    if any(multiple_in(s.get("style", "")) for s in summary):
        path = directory / "budgets.png"
        files["budgets"] = _plot_budgets(summary, differences, path, title, settings, metric)
    return files


def _finish(figure: Any, summary: Records, title: str, settings: str, path: Path) -> Path:
    """Add title, legend and settings, and write the figure."""
    handles = legend_of(arms_in(summary))
    legend = figure.legend(
        handles=handles, loc="outside lower center", ncols=min(6, len(handles)), frameon=False,
        title=textwrap.fill(settings, _SETTINGS_WIDTH), title_fontsize="small",
    )  # fmt: skip
    legend.get_title().set(color="0.35", horizontalalignment="center")
    figure.suptitle(textwrap.fill(title, _TITLE_WIDTH))
    figure.savefig(path, dpi=150)
    return path


def _accuracy(records: Records, panels: Sequence[Any], metric: Metric) -> None:
    """Plot the metric and the share of finished answers against particles."""
    left, right = panels
    _measure(left, records, "particles", metric, apart=0.06)
    for arm, rows in _lines(records):
        right.plot(_column(rows, "particles"), _column(rows, "complete"), **arm.style)
    right.set_ylabel("answers finished within the budget")
    right.set_ylim(-0.03, 1.03)
    right.yaxis.set_major_formatter(PERCENT)
    for axis in panels:
        axis.set_xscale("log", base=2)
        axis.xaxis.set_major_locator(FixedLocator(sorted({s["particles"] for s in records})))
        axis.xaxis.set_minor_locator(NullLocator())
        axis.xaxis.set_major_formatter(ScalarFormatter())
        axis.set_xlabel("particles")


def _reads(records: Records, panels: Sequence[Any], metric: Metric) -> None:
    """Plot the metric and the evidence against prefixes read by the language model.

    If every method answers every request, the evidence is the mean log evidence, and higher is
    closer to the truth. Otherwise the means would be over different requests, so the share of the
    evidence found is plotted.
    """
    left, right = panels
    labels = {
        "evidence_found": "share of the evidence found",
        "log_evidence": "mean log evidence (nats)",
    }
    some_miss = any(0 < s["log_evidence_examples"] < s["examples"] for s in records)
    shown = "evidence_found" if some_miss else "log_evidence"
    _measure(left, records, "read", metric)
    for arm, rows in _lines(records):
        some = [s for s in rows if s[shown] is not None]
        right.plot(_column(some, "read"), _column(some, shown), **arm.style)
    right.set_ylabel(labels[shown])
    for axis in panels:
        if all(s["read"] > 0 for s in records):
            log_axis(axis)
        axis.set_xlabel("prefixes read per request, without the prompt")


COMPARISONS: dict[str, Callable[[Records, Sequence[Any], Metric], None]] = {
    "accuracy": _accuracy,
    "reads": _reads,
}
"""Functions that draw the figures of a comparison, by the name of the figure."""


def _plot_budgets(
    summary: Records,
    differences: Records,
    path: Path,
    title: str,
    settings: str,
    metric: Metric,
) -> Path:
    """Write a figure of the share of finished, valid answers and of the metric by budget.

    A bar is the paired interval of the difference to the reference, drawn around the arm's own
    point. If it doesn't contain the reference's point, the difference is significant. The reference
    has no bars.
    """
    shown = {"valid": "finished and valid", metric.name: metric.label or metric.title}
    points = [(*multiple, s) for s in summary if (multiple := multiple_in(s.get("style", "")))]
    styles = list(dict.fromkeys(style for style, _, _ in points))
    counts = sorted({s["particles"] for _, _, s in points})
    paired = {Group.of(d): d for d in differences}
    columns = [(name, N) for name in shown for N in counts]
    parts = "".join(s["style"] for _, _, s in points)
    tokens = " or ".join(text for kind, text in FACTORS.items() if f"{kind}:" in parts)
    size = (max(10, 1 + 3 * len(columns)), 0.9 + 3 * len(styles))
    figure = Figure(figsize=size, layout="constrained")
    axes = figure.subplots(len(styles), len(columns), squeeze=False, sharex=True)
    for style, panels in zip(styles, axes, strict=True):
        for (name, N), axis in zip(columns, panels, strict=True):
            own = [(x, s) for of, x, s in points if (of, s["particles"]) == (style, N)]
            _lines_by_budget(axis, own, name, paired)
            axis.set_title(
                f"{shown[name]}\n{N} particle{'s' * (N > 1)}{f', {style} style' * bool(style)}",
                fontsize="small",
            )
    for axis in axes[-1]:
        axis.set_xlabel(f"budget / {tokens}")
    if differences:
        reference = method_of(differences[0]["reference"]).title
        settings += f" Bars: paired 95% intervals of the difference to {reference}."
    return _finish(figure, [s for _, _, s in points], title, settings, path)


def _lines_by_budget(
    axis: Any,
    points: Sequence[tuple[float, dict[str, Any]]],
    name: str,
    paired: Mapping[Group, dict[str, Any]],
) -> None:
    """Draw one panel: a line for each arm, with its records by the factor of the budget."""
    arms = arms_in(s for _, s in points)
    for number, arm in enumerate(arms):
        moved = 0.02 * (number - (len(arms) - 1) / 2)  # so that bars don't overlap
        own = sorted(((x + moved, s) for x, s in points if Arm.of(s) == arm), key=itemgetter(0))
        axis.plot([x for x, _ in own], [s[name] for _, s in own], markersize=5, **arm.style)
        for x, s in own:
            d = paired.get(Group.of(s), {})
            if name in d:
                ends = (s[name] - d[name] + d[f"{name}_{end}"] for end in ("low", "high"))
                axis.vlines(x, *ends, color=arm.style["color"], linewidth=1)
    plain(axis)
    axis.set_ylim(-0.02, 1.02)
    axis.yaxis.set_major_formatter(PERCENT)
    axis.xaxis.set_major_locator(FixedLocator(sorted({x for x, _ in points})))


def _lines(summary: Records) -> list[tuple[Arm, list[dict[str, Any]]]]:
    """Return each arm with its records, sorted by particles."""
    ordered = sorted(summary, key=lambda s: s["particles"])
    return [(arm, [s for s in ordered if Arm.of(s) == arm]) for arm in arms_in(summary)]


def _column(rows: Records, key: str) -> list[float]:
    return [s[key] for s in rows]


def _measure(axis: Any, summary: Records, column: str, metric: Metric, apart: float = 0) -> None:
    """Plot a measure with its intervals against a column.

    Args:
        axis: the axis.
        summary: records of `summarize`.
        column: key of the horizontal axis.
        metric: the measure; a share with an interval.
        apart: neighboring arms with equal values are drawn a factor of 1 + `apart` apart.
    """
    lines = _lines(summary)
    for number, (arm, rows) in enumerate(lines):
        moved = (1 + apart) ** (number - (len(lines) - 1) / 2)
        x = [value * moved for value in _column(rows, column)]
        axis.plot(x, _column(rows, metric.name), **arm.style)
        low, high = (_column(rows, f"{metric.name}_{end}") for end in ("low", "high"))
        axis.vlines(x, low, high, color=arm.style["color"], linewidth=1, alpha=0.7)
    axis.set_ylabel(f"{metric.label or metric.title}\n(95% intervals)")
    axis.set_ylim(bottom=0)
    axis.yaxis.set_major_formatter(PERCENT)

"""This module draws what tasks share: arms by particles and by what they read, and a training."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import (
    FixedLocator,
    FuncFormatter,
    NullLocator,
    ScalarFormatter,
)

from experiments.harness.algorithms import ALGORITHMS, Arm, arms_in
from experiments.harness.methods import method_of
from experiments.harness.settings import FACTORS, multiple_in
from experiments.harness.summary import Group, styles_in

Records = Sequence[dict[str, Any]]
"""Those of `summarize`."""
PERCENT = FuncFormatter(lambda share, _: f"{100 * share:g}%")
_TITLE_WIDTH = 80  # letters of a line over both panels
_SETTINGS_WIDTH = 125  # in smaller letters


def plain(axis: Any) -> None:
    """Give an axis a faint grid, and a frame on two sides only."""
    axis.grid(alpha=0.3)
    axis.spines[["top", "right"]].set_visible(False)


def log_axis(axis: Any) -> None:
    """Make the horizontal axis logarithmic, a decade at least, so that equal values look equal."""
    axis.set_xscale("log")
    low, high = axis.get_xlim()
    spare = max(1.0, (10 / (high / low)) ** 0.5)
    low, high = low / spare, high * spare
    axis.set_xlim(low, high)
    decades = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    digits = (1, 2, 5) if len(decades) < 4 else (1,)
    ticks = [d * 10.0**k for k in decades for d in digits]
    axis.xaxis.set_major_locator(FixedLocator([tick for tick in ticks if low <= tick <= high]))
    axis.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axis.xaxis.set_minor_locator(NullLocator())


def legend_of(arms: Sequence[Arm], size: float = 6) -> list[Line2D]:
    """Make the entries of a legend: methods by colour and marker, algorithms by line.

    Args:
        size: of the markers, in points.
    """
    methods = [method_of(name) for name in dict.fromkeys(arm.method for arm in arms)]
    variants = [ALGORITHMS[name] for name in dict.fromkeys(arm.algorithm for arm in arms)]
    handles = [
        Line2D([], [], color=m.colour, marker=m.marker, markersize=size, label=m.title)
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


def plot_comparison(
    name: str,
    summary: Records,
    path: Path,
    title: str,
    settings: str,
    metric: str = "posterior-weighted accuracy",
    key: str = "weighted_accuracy",
) -> None:
    """Write one of `COMPARISONS` to `path`: two panels beside each other for each style of answers.

    Args:
        summary: records of `summarize`; each arm is a line through its numbers of particles, with
            the bootstrap interval of each.
        title: what was asked, in words.
        settings: how, in smaller letters.
        metric: what is shown, in words.
        key: where the summary has it, a share with the ends of its interval.
    """
    styles = styles_in(summary)
    figure = Figure(figsize=(10, 0.6 + 4 * len(styles)), layout="constrained")
    axes = figure.subplots(len(styles), 2, squeeze=False)
    for style, panels in zip(styles, axes, strict=True):
        records = [s for s in summary if s.get("style", "") == style]
        COMPARISONS[name](records, panels, metric, key)
        for axis in panels:
            plain(axis)
            if len(styles) > 1:
                axis.set_title(style if ":" in style else f"{style} style", fontsize="medium")
    _finish(figure, arms_in(summary), title, settings, path)


def _finish(figure: Any, arms: Sequence[Arm], title: str, settings: str, path: Path) -> None:
    """Write a figure of these arms: a title above, a legend and the settings below."""
    handles = legend_of(arms)
    legend = figure.legend(
        handles=handles, loc="outside lower center", ncols=min(6, len(handles)), frameon=False,
        title=textwrap.fill(settings, _SETTINGS_WIDTH), title_fontsize="small",
    )  # fmt: skip
    legend.get_title().set(color="0.35", horizontalalignment="center")
    figure.suptitle(textwrap.fill(title, _TITLE_WIDTH))
    figure.savefig(path, dpi=150)


def _accuracy(records: Records, panels: Sequence[Any], metric: str, key: str) -> None:
    """The metric beside the share of finished answers, against particles."""
    left, right = panels
    _measure(left, records, "particles", metric, key, apart=0.06)
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


def _reads(records: Records, panels: Sequence[Any], metric: str, key: str) -> None:
    """The metric and the evidence, against what the language model read.

    Where every method answers every request that is the mean log evidence, of which more is nearer
    to the truth; where some miss requests, their means are over others, so it is the share of the
    evidence that was found.
    """
    left, right = panels
    labels = {
        "evidence_found": "share of the evidence found",
        "log_evidence": "mean log evidence (nats)",
    }
    some_miss = any(0 < s["log_evidence_examples"] < s["examples"] for s in records)
    shown = "evidence_found" if some_miss else "log_evidence"
    _measure(left, records, "read", metric, key)
    for arm, rows in _lines(records):
        some = [s for s in rows if s[shown] is not None]
        right.plot(_column(some, "read"), _column(some, shown), **arm.style)
    right.set_ylabel(labels[shown])
    for axis in panels:
        _cost(axis, records, "read", "prefixes read a request, the prompt aside")


def _costs(records: Records, panels: Sequence[Any], metric: str, key: str) -> None:
    """The metric against language model calls, and against seconds."""
    costs = {
        "lm_calls_each": "language model calls a request",
        "seconds_each": "seconds a request, its share of a batch",
    }
    for axis, (cost, label) in zip(panels, costs.items(), strict=True):
        _measure(axis, records, cost, metric, key)
        _cost(axis, records, cost, label)


COMPARISONS: dict[str, Callable[[Records, Sequence[Any], str, str], None]] = {
    "accuracy": _accuracy,
    "reads": _reads,
    "costs": _costs,
}
"""What is drawn of every comparison, by the names of the figures."""


def plot_budgets(
    summary: Records,
    differences: Records,
    path: Path,
    title: str,
    settings: str,
    metric: str,
    key: str,
) -> None:
    """Write a figure to `path`: answers that are finished and valid, and how good they are.

    A bar is the paired interval of the difference to the reference, around the arm's own point: one
    that does not reach the reference's point is a difference. The reference has no bars.

    Args:
        summary: records of `summarize` whose parts are budgets by multiples
            (`experiments.harness.settings.part_of`); others are left out.
        differences: those of `paired.differences`, in "valid" and in `key`.
        title, settings, metric, key: as for `plot_comparison`.
    """
    shown = {"valid": "finished and valid", key: metric}
    points = [(*place, s) for s in summary if (place := multiple_in(s.get("style", "")))]
    styles = list(dict.fromkeys(style for style, _, _ in points))
    factors = sorted({factor for _, factor, _ in points})
    counts = sorted({s["particles"] for _, _, s in points})
    arms = arms_in(s for _, _, s in points)
    paired = {Group.of(d): d for d in differences}
    columns = [(name, N) for name in shown for N in counts]
    parts = "".join(s["style"] for _, _, s in points)
    tokens = " or ".join(text for kind, text in FACTORS.items() if f"{kind}:" in parts)
    size = (max(10, 1 + 3 * len(columns)), 0.9 + 3 * len(styles))
    figure = Figure(figsize=size, layout="constrained")
    axes = figure.subplots(len(styles), len(columns), squeeze=False)
    gap = 0.08 * (factors[-1] - factors[0] or 1) / max(1, len(arms))
    for style, panels in zip(styles, axes, strict=True):
        for (name, N), axis in zip(columns, panels, strict=True):
            for number, arm in enumerate(arms):
                moved = gap * (number - (len(arms) - 1) / 2)  # so that bars can be told apart
                own = sorted(
                    (factor + moved, s[name], paired.get(Group.of(s), {}))
                    for of, factor, s in points
                    if (of, s["particles"], Arm.of(s)) == (style, N, arm)
                )
                axis.plot([x for x, _, _ in own], [y for _, y, _ in own], markersize=5, **arm.style)
                for x, y, d in own:
                    if name in d:
                        ends = (y - d[name] + d[f"{name}_{end}"] for end in ("low", "high"))
                        axis.vlines(x, *ends, color=arm.style["color"], linewidth=1)
            plain(axis)
            axis.yaxis.set_major_formatter(PERCENT)
            axis.xaxis.set_major_locator(FixedLocator(factors))
            axis.set_title(
                f"{shown[name]}\n{N} particle{'s' * (N > 1)}{f', {style} style' * bool(style)}",
                fontsize="small",
            )
    for axis in axes[-1]:
        axis.set_xlabel(f"budget / {tokens}")
    for name in shown:  # one scale for each measure
        same = list(axes[:, [column for column, _ in columns] == np.array(name)].flat)
        low, high = zip(*(axis.get_ylim() for axis in same), strict=True)
        for axis in same:
            axis.set_ylim(max(min(low), -0.02), min(max(high), 1.02))
    if differences:
        reference = method_of(differences[0]["reference"]).title
        settings += f" Bars: paired 95 % intervals of the difference to {reference}."
    _finish(figure, arms, title, settings, path)


def _lines(summary: Records) -> list[tuple[Arm, list[dict[str, Any]]]]:
    """Each arm with its records, by particles."""
    ordered = sorted(summary, key=lambda s: s["particles"])
    return [(arm, [s for s in ordered if Arm.of(s) == arm]) for arm in arms_in(summary)]


def _column(rows: Records, key: str) -> list[float]:
    return [s[key] for s in rows]


def _cost(axis: Any, summary: Records, key: str, label: str) -> None:
    """The horizontal axis of a cost, logarithmic unless something was free."""
    if all(s[key] > 0 for s in summary):
        log_axis(axis)
    axis.set_xlabel(label)


def _measure(
    axis: Any, summary: Records, column: str, metric: str, key: str, apart: float = 0
) -> None:
    """A measure against a column, each point with its interval.

    Args:
        apart: factor less one between the places of neighbouring arms that have equal values.
    """
    lines = _lines(summary)
    for number, (arm, rows) in enumerate(lines):
        moved = (1 + apart) ** (number - (len(lines) - 1) / 2)
        x = [value * moved for value in _column(rows, column)]
        axis.plot(x, _column(rows, key), **arm.style)
        low, high = (_column(rows, f"{key}_{end}") for end in ("low", "high"))
        axis.vlines(x, low, high, color=arm.style["color"], linewidth=1, alpha=0.7)
    axis.set_ylabel(f"{metric}\n(95 % intervals)")
    axis.set_ylim(bottom=0)
    axis.yaxis.set_major_formatter(PERCENT)

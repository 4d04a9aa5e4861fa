"""This module draws what tasks share: arms by particles and by what they read, and a training."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("Agg")  # files only: no display is needed or touched

import matplotlib.pyplot as plt
from matplotlib.lines import Line2D
from matplotlib.ticker import (
    FixedLocator,
    FuncFormatter,
    NullLocator,
    PercentFormatter,
    ScalarFormatter,
)

from experiments.harness.algorithms import ALGORITHMS
from experiments.harness.arms import Arm, arms_in
from experiments.harness.methods import method_of
from experiments.harness.summary import styles_in

Records = Sequence[dict[str, Any]]
"""Those of `summarize`."""
_TITLE_WIDTH = 95  # letters of a line over both panels
_FEW = 3  # so many intervals can be told apart in one panel


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
        arms: those of the figure.
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


def plot_accuracy(
    summary: Sequence[dict[str, Any]],
    path: Path,
    title: str,
    metric: str = "posterior-weighted accuracy",
    key: str = "weighted_accuracy",
) -> None:
    """Write a figure to `path`: accuracy beside the share of finished answers, against particles.

    Args:
        summary: records of `summarize`; each arm is a line, its bootstrap interval a band.
        path: of the image.
        title: of the figure.
        metric: what is shown, in words.
        key: where the summary has it, a share with the ends of its interval.
    """
    counts = sorted({s["particles"] for s in summary})

    def draw(records: Records, panels: Sequence[Any]) -> None:
        left, right = panels
        _measure(left, records, "particles", metric, key)
        for arm, rows in _lines(records):
            right.plot(_column(rows, "particles"), _column(rows, "complete"), **arm.style)
        right.set_ylabel("answers finished within the budget")
        right.set_ylim(-0.03, 1.03)
        right.yaxis.set_major_formatter(PercentFormatter(1.0, decimals=0))
        for axis in (left, right):
            axis.set_xscale("log", base=2)
            axis.xaxis.set_major_locator(FixedLocator(counts))
            axis.xaxis.set_minor_locator(NullLocator())
            axis.xaxis.set_major_formatter(ScalarFormatter())
            axis.set_xlabel("particles")

    _figure(summary, path, title, draw)


def plot_reads(
    summary: Sequence[dict[str, Any]],
    path: Path,
    title: str,
    metric: str = "posterior-weighted accuracy",
    key: str = "weighted_accuracy",
) -> None:
    """Write a figure to `path`: accuracy and log evidence, against what the language model read.

    Of the log evidence it shows how far it varies over repetitions; where there are none, its mean,
    which is the lower the more it varies (Jensen's inequality).

    Args:
        summary: records of `summarize`; each arm is a line through its numbers of particles.
        path: of the image.
        title: of the figure.
        metric: what is shown, in words.
        key: where the summary has it, a share with the ends of its interval.
    """
    repeated = any(s["log_evidence_sd"] is not None for s in summary)
    shown = "log_evidence_sd" if repeated else "log_evidence"

    def draw(records: Records, panels: Sequence[Any]) -> None:
        left, right = panels
        _measure(left, records, "read", metric, key)
        for arm, rows in _lines(records):
            some = [s for s in rows if s[shown] is not None]
            right.plot(_column(some, "read"), _column(some, shown), **arm.style)
        right.set_ylabel(
            "standard deviation of the log evidence" if repeated else "mean log evidence (nats)"
        )
        for axis in (left, right):
            _cost(axis, records, "read", "prefixes read a request, the prompt aside")

    _figure(summary, path, title, draw)


def plot_costs(
    summary: Sequence[dict[str, Any]],
    path: Path,
    title: str,
    metric: str = "posterior-weighted accuracy",
    key: str = "weighted_accuracy",
) -> None:
    """Write a figure to `path`: accuracy against language model calls, and against seconds.

    Args:
        summary: records of `summarize`; each arm is a line through its numbers of particles.
        path: of the image.
        title: of the figure.
        metric: what is shown, in words.
        key: where the summary has it, a share with the ends of its interval.
    """

    def draw(records: Records, panels: Sequence[Any]) -> None:
        costs = {
            "lm_calls_each": "language model calls a request",
            "seconds_each": "seconds a request, its share of a batch",
        }
        for axis, (cost, label) in zip(panels, costs.items(), strict=True):
            _measure(axis, records, cost, metric, key)
            _cost(axis, records, cost, label)

    _figure(summary, path, title, draw)


def _figure(
    summary: Records, path: Path, title: str, draw: Callable[[Records, Sequence[Any]], None]
) -> None:
    """Two panels beside each other for each style of answers."""
    styles = styles_in(summary)
    figure, axes = plt.subplots(
        len(styles), 2, figsize=(10, 0.6 + 4 * len(styles)), layout="constrained", squeeze=False
    )
    for style, panels in zip(styles, axes, strict=True):
        draw([s for s in summary if s.get("style", "") == style], panels)
        for axis in panels:
            plain(axis)
            if len(styles) > 1:
                axis.set_title(f"{style} style", fontsize="medium")
    handles = legend_of(arms_in(summary))
    figure.legend(
        handles=handles, loc="outside lower center", ncols=min(6, len(handles)), frameon=False
    )
    figure.suptitle(textwrap.fill(title, _TITLE_WIDTH))
    figure.savefig(path, dpi=150)
    plt.close(figure)


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


def _measure(axis: Any, summary: Records, column: str, metric: str, key: str) -> None:
    """A measure against a column, with intervals where they can be told apart."""
    lines = _lines(summary)
    for arm, rows in lines:
        x = _column(rows, column)
        axis.plot(x, _column(rows, key), **arm.style)
        if len(lines) <= _FEW:
            low, high = (_column(rows, f"{key}_{end}") for end in ("low", "high"))
            axis.fill_between(x, low, high, color=arm.style["color"], alpha=0.12, linewidth=0)
    interval = " (95 % interval)" if len(lines) <= _FEW else ""
    axis.set_ylabel(f"{metric}{interval}")
    axis.set_ylim(bottom=0)
    axis.yaxis.set_major_formatter(PercentFormatter(1.0, decimals=0))


def plot_losses(losses: Sequence[tuple[int, float, float]], path: Path) -> None:
    """Write the curve of a training to `path`.

    Args:
        losses: step, training loss and held-out loss, in nats a character.
        path: of the image.
    """
    steps, training, held_out = zip(*losses, strict=True)
    figure, axes = plt.subplots(figsize=(6, 4), layout="constrained")
    axes.plot(steps, training, marker="o", markersize=3, label="training")
    axes.plot(steps, held_out, marker="s", markersize=3, label="held out")
    axes.set(xlabel="step", ylabel="nats a character", title="Character-level model")
    axes.legend()
    figure.savefig(path, dpi=150)
    plt.close(figure)

"""This module draws what tasks share: accuracy against particles, and the curve of a training."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("Agg")  # files only: no display is needed or touched

import matplotlib.pyplot as plt
from matplotlib.ticker import FixedLocator, NullLocator, PercentFormatter, ScalarFormatter

from experiments.harness.methods import METHODS


def plain(axis: Any) -> None:
    """Give an axis a faint grid, and a frame on two sides only."""
    axis.grid(alpha=0.3)
    axis.spines[["top", "right"]].set_visible(False)


def plot_accuracy(summary: Sequence[dict[str, Any]], path: Path, title: str) -> None:
    """Write a figure to `path`: accuracy beside the share of finished answers, against particles.

    Args:
        summary: records of `summarize`; each method is a line, its bootstrap interval a band.
        path: of the image.
        title: of the figure.
    """
    figure, (left, right) = plt.subplots(1, 2, figsize=(10, 4.2), layout="constrained")
    methods = list(dict.fromkeys(s["method"] for s in summary))
    counts = sorted({s["particles"] for s in summary})
    for method in methods:
        rows = sorted((s for s in summary if s["method"] == method), key=lambda s: s["particles"])
        x = [s["particles"] for s in rows]
        known = METHODS[method]
        style = {"color": known.colour, "marker": known.marker, "label": known.title}
        left.plot(x, [s["weighted_accuracy"] for s in rows], **style)
        left.fill_between(
            x,
            [s["weighted_accuracy_low"] for s in rows],
            [s["weighted_accuracy_high"] for s in rows],
            color=style["color"],
            alpha=0.15,
            linewidth=0,
        )
        right.plot(x, [s["complete"] for s in rows], **style)
    left.set_ylabel("posterior-weighted accuracy (95 % interval)")
    right.set_ylabel("answers finished within the budget")
    right.set_ylim(-0.03, 1.03)
    left.set_ylim(bottom=0)
    for axis in (left, right):
        axis.set_xscale("log", base=2)
        axis.xaxis.set_major_locator(FixedLocator(counts))
        axis.xaxis.set_minor_locator(NullLocator())
        axis.xaxis.set_major_formatter(ScalarFormatter())
        axis.yaxis.set_major_formatter(PercentFormatter(1.0, decimals=0))
        axis.set_xlabel("particles")
        plain(axis)
    left.legend(frameon=False)
    figure.suptitle(title)
    figure.savefig(path, dpi=150)
    plt.close(figure)


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

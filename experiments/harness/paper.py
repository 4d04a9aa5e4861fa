"""The paper's figures are here, to be printed beside what a run gives.

They are those of Dang, Song, Zhang, Zhao, Van den Broeck and Ermon (arXiv 2606.01926) for tool
calls with Llama-3.1-8B-Instruct, in percent. What is not known is not filled in.

Of *satisfaction* (Table 1) ours is the share of particles that finish within the budget: the
paper's hardly changes from 4 to 16 particles, as the share of examples with a surviving particle
would. Of *accuracy* (Table 3) ours is weighted by the posterior.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pandas as pd

from experiments.harness.arms import Arm, arms_in
from experiments.harness.methods import method_of
from experiments.harness.summary import styles_in
from experiments.harness.tables import as_markdown, number, with_interval

MODEL = "Llama-3.1-8B-Instruct"
"""The paper's language model."""

Figures = Mapping[tuple[str, str], Mapping[int, float]]
"""Percent, by style and method, then by number of particles."""


@dataclass(frozen=True)
class Published:
    """A table of the paper.

    Attributes:
        title: which, and what it says.
        measure: the key of our records that is compared with it (`summary.summarize`).
        ours: what that is, in words.
        figures: the paper's.
    """

    title: str
    measure: str
    ours: str
    figures: Figures


_SATISFACTION: Figures = {
    ("json", "lcd"): {4: 95.26, 16: 95.40},
    ("json", "gcd"): {4: 100.0, 16: 100.0},
    ("json", "pgcd"): {4: 100.0, 16: 100.0},
    ("python", "lcd"): {4: 98.12, 16: 99.20},
    ("python", "gcd"): {4: 100.0, 16: 100.0},
    ("python", "pgcd"): {4: 100.0, 16: 100.0},
}
_ACCURACY: Figures = {
    ("json", "lcd"): {1: 66.4, 2: 68.2, 4: 69.3, 8: 69.7, 16: 69.7},
    ("json", "pgcd:H1024"): {1: 65.4, 2: 68.6, 4: 70.2, 8: 71.1, 16: 71.5},
    ("json", "pgcd:H16384"): {1: 66.5, 2: 69.2, 4: 70.5, 8: 71.5, 16: 71.6},
}
_WEIGHTED = "accuracy weighted by the posterior"

PAPER: dict[str, Published] = {
    "table1": Published(
        "Table 1, constraint satisfaction",
        "share_finished",
        "the share of particles that finish within the budget",
        _SATISFACTION,
    ),
    "table3": Published(
        "Table 3, accuracy by hidden states of the HMM", "weighted_accuracy", _WEIGHTED, _ACCURACY
    ),
    "figure2": Published(
        "Figure 2, accuracy by particles (figures of Table 3, where known)",
        "weighted_accuracy",
        _WEIGHTED,
        _ACCURACY,
    ),
}
"""What `paper=NAME` prints."""


def beside(name: str, summary: Sequence[Mapping[str, Any]], model: str) -> str:
    """Write the paper's figures beside ours, in Markdown.

    Args:
        name: a key of `PAPER`.
        summary: records of a run.
        model: what ours are from.
    """
    published = PAPER[name]
    known = published.figures
    ours = {
        (s.get("style", ""), Arm.of(s), s["particles"]): with_interval(s, published.measure)
        for s in summary
    }
    counts = sorted({k for _, _, k in ours} | {k for each in known.values() for k in each})
    rows = [(style, arm) for style in styles_in(summary) for arm in arms_in(summary)]
    there = {(style, arm.method) for style, arm in rows}
    lines: list[tuple[str, str, Arm | None]] = [(style, arm.method, arm) for style, arm in rows]
    lines += [(*each, None) for each in known if each not in there]
    table = pd.DataFrame(
        {
            "style": style,
            "method": method_of(method).title,
            "algorithm": arm.titles["algorithm"] if arm else "–",
            **{
                f"k = {k}, {whose}": cell
                for k in counts
                for whose, cell in (
                    ("ours", ours.get((style, arm, k), "–") if arm else "–"),
                    ("paper", number(known.get((style, method), {}).get(k), 1)),
                )
            },
        }
        for style, method, arm in lines
    )
    return (
        f"### Beside the paper: {published.title}, %\n\n{as_markdown(table)}\n\n"
        f"Ours are from {model}: {published.ours}. The paper's (arXiv 2606.01926) are from "
        f"{MODEL}; its records, prompts, budgets and HMMs are others, so that what compares is the "
        "order of methods and the differences between them, not the level.\n"
    )

"""What a comparison prints: a sentence of result, and a table of at most 120 columns.

`table.md` has all columns and intervals. Here each part of the run has a short table; what is the
same in all rows is said once, below it.
"""

from __future__ import annotations

import textwrap
from collections.abc import Mapping, Sequence
from typing import Any

from experiments.harness.methods import method_of
from experiments.harness.paired import Compared
from experiments.harness.summary import grouped, titles_in
from experiments.harness.tables import as_columns, number, without_constants

WIDTH = 120
_METRICS = {"weighted_accuracy": "accuracy %", "expected_rouge_l": "ROUGE-L %"}
Records = Sequence[Mapping[str, Any]]


def on_screen(
    title: str,
    summary: Records,
    found: Records,
    metric_key: str,
    compared: Mapping[str, Compared],
    evidence: str,
) -> str:
    """Write the title, the result in a sentence, and the most important columns.

    Args:
        summary: records of `summarize`.
        found: paired differences (`experiments.harness.paired.differences`).
        metric_key: where the summary has what answers are judged by, a share.
        compared: what the differences are of, the first of it for the sentence.
        evidence: what evidence is compared with, in a sentence, if there is any.
    """
    titles = titles_in(summary)
    table, constants = without_constants(
        [
            {
                **titles(s),
                "particles": s["particles"],
                _METRICS.get(metric_key, metric_key): _percent(s[metric_key]),
                "valid %": _percent(s["valid"]),
                "dead rows": s["dead"],
                "evidence %": _percent(s["evidence_found"]),
                "read": number(s["read"], 0),
                "LM calls": number(s["lm_calls_each"], 1),
            }
            for s in summary
        ]
    )
    parts = []
    for style, rows in grouped(table, lambda row: row.get("style", "")).items():
        shown = [{k: cell for k, cell in row.items() if k != "style"} for row in rows]
        parts.append((f"{style}:\n" if style else "") + as_columns(shown))
    return "\n\n".join(
        [_filled(title), _filled(result(summary, found, compared)), *parts]
        + [_filled(note) for note in (constants, evidence) if note]
    )


def result(summary: Records, found: Records, compared: Mapping[str, Compared]) -> str:
    """Say who finished, and whether methods differ by more than the choice of requests explains."""
    finished, unfinished = [], []
    for method in dict.fromkeys(s["method"] for s in summary):
        own = [s for s in summary if s["method"] == method]
        worst = min(own, key=lambda s: s["valid"])
        title, total = method_of(method).title, worst["examples"] * worst["repeats"]
        left = round((1 - worst["valid"]) * total)
        if left:  # what is closed as JSON is finished, and may break the rule
            invalid = " or invalid" * (worst["valid"] < worst["complete"])
            unfinished.append(f"{title} left up to {left} of {total} unfinished{invalid}")
        else:
            finished.append(title)
    clauses = [f"{_and(finished)} finished every request"] if finished else []
    said = "; ".join([*clauses, *unfinished])
    if found:
        name, measure = next(iter(compared.items()))
        what, other = measure.title.partition(",")[0], method_of(found[0]["reference"]).title
        beyond = []
        for method in dict.fromkeys(d["method"] for d in found):
            own = [d for d in found if d["method"] == method]
            differ = sum(name in d and not d[f"{name}_low"] <= 0 <= d[f"{name}_high"] for d in own)
            if differ:
                beyond.append(f"{differ} of {len(own)} rows of {method_of(method).title}")
        beyond_chance = f"differs from {other}'s by more than chance (paired 95 % intervals)"
        said += f"; {what} {beyond_chance} in " + (_and(beyond) if beyond else "no row")
    return f"{said}."


def _percent(share: float | None) -> str:
    """A share in percent; estimates of the evidence can be far off."""
    if share is None or share <= 10:
        return number(share and 100 * share, 1)
    return "> 1000"


def _and(names: Sequence[str]) -> str:
    return " and ".join(filter(None, [", ".join(names[:-1]), *names[-1:]]))


def _filled(text: str) -> str:
    return textwrap.fill(text, WIDTH)

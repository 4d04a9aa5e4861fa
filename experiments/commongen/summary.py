"""Summaries of CommonGen rows: coverage, BLEU, ROUGE-L and the model's log-probability.

Every concept set counts in every mean except the log-probability, which requires an answer.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from operator import itemgetter
from typing import Any

import numpy as np

from experiments.commongen.metrics import bleu_counts, corpus_bleu, rouge_l
from experiments.harness.paired import Compared
from experiments.harness.results import Row
from experiments.harness.summary import (
    Group,
    Measure,
    Table,
    example_of,
    grouped,
    log_evidence_of,
    share_of_evidence,
    summarize,
    titles_in,
    with_interval,
)

PUBLISHED = (  # system, metric, figure in percent
    ("upper bound of the leaderboard v1.1 (people)", "BLEU-4", 46.49),
    ("DKMR2, leaderboard v1.1", "BLEU-4", 44.33),
    ("gpt-4-0613, CommonGen-lite", "coverage", 97.44),
    ("Llama-2-7b-chat, CommonGen-lite", "coverage", 88.56),
)


def summarize_text(
    rows: Sequence[Row], references: Mapping[str, Sequence[str]], seed: int = 0
) -> list[dict[str, Any]]:
    """Summarize the rows of each arm and number of particles.

    `references` has the reference sentences of each example.
    """
    measures: dict[str, Measure] = {
        "coverage": itemgetter("coverage"),
        "rouge_l": lambda row: rouge_l(row["answer"] or "", references[row["example"]]),
        "best_rouge_l": best_rouge_l(references),
        "expected_rouge_l": expected_rouge_l(references),
        "log_p_per_token": itemgetter("log_p_per_token"),
    }
    summary = summarize(rows, seed, measures)
    groups = grouped(rows, Group.of)
    for record in summary:
        # Repetitions of an example are resampled together.
        counts = [
            np.sum([bleu_counts(row["answer"] or "", references[name]) for row in own], axis=0)
            for name, own in grouped(groups[Group.of(record)], example_of).items()
        ]
        record |= corpus_bleu(np.stack(counts), seed).named("bleu")
        record["seconds_per_row"] = record["seconds_each"]
    return summary


def best_rouge_l(references: Mapping[str, Sequence[str]]) -> Measure:
    """Return ROUGE-L of the answer with the highest model probability; 0 without an answer."""
    return lambda row: rouge_l(row.get("best") or "", references[row["example"]])


def expected_rouge_l(references: Mapping[str, Sequence[str]]) -> Measure:
    """Return the posterior mean of ROUGE-L over the answers of a row; 0 without an answer."""

    def measure(row: Row) -> float:
        if not row["answers"]:
            return 0.0
        scores = [rouge_l(each["text"], references[row["example"]]) for each in row["answers"]]
        weights = [each["probability"] for each in row["answers"]]
        return float(np.average(scores, weights=weights))

    return measure


def compared(references: Mapping[str, Sequence[str]]) -> dict[str, Compared]:
    """Return the measures of paired comparisons, given the reference sentences of each example."""
    return {
        "expected_rouge_l": Compared("ROUGE-L (weighted)", expected_rouge_l(references)),
        "best_rouge_l": Compared("ROUGE-L (best)", best_rouge_l(references)),
        "log_p_per_token": Compared("log p a token", itemgetter("log_p_per_token"), 2, 1),
        "log_evidence": Compared("log evidence", itemgetter("log_evidence"), 2, 1),
    }


def as_table(summary: Sequence[dict[str, Any]]) -> Table:
    """Format the summary as a table; coverage, BLEU and ROUGE-L in percent, with intervals."""
    titles = titles_in(summary)
    return [
        {
            **titles(s),
            "particles": s["particles"],
            "sets": s["examples"],
            "coverage %": with_interval(s, "coverage"),
            "all concepts %": f"{100 * s['majority_accuracy']:.1f}",
            "complete %": f"{100 * s['complete']:.1f}",
            "dead rows": s["dead"],
            "BLEU-4": with_interval(s, "bleu"),
            "ROUGE-L": with_interval(s, "rouge_l"),
            "ROUGE-L (best)": with_interval(s, "best_rouge_l"),
            "ROUGE-L (weighted)": with_interval(s, "expected_rouge_l"),
            "log p a token": with_interval(s, "log_p_per_token", 2, 1),
            "evidence found %": share_of_evidence(s),
            "log evidence": log_evidence_of(s, 2),
            "read": f"{s['read']:.0f}",
            "LM calls": s["lm_calls"],
            "seconds a row": f"{s['seconds_per_row']:.2f}",
        }
        for s in summary
    ]

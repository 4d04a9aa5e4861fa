"""Metrics of CommonGen rows: coverage, BLEU, ROUGE-L and the model's log-probability.

Every concept set counts in every mean except the log-probability, which requires an answer.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from experiments.commongen.metrics import bleu_counts, corpus_bleu, rouge_l
from experiments.rows import Row
from experiments.tables import (
    Interval,
    Metric,
    Table,
    cells,
    example_of,
    group_rows,
    log_evidence_of,
    share_of_evidence,
    titles_in,
)

PUBLISHED = (  # system, metric, figure in percent
    ("upper bound of the leaderboard v1.1 (people)", "BLEU-4", 46.49),
    ("DKMR2, leaderboard v1.1", "BLEU-4", 44.33),
    ("gpt-4-0613, CommonGen-lite", "coverage", 97.44),
    ("Llama-2-7b-chat, CommonGen-lite", "coverage", 88.56),
)


def metrics_of(references: Mapping[str, Sequence[str]]) -> tuple[Metric, ...]:
    """Return the metrics of sentences, the main one first.

    `references` has the reference sentences of each example.
    """

    def score(row: Row, text: str | None) -> float:
        """Return ROUGE-L of a text; 0 without one."""
        return rouge_l(text or "", references[row["example"]])

    def average(row: Row) -> float:
        """Return the posterior mean of ROUGE-L over the answers of a row; 0 without an answer."""
        if not row["answers"]:
            return 0.0
        scores = [score(row, each["text"]) for each in row["answers"]]
        return float(np.average(scores, weights=[each["probability"] for each in row["answers"]]))

    def bleu(rows: Sequence[Row], seed: int) -> Interval:
        """Compute corpus BLEU; repetitions of an example are resampled together."""
        counts = [
            np.sum([bleu_counts(row["answer"] or "", references[name]) for row in own], axis=0)
            for name, own in group_rows(rows, example_of).items()
        ]
        return corpus_bleu(np.stack(counts), seed)

    return (
        Metric(
            "expected_rouge_l",
            "ROUGE-L (weighted)",
            "the mean of ROUGE-L over all answers, weighted by their probabilities",
            average,
            compared=True,
            label="ROUGE-L, weighted by the posterior",
        ),
        Metric(
            "best_rouge_l",
            "ROUGE-L (best)",
            "ROUGE-L of the answer that the model finds most probable",
            lambda row: score(row, row.get("best")),
            compared=True,
        ),
        Metric(
            "rouge_l",
            "ROUGE-L",
            "the best F1 over the references, times 100",
            lambda row: score(row, row["answer"]),
        ),
        Metric(
            "bleu",
            "BLEU-4",
            "computed by sacrebleu over the corpus, times 100",
            overall=bleu,
        ),
        Metric(
            "coverage",
            "coverage %",
            "the share of concepts that an independent check finds",
        ),
        Metric(
            "log_p_per_token",
            "log p a token",
            "the log-probability under the model without a constraint, in nats",
            digits=2,
            scale=1,
            compared=True,
        ),
    )


def as_table(summary: Sequence[dict[str, Any]], metrics: Sequence[Metric]) -> Table:
    """Format the summary as a table; coverage, BLEU and ROUGE-L in percent, with intervals."""
    titles = titles_in(summary)
    return [
        {
            **titles(s),
            "particles": s["particles"],
            "sets": s["examples"],
            **cells(s, metrics),
            "all concepts %": f"{100 * s['majority_accuracy']:.1f}",
            "complete %": f"{100 * s['complete']:.1f}",
            "dead rows": s["dead"],
            "evidence found %": share_of_evidence(s),
            "log evidence": log_evidence_of(s, 2),
            "read": f"{s['read']:.0f}",
            "LM calls": s["lm_calls"],
            "seconds per row": f"{s['seconds_each']:.2f}",
        }
        for s in summary
    ]

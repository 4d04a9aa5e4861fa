"""The rows of a run are summed up by coverage, BLEU, ROUGE-L and the model's own opinion.

Every concept set counts in every mean but that of the log-probability, which only an answer has.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd

from experiments.commongen.metrics import bleu_counts, corpus_bleu, rouge_l
from experiments.harness.arms import Arm
from experiments.harness.results import Row
from experiments.harness.summary import Interval, bootstrap, summarize
from experiments.harness.tables import number, with_interval

PUBLISHED = (  # system, metric, figure in percent
    ("upper bound of the leaderboard v1.1 (people)", "BLEU-4", 46.49),
    ("DKMR2, leaderboard v1.1", "BLEU-4", 44.33),
    ("gpt-4-0613, CommonGen-lite", "coverage", 97.44),
    ("Llama-2-7b-chat, CommonGen-lite", "coverage", 88.56),
)
MEASURES = ("coverage", "bleu", "rouge_l", "expected_rouge_l", "log_p_per_token")


def summarize_text(
    rows: Sequence[Row], references: Mapping[str, Sequence[str]], seed: int = 0
) -> list[dict[str, Any]]:
    """Sum up the rows of each arm and number of particles; `references` go by example."""
    summary = summarize(rows, seed)
    for record in summary:
        arm, particles = Arm.of(record), record["particles"]
        own = [r for r in rows if Arm.of(r) == arm and r["particles"] == particles]
        examples: dict[str, list[Row]] = {}
        for row in own:
            examples.setdefault(row["example"], []).append(row)
        measured = _measures(examples, references, seed)
        for name, interval in measured.items():
            nothing = dict.fromkeys((name, f"{name}_low", f"{name}_high"))
            record |= nothing if interval is None else interval.named(name)
        record["seconds_per_row"] = float(np.mean([row["seconds"] for row in own]))
    return summary


def _measures(
    examples: Mapping[str, Sequence[Row]], references: Mapping[str, Sequence[str]], seed: int
) -> dict[str, Interval | None]:
    """Every measure of the rows of one arm, an example's repetitions taken together."""
    counts, rouge, expected, coverage, log_p = [], [], [], [], []
    for name, rows in examples.items():
        texts = [row["answer"] or "" for row in rows]
        counts.append(np.sum([bleu_counts(text, references[name]) for text in texts], axis=0))
        rouge.append(float(np.mean([rouge_l(text, references[name]) for text in texts])))
        means = [_expected_rouge_l(row["answers"], references[name]) for row in rows]
        expected.append(float(np.mean(means)))
        coverage.append(float(np.mean([row["coverage"] for row in rows])))
        known = [row["log_p_per_token"] for row in rows if row["log_p_per_token"] is not None]
        log_p += [float(np.mean(known))] if known else []
    return {
        "coverage": bootstrap(coverage, seed),
        "bleu": corpus_bleu(np.stack(counts), seed),
        "rouge_l": bootstrap(rouge, seed),
        "expected_rouge_l": bootstrap(expected, seed),
        "log_p_per_token": bootstrap(log_p, seed) if log_p else None,
    }


def _expected_rouge_l(answers: Sequence[Mapping[str, Any]], references: Sequence[str]) -> float:
    """The posterior's mean of ROUGE-L, over the answers that the row keeps; 0 without any."""
    if not answers:
        return 0.0
    weights = [answer["probability"] for answer in answers]
    return float(np.average([rouge_l(a["text"], references) for a in answers], weights=weights))


def as_table(summary: Sequence[dict[str, Any]]) -> pd.DataFrame:
    """Turn the summary into a table; coverage, BLEU and ROUGE-L in percent, with intervals."""
    return pd.DataFrame(
        {
            **Arm.of(s).titles,
            "particles": s["particles"],
            "sets": s["examples"],
            "coverage %": with_interval(s, "coverage"),
            "all concepts %": f"{100 * s['majority_accuracy']:.1f}",
            "complete %": f"{100 * s['complete']:.1f}",
            "dead rows": s["dead"],
            "BLEU-4": with_interval(s, "bleu"),
            "ROUGE-L": with_interval(s, "rouge_l"),
            "ROUGE-L (weighted)": with_interval(s, "expected_rouge_l"),
            "log p a token": with_interval(s, "log_p_per_token", 2, 1),
            "log evidence": number(s["log_evidence"]),
            "read": f"{s['read']:.0f}",
            "LM calls": s["lm_calls"],
            "seconds a row": f"{s['seconds_per_row']:.2f}",
        }
        for s in summary
    )

"""Probabilities of fields as confidence scores, compared with what people use.

    python -m benchmarks.price                               # makes runs/price.jsonl
    python -m benchmarks.fields docs/fields.png

Which fields of an answer are right? The answer is greedy decoding's under the mask of the budget
(`gcd` of `benchmarks.price`), and each score says how likely a field's value is right:

    joint          exp of the sum of the log-probabilities of the value's tokens, as the package
                   structured-logprobs computes it, with the model's log-probabilities
    joint, masked  the same, renormalized over the mask
    mean           exp of the mean of the log-probabilities of the value's tokens
    agreement      share of 16 draws under the mask with the same value
    ask            share of the answers found by `smc.ask` with the same value, weighted by the
                   model's probabilities
    ask, 16        the same with `particles=16`: the estimated posterior probability

Fields with free text aren't scored. The table is about the fields for which all scores exist
(structured-logprobs has none for true and false). *Brier* is the Brier score, *ECE* the expected
calibration error over ten bins of equal width, and *AUC* the area under the ROC curve. *Risk* is
the share of wrong values among the 80% of the fields with the highest scores. Intervals are 90%
bootstrap intervals over requests. The picture is a reliability diagram; the area of a point is
proportional to its number of fields.
"""

from __future__ import annotations

import argparse
import json
import math
from collections import defaultdict
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.stats import rankdata

from benchmarks.common import head, line, read_rows
from benchmarks.price import COUNT, SEED, Row
from benchmarks.requests import Request, leaves, requests, same

COVERAGE = 0.8
BINS = 10
RESAMPLES = 1000
NEEDED = {"gcd", "vote", "ask", "weighted"}
SCORES = ("joint", "joint, masked", "mean", "agreement", "ask", "ask, 16")
SHOWN = ("joint", "mean", "agreement", "ask", "ask, 16")
"""Scores of the picture."""
Floats = NDArray[np.float64]


def log_probs(row: Row, kind: str) -> Any:
    """Return what structured-logprobs makes of an answer: a sum in place of each value."""
    from openai.types.chat import ChatCompletion
    from structured_logprobs import add_logprobs

    pieces = ["", *row["pieces"]]
    tokens = [
        {"token": after[len(before) :], "logprob": log_p, "top_logprobs": []}
        for before, after, log_p in zip(pieces, pieces[1:], row[kind], strict=False)
    ]
    message = {"role": "assistant", "content": row["text"]}
    choice = {
        "index": 0, "finish_reason": "stop", "message": message, "logprobs": {"content": tokens}
    }  # fmt: skip
    completion = ChatCompletion.model_validate({
        "id": "", "created": 0, "model": "", "object": "chat.completion", "choices": [choice]
    })  # fmt: skip
    return add_logprobs(completion).log_probs[0]


def total(found: Any) -> float | None:
    """Return the sum of the log-probabilities in a value of `log_probs`; None if one is missing."""
    parts = [total(each) for each in found] if isinstance(found, list) else [found]
    return None if any(each is None for each in parts) else math.fsum(parts)


def mean_log_prob(row: Row, name: str, value: Any) -> float:
    """Return the mean log-probability of the tokens of a member's value."""
    key = f"{json.dumps(name)}: "
    begin = row["text"].index(key) + len(key)
    end = begin + len(json.dumps(value, ensure_ascii=False))
    ends = [len(piece) for piece in row["pieces"]]
    return float(np.mean([
        log_p for start, stop, log_p in zip([0, *ends], ends, row["raw"], strict=False)
        if start < end and stop > begin
    ]))  # fmt: skip


def scores_of(request: Request, rows: dict[str, Row]) -> list[dict[str, Any]]:
    """Return the scores of each field of a greedy answer, and whether its value is right."""
    greedy = rows["gcd"]
    gold, sums = dict(leaves(request.value)), {k: log_probs(greedy, k) for k in ("raw", "masked")}
    drawn = [dict(leaves(json.loads(text))) for text in rows["vote"]["texts"]]
    found = []
    for pointer, value in leaves(greedy["value"]):
        name = pointer.lstrip("/")
        if name in request.free:
            continue
        joint = {kind: total(sums[kind][name]) for kind in sums}
        key = json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
        shares = {
            each: rows[each]["probabilities"].get(pointer, {}) for each in ("ask", "weighted")
        }
        found.append({
            "right": pointer in gold and same(gold[pointer], value),
            "joint": None if joint["raw"] is None else math.exp(joint["raw"]),
            "joint, masked": None if joint["masked"] is None else math.exp(joint["masked"]),
            "mean": math.exp(mean_log_prob(greedy, name, value)),
            "agreement": float(np.mean([each.get(pointer) == value for each in drawn])),
            "ask": shares["ask"].get(key, 0.0), "ask, 16": shares["weighted"].get(key, 0.0),
        })  # fmt: skip
    return found


def brier(score: Floats, right: Floats) -> float:
    """Return the mean squared distance of the scores to the truth."""
    return float(np.mean((score - right) ** 2))


def ece(score: Floats, right: Floats) -> float:
    """Return the expected calibration error over bins of equal width."""
    at = np.minimum((score * BINS).astype(int), BINS - 1)
    gaps = (abs((score - right)[at == number].sum()) for number in range(BINS))
    return float(sum(gaps) / len(score))


def auc(score: Floats, right: Floats) -> float:
    """Return the probability that a right value has a higher score than a wrong one."""
    ranks, count = rankdata(score), right.sum()
    wrong = len(right) - count
    if not count or not wrong:
        return math.nan
    return float((ranks[right == 1].sum() - count * (count + 1) / 2) / (count * wrong))


def risk(score: Floats, right: Floats) -> float:
    """Return the share of wrong values among those with the highest scores."""
    kept = np.argsort(-score, kind="stable")[: round(COVERAGE * len(score))]
    return float(1 - right[kept].mean())


METRICS: dict[str, Callable[[Floats, Floats], float]] = {
    "Brier": brier, "ECE": ece, "AUC": auc, "risk at 80%": risk,
}  # fmt: skip


def with_interval(
    metric: Callable[[Floats, Floats], float], groups: list[list[dict[str, Any]]], name: str
) -> str:
    """Write a metric with its 90% bootstrap interval over requests."""

    def of(some: Sequence[list[dict[str, Any]]]) -> float:
        rows = [row for group in some for row in group]
        return metric(*(np.array([float(row[key]) for row in rows]) for key in (name, "right")))

    rng = np.random.default_rng(0)
    drawn = [
        of([groups[i] for i in rng.integers(0, len(groups), len(groups))]) for _ in range(RESAMPLES)
    ]
    low, high = np.nanquantile(drawn, [0.05, 0.95])
    return f"{of(groups):.3f} [{low:.3f}, {high:.3f}]"


def draw(groups: list[list[dict[str, Any]]], path: Path) -> None:
    """Draw the reliability diagram: the share of right values by score."""
    import matplotlib.pyplot as plt

    rows = [row for group in groups for row in group]
    right = np.array([float(row["right"]) for row in rows])
    figure, axes = plt.subplots(1, len(SHOWN), figsize=(9, 3), sharey=True, layout="constrained")
    for axis, name in zip(axes, SHOWN, strict=True):
        score = np.array([row[name] for row in rows])
        at = np.minimum((score * BINS).astype(int), BINS - 1)
        bins = [number for number in range(BINS) if (at == number).any()]
        axis.plot([0, 1], [0, 1], color="0.7", linewidth=1)
        axis.scatter(
            [score[at == number].mean() for number in bins],
            [right[at == number].mean() for number in bins],
            s=[3 * (at == number).sum() for number in bins], alpha=0.6,
        )  # fmt: skip
        axis.set(title=name, xlabel="score", xlim=(-0.05, 1.05), ylim=(-0.05, 1.05))
    axes[0].set_ylabel("share of right values")
    figure.savefig(path, dpi=150)


def main() -> None:
    """Print the table and draw the picture."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("picture", type=Path, help="PNG or SVG to write")
    parser.add_argument("--rows", type=Path, default=Path("runs/price.jsonl"))
    options = parser.parse_args()
    every = requests(COUNT, SEED)
    by_number: dict[int, dict[str, Row]] = defaultdict(dict)
    for row in read_rows(options.rows):
        if row["group"] == "extraction":
            by_number[row["number"]][row["method"]] = row
    groups = [
        scores_of(every[number], rows)
        for number, rows in by_number.items()
        if rows.keys() >= NEEDED
    ]
    left_out = sum(row["joint"] is None for group in groups for row in group)
    groups = [[row for row in group if row["joint"] is not None] for group in groups]
    right = [row["right"] for group in groups for row in group]
    print(f"{len(right)} fields of {len(groups)} requests, {100 * np.mean(right):.1f}% right; "
          f"{left_out} fields without a score of structured-logprobs are left out\n")  # fmt: skip
    print(head("score", *METRICS))
    for name in SCORES:
        print(line(name, *(with_interval(metric, groups, name) for metric in METRICS.values())))
    draw(groups, options.picture)


if __name__ == "__main__":
    main()

"""Compare the stated error of one run with the spread between independent runs (islands).

One run states its error by the ancestry of its particles (`smc._results.reliability`). The
evidence can also be estimated by the mean Z of K independent runs of N / K particles, and its
error by their spread. The relative variance is then the sum of (Z_k - Z)^2 / (K (K - 1) Z^2). A
90% interval uses Student's t with K - 1 degrees of freedom. Neither error includes an answer that
all particles missed. The problems are the random ones of `benchmarks.reliability`, with one
estimate of each by each method:

    python -m benchmarks.islands build/islands.jsonl --problems 420
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
from pathlib import Path
from typing import Any

from scipy.stats import t as student_t
from transformers.utils import logging

import smc
from benchmarks.combined import FAR, log_sum, truth_of
from benchmarks.reliability import Problem, random_problems

PARTICLES = 64
ISLANDS = (1, 4, 8)
ALGORITHMS = ("smc", "discrete")
SLACK = 0.01
"""The truth is known to 1%, so an interval this close to it covers it."""
NORMAL = 1.645


def estimate(problem: Problem, algorithm: str, islands: int) -> dict[str, Any]:
    """Return log evidence, half of its 90% interval, and tokens of a number of runs."""
    found = smc.sample(
        problem.lm, [problem.prompt] * islands, problem.constraint, budget=problem.budget,
        particles=PARTICLES // islands, proposal=problem.proposal, algorithm=algorithm, seed=2,
    )  # fmt: skip
    logs = [each.log_evidence for each in found]
    mean = log_sum(logs) - math.log(islands)
    if islands == 1:
        half = NORMAL * found[0].reliability.log_evidence_error
    elif mean == -math.inf:
        half = math.inf
    else:
        shares = [math.exp(each - mean) for each in logs]
        error = statistics.stdev(shares) / math.sqrt(islands)
        half = float(student_t.ppf(0.95, islands - 1)) * error
    prompt = len(problem.lm.encode(problem.prompt))
    tokens = sum(each.diagnostics.tokens - prompt for each in found)
    return {"log_evidence": mean, "half": half, "tokens": tokens}


def row_of(problem: Problem) -> dict[str, Any]:
    """Return the estimates of all methods, and the truth; None if it isn't known."""
    truth = truth_of(problem)
    if truth is None:
        return {"problem": problem.name, "log_truth": None}
    found = {f"{a}, {k}": estimate(problem, a, k) for a in ALGORITHMS for k in ISLANDS}
    return {"problem": problem.name, "log_truth": truth[1], "runs": found}


def print_table(rows: list[dict[str, Any]]) -> None:
    """Print coverage and errors of each method."""
    known = [row for row in rows if row["log_truth"] is not None]
    print(f"{len(known)} of {len(rows)} problems are known")
    print(
        "| algorithm | runs x particles | tokens, mean | evidence covered % | covered % where the "
        "stated error is under 0.1 (runs) | root mean square error, nats |\n" + "|---" * 6 + "|"
    )
    for algorithm in ALGORITHMS:
        for islands in ISLANDS:
            runs = [(row["runs"][f"{algorithm}, {islands}"], row["log_truth"]) for row in known]
            errors = [abs(run["log_evidence"] - truth) for run, truth in runs]
            covered = [e <= run["half"] + SLACK for (run, _), e in zip(runs, errors, strict=True)]
            sure = [
                c for (run, _), c in zip(runs, covered, strict=True) if run["half"] < 0.1 * NORMAL
            ]
            print(
                f"| {algorithm} | {islands} x {PARTICLES // islands} | "
                f"{statistics.mean(run['tokens'] for run, _ in runs):.0f} | "
                f"{100 * statistics.mean(covered):.0f} | "
                f"{100 * statistics.mean(sure):.0f} ({len(sure)}) | "
                f"{math.sqrt(statistics.mean(min(FAR, e) ** 2 for e in errors)):.2f} |"
            )


def main() -> None:
    """Add rows and print the table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("rows", type=Path)
    parser.add_argument("--problems", type=int, default=420)
    args = parser.parse_args()
    args.rows.parent.mkdir(parents=True, exist_ok=True)
    lines = args.rows.read_text().splitlines() if args.rows.exists() else []
    done = {json.loads(line)["problem"] for line in lines}
    with args.rows.open("a") as file:
        for problem in random_problems(args.problems, done):
            file.write(json.dumps(row_of(problem)) + "\n")
            file.flush()
    print_table([json.loads(line) for line in args.rows.read_text().splitlines()])


if __name__ == "__main__":
    logging.set_verbosity_error()
    main()

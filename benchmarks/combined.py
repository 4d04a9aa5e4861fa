"""Compare estimates of the evidence that use the exact probabilities of what was found.

K independent runs find the sets F_1, ..., F_K of token sequences. Run k estimates the probability
of a by W_k(a), with expectation p(a). The combined estimate takes p(a) where another run has found
a, and W_k(a) elsewhere:

    M(a) = 1 / K * sum over k of (p(a) if a is in another run's F_j, otherwise W_k(a))
         = p(a)                        if several runs found a
         = p(a) + (W_k(a) - p(a)) / K  if only run k found it

Its expectation is p(a), because the other runs are independent of run k, so the sum over a is an
unbiased estimate of the evidence. The particles of importance sampling are runs of one particle
each. Particles that were resampled are not independent, so that estimate is biased. The problems
are those of `benchmarks.reliability`:

    python -m benchmarks.combined build/combined.jsonl --problems 60 --real 12
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from transformers.utils import logging

import smc
from benchmarks import reliability
from benchmarks.reliability import SEEN, Problem, random_problems, real_problems

Ids = tuple[int, ...]
FAR = 10.0
"""Maximum absolute error of the log evidence, in nats, in root mean squares."""


class Found(NamedTuple):
    """The token sequences that a run found, and their weights.

    Attributes:
        log_p: log p_lm of each.
        log_weight: log of its estimate of p_lm; the sum estimates the evidence.
    """

    log_p: dict[Ids, float]
    log_weight: dict[Ids, float]


class Estimate(NamedTuple):
    """An unnormalized distribution over token sequences, and the tokens it took.

    Attributes:
        log_weight: log of the estimate of each sequence's probability.
        log_evidence: log of the estimate of the evidence.
        tokens: number of tokens that the model computed beyond the prompt.
    """

    log_weight: Mapping[Ids, float]
    log_evidence: float
    tokens: int


def collect(posterior: smc.Posterior) -> list[Found]:
    """Return what each particle found; for the discrete filter, what the run found."""
    if posterior.algorithm == "discrete":
        return [
            Found(
                {each.ids: each.log_p for each in posterior.particles},
                {each.ids: each.log_weight for each in posterior.particles},
            )
        ]
    return [
        Found({each.ids: each.log_p}, {each.ids: each.log_weight})
        if each.finished and each.log_weight > -math.inf
        else Found({}, {})
        for each in posterior.particles
    ]


def pool(runs: Sequence[Found]) -> Found:
    """Return what the runs found together; the weight of a sequence is the mean over the runs."""
    log_p: dict[Ids, float] = {}
    weights: dict[Ids, list[float]] = defaultdict(list)
    for run in runs:
        log_p.update(run.log_p)
        for ids, log_weight in run.log_weight.items():
            weights[ids].append(log_weight)
    scale = math.log(max(1, len(runs)))
    return Found(log_p, {ids: log_sum(some) - scale for ids, some in weights.items()})


def combine(runs: Sequence[Found]) -> dict[Ids, float]:
    """Return log M of each sequence; see the module's documentation."""
    count: dict[Ids, int] = defaultdict(int)
    weight: dict[Ids, float] = {}
    for run in runs:
        for ids, log_weight in run.log_weight.items():
            count[ids] += 1
            weight[ids] = log_weight
    log_p, share = pool(runs).log_p, 1 / len(runs)
    return {
        ids: log_p[ids]
        if many > 1
        else log_p[ids] + math.log1p(share * math.expm1(weight[ids] - log_p[ids]))
        for ids, many in count.items()
    }


def log_sum(values: Sequence[float]) -> float:
    """Return the log of the sum of exponentials; -inf for no values."""
    top = max(values, default=-math.inf)
    return top if top == -math.inf else top + math.log(math.fsum(math.exp(v - top) for v in values))


def clip(posteriors: Sequence[smc.Posterior], log_evidence: float) -> float:
    """Return the log evidence, clipped to the lower and upper bounds that each run found."""
    for bounds in (each.bounds for each in posteriors):
        assert bounds is not None
        log_evidence = min(bounds.log_upper, max(bounds.log_lower, log_evidence))
    return log_evidence


def estimates(problem: Problem, seeds: int) -> dict[str, list[Estimate]]:
    """Return the estimates of each method, one per seed."""
    prompt_tokens = len(problem.lm.encode(problem.prompt))

    def sample(particles: int, parts: int, **options: object) -> list[list[smc.Posterior]]:
        """Sample each seed with independent runs; the prompt counts once."""
        found = smc.sample(
            problem.lm, [problem.prompt] * (seeds * parts), problem.constraint,
            budget=problem.budget, particles=particles, proposal=smc.GCD(), seed=1, **options,
        )  # fmt: skip
        return [found[s * parts : (s + 1) * parts] for s in range(seeds)]

    results: dict[str, list[Estimate]] = {}

    def add(name: str, groups: list[list[smc.Posterior]]) -> None:
        for group in groups:
            tokens = sum(each.diagnostics.tokens - prompt_tokens for each in group)
            runs = [pool(collect(each)) for each in group]
            parts = [part for each in group for part in collect(each)]
            everything = pool(runs)
            plain = log_sum(list(everything.log_weight.values()))

            def put(
                kind: str, weights: Mapping[Ids, float], log_evidence: float, tokens: int = tokens
            ) -> None:
                results.setdefault(f"{name} | {kind}", []).append(
                    Estimate(weights, log_evidence, tokens)
                )

            put("mean weight", everything.log_weight, plain)
            put("clipped", everything.log_p, clip(group, plain))
            many = parts if len(group) == 1 else runs
            if len(many) > 1:
                weights = combine(many)
                total = log_sum(list(weights.values()))
                put("combined", weights, total)
                put("combined, clipped", weights, clip(group, total))

    add("SMC, 16", sample(16, 1, algorithm="smc"))
    add("SMC, 4 times 4", sample(4, 4, algorithm="smc"))
    add("SMC, 16, no resampling", sample(16, 1, algorithm="smc", ess_threshold=0.0))
    add("discrete, 16", sample(16, 1, algorithm="discrete"))
    add("discrete, 2 times 7", sample(7, 2, algorithm="discrete"))
    return results


def truth_of(problem: Problem) -> tuple[dict[Ids, float], float] | None:
    """Return log p_lm of all answers, and their sum; None if they aren't known to 1%."""
    truth = reliability.truth_of(problem)
    if not reliability.is_known(truth):
        return None
    log_p = {each.ids: each.log_p for each in truth.particles}
    return log_p, log_sum(list(log_p.values()))


def apart(estimate: Estimate, truth: Mapping[Ids, float], log_truth: float) -> float:
    """Return the total variation of the normalized weights to the posterior."""
    total = log_sum(list(estimate.log_weight.values()))
    distance, seen = 0.0, 0.0
    for ids, log_weight in estimate.log_weight.items():
        p = math.exp(truth.get(ids, -math.inf) - log_truth)
        distance += abs(math.exp(log_weight - total) - p)
        seen += p
    return (distance + max(0.0, 1 - seen)) / 2


def main() -> None:
    """Add rows and print a table for each kind of problem."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("rows", type=Path)
    parser.add_argument("--problems", type=int, default=60, help="problems with random models")
    parser.add_argument("--real", type=int, default=12, help="problems with SmolLM2")
    parser.add_argument("--seeds", type=int, default=4, help="runs of each problem")
    args = parser.parse_args()
    args.rows.parent.mkdir(parents=True, exist_ok=True)
    lines = args.rows.read_text().splitlines() if args.rows.exists() else []
    done = {json.loads(line)["problem"] for line in lines}
    seen = {f"random {k}" for k in range(SEEN)}
    with args.rows.open("a") as file:
        for problems in (
            random_problems(SEEN + args.problems, seen | done),
            real_problems(args.real, done),
        ):
            for problem in problems:
                file.write(json.dumps(row_of(problem, args.seeds)) + "\n")
                file.flush()
    rows = [json.loads(line) for line in args.rows.read_text().splitlines()]
    for kind in ("random", "real"):
        print_table(kind, [row for row in rows if row["problem"].startswith(kind)])


def row_of(problem: Problem, seeds: int) -> dict[str, Any]:
    """Return error, total variation and tokens of each run by method; none if truth is unknown."""
    truth = truth_of(problem)
    if truth is None:
        return {"problem": problem.name, "runs": {}}
    return {
        "problem": problem.name,
        "runs": {
            name: [(e.log_evidence - truth[1], apart(e, *truth), e.tokens) for e in some]
            for name, some in estimates(problem, seeds).items()
        },
    }


def print_table(kind: str, problems: Sequence[dict[str, Any]]) -> None:
    """Print the figures of each method."""
    rows: dict[str, list[tuple[float, float, int]]] = defaultdict(list)
    for problem in problems:
        for name, runs in problem["runs"].items():
            rows[name] += runs
    print(f"{sum(bool(each['runs']) for each in problems)} of {len(problems)} {kind} are known")
    print("| runs | evidence | tokens read, mean | root mean square error, nats | ", end="")
    print("mean absolute error | median | over 0.1 nats, % | mean of estimate / truth | ", end="")
    print("total variation, mean |\n" + "|---" * 9 + "|")
    for name, some in rows.items():
        errors = [min(FAR, abs(error)) for error, *_ in some]
        print(
            f"| {name} | {statistics.mean(tokens for _, _, tokens in some):.0f} | "
            f"{math.sqrt(statistics.mean(error**2 for error in errors)):.3f} | "
            f"{statistics.mean(errors):.3f} | {statistics.median(errors):.4f} | "
            f"{100 * statistics.mean(error > 0.1 for error in errors):.1f} | "
            f"{statistics.mean(math.exp(error) for error, *_ in some):.3f} | "
            f"{statistics.mean(tv for _, tv, _ in some):.3f} |",
            flush=True,
        )


if __name__ == "__main__":
    logging.set_verbosity_error()
    main()

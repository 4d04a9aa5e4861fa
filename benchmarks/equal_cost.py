"""Compare the discrete filter with SMC at equal tokens and at equal seconds.

Problems are those of `benchmarks.reliability` that no threshold was chosen on, and those of
`benchmarks.distilled`, each under GCD and under P-GCD. Each problem is sampled once per number of
particles and seed, in random order in one process, after an untimed run. Seconds are processor time
of one thread, and tokens are those computed beyond the prompt. The prompt is computed before.

Costs of an algorithm with N particles are means over problems. The filter with N prefixes is
compared with SMC at the same cost. Errors of SMC are interpolated, linearly in the logarithm of the
cost, between the two numbers of particles whose costs are on either side. Differences are paired
over problems; intervals are 95% bootstrap intervals over problems. Rows are appended to a file, and
problems in the file are skipped:

    OMP_NUM_THREADS=1 python -m benchmarks.equal_cost build/equal_cost.jsonl
"""

from __future__ import annotations

import argparse
import json
import math
import random
import statistics
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from transformers.utils import logging

from benchmarks.distilled import TASKS, distill_problems, is_told
from benchmarks.reliability import (
    SEEN,
    Problem,
    is_known,
    pgcd_problems,
    print_labels,
    random_problems,
    row_of,
    truth_of,
)

FILTER = (4, 8, 16, 32, 64)
SMC = (4, 16, 64, 256, 1024)
"""With SmolLM2 from 16."""
FAR = 10.0
"""Maximum absolute error of the log evidence, in nats, in means."""
MEASURES: dict[str, Callable[[dict[str, Any]], float]] = {
    "tv": lambda row: row["tv"],
    "error": lambda row: min(FAR, abs(row["log_evidence"] - row["log_truth"])),
    "best": lambda row: row["is_best"],
    "certified": lambda row: row["certified"] or 0.0,
}
COSTS = ("tokens", "processor_s")


class Case(NamedTuple):
    """Problems of one kind by algorithm and number of particles.

    Attributes:
        values: for each algorithm and number, the means over seeds of each measure and cost, with
            an entry per problem.
    """

    values: dict[tuple[str, int], dict[str, np.ndarray]]

    def cost(self, setting: tuple[str, int], name: str) -> float:
        """Return the mean cost of a setting."""
        return float(self.values[setting][name].mean())


def main() -> None:
    """Add rows and print the tables."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("rows", type=Path)
    parser.add_argument("--problems", type=int, default=100, help="problems with random models")
    parser.add_argument("--pgcd", type=int, default=60, help="problems with P-GCD and them")
    parser.add_argument("--real", type=int, default=12, help="problems of each task with SmolLM2")
    parser.add_argument("--tasks", nargs="+", default=list(TASKS), choices=list(TASKS))
    parser.add_argument("--seeds", type=int, default=1, help="runs of each setting")
    args = parser.parse_args()
    args.rows.parent.mkdir(parents=True, exist_ok=True)
    lines = args.rows.read_text().splitlines() if args.rows.exists() else []
    done = {json.loads(line)["problem"] for line in lines}
    with args.rows.open("a") as file:
        for variants in problems(args.problems, args.pgcd, args.real, args.tasks, done):
            rows = [json.dumps(row) + "\n" for row in rows_of(variants, args.seeds)]
            file.write("".join(rows))  # whole problems, so that the run can be interrupted
            file.flush()
    measured = [json.loads(line) for line in args.rows.read_text().splitlines()]
    print_comparison(measured)
    print_labels([row for row in measured if row["problem"].startswith("P-GCD, SmolLM2")])


def problems(
    count: int, pgcd: int, real: int, tasks: Sequence[str], done: set[str]
) -> Iterator[list[Problem]]:
    """Yield problems that aren't done, with their variants that have the same posterior."""
    seen = {f"random {k}" for k in range(SEEN)}
    yield from ([each] for each in random_problems(SEEN + count, seen | done))
    yield from ([each] for each in pgcd_problems(pgcd, done))
    for problem, proposal in distill_problems(real, tasks, done):
        name = f"P-GCD, SmolLM2, {problem.name}"
        yield [problem, problem._replace(name=name, proposal=proposal)]


def rows_of(variants: Sequence[Problem], seeds: int) -> Iterator[dict[str, Any]]:
    """Yield a row for each variant, setting and seed; one per variant if the truth is unknown."""
    truth = truth_of(variants[0], (1024,))
    particles = SMC[1:] if variants[1:] else SMC
    settings = [("discrete", n) for n in FILTER] + [("smc", n) for n in particles]
    for problem in variants:
        if not is_known(truth):
            yield {"problem": problem.name, "known": False, "certified": truth.certified}
            continue
        runs = [(setting, seed) for setting in settings for seed in range(1, seeds + 1)]
        random.Random(problem.name).shuffle(runs)
        prompt = len(problem.lm.encode(problem.prompt))
        row_of(problem, truth, ("smc", 4))  # tables of masks and lookahead are cached
        for setting, seed in runs:
            row = row_of(problem, truth, setting, seed)
            yield {**row, "tokens": row["tokens"] - prompt, "seed": seed}


def kind_of(problem: str) -> str:
    """Return the kind of a problem in the tables."""
    *_, task, number = problem.split()
    proposal = "P-GCD" if problem.startswith("P-GCD") else "GCD"
    if "SmolLM2" in problem or task in ("tool", "sentence", "query"):
        return f"SmolLM2, {'told' if is_told(int(number)) else 'untold'}, {proposal}"
    return f"random models, {proposal}" + (f", {task} HMM" if proposal == "P-GCD" else "")


def case_of(rows: Sequence[dict[str, Any]]) -> Case:
    """Average the seeds of each problem."""
    groups: dict[tuple[str, int], dict[str, list[dict[str, Any]]]] = defaultdict(dict)
    for row in rows:
        group = groups[row["algorithm"], row["particles"]]
        group.setdefault(row["problem"], []).append(row)
    measures = {**MEASURES, **{name: lambda row, name=name: row[name] for name in COSTS}}
    return Case(
        {
            setting: {
                name: np.array(
                    [statistics.mean(map(measure, group[each])) for each in sorted(group)]
                )
                for name, measure in measures.items()
            }
            for setting, group in groups.items()
        }
    )


def at_cost(case: Case, cost: str, wanted: float) -> tuple[str, Mapping[str, np.ndarray]] | None:
    """Return the values of SMC at a cost, interpolated; None if SMC always costs more.

    If several numbers of particles have the same cost, the largest of them is used. If SMC always
    costs less, the values are those of its largest number of particles.
    """
    numbers = sorted(n for algorithm, n in case.values if algorithm == "smc")
    costs = np.maximum.accumulate([case.cost(("smc", n), cost) for n in numbers])
    last = int(np.searchsorted(costs, wanted, side="right")) - 1
    if last < 0:
        return None
    few = case.values["smc", numbers[last]]
    if last == len(numbers) - 1:
        return f"{numbers[last]} (cost {costs[last]:.3g})", few
    many = case.values["smc", numbers[last + 1]]
    part = math.log(wanted / costs[last]) / math.log(costs[last + 1] / costs[last])
    name = f"{numbers[last]} to {numbers[last + 1]}"
    return name, {key: (1 - part) * few[key] + part * many[key] for key in few}


def interval(differences: np.ndarray) -> tuple[float, float]:
    """Return a 95% bootstrap interval of the mean."""
    generator = np.random.default_rng(0)
    picks = generator.integers(len(differences), size=(10_000, len(differences)))
    low, high = np.quantile(differences[picks].mean(axis=1), [0.025, 0.975])
    return float(low), float(high)


def print_comparison(rows: Sequence[dict[str, Any]]) -> None:
    """Print the costs and errors of all settings, and the comparison at equal costs."""
    kinds: dict[str, list[dict[str, Any]]] = defaultdict(list)
    for row in rows:
        if row["known"]:
            kinds[kind_of(row["problem"])].append(row)
    print("| problems | algorithm | N | tokens | processor s, mean (median) | total variation | ")
    print("|---|---|---|---|---|---|")
    cases = {kind: case_of(some) for kind, some in kinds.items()}
    for kind, case in cases.items():
        for (algorithm, n), found in sorted(case.values.items()):
            seconds = found["processor_s"]
            print(
                f"| {len(seconds)} {kind} | {algorithm} | {n} | {found['tokens'].mean():.0f} | "
                f"{seconds.mean():.3f} ({np.median(seconds):.3f}) | {found['tv'].mean():.3f} |"
            )
    for cost in COSTS:
        print(f"\nAt equal {cost}: filter, SMC, difference [95%]")
        print("| problems | prefixes | particles | cost | total variation | ", end="")
        print(
            "error of log evidence | first answer is the best, % | certified |\n" + "|---" * 8 + "|"
        )
        for kind, case in cases.items():
            for n in FILTER:
                wanted = case.cost(("discrete", n), cost)
                smc = at_cost(case, cost, wanted)
                if smc is None:
                    continue
                cells = [f"{len(smc[1]['tv'])} {kind}", str(n), smc[0], f"{wanted:.3g}"]
                for name in MEASURES:
                    a, b = case.values["discrete", n][name], smc[1][name]
                    low, high = interval(a - b)
                    scale = 100 if name == "best" else 1
                    digits = 0 if name == "best" else 3
                    cells.append(
                        f"{scale * a.mean():.{digits}f}, {scale * b.mean():.{digits}f}, "
                        f"{scale * (a - b).mean():+.{digits}f} "
                        f"[{scale * low:+.{digits}f}, {scale * high:+.{digits}f}]"
                    )
                print("| " + " | ".join(cells) + " |")


if __name__ == "__main__":
    logging.set_verbosity_error()
    main()

"""Measure what it costs to read on until a share of the posterior is certainly found.

Problems are those of `benchmarks.reliability`: random models and patterns, and SmolLM2 on tool
names, numbers, dates and JSON objects. Each problem is sampled by the discrete filter with 16
prefixes, once without and once with the option `certify`, which *reads on*: it continues with the
prefixes that the filter left out. The output has the share of the posterior that was certainly
found before and after reading on, and the number of tokens beyond the prompt that each took:

    python -m benchmarks.certify --problems 60 --real 16
"""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Sequence

from transformers.utils import logging

import smc
from benchmarks.reliability import Problem, random_problems, real_problems


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--problems", type=int, default=60, help="problems with random models")
    parser.add_argument("--real", type=int, default=16, help="problems with SmolLM2")
    parser.add_argument("--certify", type=float, nargs="+", default=[0.9, 0.99])
    parser.add_argument("--most", type=int, default=1000, help="maximum number of further tokens")
    args = parser.parse_args()
    print("| problems | certify | had it before | reached | tokens of sampling, median | ", end="")
    print("tokens read on, median | most | passes, median | certified before | after |")
    print("|---|---|---|---|---|---|---|---|---|---|")
    kinds = {
        "random": random_problems(args.problems, set()),
        "SmolLM2": real_problems(args.real, set()),
    }
    for kind, problems in kinds.items():
        some = list(problems)
        for share in args.certify if some else ():
            print(f"| {len(some)} {kind} | {share} | {line(some, share, args.most)} |", flush=True)


def line(problems: Sequence[Problem], share: float, most: int) -> str:
    """Sample each problem with and without reading on; return the figures as cells of a table."""
    pairs = [(posterior(each, None, most), posterior(each, share, most)) for each in problems]
    before, after = ([each.certified or 0.0 for each in side] for side in zip(*pairs, strict=True))
    open_ = [pair for pair in pairs if pair[1].diagnostics.read_on]
    read_on = [found.diagnostics.read_on for _, found in open_] or [0]
    sampling = [
        plain.diagnostics.tokens - prompt_tokens(each)
        for each, (plain, _) in zip(problems, pairs, strict=True)
    ]
    passes = [b.diagnostics.lm_calls - a.diagnostics.lm_calls for a, b in open_] or [0]
    return " | ".join(
        [
            str(sum(value >= share for value in before)),
            str(sum(value >= share for value in after)),
            f"{statistics.median(sampling):.0f}",
            f"{statistics.median(read_on):.0f}",
            str(max(read_on)),
            f"{statistics.median(passes):.0f}",
            f"{statistics.median(before):.2f}",
            f"{statistics.median(after):.2f}",
        ]
    )


def posterior(problem: Problem, certify: float | None, most: int) -> smc.Posterior:
    """Sample a problem with the filter; read on if `certify` isn't None."""
    (found,) = smc.sample(
        problem.lm, [problem.prompt], problem.constraint, budget=problem.budget, particles=16,
        proposal=smc.GCD(), algorithm="discrete", seed=1, certify=certify, max_tokens_read=most,
    )  # fmt: skip
    return found


def prompt_tokens(problem: Problem) -> int:
    return len(problem.lm.encode(problem.prompt))


if __name__ == "__main__":
    logging.set_verbosity_error()
    main()

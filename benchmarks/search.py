r"""Success rate of beam search for the most probable answer, and the cost of proving it.

The problems are those of docs/convergence.md. The best answer is known by enumeration of all
prefixes within the budget, or, if there are more than `--most`, by the proof of best-first search;
other problems are excluded. An answer counts as the best within 0.001 of its log-probability,
because float32 rounding differs between batches. Prefixes are counted as tokens after the prompt,
including forced tokens and tokens that best-first search computes again.

    python -m benchmarks.search                        # stories260K
    python -m benchmarks.search --model smollm2 --adapter models/smollm2-xlam \
        --hmm models/smollm2-xlam-hmm
"""

from __future__ import annotations

import argparse
import math
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from statistics import mean, median

import torch

import smc
from experiments.harness.config import ModelConfig
from experiments.harness.models import ROOT, load_model
from experiments.studies.convergence.builtin import builtin
from experiments.studies.convergence.evaluate import Evaluator
from experiments.studies.convergence.hmm import Recipe, distil, load_given
from experiments.studies.convergence.problems import Prepared, prepare, read_problems
from hmm import HMM

FILES = [ROOT / "docs" / f"convergence_{name}_stories.json" for name in ("new", "check")]
BEAMS = (1, 4, 16)
NEAR = 1e-3


def best_by_enumeration(problem: Prepared) -> float:
    """Return log p of the most probable answer, from the model's values at all prefixes."""
    tree = problem.tree()
    Evaluator(problem.lm, problem.prompt, problem.restriction.ids)(
        tree, torch.arange(tree.num_exact)
    )
    total = torch.zeros(tree.num_exact, dtype=torch.float64)
    for first, end in tree.levels()[1:]:
        parent, slot = tree["parent"][first:end], tree["slot"][first:end]
        total[first:end] = total[parent] + tree["log_p"][slot]
    return float(total[tree["text"][: tree.num_exact] >= 0].max())


def searches(problem: Prepared, hmm: HMM, reads: int) -> Iterator[tuple[str, smc.SearchResult]]:
    """Search one problem with all methods."""
    ahead = {
        "GCD": None,
        "P-GCD": smc.PGCD(hmm),
        "P-GCD in time": smc.PGCD(hmm, lookahead="in_time"),
    }
    given = (problem.lm, problem.prompt, problem.constraint)
    budget = problem.problem.budget
    for beams in BEAMS:
        for name, lookahead in ahead.items():
            found = smc.search(
                *given, max_tokens=budget, beams=beams, answers=1, lookahead=lookahead
            )
            yield f"{name}, {beams}", found
    yield (
        "best first",
        smc.search(
            *given, max_tokens=budget, beams=8, answers=1, algorithm="best_first", max_reads=reads
        ),
    )


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--model", default=str(ROOT / "tests" / "models" / "stories260K"))
    parser.add_argument("--adapter", default="none")
    parser.add_argument(
        "--hmm", help="checkpoint of an HMM; by default one is distilled into runs/"
    )
    parser.add_argument(
        "--most", type=int, default=20_000, help="maximum number of prefixes to enumerate"
    )
    parser.add_argument("--reads", type=int, default=1000, help="prefixes of best-first search")
    args = parser.parse_args()
    kind = "toolcalls" if args.model == "smollm2" else "stories"
    lm, tokenizer = load_model(ModelConfig(path=args.model, adapter=args.adapter))
    problems = builtin(kind, lm, tokenizer, "compact")
    if kind == "stories":
        problems += [problem for path in FILES for problem in read_problems(path)]
    prepared = [prepare(problem, lm, tokenizer, 10**9) for problem in problems]
    if args.hmm:
        hmm = load_given(args.hmm, lm.vocabulary).hmm
    else:
        prompts = [each.prompt for each in prepared]
        recipe = Recipe(states=1024, sequences=10_000, length=16, temperature=1.0, seed=0)
        hmm = distil(lm, {"path": args.model}, prompts, recipe, Path("runs")).hmm

    lost, read, proved = defaultdict(list), defaultdict(list), defaultdict(list)
    for problem in prepared:
        found = dict(searches(problem, hmm, args.reads))
        exact, best = found["best first"], -math.inf
        if problem.prefixes <= args.most:
            best = best_by_enumeration(problem)
        elif exact.proved:
            best = exact.answers[0].log_p
        print(f"{problem.problem.name}: {problem.prefixes} prefixes, log p {best:.3f}, best-first "
              f"search reads {exact.tokens}, proved {exact.proved}", flush=True)  # fmt: skip
        for name, result in found.items():
            read[name].append(result.tokens)
            proved[name].append(result.proved)
            if best > -math.inf:
                log_p = result.best.log_p if result.best else -math.inf
                assert not result.proved or abs(log_p - best) < NEAR, (problem.problem.name, name)
                lost[name].append(best - log_p)
    print("\n| search | the best | log p lost, mean | proved | prefixes read, median | most |")
    print("|---|---|---|---|---|---|")
    for name, losses in lost.items():
        hits = sum(loss < NEAR for loss in losses)
        print(f"| {name} | {hits} of {len(losses)} | {mean(losses):.2f} | {sum(proved[name])} "
              f"| {median(read[name]):.0f} | {max(read[name])} |")  # fmt: skip


if __name__ == "__main__":
    main()

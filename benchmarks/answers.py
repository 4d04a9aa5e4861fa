"""How long a constrained answer takes, against unconstrained text of as many tokens.

    OMP_NUM_THREADS=2 python -m benchmarks.answers

Tool calls of xLAM records under GCD (`smc.sample`), with forced runs and with one pass for each
token; beside them a loop that draws as many tokens from the same model after the same prompt, with
no constraint, and does nothing else. Prompts are read before, on all sides. Sides are timed in
turns, record by record; the table has medians of the ratios of their times over records, for one
particle and for several, which the loop has as rows.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable

import torch
from tqdm import tqdm

import gcd
import smc
from experiments.harness.budgets import budget_of
from experiments.harness.config import ModelConfig
from experiments.harness.models import ROOT, load_model
from experiments.tool_calling.prompts import compact_prompt
from experiments.tool_calling.records import ToolRecord, read_xlam


def unconstrained(lm: smc.TransformersLM, prompt: list[int], rows: int, tokens: int) -> None:
    """Draws so many tokens in each of so many rows, with nothing but the model in the way."""
    memory, log_p = lm.prefill([prompt])
    memory.reorder(torch.zeros(rows, dtype=torch.int64))
    log_p = log_p.expand(rows, -1)
    for _ in range(tokens):
        drawn = torch.multinomial(log_p.exp(), 1)
        log_p = memory.extend(drawn, torch.ones(rows, dtype=torch.int64))[:, 0]


def timed(run: Callable[[], object]) -> float:
    """Seconds that a call takes."""
    start = time.perf_counter()
    run()
    return time.perf_counter() - start


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--records", type=int, default=16)
    parser.add_argument("--particles", type=int, nargs="+", default=[1, 16])
    options = parser.parse_args()
    config = ModelConfig(device="cpu", adapter=str(ROOT / "models" / "smollm2-xlam"))
    lm, _ = load_model(config)
    records = read_xlam(ROOT / "data" / "xlam" / "records_500_599.jsonl").records
    print(f"{options.records} records, {torch.get_num_threads()} threads\n")
    print(
        "| style | particles | tokens | passes | one by one / unconstrained | forced runs / "
        "unconstrained | forced runs, all spellings / unconstrained |"
    )
    print("|---|---|---|---|---|---|---|")
    for style in ("json", "python"):
        for particles in options.particles:
            found = [
                one
                for record in tqdm(records[: options.records], leave=False)
                if (one := measure(lm, record, style, particles)) is not None
            ]
            columns = [statistics.median(column) for column in zip(*found, strict=True)]
            print(
                f"| {style} | {particles} | {columns[0]:.0f} | {columns[1]:.0f} | "
                + " | ".join(f"{ratio:.2f}" for ratio in columns[2:])
                + " |"
            )


def measure(
    lm: smc.TransformersLM, record: ToolRecord, style: str, particles: int
) -> tuple[float, ...] | None:
    """Tokens of an answer, passes, and ratios of times; None for a record that is refused."""
    try:
        language = gcd.tool_calls(record.tools, style=style)
        canonical = gcd.lift(language, lm.vocabulary, literals="canonical")
        plain = gcd.lift(language, lm.vocabulary)
    except gcd.ConstraintError:
        return None
    prompt = lm.encode(compact_prompt(record, style))
    lm.prefill([prompt])  # kept from here on

    def run(constraint: gcd.TokenAutomaton, forced: bool) -> smc.Posterior:
        return smc.sample(
            lm, [prompt], constraint, budget=budget_of("default", constraint),
            particles=particles, proposal=smc.GCD(), forced_runs=forced,
        )[0]  # fmt: skip

    answer = run(canonical, True)
    tokens = max(len(sample.ids) for sample in answer.particles)
    free = timed(lambda: unconstrained(lm, prompt, particles, tokens))
    sides = [timed(lambda: run(canonical, False)), timed(lambda: run(canonical, True))]
    # In all spellings another answer comes out; its time is taken by the token.
    other: list[smc.Posterior] = []
    seconds = timed(lambda: other.append(run(plain, True)))
    longest = max(len(sample.ids) for sample in other[0].particles)
    ratios = [side / free for side in sides] + [seconds / longest / (free / tokens)]
    return float(tokens), float(answer.diagnostics.lm_calls - 1), *ratios


if __name__ == "__main__":
    main()

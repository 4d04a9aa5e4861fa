"""What constraint and budget cost within `generate` of `transformers`, on the CPU.

    OMP_NUM_THREADS=1 NUMBA_NUM_THREADS=1 python -m benchmarks.transformers_generate

First the logits processor alone, on random scores along answers, for R rows: milliseconds a step,
and the same for `masked_fill` with a mask that is known, which no processor can go below. Then
whole calls, each the least of two. Processor time, so that one thread is measured whatever else the
machine does.
"""

from __future__ import annotations

import time
from typing import Any

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

import gcd
import smc
from benchmarks.common import least
from experiments.harness import smollm2

SCHEMA = {
    "type": "object",
    "properties": {"city": {"type": "string", "maxLength": 40}, "days": {"type": "integer"}},
    "required": ["city", "days"],
}
PROMPT = "The weather in Rome over the next three days, as JSON: "
BUDGET = 40


def steps(constraint: gcd.TokenAutomaton, rows: int) -> tuple[float, float]:
    """Milliseconds of a step: the processor's, and those of masking alone."""
    generator = torch.Generator().manual_seed(0)
    processor = smc.BudgetLogitsProcessor(constraint, BUDGET, prompt_length=1)
    ids = torch.zeros(rows, 1, dtype=torch.int64)
    ours = bare = 0.0
    for _ in range(BUDGET):
        scores = torch.randn(rows, constraint.vocabulary.size, generator=generator)
        started = time.process_time()
        masked = processor(ids, scores)
        ours += time.process_time() - started
        forbidden = masked.isneginf()
        started = time.process_time()
        scores.masked_fill(forbidden, -torch.inf)
        bare += time.process_time() - started
        ids = torch.cat([ids, masked.argmax(dim=1, keepdim=True)], dim=1)
    return 1e3 * ours / BUDGET, 1e3 * bare / BUDGET


def main() -> None:
    """Prints both tables."""
    path = smollm2.checkpoint()
    model, tokenizer = (
        AutoModelForCausalLM.from_pretrained(path),
        AutoTokenizer.from_pretrained(path),
    )
    lm = smc.TransformersLM(model, tokenizer)
    constraint = gcd.lift(gcd.json_schema(SCHEMA), lm.vocabulary)
    print("| rows | processor, ms a step | masked_fill alone, ms |\n|---|---|---|")
    for rows in (1, 4, 16):
        steps(constraint, rows)
        ours, bare = steps(constraint, rows)
        print(f"| {rows} | {ours:.2f} | {bare:.2f} |")

    inputs = tokenizer(PROMPT, return_tensors="pt")
    processor = smc.BudgetLogitsProcessor(constraint, BUDGET)

    def greedy() -> Any:
        return model.generate(**inputs, logits_processor=[processor], max_new_tokens=BUDGET)

    found = greedy()
    masked = least(greedy, 2, "cpu")
    count = found.shape[1] - inputs["input_ids"].shape[1]
    same = {"min_new_tokens": count, "max_new_tokens": count}
    free = least(lambda: model.generate(**inputs, **same), 2, "cpu")
    decode = smc.generate(constraint, particles=16, seed=0)
    taken = {"custom_generate": decode, "max_new_tokens": BUDGET}
    within = least(lambda: model.generate(**inputs, **taken), 2, "cpu")
    options = {"budget": BUDGET, "particles": 16, "proposal": smc.GCD(), "seed": 0}
    alone = least(lambda: smc.sample(lm, [PROMPT], constraint, **options), 2, "cpu")
    print("\n| a call | seconds | of it ours, or beside |\n|---|---|---|")
    print(f"| greedy search, {count} tokens, no constraint | {free:.2f} | |")
    print(f"| the same number with the processor | {masked:.2f} | {masked / free:.2f} times |")
    print(f"| smc.sample, 16 particles | {alone:.2f} | |")
    print(f"| generate with smc.generate | {within:.2f} | {within / alone:.2f} times |")


if __name__ == "__main__":
    main()

"""Times of batches of requests with a deadline in vLLM, relative to the deadline.

    python -m benchmarks.vllm_deadline --deadlines 250 500 1000 2000

Each batch has four requests for up to 61 short words by SmolLM2. Without a deadline, a batch ends
with its longest answer. Every answer is checked to be finished and valid.
"""

from __future__ import annotations

import argparse
import json
import re
import statistics
import time
from typing import Any

from experiments.harness.smollm2 import checkpoint

PATTERN = r"[a-z]{3,4}( [a-z]{3,4}){0,60}\."
BATCH = 4
MAX_TOKENS = 120


def answer(llm: Any, milliseconds: int | None, seed: int) -> float:
    """Answer a batch of requests; return its wall time in milliseconds."""
    from vllm import SamplingParams

    deadline = {} if milliseconds is None else {"deadline_ms": milliseconds}
    extra = {"gcd": json.dumps({"regex": PATTERN} | deadline)}
    parameters = [
        SamplingParams(seed=BATCH * seed + i, max_tokens=MAX_TOKENS, extra_args=extra)
        for i in range(BATCH)
    ]
    prompt = [{"role": "user", "content": "Write many short words."}]
    start = time.perf_counter()
    found = llm.chat([prompt] * BATCH, parameters, use_tqdm=False)
    spent = 1000 * (time.perf_counter() - start)
    for output in (output for each in found for output in each.outputs):
        if output.finish_reason != "stop" or not re.fullmatch(PATTERN, output.text):
            raise RuntimeError(f"expected a finished and valid answer, got {output.text!r}")
    return spent


def main() -> None:
    """Print the time of batches without a deadline, and how late batches with a deadline end."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--deadlines", type=int, nargs="+", default=[250, 500, 1000, 2000])
    parser.add_argument("--repeats", type=int, default=8)
    given = parser.parse_args()
    from vllm import LLM

    llm = LLM(str(checkpoint()), dtype="float32", max_model_len=256, enforce_eager=True)
    for milliseconds in (None, given.deadlines[0]):  # warm up
        answer(llm, milliseconds, seed=0)
    free = [answer(llm, None, seed) for seed in range(given.repeats)]
    print(f"no deadline: {min(free):.0f} to {max(free):.0f} ms")
    for milliseconds in given.deadlines:
        late = [answer(llm, milliseconds, seed) - milliseconds for seed in range(given.repeats)]
        median = statistics.median(late)
        print(f"{milliseconds} ms: {median:+.0f} ms at the median, {max(late):+.0f} ms at worst")


if __name__ == "__main__":
    main()

"""Time of lifting constraints to tokens, and of masks on a device.

    OMP_NUM_THREADS=1 python -m benchmarks.lifting FILE.tiktoken --tokenizer DIR --schemas FOLDER

Times are processor time of one thread on a CPU, otherwise wall time, in ms. The script only uses
the public interface, so that a copy of it also measures earlier commits.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
import warnings
from collections.abc import Callable
from functools import partial
from pathlib import Path

import torch
from transformers import AutoTokenizer

import gcd

ROWS, TURNS = 256, 9
LARGEST = 2_000_000  # entries of a table on the device
CONCEPTS = (
    ("dog", "run", "park", "ball", "catch"),
    ("cook", "pan", "egg", "oil", "stir"),
    ("rider", "horse", "jump", "fence", "crowd"),
)


def measure(work: Callable[[], object], device: str = "cpu", turns: int = 3) -> float:
    """Return the median time in ms."""
    clock = time.process_time if device == "cpu" else time.perf_counter
    times = []
    for _ in range(turns):
        start = clock()
        work()
        if device != "cpu":
            torch.cuda.synchronize()
        times.append(1e3 * (clock() - start))
    return statistics.median(times)


def main() -> None:
    """Measure lifts of schemas, of a segment and of keywords, and masks of 256 rows."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("ranks", type=Path, help="vocabulary: lines of `base64 rank`")
    parser.add_argument("--tokenizer", required=True, help="folder of a tokenizer")
    parser.add_argument("--schemas", type=Path, required=True, help="folder of schemas")
    parser.add_argument("--every", type=int, default=20, help="use every n-th schema")
    parser.add_argument("--device", default="cpu")
    arguments = parser.parse_args()
    warnings.simplefilter("ignore")
    unsized = gcd.Vocabulary.from_ranks(arguments.ranks, eos_ids=[])
    vocabulary = gcd.Vocabulary.from_ranks(arguments.ranks, eos_ids=[unsized.size])
    tokenizer = AutoTokenizer.from_pretrained(arguments.tokenizer)
    smaller = gcd.Vocabulary.from_tokenizer(tokenizer)  # canonical lifts need a tokenizer's merges
    lifted, ms, canonical = [], [], []
    for path in sorted(arguments.schemas.glob("*.json"))[:: arguments.every]:
        try:
            language = gcd.json_schema(json.loads(path.read_text("utf-8-sig"))["schema"])
            lifted.append(gcd.lift(language, vocabulary))
        except gcd.ConstraintError:
            continue
        ms.append(measure(partial(gcd.lift, language, vocabulary)))
        lift = partial(gcd.lift, language, smaller, literals="canonical")
        canonical.append(measure(lift, turns=1))
    for name, found in (("all", ms), ("canonical", canonical)):
        median, total = statistics.median(found), sum(found)
        print(f"lift {len(found)} schemas, literals={name}: median {median:.1f}, sum {total:.0f}")
    answer = gcd.json_schema({"type": "object", "properties": {"a": {"type": "string"}}})
    plan = gcd.segments(
        [gcd.Segment(gcd.anything(), until="</think>", tokens=20), gcd.Segment(answer)]
    )
    print(f"lift segments: {measure(lambda: gcd.lift(plan, vocabulary)):.0f} ms", flush=True)
    for words in CONCEPTS:
        language = gcd.keywords([[word] for word in words], max_words=20)
        took = measure(partial(gcd.lift, language, vocabulary))
        print(f"lift keywords {' '.join(words)}: {took:.0f} ms", flush=True)
    some = [each for each in lifted if each.num_states * each.num_classes < LARGEST][:16]
    rows = [some[i % len(some)] for i in range(ROWS)]
    batch = gcd.AutomatonBatch(rows, device=arguments.device)
    mask = gcd.BudgetMask(batch, [int(each.steps_to_accept.max()) + 200 for each in rows])
    left = mask.budget - 1
    for name, work in (
        ("classes", lambda: mask.class_mask(batch.initial, left)),
        ("packed masks", lambda: mask.packed(batch.initial, left)),
    ):
        work()
        print(f"{name} of {ROWS} rows: {measure(work, arguments.device, TURNS):.1f} ms", flush=True)


if __name__ == "__main__":
    main()

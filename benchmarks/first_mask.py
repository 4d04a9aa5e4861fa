"""Time from a new JSON Schema to its first mask, and of the steps after it.

    OMP_NUM_THREADS=1 python -m benchmarks.first_mask FILE.tiktoken --schemas FOLDER --every 6

The vocabulary is prepared beforehand. Times are processor time of one thread. *Steps* are those of
an answer drawn at random from the engine's own masks: at the first visit, and for the same answer
again.
"""

from __future__ import annotations

import argparse
import time
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from benchmarks.common import head, line, public_schemas, read_ranks, with_ranks
from benchmarks.engines import COMPETITORS, Engine, Ours, Row, is_installed
from gcd import Vocabulary

STEPS = 60
PERCENTILES = (50, 90, 95, 99, 100)


class Sample(NamedTuple):
    """One schema under one engine: ms to the first mask, us of steps, bytes; None if refused."""

    first: float
    fresh: list[float]
    warm: list[float]
    num_bytes: int | None


def measure(engine: Engine, schema: Any, seed: int) -> Sample | None:
    """Compile a schema and follow a random answer."""
    row = Row(engine.vocabulary_size)
    start = time.process_time()
    try:
        compiled = engine.compile(schema)
        matcher = engine.matcher(compiled)
        engine.first(matcher, row)
    except Exception:  # engines raise different errors for refused schemas
        return None
    first = (time.process_time() - start) * 1e3
    rng, tokens = np.random.default_rng(seed), list[int]()
    fresh = []
    for _ in range(STEPS):
        ids = np.flatnonzero(np.unpackbits(row.first.view(np.uint8), bitorder="little"))
        if not ids.size:
            break
        token = int(rng.choice(ids[: 1 + int(rng.integers(ids.size))]))
        if token in engine.ends:
            break
        tokens.append(token)
        begin = time.thread_time_ns()
        taken = engine.step(matcher, token, row)
        fresh.append((time.thread_time_ns() - begin) / 1e3)
        if not taken:
            break
    engine.reset(matcher)
    warm = []
    for token in tokens:
        begin = time.thread_time_ns()
        engine.step(matcher, token, row)
        warm.append((time.thread_time_ns() - begin) / 1e3)
    return Sample(first, fresh, warm, engine.num_bytes(compiled))


def table(results: dict[str, list[Sample | None]]) -> Iterator[str]:
    """Print rows of percentiles, engine by engine."""
    yield head("ms to the first mask", "compiled", "median", "90%", "95%", "99%", "worst")
    for name, samples in results.items():
        first = [sample.first for sample in samples if sample]
        yield line(name, f"{len(first)} of {len(samples)}", *percentiles(first))
    yield ""
    yield head("us of a step", "steps", "median", "90%", "95%", "99%", "worst")
    for name, samples in results.items():
        for label, field in (("first visit", "fresh"), ("again", "warm")):
            steps = [each for sample in samples if sample for each in getattr(sample, field)]
            yield line(f"{name}, {label}", len(steps), *percentiles(steps))
    yield ""
    yield head("kB of a constraint", "", "median", "90%", "95%", "99%", "worst")
    for name, samples in results.items():
        sizes = [s.num_bytes / 1e3 for s in samples if s and s.num_bytes is not None]
        yield line(name, len(sizes), *percentiles(sizes))


def percentiles(values: list[float]) -> list[str]:
    if not values:
        return ["–"] * len(PERCENTILES)
    found = np.percentile(values, PERCENTILES)
    return [f"{v:.3g}" if v < 100 else f"{v:.0f}" for v in found]


def main() -> None:
    """Parse the command line and run."""
    parser = with_ranks(__doc__)
    parser.add_argument("--schemas", type=Path, required=True, help="folder of schemas")
    parser.add_argument("--every", type=int, default=6, help="use every n-th schema")
    parser.add_argument("--without", nargs="*", default=[], choices=list(COMPETITORS))
    arguments = parser.parse_args()
    vocabulary = read_ranks(arguments.ranks)
    warnings.simplefilter("ignore")
    print("\n".join(table(dict(run(vocabulary, arguments)))))


def run(
    vocabulary: Vocabulary, arguments: argparse.Namespace
) -> Iterator[tuple[str, list[Sample | None]]]:
    """Measure engine by engine."""
    schemas = [schema for _, schema in public_schemas(arguments.schemas)][:: arguments.every]
    makers: dict[str, Any] = {"ours": Ours}
    for module, maker in COMPETITORS.items():
        if is_installed(module) and module not in arguments.without:
            makers[module] = maker
        else:
            print(f"{module} is left out")
    print(f"{vocabulary.size} tokens, {len(schemas)} schemas\n", flush=True)
    for name, maker in makers.items():
        engine: Engine = maker(vocabulary, 1)
        engine.vocabulary_size, engine.ends = vocabulary.size, set(vocabulary.eos_ids)
        yield name, [measure(engine, schema, seed) for seed, schema in enumerate(schemas)]


if __name__ == "__main__":
    main()

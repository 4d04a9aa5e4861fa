"""Constraints for serving: this project compared with other grammar engines, in one run.

All engines get the same schemas, vocabulary and answers (`benchmarks/claims.md`), configured
for the same language (`benchmarks/engines.py`). *Fresh* is a new matcher of a constraint without
cached masks, *warm* the same answer again. In a batch of 16 different constraints, a finished row
starts another answer. Memory is that of a constraint after its masks were computed, or the growth
of the process if the engine doesn't report it. *Masks* counts the positions at which an engine's
mask differs from ours.

    python -m benchmarks.constraints ../shared/data/vocabularies/qwen/qwen.tiktoken

`--details` adds a table of our compile times and sizes by schema.
"""

from __future__ import annotations

import argparse
import gc
import json
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from benchmarks.common import SCHEMAS, head, line, read_ranks, with_ranks
from benchmarks.engines import COMPETITORS, Engine, Ours, Row, is_installed, longest_match
from gcd import Automaton, Vocabulary, json_schema, lift
from gcd._serving.matcher import masks_of

BATCH, BATCH_STEPS = 16, 64


class Case(NamedTuple):
    """A schema and the token ids of some of its answers, the longest first."""

    name: str
    schema: Any
    answers: list[list[int]]


class Measured(NamedTuple):
    """Figures of one engine; compile times in ms, steps in us, memory in MB."""

    name: str
    prepare: float
    compile: np.ndarray
    fresh: np.ndarray
    warm: np.ndarray
    batch_fresh: np.ndarray
    batch_warm: np.ndarray
    memory: np.ndarray
    refused: list[str]


def load(vocabulary: Vocabulary, limit: int | None) -> list[Case]:
    """Load the schemas with the tokens of their answers."""
    spell = longest_match(vocabulary)
    cases = []
    for path in sorted(SCHEMAS.glob("*.json"))[:limit]:
        case = json.loads(path.read_text("utf-8-sig"))
        texts = [
            json.dumps(answer, ensure_ascii=False, separators=(",", ":")).encode()
            for answer in case["instances"]
        ]
        answers = sorted((spell(text) for text in texts), key=len, reverse=True)
        cases.append(Case(path.stem, case["schema"], answers))
    return cases


def resident() -> int:
    """Return the bytes of memory of this process."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096


def microseconds(start: int) -> float:
    """Return the microseconds since `start`."""
    return (time.perf_counter_ns() - start) / 1e3


def stream(engine: Engine, matcher: Any, answer: Sequence[int], row: Row) -> list[float]:
    """Return the times of the steps of one answer."""
    engine.first(matcher, row)
    times = []
    for token in answer:
        start = time.perf_counter_ns()
        engine.step(matcher, token, row)
        times.append(microseconds(start))
    return times


def accepts(engine: Engine, compiled: Any, answer: list[int], eos: int) -> bool:
    """Tell whether an engine accepts a complete answer."""
    matcher = _matcher(engine, compiled, answer)
    return all(engine.take(matcher, token) for token in [*answer, eos])


def _matcher(engine: Engine, compiled: Any, answer: list[int]) -> Any:
    if isinstance(engine, Ours):
        engine.length = len(answer) + 1
    return engine.matcher(compiled)


def measure(
    make: Any, vocabulary: Vocabulary, cases: list[Case], threads: int, compiled: dict[str, Any]
) -> tuple[Engine, Measured]:
    """Measure one engine; its constraints are added to `compiled` by schema."""
    start = time.perf_counter()
    engine: Engine = make(vocabulary, threads)
    prepare = (time.perf_counter() - start) * 1e3
    compiled_in, fresh, warm, memory = [], [], [], []
    refused: list[str] = []
    row = Row(vocabulary.size)
    for case in cases:
        gc.collect()
        before = resident()
        start = time.perf_counter()
        constraint = engine.compile(case.schema)
        compiled_in.append((time.perf_counter() - start) * 1e3)
        compiled[case.name] = constraint
        for answer in case.answers:
            if not accepts(engine, constraint, answer, vocabulary.eos_ids[0]):
                refused.append(case.name)
                continue
            matcher = _matcher(engine, constraint, answer)
            fresh += stream(engine, matcher, answer, row)
            engine.reset(matcher)
            warm += stream(engine, matcher, answer, row)
        size = engine.num_bytes(constraint)
        memory.append((resident() - before if size is None else size) / 1e6)
    usable = [case for case in cases if case.name not in refused]
    starts = range(0, len(usable), 4)
    batches = [batch(engine, compiled, usable, first, vocabulary) for first in starts]
    return engine, Measured(
        engine.name,
        prepare,
        np.array(compiled_in),
        np.array(fresh),
        np.array(warm),
        np.array([times for first_time, _ in batches for times in first_time]),
        np.array([times for _, again in batches for times in again]),
        np.array(memory),
        refused,
    )


def batch(
    engine: Engine,
    compiled: dict[str, Any],
    cases: list[Case],
    first: int,
    vocabulary: Vocabulary,
) -> tuple[list[float], list[float]]:
    """Return times of calls for 16 different constraints: fresh, then warm."""
    chosen = [cases[(first + i) % len(cases)] for i in range(min(BATCH, len(cases)))]
    rows = Row(vocabulary.size, len(chosen))
    matchers = [_matcher(engine, compiled[case.name], case.answers[0]) for case in chosen]
    found: list[list[float]] = []
    for _ in ("fresh", "warm"):
        streams = [_tokens(case) for case in chosen]
        for matcher in matchers:
            engine.reset(matcher)
        together = engine.together(matchers)
        times = []
        for _ in range(BATCH_STEPS):
            tokens = []
            for i, stream in enumerate(streams):
                token, begins = next(stream)
                if begins:
                    engine.reset(matchers[i])
                tokens.append(token)
            start = time.perf_counter_ns()
            engine.batch(together, tokens, rows)
            times.append(microseconds(start))
        found.append(times)
    return found[0], found[1]


def _tokens(case: Case) -> Iterator[tuple[int, bool]]:
    """Yield the longest answer of a schema repeatedly, as (token, whether it is the first)."""
    while True:
        for i, token in enumerate(case.answers[0]):
            yield token, i == 0


def disagreements(
    ours: Engine,
    mine: dict[str, Any],
    engine: Engine,
    theirs: dict[str, Any],
    cases: list[Case],
    vocabulary: Vocabulary,
) -> tuple[int, int, list[str]]:
    """Return positions with different masks, all positions, and a line per kind of difference."""
    row, other = Row(vocabulary.size), Row(vocabulary.size)
    differ, positions, examples = 0, 0, dict[tuple[str, str], str]()
    for case in cases:
        for answer in case.answers:
            one = _matcher(ours, mine[case.name], answer)
            two = _matcher(engine, theirs[case.name], answer)
            for i in range(len(answer) + 1):
                if i == 0:
                    ours.first(one, row)
                    engine.first(two, other)
                elif not (
                    ours.step(one, answer[i - 1], row) and engine.step(two, answer[i - 1], other)
                ):
                    break
                positions += 1
                if (row.array == other.array).all():
                    continue
                differ += 1
                for side, words in (
                    ("only ours", row.first & ~other.first),
                    (f"only {engine.name}", other.first & ~row.first),
                ):
                    ids = np.flatnonzero(np.unpackbits(words.view(np.uint8), bitorder="little"))
                    if ids.size and (case.name, side) not in examples:
                        prefix = vocabulary.decode(answer[:i])[-40:]
                        tokens = [
                            "EOS" if t in vocabulary.eos_ids else vocabulary.token_bytes[t]
                            for t in ids[:4].tolist()
                        ]
                        examples[case.name, side] = (
                            f"{case.name}: {side}, after {prefix!r}: {ids.size} tokens, {tokens}"
                        )
    return differ, positions, list(examples.values())


def table(results: list[Measured]) -> Iterator[str]:
    """Print the figures of all engines, with their ratios to ours in brackets."""
    heads = ["", *(r.name for r in results)]
    yield head(*heads)

    def figures_of(label: str, figures: list[tuple[float, ...]]) -> str:
        cells = []
        for values in figures:
            text = " / ".join(f"{v:.3g}" if v < 100 else f"{v:.0f}" for v in values)
            if values is not figures[0] and figures[0][0] > 0:
                text += f" ({values[0] / figures[0][0]:.2g} x)"
            cells.append(text)
        return line(label, *cells)

    def median_and(q: float, values: np.ndarray) -> tuple[float, float]:
        if values.size == 0:
            return float("nan"), float("nan")
        return float(np.median(values)), float(np.percentile(values, q))

    yield figures_of("prepare a vocabulary, ms", [(r.prepare,) for r in results])
    yield figures_of("compile, median / worst, ms", [median_and(100, r.compile) for r in results])
    yield figures_of(
        "compile with the vocabulary prepared each time, median, ms",
        [(float(np.median(r.compile)) + r.prepare,) for r in results],
    )
    for label, field in [
        ("one sequence, fresh", "fresh"),
        ("one sequence, warm", "warm"),
        ("16 in one call, fresh", "batch_fresh"),
        ("16 in one call, warm", "batch_warm"),
    ]:
        yield figures_of(
            f"{label}, median / p99, us", [median_and(99, getattr(r, field)) for r in results]
        )
    yield figures_of("memory, median / largest, MB", [median_and(100, r.memory) for r in results])


def details(vocabulary: Vocabulary, cases: list[Case]) -> Iterator[str]:
    """Print our compile times by phase."""
    heads = ["schema", "byte states", "token states", "classes", "patterns", "bytes, ms"]
    yield head(*heads, "lift, ms", "serve, ms", "token table, MB", "served, MB")
    for case in cases:
        times = [time.perf_counter()]
        automaton = json_schema(case.schema)
        times.append(time.perf_counter())
        lifted = lift(automaton, vocabulary)
        times.append(time.perf_counter())
        compact = masks_of(lifted)
        times.append(time.perf_counter())
        to_bytes, to_tokens, to_serve = np.diff(times) * 1e3
        whole = 4 * lifted.num_states * lifted.num_classes
        yield (
            f"| {case.name} | {automaton.num_states} | {lifted.num_states} "
            f"| {lifted.num_classes} | {lifted.rows.pattern_start.size - 1} | {to_bytes:.1f} "
            f"| {to_tokens:.1f} | {to_serve:.1f} | {whole / 1e6:.1f} "
            f"| {compact.nbytes / 1e6:.1f} |"
        )


def main() -> None:
    """Parse the command line and run."""
    parser = with_ranks(__doc__)
    parser.add_argument(
        "--threads", type=int, default=2, help="threads of engines that use several"
    )
    parser.add_argument("--without", nargs="*", default=[], choices=list(COMPETITORS))
    parser.add_argument("--schemas", type=int, default=None, help="number of schemas")
    parser.add_argument("--details", action="store_true", help="print our compile times by schema")
    arguments = parser.parse_args()

    vocabulary = read_ranks(arguments.ranks)
    cases = load(vocabulary, arguments.schemas)
    run(vocabulary, cases, arguments)


def run(vocabulary: Vocabulary, cases: list[Case], arguments: argparse.Namespace) -> None:
    """Measure every engine and print the table."""
    tokens = sum(len(answer) for case in cases for answer in case.answers)
    answers = sum(len(case.answers) for case in cases)
    print(f"{vocabulary.size} tokens, {len(cases)} schemas, {answers} answers of {tokens} tokens\n")

    # A separate vocabulary loads the code without filling other caches.
    small = Vocabulary.from_bytes([b'"', b"a", b"b", b"ab", b"</s>"], [4])
    warm_up = Ours(small, 1, 2)
    loaded = warm_up.compile({"enum": ["a", "ab"]})
    warm_up.length = 4
    one = warm_up.matcher(loaded)
    warm_up.step(one, 0, Row(small.size))
    warm_up.batch(warm_up.together([one]), [1], Row(small.size))
    assert Automaton.byte_set(b"ab") & Automaton.literal("a") == Automaton.literal("a")

    compiled: dict[str, dict[str, Any]] = {}
    engines: list[Engine] = []
    results: list[Measured] = []
    makers: dict[str, Any] = {"ours": Ours}
    for module, maker in COMPETITORS.items():
        if module in arguments.without:
            continue
        if is_installed(module):
            makers[module] = maker
        else:
            print(f"{module} is not installed: left out")
    for name, maker in makers.items():
        compiled[name] = {}
        engine, result = measure(maker, vocabulary, cases, arguments.threads, compiled[name])
        engines.append(engine)
        results.append(result)
        print(f"{name}: done; refused answers of {result.refused or 'none'}", flush=True)
    again = Vocabulary.from_bytes(vocabulary.token_bytes, vocabulary.eos_ids)
    start = time.perf_counter()
    Ours(again, 1)
    from_file = (time.perf_counter() - start) * 1e3

    budgeted = Ours(vocabulary, 1, slack=0)
    budgeted.compile = lambda schema: next(  # type: ignore[method-assign]
        compiled["ours"][case.name] for case in cases if case.schema is schema
    )
    _, tight = measure(lambda *_: budgeted, vocabulary, cases, 1, dict[str, Any]())
    results.insert(1, tight._replace(prepare=results[0].prepare, compile=results[0].compile))

    print()
    print("\n".join(table(results)))
    print(f"\nours: a vocabulary prepared by an earlier process is read in {from_file:.0f} ms")
    print()
    for (name, constraints), engine in zip(list(compiled.items())[1:], engines[1:], strict=True):
        differ, positions, examples = disagreements(
            engines[0], compiled["ours"], engine, constraints, cases, vocabulary
        )
        print(f"{name}: masks differ on {differ} of {positions} positions")
        print("".join(f"    {line}\n" for line in examples))
    if arguments.details:
        print("\n".join(details(vocabulary, cases)))


if __name__ == "__main__":
    main()

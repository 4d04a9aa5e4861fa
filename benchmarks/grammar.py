"""How long grammars take to compile, to lift, and for a step; what they cover; how bad ones end.

Seconds are processor time of one thread, compiled code warm. A step is a token and the mask after
it, along random texts; a JSON schema of `benchmarks/schemas` stands beside the grammars. Each
hostile grammar is compiled in a process of its own, whose peak of memory has library and vocabulary
too; the first is a process that compiles next to nothing.

    OMP_NUM_THREADS=1 python -m benchmarks.grammar ../shared/data/vocabularies/qwen/qwen.tiktoken
"""

from __future__ import annotations

import random
import resource
import statistics
import time
from multiprocessing import get_context
from pathlib import Path

import numpy as np

import gcd
from benchmarks.common import head, lifted, line, ranked, with_ranks

FOLDER = Path(__file__).resolve().parent / "grammars"
DEPTHS = {"json.lark": 6, "arithmetic.lark": 8, "sql.gbnf": 2, "lisp.lark": 6, "python.lark": 3}
_NESTED = "\n".join(f'r{i}: "(" r{7 * i % 60} r{(i + 1) % 60} ")" | "x"' for i in range(60))
_DOUBLED = "\n".join(f"a{i}: a{i + 1} a{i + 1} | a{i + 1}" for i in range(25))
HOSTILE = {
    "(not hostile)": 'start: "x"',
    "empty loops": "start: a | \na: start? | a a | b\nb: a b a | start",
    "all splits": 'start: start start start | start start | "x" | "(" start ")"',
    "2^40 productions": "start: " + " ".join(['("a" | start "z")?'] * 40),
    "doubled 25 times": f'start: a0\n{_DOUBLED}\na25: "y" | "(" start ")"',
    "60 rules in each other": f"start: r0\n{_NESTED}",
    "hidden left recursion": 'start: a start "x" | "y"\na: "z"? start?',
    "30 letters later": "start: A\nA: /(a|b)*a(a|b){30}/",
    "the same by rules": 'start: b* "a" b ~ 30\nb: "a" | "b"',
    "terminals, 3^12": "start: T12\nT0: /[a-z]*q/\n"
    + "\n".join(f"T{i + 1}: T{i} T{i} T{i}" for i in range(12)),
    "a million copies": 'start: a ~ 1000000\na: "(" a ")" | "x"',
    "endless templates": 'start: t{start}\nt{x}: t{u{x}} | "a"\nu{x}: x "b"',
    "3 000 brackets": "start: " + "[" * 3000 + '"x"' + "]" * 3000,
    "100 000 rules": "start: r0\n" + "\n".join(f"r{i}: r{i + 1}" for i in range(100_000)),
}


def outcome(name: str) -> None:
    """Compile a hostile grammar; print what came of it, in how long, with how much memory."""
    start = time.process_time()
    try:
        language = gcd.grammar(HOSTILE[name])
        said = f"{language.num_states} states, {language.extent}"
    except gcd.ConstraintError as error:
        said = f"{type(error).__name__}: {str(error).splitlines()[0][:110]}"
    seconds = time.process_time() - start
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**10
    print(line(name, f"{seconds:.2f}", f"{peak:.0f}", said), flush=True)


def step(automaton: gcd.TokenAutomaton, texts: int = 20, tokens: int = 60) -> float:
    """Measure a step of `gcd.Matcher`, median in microseconds over random texts in a budget."""
    shortest = automaton.fewest_tokens
    served, rng, times = gcd.ServedAutomaton(automaton), random.Random(0), []
    for _ in range(texts):
        matcher = gcd.Matcher(served, budget=shortest + tokens)
        mask = matcher.mask()
        while not matcher.is_finished:
            allowed = np.flatnonzero(np.unpackbits(mask.view(np.uint8), bitorder="little"))
            token = int(allowed[rng.randrange(len(allowed))])
            start = time.perf_counter_ns()
            matcher.advance(token)
            matcher.fill_mask(mask)
            times.append((time.perf_counter_ns() - start) / 1e3)
    return statistics.median(times)


def main() -> None:
    vocabulary = ranked(with_ranks(__doc__).parse_args().ranks)
    gcd.lift(gcd.grammar('start: "(" start ")" | "x"'), vocabulary)  # kernels, prefix tree
    schema = lifted("create_event", vocabulary)
    print(f"a step of create_event.json: {step(schema):.1f} µs\n")
    columns = "states", "classes", "compile, s", "lift, s", "step, µs", "coverage"
    print(head("grammar", "depth", *columns))
    for name, depth in DEPTHS.items():
        text, dialect = (FOLDER / name).read_text("utf-8-sig"), name.partition(".")[2]
        start = time.process_time()
        language = gcd.grammar(text, dialect, max_depth=depth)
        compiled = time.process_time()
        automaton = gcd.lift(language, vocabulary)
        end = time.process_time()
        covered = str(gcd.grammar_coverage(language, 40))
        size = automaton.num_states, automaton.num_classes
        took = f"{compiled - start:.2f}", f"{end - compiled:.2f}", f"{step(automaton):.1f}"
        print(line(name, depth, *size, *took, covered), flush=True)
    print("\n" + head("hostile grammar", "s", "peak, MiB", "outcome"), flush=True)
    for name in HOSTILE:
        process = get_context("fork").Process(target=outcome, args=(name,))
        process.start()
        process.join()


if __name__ == "__main__":
    main()

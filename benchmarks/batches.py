"""What entering saves: many examples of unequal length, in batches that others enter or wait for.

    python -m benchmarks.batches

The same examples under GCD, with the same results: each batch sampled to its last example before
the next begins (`smc.schedule.ENTERING = 1`), and with groups of examples entering as others leave.
Sides are timed in turns; the table has medians, their ratio, and the rows of a pass.

Examples are beginnings of stories for the tiny model of the tests, whose answers have from a few to
some tens of tokens; or, with `--smollm2`, requests of xLAM for SmolLM2 with its adapter.
"""

from __future__ import annotations

import argparse
import random
import statistics
import time
from collections.abc import Sequence
from typing import NamedTuple

import torch
from tqdm.auto import tqdm

import gcd
import smc
from benchmarks.common import head, tool_calls
from experiments.harness.budgets import budget_of
from experiments.harness.config import ModelConfig
from experiments.harness.models import ROOT, load_model
from experiments.tool_calling.prompts import compact_prompt
from smc import schedule
from smc.reading import JointRows


class Examples(NamedTuple):
    """What is sampled."""

    lm: smc.TransformersLM
    prompts: list[list[int]]
    automata: list[gcd.TokenAutomaton]
    budgets: list[int]


class Passes(NamedTuple):
    """How many there were, the mean of their rows, and the share of them that was no padding."""

    count: int
    rows: float
    filled: float


class Counted(JointRows):
    """Notes the rows of every pass, its tokens, and its places for tokens, padding included."""

    rows: list[int]
    tokens: list[int]
    places: list[int]

    def read(self, readings):  # type: ignore[no-untyped-def]
        said = super().read(readings)
        width = max(part.shape[1] for part in said.values())
        self.rows.append(sum(len(reading.ancestors) for reading in readings.values()))
        self.places.append(self.rows[-1] * width)
        lengths = [reading.lengths.clamp(max=width).sum() for reading in readings.values()]
        self.tokens.append(int(sum(lengths)))
        return said


def stories(count: int) -> Examples:
    """Sentences of at most 4 to 60 tokens, after beginnings of different lengths."""
    from transformers import AutoModelForCausalLM, AutoTokenizer

    path = ROOT / "tests" / "models" / "stories260K"
    model = AutoModelForCausalLM.from_pretrained(path)
    lm = smc.TransformersLM(model, AutoTokenizer.from_pretrained(path), prompt_bytes=1 << 26)
    text = "Once upon a time there was a little girl who liked to play with her red ball"
    words = text.split()
    rng = random.Random(0)
    limits = [rng.choice((5, 10, 20, 80, 160)) for _ in range(count)]
    constraints = {
        limit: gcd.lift(gcd.regex(f"[A-Za-z ,']{{0,{limit}}}[.!?]"), lm.vocabulary)
        for limit in set(limits)
    }
    automata = [constraints[limit] for limit in limits]
    return Examples(
        lm,
        [lm.encode(" ".join(words[: rng.randint(1, len(words))])) for _ in range(count)],
        automata,
        [4 + limit // 3 for limit in limits],
    )


def requests(count: int) -> Examples:
    """Tool calls for xLAM's requests."""
    adapter = str(ROOT / "models" / "smollm2-xlam")
    lm, _ = load_model(ModelConfig(device="cpu", adapter=adapter))
    prompts, automata = [], []
    for record, language in islice(tool_calls("json"), count):
        automata.append(gcd.lift(language, lm.vocabulary, literals="canonical"))
        prompts.append(lm.encode(compact_prompt(record, "json")))
    return Examples(lm, prompts, automata, [budget_of("default", a) for a in automata])


def measure(
    examples: Examples, part: tuple[int, int], particles: int, max_rows: int, algorithm: str
) -> tuple[float, Passes, list[tuple[bytes, ...]]]:
    """Processor time of a whole run, its passes, and its answers."""
    schedule.ENTERING, schedule.MOST_GROUPS = part
    Counted.rows, Counted.tokens, Counted.places = [], [], []
    started = time.process_time()
    found = smc.sample(
        examples.lm, examples.prompts, examples.automata, budget=examples.budgets,
        particles=particles, proposal=smc.GCD(), algorithm=algorithm, max_rows=max_rows,
    )  # fmt: skip
    seconds = time.process_time() - started
    passes = Passes(
        len(Counted.rows),
        statistics.mean(Counted.rows),
        sum(Counted.tokens) / sum(Counted.places),
    )
    return seconds, passes, [posterior.answers for posterior in found]


def compare(
    examples: Examples,
    parts: Sequence[tuple[int, int]],
    repeats: int,
    particles: int,
    max_rows: int,
    name: str,
) -> None:
    """Print the lines of one algorithm; the first part is what others are compared with."""
    seconds: dict[tuple[int, int], list[float]] = {part: [] for part in parts}
    passes, answers = {}, {}
    for repeat in tqdm(range(repeats + 1), leave=False):  # the first is not timed
        for part in parts:
            found = measure(examples, part, particles, max_rows, name)
            taken, passes[part], answers[part] = found
            if repeat:
                seconds[part].append(taken)
    base = statistics.median(seconds[parts[0]])
    for part in parts:
        median = statistics.median(seconds[part])
        same = sum(a == b for a, b in zip(answers[part], answers[parts[0]], strict=True))
        count, rows, filled = passes[part]
        print(
            f"| {name} | 1/{part[0]} | {part[1]} | {count} | {rows:.1f} | {filled:.2f} | "
            f"{median:.1f} | {base / median:.2f} | {same} of {len(answers[part])} |"
        )


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--smollm2", action="store_true", help="instead of the tiny model")
    parser.add_argument("--examples", type=int, default=60)
    parser.add_argument("--particles", type=int, default=8)
    parser.add_argument("--max-rows", type=int, default=64)
    parser.add_argument("--entering", type=int, nargs="+", default=[1, 2, 4])
    parser.add_argument("--groups", type=int, nargs="+", default=[1, 3, 5])
    parser.add_argument("--algorithms", nargs="+", default=["smc", "discrete"])
    parser.add_argument("--repeats", type=int, default=3)
    given = parser.parse_args()
    schedule.JointRows = Counted  # type: ignore[misc]
    examples = (requests if given.smollm2 else stories)(given.examples)
    print(
        f"{len(examples.prompts)} examples, {given.particles} particles, at most {given.max_rows} "
        f"rows, {torch.get_num_threads()} threads, medians of {given.repeats} runs\n"
    )
    columns = ["algorithm", "group / batch", "groups", "passes", "rows a pass", "filled"]
    print(head(*columns, "seconds", "faster", "same"))
    for name in given.algorithms:
        compare(
            examples,
            list(zip(given.entering, given.groups, strict=True)),
            given.repeats,
            given.particles,
            given.max_rows,
            name,
        )


if __name__ == "__main__":
    main()

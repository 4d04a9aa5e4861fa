"""Time of a step outside of the language model, executed eagerly and in static shapes.

The benchmark measures what constrained sampling adds to a forward pass: the proposal, the choice (a
draw per particle, or selection among all continuations), weights, and bookkeeping. The language
model is a table of random log-probabilities whose own time is subtracted. All sides go through the
same constraint with the same random numbers, in turns, on one thread. Times are processor time,
which is less sensitive to other work on the machine.

    OMP_NUM_THREADS=1 python -m benchmarks.static_step [FILE.tiktoken]
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

import gcd
import smc
from benchmarks.common import compile_and_lift, head, line, read_ranks
from experiments.studies.latency.models import SCHEMA, make_vocabulary
from hmm import HMM

ALGORITHMS: dict[str, dict[str, Any]] = {
    "smc": {"algorithm": "smc"},
    "discrete": {"algorithm": "discrete"},
}


class TableLM:
    """A language model that returns rows of a table, and measures its own time."""

    context = None
    device = torch.device("cpu")

    def __init__(self, vocabulary: gcd.Vocabulary, spread: float) -> None:
        self.vocabulary = vocabulary
        generator = torch.Generator().manual_seed(0)
        logits = spread * torch.randn(64, vocabulary.size, generator=generator)
        self.rows = logits.log_softmax(dim=1)
        self.seconds, self.calls, self.rows_read = 0.0, 0, 0

    def read(self, count: int) -> torch.Tensor:
        started = time.process_time()
        first = (17 * self.calls) % (len(self.rows) - count)
        found = self.rows[first : first + count].clone()
        self.calls += 1
        self.rows_read += count
        self.seconds += time.process_time() - started
        return found

    # Interface of `smc.LanguageModel`.
    def encode(self, prompt: Sequence[int]) -> list[int]:
        return list(prompt)

    def prefill(self, prompts: Sequence[Sequence[int]]) -> tuple[TableLM, torch.Tensor]:
        return self, self.rows[: len(prompts)]

    def extend(self, runs: torch.Tensor, lengths: torch.Tensor) -> torch.Tensor:
        return self.read(len(runs)).unsqueeze(1)

    def reorder(self, ancestors: torch.Tensor) -> None:
        pass

    def truncate(self, lengths: torch.Tensor) -> None:
        raise NotImplementedError

    # Interface of `smc._models.static_cache.Forward`.
    def static_forward(self) -> TableLM:
        return self

    def start(self, prompts: Sequence[Sequence[int]], particles: int, budget: int) -> torch.Tensor:
        return self.rows[: len(prompts)].repeat_interleave(particles, dim=0)

    def step(self, tokens: torch.Tensor, source: torch.Tensor, step: torch.Tensor) -> torch.Tensor:
        return self.read(len(tokens))

    def rewind(self) -> None:
        raise NotImplementedError


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("ranks", type=Path, nargs="?", help="vocabulary: lines of `base64 rank`")
    parser.add_argument("--budget", type=int, default=60)
    parser.add_argument("--hidden", type=int, default=512)
    parser.add_argument("--particles", type=int, default=16)
    parser.add_argument("--spread", type=float, default=3.0, help="scale of the logits")
    parser.add_argument("--repeats", type=int, default=5)
    given = parser.parse_args()

    if given.ranks is None:
        vocabulary = make_vocabulary(49152)
        constraint = gcd.lift(gcd.json_schema(SCHEMA), vocabulary)
    else:
        vocabulary = read_ranks(given.ranks)
        constraint = compile_and_lift("weather", vocabulary)
    lm = TableLM(vocabulary, given.spread)
    hmm = HMM.random(given.hidden, vocabulary.size, generator=torch.Generator().manual_seed(0))
    # Without LM, whose particles are dead after a token or two with random values.
    proposals = {
        "LCD": smc.LCD(),
        "GCD": smc.GCD(),
        "P-GCD": smc.PGCD(hmm),
        "P-GCD, in time": smc.PGCD(hmm, lookahead="in_time"),
    }

    def run(execution: str, algorithm: str, proposal: smc.Proposal, seed: int) -> int:
        (found,) = smc.sample(
            lm, [[0]], constraint, budget=given.budget, particles=given.particles,
            proposal=proposal, seed=seed, forced_runs=False, execution=execution,
            **ALGORITHMS[algorithm],
        )  # fmt: skip
        return len(found.diagnostics.ess)

    loops = ("eager", "static")
    rows = [(algorithm, title) for algorithm in ALGORITHMS for title in proposals]
    read: dict[tuple[str, str], list[float]] = {row: [] for row in rows}
    times: dict[tuple[str, str, str], list[float]] = {
        (*row, name): [] for row in rows for name in loops
    }
    for repeat in range(given.repeats + 1):
        for algorithm, title in rows:
            for name in loops:
                lm.seconds, lm.calls, lm.rows_read = 0.0, 0, 0
                started = time.process_time()
                steps = run(name, algorithm, proposals[title], repeat)
                spent = time.process_time() - started - lm.seconds
                if repeat:  # the first run compiles and makes tables
                    times[algorithm, title, name].append(1e3 * spent / steps)
                    if name == "eager":
                        read[algorithm, title].append(lm.rows_read / steps)
    print(f"{vocabulary.size} tokens, {torch.get_num_threads()} threads, N = {given.particles}")
    print(f"{constraint.num_states} states, {constraint.num_classes} classes\n")
    columns = "rows that are read a step, eagerly", "eager, ms", "static, ms", "eager / static"
    print(head("algorithm", "proposal", *columns))
    for row in rows:
        each = [times[*row, name] for name in loops]
        ratio = statistics.median(a / b for a, b in zip(*each, strict=True))
        medians = (f"{statistics.median(values):.1f}" for values in (read[row], *each))
        print(line(*row, *medians, f"{ratio:.2f}"))


if __name__ == "__main__":
    main()

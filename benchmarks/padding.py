"""What a pass over runs of unequal lengths costs without padding, beside the same pass with it.

    OMP_NUM_THREADS=1 python -m benchmarks.padding --records 24

In a batch of tool calls a few rows are forced to go on by several tokens, while the others read
one. `smc.models.sharing_rows` reads the tokens alone. Here every pass of a run is made twice, in
turns, by the same code: with each row's own tokens, and with as many tokens in every row as the
longest run has, which is how many a rectangular batch computes. Requests are xLAM's 500 to 599, the
model is SmolLM2 with its adapter, answers are sampled with GCD.
"""

from __future__ import annotations

import argparse
import copy
import itertools
import time
from typing import Any

import torch
from tqdm import tqdm

import gcd
import smc
from benchmarks.common import head, line, tool_calls
from experiments.harness.budgets import budget_of
from experiments.harness.config import ModelConfig
from experiments.harness.models import load_model
from experiments.tool_calling.prompts import compact_prompt
from smc.models.sharing_rows import SharingRows


class Both:
    """Passes as they are, and passes with padding; tokens and seconds of each.

    Attributes:
        tokens, seconds: sums over all passes, without padding and with it.
    """

    def __init__(self) -> None:
        self.tokens, self.seconds = [0, 0], [0.0, 0.0]
        self.passes = 0
        self._extend = SharingRows.extend

    def extend(self, rows: SharingRows, runs: torch.Tensor, lengths: torch.Tensor) -> torch.Tensor:
        """Read the runs in both ways; gives what is to be had without padding."""
        full = torch.full_like(lengths, runs.shape[1])
        sides: list[tuple[int, SharingRows, torch.Tensor]] = [
            (0, rows, lengths),
            (1, self._copied(rows), full),
        ]
        self.passes += 1
        found: Any = None
        for side, own, counts in sides if self.passes % 2 else reversed(sides):
            started = time.perf_counter()
            log_p = self._extend(own, runs, counts)
            self.seconds[side] += time.perf_counter() - started
            self.tokens[side] += int(counts.sum())
            found = found if side else log_p
        return found

    def _copied(self, rows: SharingRows) -> SharingRows:
        """Copy what a pass writes to."""
        copied = copy.copy(rows)
        copied._layers = [(keys.clone(), values.clone()) for keys, values in rows._layers]
        return copied


def measure(lm: smc.TransformersLM, style: str, particles: int, count: int) -> Both:
    """Sample answers to so many requests, in batches as experiments have them."""
    prompts, constraints = [], []
    for record, language in itertools.islice(tool_calls(style), count):
        prompts.append(lm.encode(compact_prompt(record, style)))
        constraints.append(gcd.lift(language, lm.vocabulary, literals="canonical"))
    both = Both()
    SharingRows.extend = lambda *args: both.extend(*args)  # type: ignore[method-assign]
    try:
        smc.sample(
            lm, prompts, constraints, budget=[budget_of("default", each) for each in constraints],
            particles=particles, proposal=smc.GCD(), algorithm="smc", read_ahead=0,
        )  # fmt: skip
    finally:
        SharingRows.extend = both._extend  # type: ignore[method-assign]
    return both


def main() -> None:
    """Print a row for each style and number of particles."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--records", type=int, default=24, help="requests of each style")
    count = parser.parse_args().records
    lm, _ = load_model(ModelConfig(path="smollm2", adapter="models/smollm2-xlam"))
    shown = head(
        "answers", "particles", "passes", "tokens", "with padding", "times", "times as fast"
    )
    table = []
    for style, particles in tqdm(list(itertools.product(("json", "python"), (1, 16)))):
        both = measure(lm, style, particles, count)
        (own, padded), (fast, slow) = both.tokens, both.seconds
        ratios = f"{padded / own:.1f}", f"{slow / fast:.2f}"
        table.append(line(style, particles, both.passes, own, padded, *ratios))
    print(shown, *table, sep="\n")


if __name__ == "__main__":
    main()

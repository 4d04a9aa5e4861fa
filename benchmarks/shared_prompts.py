"""What sharing a prompt's keys and values saves: a step of rows that share it, and of copies.

    python -m benchmarks.shared_prompts

One prompt, sixteen rows, steps of one token and of a run of eight; rows move before each step, as
resampling moves them. Both sides are timed in turns, and the table has medians and their ratio.
"""

from __future__ import annotations

import argparse
import statistics

import torch

from benchmarks.common import head, seconds
from experiments.harness.config import ModelConfig
from experiments.harness.models import load_model
from smc.models.rows import SharingRows, TransformersRows
from smc.models.shared_prompts import SharedPrompts

ROWS = 16


def step_seconds(rows: TransformersRows, runs: torch.Tensor, ancestors: torch.Tensor) -> float:
    """Seconds of one step: rows move, and read a run each."""

    def step() -> None:
        rows.reorder(ancestors)
        rows.extend(runs, torch.full((ROWS,), runs.shape[1]))

    return seconds(step)


def compare(model: object, length: int, run: int, repeats: int) -> tuple[float, float, int, int]:
    """Medians of a step in seconds, with copies and shared, and bytes of both caches at the end."""
    generator = torch.Generator().manual_seed(length)
    prompt = torch.randint(0, 40_000, (1, length), generator=generator)
    lengths = torch.tensor([length])
    copied = TransformersRows(model, lengths)
    copied.read(prompt, lengths, logits_to_keep=1)
    prompts = SharedPrompts(lengths, [(k.clone(), v.clone()) for k, v in copied.prompts().layers])
    shared = SharingRows(model, prompts)
    for rows in (copied, shared):
        rows.reorder(torch.zeros(ROWS, dtype=torch.int64))
    found: tuple[list[float], list[float]] = ([], [])
    for _ in range(repeats + 1):
        runs = torch.randint(0, 40_000, (ROWS, run), generator=generator)
        ancestors = torch.randint(0, ROWS, (ROWS,), generator=generator).sort().values
        for times, rows in zip(found, (copied, shared), strict=True):
            times.append(step_seconds(rows, runs, ancestors))

    def nbytes(layers: SharedPrompts) -> int:
        return sum(k.nbytes + v.nbytes for k, v in layers.layers)

    once = nbytes(prompts) + nbytes(shared.prompts())
    medians = [statistics.median(times[1:]) for times in found]
    return medians[0], medians[1], nbytes(copied.prompts()), once


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--repeats", type=int, default=9)
    parser.add_argument("--lengths", type=int, nargs="+", default=[50, 300, 700, 1500])
    options = parser.parse_args()
    lm, _ = load_model(ModelConfig(device="cpu"))
    print(f"{ROWS} rows, {torch.get_num_threads()} threads, medians of {options.repeats} steps\n")
    columns = "copied, ms", "shared, ms", "times faster", "MiB", "MiB shared"
    print(head("prompt", "tokens a step", *columns))
    for length in options.lengths:
        for run in (1, 8):
            copied, shared, before, after = compare(lm.model, length, run, options.repeats)
            print(
                f"| {length} | {run} | {1000 * copied:.0f} | {1000 * shared:.0f} | "
                f"{copied / shared:.2f} | {before / 2**20:.0f} | {after / 2**20:.0f} |"
            )


if __name__ == "__main__":
    main()

"""Time of an EM step by hidden states, and its speed relative to a matrix product on the device.

An E-step takes 6 H^2 operations per token in matrix products of H columns. The share is relative to
a square product in the same precision (float32), timed in the same turn. Tokens are random.

    python -m benchmarks.em [--states 256 1024] [--sequences 1024] [--device cuda]
"""

from __future__ import annotations

import argparse
import statistics
from functools import partial

import torch

from benchmarks.common import head, line
from experiments.harness.models import resolve_device
from experiments.studies.latency.timing import seconds_of
from hmm import HMM, Statistics, expected_statistics, maximize

VOCABULARY = 49_152
LENGTH = 16
"""Tokens of a sequence."""
SQUARE, SQUARE_ON_GPU = 2048, 8192
"""Rows of the reference product, large enough to saturate the device."""


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--states", type=int, nargs="+", default=[256, 1024])
    parser.add_argument("--sequences", type=int, default=1024, help="sequences per batch")
    parser.add_argument("--device", default="auto")
    given = parser.parse_args()
    device = resolve_device(given.device)
    generator = torch.Generator(device).manual_seed(0)
    size = SQUARE_ON_GPU if device.type == "cuda" else SQUARE
    square = torch.rand(size, size, generator=generator, device=device)
    shape = (given.sequences, LENGTH)
    tokens = torch.randint(VOCABULARY, shape, generator=generator, device=device)
    lengths = torch.full((given.sequences,), LENGTH, device=device)
    print(head("states", "E-step, ms", "million tokens per second", "share", "M-step, ms"))
    for states in given.states:
        hmm = HMM.random(states, VOCABULARY, generator=generator, device=device)
        total = Statistics.zeros(hmm)
        step = partial(expected_statistics, hmm, tokens, lengths, into=total)
        product = partial(torch.matmul, square, square)
        update = partial(maximize, total, 1e-3)
        turns = [[seconds_of(work, device) for work in (step, product, update)] for _ in range(6)]
        turns = turns[1:]  # the first turn is a warm-up
        shares = [6 * states**2 * tokens.numel() / e / (2 * size**3 / p) for e, p, _ in turns]
        e, _, m = (statistics.median(column) for column in zip(*turns, strict=True))
        speed, share = tokens.numel() / e / 1e6, statistics.median(shares)
        print(line(states, f"{1e3 * e:.1f}", f"{speed:.3f}", f"{share:.2f}", f"{1e3 * m:.1f}"))


if __name__ == "__main__":
    with torch.inference_mode():
        main()

"""Training loop of a distillation: stepwise EM between full passes, resumable and distributed.

Step 0 counts all training data, because its counts replace the initial ones, and a small batch
would forget most of the initial model. Mini-batch steps follow, with decreasing step sizes
(`hmm.em_step`) and a new order in each pass. The last `full_steps` steps are EM on all data.

**The step number is the only state.** The sequences of a step are a function of the seed and the
step. Batches are divided into pieces of `piece_size` sequences, and process r of w takes every w-th
piece. The result therefore doesn't depend on interruptions, and depends on processes and devices
only through the rounding of sums.

Cost: 6 H² operations per training token and pass (dense), plus V H per step for the M-step.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

import torch
import torch.distributed as dist
from jaxtyping import Float64
from torch import Tensor

from experiments.distillation.data import Sequences
from experiments.rows import derive_seed
from experiments.tasks import bar, wait_for_all
from hmm import HMM, PseudoCounts, Step
from hmm import _em as em
from hmm import _inference as inference
from hmm._checkpoint import load_step, save_step
from hmm._em import Batch
from hmm._files import read_json, write_json

_LOG = logging.getLogger(__name__)


@dataclass(frozen=True)
class Training:
    """Settings of a training; see `DistillConfig` for the fields with the same names."""

    epochs: int
    steps: int | None
    full_steps: int
    batch_size: int
    piece_size: int
    step_decay: float
    pseudo_count: float
    emission_pseudo_count: float
    evaluations: int
    seed: int

    def mini_batches(self, num: int) -> int:
        """Return the number of mini-batch steps on `num` sequences."""
        if self.steps is not None:
            return self.steps
        return (self.epochs - 1 - self.full_steps) * self.per_epoch(num)

    def per_epoch(self, num: int) -> int:
        """Return the number of mini-batches per pass, without an incomplete batch."""
        return max(1, num // self.batch_size)

    def total(self, num: int) -> int:
        """Return the number of all steps, possibly zero."""
        if self.steps is None and self.epochs == 0:
            return 0
        return 1 + self.mini_batches(num) + self.full_steps

    def rows(self, step: int, num: int) -> tuple[Tensor, float]:
        """Return the sequences of a step, and its step size."""
        everything = torch.arange(num)
        if not 0 < step <= self.mini_batches(num) or self.batch_size >= num:
            return everything, 1.0
        epoch, position = divmod(step - 1, self.per_epoch(num))
        generator = torch.Generator().manual_seed(derive_seed("epoch", self.seed, epoch))
        order = torch.randperm(num, generator=generator)
        start = position * self.batch_size
        size = em.step_size(step, decay=self.step_decay)
        return order[start : start + self.batch_size], size

    def pseudo_counts(self, background: Float64[Tensor, "V"]) -> PseudoCounts:
        """Return the pseudo-counts of each step."""
        # Rarely visited states fall back to token frequencies, not to a uniform distribution.
        return PseudoCounts(
            self.pseudo_count, self.pseudo_count, self.emission_pseudo_count * background
        )

    def is_evaluated(self, step: int, num: int) -> bool:
        """Return whether the curve has a point at this step."""
        total = self.total(num)
        return step in (0, 1, total) or step % max(1, total // self.evaluations) == 0


@dataclass(frozen=True)
class Point:
    """A point of the curve, in nats per token.

    Attributes:
        step: number of M-steps.
        epoch: number of passes over the data.
        training: log-likelihood of the step's batch before its M-step; None before the first step.
        held_out: log-likelihood of the held-out sequences.
    """

    step: int
    epoch: float
    training: float | None
    held_out: float


@dataclass
class Worker:
    """Rank and device of a process, and its working directory."""

    directory: Path
    device: torch.device
    rank: int = 0
    world: int = 1
    save_seconds: float = 180.0
    saved: float = field(default_factory=time.monotonic)


def at_random(num_states: int, num_tokens: int, *, seed: int) -> HMM:
    """Make an HMM with random parameters."""
    generator = torch.Generator().manual_seed(derive_seed("initial", seed))
    return HMM.random(num_states, num_tokens, generator=generator)


def mean_log_likelihood(hmm: HMM, sequences: Sequences, piece: int, worker: Worker) -> float:
    """Compute log P in nats per token; the processes divide the pieces."""
    total = torch.zeros((), dtype=torch.float64, device=worker.device)
    for number, rows in enumerate(sequences.pieces(piece)):
        if number % worker.world == worker.rank:
            tokens, lengths = sequences.batch(rows)
            values = inference.log_likelihood(
                hmm, tokens.to(worker.device), lengths.to(worker.device)
            )
            total += values.double().sum()
    if worker.world > 1:
        dist.all_reduce(total)
    return float(total) / sequences.num_tokens


class Trained(NamedTuple):
    """Result of a training.

    Attributes:
        state: state after the last step.
        curve: held-out log-likelihood per token.
        finished: whether all steps were taken.
    """

    state: Step
    curve: list[Point]
    finished: bool


def train(
    initial: Callable[[], HMM],
    training: Sequences,
    held_out: Sequences,
    background: Float64[Tensor, "V"],
    settings: Training,
    worker: Worker,
    stop_after: int | None = None,
) -> Trained:
    """Train from the last checkpoint or from the beginning.

    Args:
        initial: makes the model of step 0; only called by the first process without a checkpoint.
        training: training sequences, in every process.
        held_out: held-out sequences, in every process.
        background: token frequencies, for the pseudo-counts.
        settings: settings that determine the result.
        worker: this process; the first one writes checkpoints and the curve to its directory.
        stop_after: stop after this step, with a checkpoint.
    """
    if worker.rank == 0 and read_checkpoint(worker) is None:
        write_checkpoint(Step(initial()), worker)
    wait_for_all(worker.world)
    begun = read_checkpoint(worker)
    assert begun is not None
    num, state = len(training), begun
    total = settings.total(num)
    if 0 < state.step < total and worker.rank == 0:
        _LOG.info(
            "going on from step %d of %d in %s (remove it to start over)",
            state.step, total, worker.directory,
        )  # fmt: skip
    last = total if stop_after is None else min(total, stop_after)
    pseudo_counts = settings.pseudo_counts(background)
    curve = [p for p in read_curve(worker.directory) if p.step <= state.step]

    def evaluate() -> None:
        value = mean_log_likelihood(state.hmm, held_out, settings.piece_size, worker)
        known = state.log_likelihood if state.step else None
        curve.append(Point(state.step, _epochs(settings, state.step, num), known, value))
        _write_curve(worker, curve)

    if not curve:
        evaluate()
    with bar(total, "EM", "step", worker.rank, state.step) as shown:
        while state.step < last:
            began = time.monotonic()
            rows, size = settings.rows(state.step, num)
            state = em.em_step(
                state,
                _share(training, rows, settings, worker),
                pseudo_counts=pseudo_counts,
                step_size=size,
                num_sequences=num,
            )
            seconds = time.monotonic() - began
            if settings.is_evaluated(state.step, num):
                evaluate()
            rate = int(training.lengths[rows].sum()) / seconds
            shown.set_postfix_str(
                f"{curve[-1].held_out:.3f} nats per token held out, {rate:.0f} tokens/s"
            )
            shown.update()
            if time.monotonic() - worker.saved > worker.save_seconds or state.step == last:
                write_checkpoint(state, worker)
    return Trained(state, curve, state.step >= total)


def _share(
    sequences: Sequences, rows: Tensor, settings: Training, worker: Worker
) -> Iterator[Batch]:
    """Yield this process's pieces of a batch."""
    # Group similar lengths for fewer, larger products.
    rows = rows[sequences.lengths[rows].argsort(stable=True)]
    for number, piece in enumerate(rows.split(settings.piece_size)):
        if number % worker.world == worker.rank:
            tokens, lengths = sequences.batch(piece)
            yield tokens.to(worker.device), lengths.to(worker.device)


def _epochs(settings: Training, step: int, num: int) -> float:
    """Return the number of passes over the data in a number of steps."""
    if step == 0:
        return 0.0
    mini = min(step - 1, settings.mini_batches(num))
    return step - mini + mini * min(1.0, settings.batch_size / num)


def write_checkpoint(state: Step, worker: Worker) -> None:
    """Write a checkpoint in the first process; all processes have the same state."""
    if worker.rank == 0:
        save_step(state, worker.directory / "checkpoint")
    worker.saved = time.monotonic()


def read_checkpoint(worker: Worker) -> Step | None:
    """Read the checkpoint of an earlier run; None if there is none."""
    return load_step(worker.directory / "checkpoint", device=worker.device)


def read_curve(directory: Path) -> list[Point]:
    """Read the curve of an earlier run."""
    path = directory / "curve.json"
    if not path.is_file():
        return []
    remedy = "remove it, and the curve begins where training goes on"
    entries = read_json(path, list, remedy=remedy)
    try:
        return [Point(**entry) for entry in entries]
    except TypeError as error:
        raise ValueError(f"expected a training curve in {path}, got {error}; {remedy}") from error


def _write_curve(worker: Worker, curve: list[Point]) -> None:
    if worker.rank:
        return
    worker.directory.mkdir(parents=True, exist_ok=True)
    write_json([vars(point) for point in curve], worker.directory / "curve.json", indent=1)

"""Training loop of a distillation: stepwise EM between full passes, resumable and distributed.

Step 0 counts all training data, because its counts replace the initial ones, and a small batch
would forget most of the initial model. Mini-batch steps follow, with decreasing step sizes
(`hmm.em_step`) and a new order in each pass. The last step is EM on all data.

**The step number is the only state.** The sequences of a step are a function of the seed and the
step. Batches are divided into pieces of `PIECE` sequences, and process r of w takes every w-th
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
from experiments.tasks import bar, derive_seed, wait_for_all
from hmm import HMM, PseudoCounts, Step, em_step, load_step, log_likelihood, save_step
from hmm._files import read_json, write_json

_LOG = logging.getLogger(__name__)

PIECE = 128  # sequences of one E-step
DECAY = 0.7  # kappa of the step sizes (k + 2)^-kappa
PSEUDO_COUNT = 0.01  # for each initial and transition entry
EMISSION_PSEUDO_COUNT = 2.0  # for each state, in proportion to token frequencies
EVALUATIONS = 30  # approximate number of points of the held-out curve
SAVE_SECONDS = 180.0  # between checkpoints


@dataclass(frozen=True)
class Schedule:
    """The steps of a training on `num` sequences: their sequences and step sizes."""

    num: int
    epochs: int
    batch_size: int
    seed: int

    @property
    def per_epoch(self) -> int:
        """Number of mini-batches per pass, without an incomplete batch."""
        return max(1, self.num // self.batch_size)

    @property
    def mini_batches(self) -> int:
        """Number of mini-batch steps; the first and the last pass are full batches."""
        return max(0, self.epochs - 2) * self.per_epoch

    @property
    def total(self) -> int:
        """Number of all steps, possibly zero."""
        return 2 + self.mini_batches if self.epochs else 0

    def rows(self, step: int) -> tuple[Tensor, float]:
        """Return the sequences of a step, and its step size."""
        everything = torch.arange(self.num)
        if not 0 < step <= self.mini_batches or self.batch_size >= self.num:
            return everything, 1.0
        epoch, position = divmod(step - 1, self.per_epoch)
        generator = torch.Generator().manual_seed(derive_seed("epoch", self.seed, epoch))
        order = torch.randperm(self.num, generator=generator)
        start = position * self.batch_size
        return order[start : start + self.batch_size], (step + 2.0) ** -DECAY

    def passes(self, step: int) -> float:
        """Return the number of passes over the data in a number of steps."""
        if step == 0:
            return 0.0
        mini = min(step - 1, self.mini_batches)
        return step - mini + mini * min(1.0, self.batch_size / self.num)

    def is_evaluated(self, step: int) -> bool:
        """Return whether the curve has a point at this step."""
        return step in (0, 1, self.total) or step % max(1, self.total // EVALUATIONS) == 0


@dataclass(frozen=True)
class Point:
    """A point of the curve, in nats per token."""

    step: int  # number of M-steps
    epoch: float  # number of passes over the data
    training: float | None  # of the step's batch before its M-step; None before the first step
    held_out: float


@dataclass
class Worker:
    """Rank and device of a process, and its working directory."""

    directory: Path
    device: torch.device
    rank: int = 0
    world: int = 1
    saved: float = field(default_factory=time.monotonic)


class Trained(NamedTuple):
    """State after the last step, and the curve of the held-out log-likelihood."""

    state: Step
    curve: list[Point]


def mean_log_likelihood(hmm: HMM, sequences: Sequences, worker: Worker) -> float:
    """Compute log P in nats per token; the processes divide the pieces."""
    total = torch.zeros((), dtype=torch.float64, device=worker.device)
    for tokens, lengths in _share(sequences, torch.arange(len(sequences)), worker):
        total += log_likelihood(hmm, tokens, lengths).double().sum()
    if worker.world > 1:
        dist.all_reduce(total)
    return float(total) / sequences.num_tokens


def train(
    initial: Callable[[], HMM],
    training: Sequences,
    held_out: Sequences,
    background: Float64[Tensor, "V"],
    schedule: Schedule,
    worker: Worker,
) -> Trained:
    """Train from the last checkpoint or from the beginning.

    Args:
        initial: makes the model of step 0; only called by the first process without a checkpoint.
        training: training sequences, in every process.
        held_out: held-out sequences, in every process.
        background: token frequencies. Rarely visited states fall back to them.
        schedule: the steps.
        worker: this process; the first one writes checkpoints and the curve to its directory.
    """
    state = _begin(initial, worker)
    if 0 < state.step < schedule.total and worker.rank == 0:
        _LOG.info(
            "going on from step %d of %d in %s (remove it to start over)",
            state.step, schedule.total, worker.directory,
        )  # fmt: skip
    pseudo_counts = PseudoCounts(PSEUDO_COUNT, PSEUDO_COUNT, EMISSION_PSEUDO_COUNT * background)
    curve = [point for point in read_curve(worker.directory) if point.step <= state.step]

    def evaluate() -> None:
        value = mean_log_likelihood(state.hmm, held_out, worker)
        known = state.log_likelihood if state.step else None
        curve.append(Point(state.step, schedule.passes(state.step), known, value))
        _write_curve(worker, curve)

    if not curve:
        evaluate()
    with bar(schedule.total, "EM", "step", worker.rank, state.step) as shown:
        while state.step < schedule.total:
            rows, size = schedule.rows(state.step)
            state = em_step(
                state, _share(training, rows, worker), pseudo_counts=pseudo_counts,
                step_size=size, num_sequences=len(training),
            )  # fmt: skip
            if schedule.is_evaluated(state.step):
                evaluate()
            shown.set_postfix_str(f"{curve[-1].held_out:.3f} nats per token held out")
            shown.update()
            if time.monotonic() - worker.saved > SAVE_SECONDS or state.step == schedule.total:
                write_checkpoint(state, worker)
    return Trained(state, curve)


def _begin(initial: Callable[[], HMM], worker: Worker) -> Step:
    """Return the state of the last checkpoint; the first process writes one if there is none."""
    path = worker.directory / "checkpoint"
    if worker.rank == 0 and load_step(path, device=worker.device) is None:
        write_checkpoint(Step(initial()), worker)
    wait_for_all(worker.world)
    begun = load_step(path, device=worker.device)
    assert begun is not None
    return begun


def _share(sequences: Sequences, rows: Tensor, worker: Worker) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield this process's pieces of a batch, with similar lengths to reduce padding."""
    rows = rows[sequences.lengths[rows].argsort(stable=True)]
    for number, piece in enumerate(rows.split(PIECE)):
        if number % worker.world == worker.rank:
            tokens, lengths = sequences.batch(piece)
            yield tokens.to(worker.device), lengths.to(worker.device)


def write_checkpoint(state: Step, worker: Worker) -> None:
    """Write a checkpoint in the first process; all processes have the same state."""
    if worker.rank == 0:
        save_step(state, worker.directory / "checkpoint")
    worker.saved = time.monotonic()


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
    """Write the curve in the first process."""
    if worker.rank == 0:
        worker.directory.mkdir(parents=True, exist_ok=True)
        write_json([vars(point) for point in curve], worker.directory / "curve.json", indent=1)

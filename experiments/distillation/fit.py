"""Sequences become a trained HMM, in the same way whoever sampled them.

    begin   where a checkpoint is, or at step 0: at random; by latent variable distillation, which
            needs a vector for each token that says what the language model expects next; or with
            clones of tokens, which need the language model's most probable tokens themselves
    train   stepwise EM with checkpoints (distill_training)

`fit` does these; the ways to begin are functions that its callers choose from. An interrupted `fit`
goes on from the last checkpoint in its directory, to the same result.

Tokens that do not occur in any sequence are lumped into one for all of it (`lumping_of`), so that
time, memory and checkpoints grow with the tokens that do occur.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import NamedTuple

import torch
from jaxtyping import Float64
from torch import Tensor

from experiments.distillation.data import Sequences
from experiments.distillation.training import (
    Point,
    Training,
    Worker,
    read_checkpoint,
    train,
    write_checkpoint,
)
from experiments.harness.processes import wait_for_all
from experiments.harness.seeds import derived_seed
from hmm.em import Step
from hmm.lumping import Lumping
from hmm.model import HMM

_LOG = logging.getLogger(__name__)
_EXPECTED = 0.5  # occurrences


class Fit(NamedTuple):
    """The outcome of training.

    Attributes:
        state: after the last step that was taken.
        curve: held-out log-likelihood a token on the way.
        finished: whether that was the last step there is.
    """

    state: Step
    curve: list[Point]
    finished: bool


def lumping_of(sequences: Sequences, num_tokens: int, eos_ids: tuple[int, ...]) -> Lumping:
    """Lump all tokens into one that do not occur, nor end a text, nor were expected to occur.

    Where it is known what the language model said, these are the tokens of which it expected less
    than `_EXPECTED` in all of the sequences together.
    """
    own = torch.bincount(sequences.tokens, minlength=num_tokens) > 0
    own[list(eos_ids)] = True
    if sequences.top_tokens is not None:
        own |= sequences.top_tokens.expected(num_tokens) >= _EXPECTED
    return Lumping.all_but(own)


def fit(
    training: Sequences,
    held_out: Sequences,
    background: Float64[Tensor, "V"],
    initial: Callable[[], HMM],
    settings: Training,
    worker: Worker,
    stop_after: int | None = None,
) -> Fit:
    """Train from where an earlier run stopped.

    Args:
        training: the same on every process.
        held_out: what the curve is measured on.
        background: how frequent tokens are at large.
        initial: makes the model of step 0; asked on the first process, and only where there is no
            checkpoint.
        settings: what determines the result.
        worker: has the directory of checkpoints and the curve.
        stop_after: stop at this step.
    """
    if worker.rank == 0 and read_checkpoint(worker) is None:
        write_checkpoint(Step(initial()), worker)
    wait_for_all(worker.world)
    state = read_checkpoint(worker)
    assert state is not None
    total = settings.total(len(training))
    if 0 < state.step < total and worker.rank == 0:
        _LOG.info(
            "going on from step %d of %d in %s (remove it to start over)",
            state.step, total, worker.directory,
        )  # fmt: skip
    state, curve = train(state, training, held_out, background, settings, worker, stop_after)
    return Fit(state, curve, state.step >= total)


def at_random(num_states: int, num_tokens: int, *, seed: int, monarch: bool | int = False) -> HMM:
    """Make an HMM of random parameters, which knows nothing yet."""
    generator = torch.Generator().manual_seed(derived_seed("initial", seed))
    return HMM.random(num_states, num_tokens, generator=generator, monarch=monarch)

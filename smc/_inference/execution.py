"""Choice between eager execution and static shapes.

    eager     rows are distinct prefixes, and ended rows are removed; consecutive forced tokens take
              one forward pass
    static    there is one row per particle and no host synchronization; on CUDA devices, a step is
              captured as a graph
    auto      static on a CUDA device if `forced_runs` is off and static shapes are supported;
              otherwise eager

With forced runs, neither mode is always faster on a CUDA device. Static shapes are faster for few
rows, and eager execution for hundreds (`benchmarks/claims.md`). "auto" doesn't depend on the batch,
so that a prompt gives the same result alone and in a batch.

Both modes have the same target, and give the same tokens for the same seed if no tokens are forced.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Int64
from torch import Tensor

from smc._forward.read_ahead import AUTO
from smc._forward.reader import EagerReader, Reader
from smc._inference.algorithms import SMC, Discrete
from smc._inference.answers import Pool
from smc._inference.captured import WARM_UP, AnswerTables, StaticReader, check_room, run_static
from smc._inference.deadlines import TimeLimit
from smc._inference.discrete_filter import DiscreteFilter
from smc._inference.loop import Stepper, run_eagerly
from smc._inference.particle_filter import ParticleFilter
from smc._inference.particles import Outcome, Watch
from smc._inference.settings import Settings
from smc._models.protocol import LanguageModel
from smc._models.static_cache import Forward, NotStaticError, StaticLanguageModel
from smc._proposals import Batch
from smc._vocabulary.draw import Draw
from smc._vocabulary.passes import VocabularyPass, pass_of

_LOG = logging.getLogger(__name__)


@dataclass(frozen=True)
class Executor:
    """Sampler of a batch of examples in the chosen execution mode.

    Args:
        lm: the language model.
        settings: the settings of `smc.sample`.
        forward: the model in static shapes; None for eager execution.
        vocabulary_pass: implementation of the passes over the vocabulary.
    """

    lm: LanguageModel
    settings: Settings
    forward: Forward | None
    vocabulary_pass: VocabularyPass

    @property
    def device(self) -> torch.device:
        """The model's device, on which all computations run."""
        return self.lm.device

    def __call__(
        self,
        prompts: Sequence[Sequence[int]],
        batch: Batch,
        examples: Int64[Tensor, "B"],
        draw: Draw,
        watch: Watch | None = None,
        limit: TimeLimit | None = None,
    ) -> Outcome:
        """Sample answers to the prompts (token ids)."""
        given, on_cuda = self.settings, self.device.type == "cuda"
        # Graphs, events and kernels are created on the current device.
        with torch.cuda.device(self.device) if on_cuda else nullcontext():
            if self.forward is not None:
                try:
                    static = self._static(self.forward, batch)
                    steps = steps_of(
                        given.algorithm, static, examples, given.particles, draw, watch
                    )
                    # An observer runs on the host in every step, so the step can't be captured.
                    most, graph = int(batch.budgets.max()), on_cuda and watch is None
                    return run_static(steps, prompts, most, limit, graph=graph)
                except NotStaticError as error:
                    if given.execution == "static":
                        raise
                    _LOG.info("using eager execution, because static shapes failed: %s", error)
            ahead = given.read_ahead
            if isinstance(ahead, str):
                ahead = AUTO if getattr(self.lm, "reads_ahead", False) else 0
            reader = EagerReader(
                self.lm,
                given.proposal,
                batch,
                self.vocabulary_pass,
                temperature=given.temperature,
                forced_runs=given.forced_runs,
                ahead=ahead,
            )
            steps = steps_of(given.algorithm, reader, examples, given.particles, draw, watch)
            return run_eagerly(steps, prompts, limit)

    def _static(self, forward: Forward, batch: Batch) -> StaticReader[Any]:
        """Create the reader of static shapes."""
        given = self.settings
        if isinstance(given.algorithm, Discrete):
            check_room(batch.automata, given.particles, int(batch.budgets.max()))
        return StaticReader(
            forward,
            given.proposal,
            batch,
            self.vocabulary_pass,
            num_particles=given.particles,
            temperature=given.temperature,
            spare=WARM_UP,
        )


def steps_of(
    algorithm: SMC | Discrete,
    reader: Reader[Any],
    examples: Int64[Tensor, "B"],
    particles: int,
    draw: Draw,
    watch: Watch | None = None,
) -> Stepper:
    """Return the object that takes the steps of an algorithm.

    Args:
        watch: function that is called after each step; None for none.
    """
    if isinstance(algorithm, Discrete):
        store = AnswerTables if reader.is_static else Pool
        return DiscreteFilter(algorithm, reader, examples, particles, draw, watch, store)
    return ParticleFilter(algorithm, reader, examples, particles, draw, watch)


def executor_of(lm: LanguageModel, settings: Settings) -> Executor:
    """Choose the execution mode.

    If "auto" can't use static shapes, the reason is logged.
    """
    chosen, forward = settings.execution, None
    if chosen == "auto":
        captured = lm.device.type == "cuda" and not settings.forced_runs
        chosen = "static" if captured else "eager"
    if chosen == "static":
        try:
            forward = _forward(lm, settings)
        except NotStaticError as error:
            if settings.execution == "static":
                raise
            _LOG.info("using eager execution, because static shapes failed: %s", error)
    return Executor(lm, settings, forward, pass_of("auto", lm.device))


def _forward(lm: LanguageModel, settings: Settings) -> Forward:
    """Return the language model in static shapes."""
    if settings.read_ahead not in (0, "auto"):
        raise NotStaticError(
            "expected read_ahead to be 0 or 'auto', as static shapes require, got "
            f"{settings.read_ahead}; set execution='eager' or read_ahead=0"
        )
    if not isinstance(lm, StaticLanguageModel):
        raise NotStaticError(
            "expected a language model with static_forward(), as static shapes require, got "
            f"{type(lm).__name__}; set execution='eager'"
        )
    return lm.static_forward()

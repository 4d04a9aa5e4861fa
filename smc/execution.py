"""Steps are executed eagerly or in static shapes; this module chooses.

    eager     rows are distinct prefixes; those that are over leave; forced tokens are read along
    static    one row for each particle; nothing waits; on a CUDA device a step is a captured graph
    auto      static on a CUDA device where it can be and `forced_runs` is off; else eager

With forced runs neither is always faster on a CUDA device: static is for few rows, eager for
hundreds (`benchmarks/README.md`). "auto" does not look at the batch, as a prompt gives the same
alone and among others.

Both have the same target, and give the same tokens for the same seed where nothing is forced.
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

from smc.algorithms import SMC, Discrete
from smc.answers import check_room
from smc.deadlines import TimeLimit
from smc.draw import Draw
from smc.eager import EagerReader
from smc.filter import DiscreteFilter
from smc.loop import WARM_UP, Stepper, run_eagerly, run_static
from smc.models.protocol import LanguageModel
from smc.models.static_cache import Forward, NotStaticError, StaticLanguageModel
from smc.observation import Watch
from smc.outcome import Outcome
from smc.prefixes import Reader
from smc.proposals import Batch
from smc.read_ahead import ReadAhead
from smc.settings import Settings
from smc.static import StaticReader
from smc.step import ParticleFilter
from smc.vocabulary.passes import VocabularyPass, pass_of

_LOG = logging.getLogger(__name__)


@dataclass(frozen=True)
class Executor:
    """Samples a batch of examples in the way that was chosen.

    Args:
        lm: the language model.
        settings: of `smc.sample`.
        forward: the model in static shapes; None to execute steps eagerly.
        vocabulary_pass: how to go over the vocabulary.
    """

    lm: LanguageModel
    settings: Settings
    forward: Forward | None
    vocabulary_pass: VocabularyPass

    @property
    def device(self) -> torch.device:
        """The model's device, where everything is done."""
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
        """Find answers to the prompts (token ids).

        Raises:
            AbandonedError: nobody waits for the answers any more (`smc.deadlines`).
            FloatingPointError: log-probabilities are not numbers.
            NotStaticError: the proposal, or the language, cannot be served in static shapes.
        """
        given, on_cuda = self.settings, self.device.type == "cuda"
        # Graphs, events and kernels are made on the current device.
        with torch.cuda.device(self.device) if on_cuda else nullcontext():
            if self.forward is not None:
                try:
                    static = self._static(self.forward, batch)
                    steps = steps_of(
                        given.algorithm, static, examples, given.particles, draw, watch
                    )
                    # An observer looks at every step on the host, so there is no graph then.
                    most, graph = int(batch.budgets.max()), on_cuda and watch is None
                    return run_static(steps, prompts, most, limit, graph=graph)
                except NotStaticError as error:
                    if given.execution == "static":
                        raise
                    _LOG.info("steps are executed in eager form: %s", error)
            wanted: int | str = given.read_ahead
            if wanted == "auto" and not getattr(self.lm, "reads_ahead", False):
                wanted = 0
            vocabulary = self.lm.vocabulary
            ahead = ReadAhead(given.drafter, wanted, batch, vocabulary) if wanted else None
            reader = EagerReader(
                self.lm,
                given.proposal,
                batch,
                self.vocabulary_pass,
                temperature=given.temperature,
                top_p=given.top_p,
                forced_runs=given.forced_runs,
                ahead=ahead,
            )
            steps = steps_of(given.algorithm, reader, examples, given.particles, draw, watch)
            return run_eagerly(steps, prompts, limit)

    def _static(self, forward: Forward, batch: Batch) -> StaticReader[Any]:
        """Make the reader of static shapes."""
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
    """Return the steps of an algorithm with N particles, or at most N prefixes, of each example."""
    if isinstance(algorithm, Discrete):
        return DiscreteFilter(algorithm, reader, examples, particles, draw, watch)
    return ParticleFilter(algorithm, reader, examples, particles, draw, watch)


def executor_of(lm: LanguageModel, settings: Settings) -> Executor:
    """Choose how steps are executed; log why, where "auto" cannot do what it would do.

    Raises:
        NotStaticError: `execution` is "static", and these arguments cannot be served so.
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
            _LOG.info("steps are executed in eager form: %s", error)
    return Executor(lm, settings, forward, pass_of("auto", lm.device))


def _forward(lm: LanguageModel, settings: Settings) -> Forward:
    """Return the model in static shapes; refuse settings that these cannot honour."""
    if settings.top_p < 1:
        raise NotStaticError(
            f"top_p={settings.top_p} sorts the vocabulary by what is drawn, which static shapes do "
            "not; give execution='eager'"
        )
    if settings.read_ahead not in (0, "auto"):
        raise NotStaticError(
            f"read_ahead={settings.read_ahead} reads as many tokens as a drafter guesses, which "
            "static shapes do not; give execution='eager', or read_ahead=0"
        )
    if not isinstance(lm, StaticLanguageModel):
        raise NotStaticError(
            f"{type(lm).__name__} has no static_forward(), so it cannot read in static shapes; "
            "give execution='eager'"
        )
    return lm.static_forward()

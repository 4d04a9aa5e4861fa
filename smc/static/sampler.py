"""This module runs the particle filter of `smc.sampler` in static shapes."""

from __future__ import annotations

from typing import Any

import torch
from jaxtyping import Float, Int64
from torch import Tensor

from smc.draw import Draw
from smc.outcome import Outcome
from smc.proposals import Batch, Proposal
from smc.resampling import SCHEMES, scheme
from smc.static.forward import Forward
from smc.static.loop import StaticLoop
from smc.static.passes import Pass, TorchPass
from smc.static.proposal import in_static_shapes
from smc.static.step import Rules, Slots, start, step
from smc.weights import Weights


class StaticSampler(StaticLoop[Slots]):
    """The particle filter of `smc.sampler` in static shapes, for one batch of examples.

    Args:
        forward: the language model.
        proposal: `LM`, `LCD`, `GCD`, or a twisted one such as `PGCD`.
        batch: automata and budgets of the B examples.
        examples: identity of each example, which names its random numbers.
        num_particles: N, per example.
        resampling, ess_threshold, strata: see `smc.algorithms.SMC`.
        temperature: that of p_lm.
        draw: the seam of randomness.
        whole_vocabulary: how to go over the vocabulary; tensor operations if not given.
        graph: whether to capture the step; only on a CUDA device.
        script: tokens that every particle takes whatever it draws, to measure time: at least as
            many as steps.

    Raises:
        ValueError: an argument that the static step cannot honour.
    """

    def __init__(
        self,
        forward: Forward,
        proposal: Proposal[Any],
        batch: Batch,
        *,
        examples: Int64[Tensor, "B"],
        num_particles: int,
        resampling: str = "systematic",
        ess_threshold: float | int = 0.5,
        strata: str = "state",
        temperature: float | int = 1.0,
        draw: Draw,
        whole_vocabulary: Pass | None = None,
        graph: bool = False,
        script: Int64[Tensor, "T"] | None = None,
    ) -> None:
        if resampling not in SCHEMES:
            raise ValueError(
                f"the static step knows resampling by name, one of {', '.join(SCHEMES)}, not "
                f"{resampling!r}"
            )
        super().__init__(forward, batch, num_particles, graph=graph)
        self.rules = Rules(
            proposal=in_static_shapes(proposal),
            forward=forward,
            examples=examples.repeat_interleave(num_particles),
            num_particles=num_particles,
            scheme=scheme(resampling),
            ess_threshold=float(ess_threshold),
            strata=strata,
            temperature=float(temperature),
            draw=draw,
            whole_vocabulary=whole_vocabulary or TorchPass(),
            script=script,
        )

    def start(self, logits: Float[Tensor, "P V"], columns: int) -> Slots:
        """Returns particles on the empty prefix; see `StaticLoop`."""
        return start(self.rules, self.batch, logits, columns)

    def step(self, slots: Slots) -> Slots:
        """Takes all particles one token further; see `StaticLoop`."""
        return step(self.rules, slots)

    def outcome_of(self, slots: Slots) -> Outcome:
        """Returns the particles, example by example."""
        N = self.num_particles
        final = Weights.of(slots.log_weight.view(-1, N))
        B, device = len(final.ess), final.ess.device
        return Outcome(
            example=torch.arange(B, device=device).repeat_interleave(N),
            tokens=slots.tokens,
            length=slots.length,
            log_weight=slots.log_weight,
            finished=slots.state.walk.finished,
            log_evidence=final.log_mean,
            ess=final.ess,
            enumerated=torch.zeros(B, dtype=torch.bool, device=device),
            records=(),
        )

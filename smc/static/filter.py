"""This module runs the discrete filter of `smc.discrete` in static shapes."""

from __future__ import annotations

from typing import Any

import torch
from jaxtyping import Float, Int64
from torch import Tensor

from smc.draw import Draw
from smc.outcome import Outcome
from smc.pool import MOST_ANSWERS, effective
from smc.proposals import Batch, Proposal
from smc.scores import sums_by
from smc.static.candidates import TENSORS, Candidates
from smc.static.filter_step import (
    FilterRules,
    FilterSlots,
    answers,
    ending_tokens,
    start,
    step,
)
from smc.static.forward import Forward
from smc.static.loop import StaticLoop
from smc.static.proposal import in_static_shapes


class StaticFilter(StaticLoop[FilterSlots]):
    """The discrete filter of `smc.discrete` in static shapes, for one batch of examples.

    Args:
        forward: the language model.
        proposal: `LM`, `LCD`, `GCD`, or a twisted one such as `PGCD`, whose g are the scores.
        batch: automata and budgets of the B examples.
        examples: identity of each example, which names its random numbers.
        num_particles: N, the most prefixes that are kept of each example.
        count_finished, share, floor: see `smc.algorithms.Discrete`.
        temperature: that of p_lm.
        draw: the seam of randomness.
        candidates: how to go over the vocabulary; tensor operations if not given.
        graph: whether to capture the step; only on a CUDA device.

    Raises:
        ValueError: an argument that the static step cannot honour, or a language of which an
            example could have more answers than a pool holds (`smc.pool.MOST_ANSWERS`), as it
            ends by itself in many ways.
    """

    def __init__(
        self,
        forward: Forward,
        proposal: Proposal[Any],
        batch: Batch,
        *,
        examples: Int64[Tensor, "B"],
        num_particles: int,
        count_finished: bool = True,
        share: float | int = 0.0,
        floor: float | int = 1e-6,
        temperature: float | int = 1.0,
        draw: Draw,
        candidates: Candidates | None = None,
        graph: bool = False,
    ) -> None:
        super().__init__(forward, batch, num_particles, graph=graph)
        ending = ending_tokens(batch.automata)
        most = num_particles * ending.shape[1] * int(batch.budgets.max())
        if most > MOST_ANSWERS:
            raise ValueError(
                f"{num_particles} prefixes of up to {int(batch.budgets.max())} tokens with "
                f"{ending.shape[1]} tokens that may be the last one are {most} answers, more than "
                f"{MOST_ANSWERS}; give fewer particles, or take smc.sample"
            )
        self.rules = FilterRules(
            proposal=in_static_shapes(proposal),
            forward=forward,
            examples=examples,
            num_particles=num_particles,
            count_finished=count_finished,
            share=float(share),
            floor=float(floor),
            temperature=float(temperature),
            draw=draw,
            ending=ending.repeat_interleave(num_particles, dim=0),
            candidates=candidates or TENSORS,
        )

    def start(self, logits: Float[Tensor, "P V"], columns: int) -> FilterSlots:
        """Returns the empty prefix of each example; see `StaticLoop`."""
        return start(self.rules, self.batch, logits, columns)

    def step(self, slots: FilterSlots) -> FilterSlots:
        """Takes all prefixes one token further; see `StaticLoop`."""
        return step(self.rules, slots)

    def outcome_of(self, slots: FilterSlots) -> Outcome:
        """Returns the answers, example by example."""
        automata, B = self.batch.automata, len(self.rules.examples)
        found = answers(self.rules, slots, automata.is_final[automata.initial])
        return Outcome(
            example=found.example,
            tokens=found.tokens,
            length=(found.tokens >= 0).sum(dim=1),
            log_weight=found.log_weight,
            finished=torch.ones_like(found.example, dtype=torch.bool),
            log_evidence=sums_by(found.log_weight, found.example, B),
            ess=effective(found.log_weight, found.example, B),
            enumerated=slots.whole,
            records=(),
        )

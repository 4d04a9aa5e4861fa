"""This module has one step of the particle filter in static shapes: weigh, resample, draw, advance.

It does what `smc.sampler` does, for the same random numbers with the same result, but nothing in it
waits for the host and no shape depends on data: there is one row for each of P = B·N particles from
the first step to the last, and particles that are finished or dead are masked instead of removed.
So the same code runs eagerly on the CPU and, with the model's forward pass, as one captured graph.

What is given up is what needs sizes: each distinct prefix is read once by `smc.sampler`, here once
for every particle that has it.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from jaxtyping import Bool, Float, Float64, Int64
from torch import Tensor

from smc.draw import Draw, Keys, Purpose
from smc.proposals import Batch, Proposal
from smc.resampling import Scheme
from smc.static.forward import Forward
from smc.static.moves import moves
from smc.static.passes import Pass
from smc.static.systems import Systems, resample


class Slots(NamedTuple):
    """The P particles of a batch, all tensors of which have the same shapes at every step.

    Attributes:
        tokens: what each has drawn, EOS included; -1 beyond its length.
        length: tokens drawn.
        log_weight: log importance weight; -inf once dead.
        log_potential: log psi of its prefix; 0 for psi = 1.
        row: its row of the model's cache.
        step: number of the next step.
        failed: whether the model or the proposal has given what is not a number.
        goes_on: whether any particle runs.
        state: the proposal's state, one row for each particle.
        logits: log-probabilities of the next token, to an added constant, by rows of the model.
    """

    tokens: Int64[Tensor, "P T"]
    length: Int64[Tensor, "P"]
    log_weight: Float64[Tensor, "P"]
    log_potential: Float64[Tensor, "P"]
    row: Int64[Tensor, "P"]
    step: Int64[Tensor, ""]
    failed: Bool[Tensor, ""]
    goes_on: Bool[Tensor, ""]
    state: Any
    logits: Float[Tensor, "P V"]

    @property
    def running(self) -> Bool[Tensor, "P"]:
        """True where another token is due."""
        return self.state.walk.running & ~self.log_weight.isneginf()


class Rules(NamedTuple):
    """What is the same at every step; see `smc.sampler.Sampler`.

    Attributes:
        examples: identity of each particle's example, which names its random numbers.
        num_particles: N, of each example.
        whole_vocabulary: how to go over the vocabulary.
        script: tokens that every particle takes whatever it draws, where only the time matters.
    """

    proposal: Proposal[Any]
    forward: Forward
    examples: Int64[Tensor, "P"]
    num_particles: int
    scheme: Scheme
    ess_threshold: float
    strata: str
    temperature: float
    draw: Draw
    whole_vocabulary: Pass
    script: Int64[Tensor, "T"] | None = None


def start(rules: Rules, batch: Batch, logits: Float[Tensor, "P V"], columns: int) -> Slots:
    """Makes N particles of weight one on the empty prefix of each example."""
    P, device = len(rules.examples), logits.device
    each = torch.arange(len(batch.budgets), device=device).repeat_interleave(
        rules.num_particles, output_size=P
    )
    state = rules.proposal.take(rules.proposal.start(batch), each)
    none = torch.zeros(P, dtype=torch.float64, device=device)
    return Slots(
        tokens=torch.full((P, columns), -1, dtype=torch.int64, device=device),
        length=torch.zeros(P, dtype=torch.int64, device=device),
        log_weight=none,
        log_potential=none.clone(),
        row=torch.arange(P, device=device),
        step=torch.zeros((), dtype=torch.int64, device=device),
        failed=torch.zeros((), dtype=torch.bool, device=device),
        goes_on=state.walk.running.any(),
        state=state,
        logits=logits,
    )


def step(rules: Rules, slots: Slots) -> Slots:
    """Takes all particles one token further, those that run."""
    proposal, N, running = rules.proposal, rules.num_particles, slots.running
    weighed = rules.whole_vocabulary.weigh(
        proposal, slots.state, slots.logits, slots.row, rules.temperature
    )
    log_z = weighed.log_z
    if proposal.potential:
        increment = log_z - slots.log_potential
    else:
        increment = torch.where(log_z.isneginf(), log_z, 0.0)
    log_weight = slots.log_weight + torch.where(running, increment, 0.0)
    alive = running & ~log_weight.isneginf()
    # Not of log Z alone: loops that look for what is greater pass over what is not a number, and
    # `LM` has no sum to make. A sum has one where any of its terms is.
    wrong = slots.logits.sum(dim=1).isnan()[slots.row] | log_z.isnan()

    resampled = resample(
        Systems.of(alive, slots.state.walk.states, N, rules.strata),
        log_weight,
        scheme=rules.scheme,
        ess_threshold=rules.ess_threshold,
        examples=rules.examples,
        step=slots.step,
        draw=rules.draw,
    )
    ancestors = resampled.ancestors
    runs = alive[ancestors]

    def breaks() -> Float64[Tensor, "P V"]:
        return torch.where(runs.unsqueeze(1), weighed.breaks(ancestors), 0.0)

    number = torch.arange(len(runs), device=runs.device) % N
    u = rules.draw(Keys(rules.examples, number, slots.step, Purpose.TOKEN), breaks)
    drawn = weighed.draw(ancestors, u)
    if rules.script is not None:
        # Not script[step]: that would bring the number to the host.
        drawn = rules.script.index_select(0, slots.step.view(1)).expand_as(drawn)

    state = proposal.advance(
        proposal.take(slots.state, ancestors), torch.where(runs, drawn, -1).unsqueeze(1)
    )
    goes_on = state.walk.running & runs
    log_g = weighed.log_g(ancestors, drawn)
    if proposal.potential:
        log_potential = torch.where(goes_on, log_g, 0.0)
        increment = log_potential - log_g
    else:
        log_potential = torch.zeros_like(log_g)
        increment = log_z[ancestors] - log_g
    increment = torch.where(goes_on | state.walk.finished, increment, -torch.inf)

    moved = moves(ancestors, slots.row, N)
    tokens = torch.where(runs, drawn, -1)
    read = torch.zeros_like(tokens).scatter(0, moved.row, tokens.clamp(min=0))
    logits = rules.forward.step(read, moved.source, slots.step)
    kept = slots.tokens[ancestors]
    place = slots.step.expand(len(tokens), 1)
    written = torch.where(runs, tokens, kept.gather(1, place).squeeze(1))
    return Slots(
        tokens=kept.scatter(1, place, written.unsqueeze(1)),
        length=slots.length[ancestors] + runs.long(),
        log_weight=resampled.log_weight + torch.where(runs, increment, 0.0),
        log_potential=torch.where(runs, log_potential, slots.log_potential[ancestors]),
        row=moved.row,
        step=slots.step + 1,
        failed=slots.failed | (wrong & running).any(),
        goes_on=goes_on.any(),
        state=state,
        logits=logits,
    )

"""One step of sequential Monte Carlo over token sequences: weigh, perhaps resample, draw, advance.

Target of step t, for a prefix x_<=t of an answer:   p_lm(x_<=t) psi_t(x_<=t) 1{alive},
with potentials psi_t that are one once the answer is complete; so the last target is
p_lm(x | x in C, |x| <= n), and the product of the mean weights estimates p_lm(C, |x| <= n) without
bias.  With q(x_t) = p_lm(x_t) g(x_t) / Z_t and psi_t = g(x_t), the value really used, the increment

    w_t = [ p_lm(x_t) psi_t ] / [ psi_{t-1} q(x_t) ] = Z_t / psi_{t-1}

does not depend on the token drawn.  Hence the order: weigh by Z_t / psi_{t-1}, resample where the
weights have grown too unequal, and only then draw (a fully adapted particle filter; Pitt &
Shephard, 1999).  A particle that completes its answer is divided by its last psi, as from then on
psi = 1.  psi_0 is one: any constant would cancel in the first increment.  For a proposal that
declines to use g as its potential, psi = 1 and the increment Z_t / g(x_t) follows the draw.

Resampling replaces the weights of the particles that compete by their mean, so the evidence is at
any time the mean of the weights.  Examples are independent, and each has a step number of its own.

The step is written for particles that may be over, and masks them.  It asks a `Reader` to extend
prefixes (`smc.prefixes`), eagerly or in static shapes; `smc.loop` repeats it to the end.  Cost: one
forward pass over the prefixes, and O(R V) memory traffic for R of them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Generic, NamedTuple

import torch
from jaxtyping import Bool, Float64, Int64
from torch import Tensor

from smc.draw import Draw, Keys, Purpose
from smc.observation import Observation, Population, Watch
from smc.outcome import Outcome, StepRecord
from smc.particles import Particles, start_particles
from smc.prefixes import Extension, Prefixes, Reader, count_of
from smc.proposals import Proposal, State
from smc.resampling import Scheme
from smc.systems import Systems, resample
from smc.vocabulary.factors import Guide
from smc.weights import Weights


class Carry(NamedTuple):
    """What one step hands to the next.

    Attributes:
        particles: P = B·N of them.
        prefixes: where they are.
        step: number of each example's next step.
        failed: whether the proposal or the model has given what is not a number.
    """

    particles: Particles
    prefixes: Prefixes[Any]
    step: Int64[Tensor, "B"]
    failed: Bool[Tensor, ""]


@dataclass(frozen=True, eq=False)
class ParticleFilter(Generic[State]):
    """A particle filter for one batch of B examples.

    Args:
        reader: language model and proposal.
        examples: identity of each example, which names its random numbers.
        num_particles: N, per example.
        scheme: resampling scheme.
        ess_threshold: resample when the ESS falls under this fraction of the particles that
            compete; 1 or more means every step, 0 never.
        strata: "none", or "state": particles compete with those in the same automaton state.
        draw: the seam of randomness.
        watch: is shown every step; nothing is made for it where there is none.
    """

    reader: Reader[State]
    examples: Int64[Tensor, "B"]
    num_particles: int
    scheme: Scheme
    ess_threshold: float
    strata: str
    draw: Draw
    watch: Watch | None = None

    def start(self, prompts: Sequence[Sequence[int]]) -> tuple[Carry, StepRecord]:
        """Read each prompt (token ids) once; all particles of an example begin alike.

        Returns:
            The particles before the first step, and the record of what is forced there.
        """
        B, N, budgets = len(prompts), self.num_particles, self.reader.batch.budgets
        extension, prefixes = self.reader.start(prompts, N)
        particles = start_particles(B, N, int(budgets.max()), budgets.device)
        log_potential = self._log_potential(extension, torch.zeros_like(extension.forced_log_p))
        possible = extension.finished | extension.running
        increment = torch.where(possible, extension.forced_log_p + log_potential, -torch.inf)
        particles = particles.extended(
            extension,
            log_weight=increment,
            log_p=torch.zeros_like(increment),
            log_potential=log_potential,
        )
        carry = Carry(particles, prefixes, torch.zeros_like(self.examples), extension.failed)
        return carry, StepRecord.of_start(extension, N)

    def step(self, carry: Carry) -> tuple[Carry, StepRecord]:
        """Take all particles that run one token further, and through what is forced behind it."""
        particles, prefixes = carry.particles, carry.prefixes
        guide = self.reader.guide(prefixes)
        next_tokens = self.reader.vocabulary.draws(guide, prefixes.log_p)
        log_z = next_tokens.log_z[particles.row]
        failed = self.reader.note_nan((log_z.isnan() & particles.running).any())
        weighed = self._weigh(particles, log_z)
        chosen, ancestors, resampled = self._resample(weighed, prefixes, carry.step)
        rows, runs = chosen.row, chosen.running

        def breaks() -> Float64[Tensor, "P V"]:
            return torch.where(runs.unsqueeze(1), next_tokens.breaks(rows), 0.0)

        token = next_tokens.draw(rows, self.draw(self._keys(carry.step), breaks))
        goes, asked = self._ready(particles, prefixes, rows, token, runs)
        extension, after = self.reader.extend(prefixes, *asked)
        log_g = next_tokens.log_g(rows, token)
        log_potential = self._log_potential(extension, log_g)
        gained = log_potential if self.reader.proposal.potential else log_z[ancestors]
        increment = torch.where(
            extension.finished | extension.running,
            gained - log_g + extension.forced_log_p,
            -torch.inf,
        )
        extended = chosen.extended(
            extension,
            log_weight=chosen.log_weight + increment,
            log_p=prefixes.log_p[rows, token].double(),
            log_potential=log_potential,
        )
        step = carry.step + 1
        if goes is not None:
            # Examples that are held back take this step another time, with the same numbers.
            mine = goes[self._example]
            extended = extended.where(mine, particles._replace(row=extension.row))
            particles = particles._replace(running=particles.running & mine)
            step = carry.step + goes.long()
        if self.watch is not None:
            self.watch(self._observation(prefixes, guide, particles, weighed, ancestors, extended))
        failed = carry.failed | failed | extension.failed
        record = self._record(particles, weighed, resampled, prefixes, guide, extension)
        return Carry(extended, after, step, failed), record

    def outcome(self, carry: Carry, history: StepRecord) -> Outcome:
        """Return the particles, example by example; their mean weight is the evidence."""
        particles, N = carry.particles, self.num_particles
        final = Weights.of(particles.log_weight.view(-1, N))
        return Outcome(
            example=self._example,
            tokens=particles.tokens[:, :-1],
            length=particles.length,
            log_weight=particles.log_weight,
            log_p=particles.log_p,
            finished=particles.finished,
            log_evidence=final.log_mean,
            ess=final.ess,
            enumerated=torch.zeros_like(self.examples, dtype=torch.bool),
            history=history,
        )

    @property
    def _example(self) -> Int64[Tensor, "P"]:
        """The example of each particle."""
        N = self.num_particles
        return torch.arange(len(self.examples) * N, device=self.examples.device) // N

    def _keys(self, step: Int64[Tensor, "B"]) -> Keys:
        """The names of the random numbers by which particles draw tokens."""
        example = self._example
        number = torch.arange(len(example), device=example.device) % self.num_particles
        return Keys(self.examples[example], number, step[example], Purpose.TOKEN)

    def _ready(
        self,
        particles: Particles,
        prefixes: Prefixes[State],
        row: Int64[Tensor, "P"],
        token: Int64[Tensor, "P"],
        running: Bool[Tensor, "P"],
    ) -> tuple[Bool[Tensor, "B"] | None, Asked]:
        """Find the examples that take the step now; see `Reader.ready`.

        Returns:
            Them, or None for all; and what the reader is asked for: prefixes, tokens, and where.
        """
        goes = None
        if self.watch is None:  # who looks on sees a step of all examples
            goes = self.reader.ready(prefixes, row, token, running)
        return goes, held_back(goes, self.num_particles, particles, row, token, running)

    def _weigh(self, particles: Particles, log_z: Float64[Tensor, "P"]) -> Particles:
        """Weigh running particles by Z_t / psi_{t-1}; one with no token to draw dies.

        Without a potential the weight came with the last token, and only those deaths are left.
        """
        if self.reader.proposal.potential:
            increment = log_z - particles.log_potential
        else:
            increment = torch.where(log_z.isneginf(), log_z, 0.0)
        log_weight = particles.log_weight + torch.where(particles.running, increment, 0.0)
        running = particles.running & ~log_weight.isneginf()
        return particles._replace(log_weight=log_weight, running=running)

    def _resample(
        self, particles: Particles, prefixes: Prefixes[State], step: Int64[Tensor, "B"]
    ) -> tuple[Particles, Int64[Tensor, "P"], Bool[Tensor, "B"]]:
        """Resample the systems of particles whose weights have grown too unequal.

        Returns:
            The particles, of which particle each is a copy, and the examples with such a system.
        """
        states = prefixes.state.walk.states[particles.row]
        found = resample(
            Systems.of(particles.running, states, self.num_particles, self.strata, self.reader),
            particles.log_weight,
            scheme=self.scheme,
            ess_threshold=self.ess_threshold,
            examples=self.examples,
            step=step,
            draw=self.draw,
            reader=self.reader,
        )
        chosen = particles.take(found.ancestors)._replace(log_weight=found.log_weight)
        return chosen, found.ancestors, found.examples

    def _log_potential(
        self, extension: Extension, log_g: Float64[Tensor, "P"]
    ) -> Float64[Tensor, "P"]:
        """log psi of prefixes whose last drawn token has this log g; one where the text is over."""
        if not self.reader.proposal.potential:
            return torch.zeros_like(log_g)
        last = torch.where(extension.forced > 0, extension.forced_log_g, log_g)
        return torch.where(extension.running, last, 0.0)

    def _record(
        self,
        before: Particles,
        weighed: Particles,
        resampled: Bool[Tensor, "B"],
        prefixes: Prefixes[State],
        guide: Guide,
        extension: Extension,
    ) -> StepRecord:
        N = self.num_particles
        return StepRecord(
            ess=Weights.of(weighed.log_weight.view(-1, N)).ess,
            resampled=resampled,
            running=before.running.view(-1, N).sum(dim=1),
            alive=(~weighed.log_weight.isneginf()).view(-1, N).sum(dim=1),
            fallbacks=fallbacks_of(guide.fallback, prefixes, before, len(self.examples)),
            read=extension.num_read,
            forced=extension.num_forced,
            drafted=extension.num_drafted,
            used=extension.num_used,
        )

    def _observation(
        self,
        prefixes: Prefixes[State],
        guide: Guide,
        before: Particles,
        weighed: Particles,
        ancestors: Int64[Tensor, "P"],
        after: Particles,
    ) -> Observation:
        """What the step was, for who looks on."""
        shown, rows = prefixes_in_use(prefixes, before, self.reader.proposal)
        return Observation(
            prefixes=shown,
            tilted=lambda: guide.tilted(prefixes.log_p)[rows],
            example=self._example,
            row=torch.where(before.running, torch.searchsorted(rows, before.row), -1),
            tokens=before.tokens[:, :-1],
            length=before.length,
            log_weight=weighed.log_weight,
            after=Population(
                self._example, ancestors, after.tokens[:, :-1], after.length, after.log_weight,
                after.finished, after.running,
            ),
        )  # fmt: skip


Asked = tuple[Int64[Tensor, "P"], Int64[Tensor, "P"], Bool[Tensor, "P"]]
"""Rows of prefixes, the tokens by which they are extended, and where this is to be done."""


def held_back(
    goes: Bool[Tensor, "B"] | None,
    num_particles: int,
    particles: Particles,
    row: Int64[Tensor, "P"],
    token: Int64[Tensor, "P"],
    running: Bool[Tensor, "P"],
) -> Asked:
    """Return what to ask of the reader: prefixes of examples that wait are extended by nothing, -1.

    Args:
        goes: examples that do not wait; None for all.
        num_particles: N, of each example.
        particles: before the step.
        row, token, running: what they would be extended by.
    """
    if goes is None:
        return row, token, running
    mine = goes.repeat_interleave(num_particles)
    return (
        torch.where(mine, row, particles.row),
        torch.where(mine, token, -1),
        torch.where(mine, running, particles.running),
    )


def fallbacks_of(
    fallback: Bool[Tensor, "R"] | None,
    prefixes: Prefixes[Any],
    particles: Particles,
    num_examples: int,
) -> Int64[Tensor, "B"]:
    """Count the prefixes of running particles at which the proposal knew nothing."""
    if fallback is None:
        return torch.zeros(num_examples, dtype=torch.int64, device=particles.row.device)
    in_use = torch.zeros_like(prefixes.example)
    in_use = in_use.index_add(0, particles.row, particles.running.long()) > 0
    return count_of(prefixes.example, num_examples, (fallback & in_use).long())


def prefixes_in_use(
    prefixes: Prefixes[State], particles: Particles, proposal: Proposal[State]
) -> tuple[Prefixes[State], Int64[Tensor, "R"]]:
    """Return the prefixes of running particles, as observers are shown them, and their rows."""
    rows = torch.unique(particles.row[particles.running])
    if len(rows) == prefixes.num_rows:
        return prefixes, rows
    state = proposal.take(prefixes.state, rows)
    return Prefixes(prefixes.example[rows], prefixes.log_p[rows], state), rows

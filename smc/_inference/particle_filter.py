"""One step of sequential Monte Carlo: update weights, resample if needed, draw, advance.

The target of step t, for the prefixes x_<=t of answers, is

    p_lm(x_<=t) psi_t(x_<=t) 1{alive}

with potentials psi_t that are one for a complete answer. So the last target is p_lm(x | x in C, |x|
<= n), and the product of the mean weights is an unbiased estimate of p_lm(C, |x| <= n). With q(x_t)
= p_lm(x_t) g(x_t) / Z_t and psi_t = g(x_t), the weight is multiplied by

    w_t = [ p_lm(x_t) psi_t ] / [ psi_{t-1} q(x_t) ] = Z_t / psi_{t-1}

Here g is the same as in q, after tying and the defensive mixture. The factor w_t doesn't depend on
the drawn token. So a step first multiplies the weights by w_t, then resamples if they are too
unequal, and only then draws. (This is a fully adapted particle filter; Pitt & Shephard, 1999.)
psi_0 is one; any other constant would cancel.

A step chooses one token. The forced tokens f after it belong to the same step, and change the
weight by

    log W += log psi_new - log g(x_t) + sum of log p_lm(f)

psi_new is one for a complete answer. Otherwise it is g of the last forced token, or g(x_t) if there
are no forced tokens. With `potential=False`, psi = 1, and the weight is multiplied by Z_t / g(x_t)
after the draw.

Resampling replaces the weights of competing particles by their mean, so the evidence is always the
mean of the weights. Examples are independent, and each has a separate step number.

The step masks particles that have ended. A `Reader` extends prefixes (`smc._forward.reader`).
`smc._inference.execution` repeats the step until all particles have ended. Cost: one forward pass
over R prefixes, and O(R V) memory traffic.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Generic, NamedTuple

import torch
from jaxtyping import Bool, Float64, Int64
from torch import Tensor

from smc._forward.reader import Extension, Prefixes, Reader
from smc._inference.algorithms import SMC
from smc._inference.bounds import Frontier
from smc._inference.particles import (
    Observation,
    Outcome,
    Particles,
    Population,
    StepRecord,
    Watch,
    fallbacks_of,
    prefixes_in_use,
    start_particles,
)
from smc._inference.resampling import Strata, Weights, resample
from smc._proposals import State
from smc._proposals.masks import add_removed, add_removed_in_step
from smc._vocabulary.draw import Draw, Draws, Keys, Purpose, categorical
from smc._vocabulary.factors import Factors, defend


class Carry(NamedTuple):
    """The state passed from one step to the next.

    Attributes:
        particles: P = B·N particles.
        prefixes: the prefixes of the particles.
        step: number of each example's next step.
        failed: whether the proposal or the model has returned NaN.
        frontier: probability of found answers and open branches; None if unknown.
        log_removed: log-probability of the tokens that only the budget forbids; None if unknown.
    """

    particles: Particles
    prefixes: Prefixes[Any]
    step: Int64[Tensor, "B"]
    failed: Bool[Tensor, ""]
    frontier: Frontier | None
    log_removed: Float64[Tensor, "B"] | None


@dataclass(frozen=True, eq=False)
class ParticleFilter(Generic[State]):
    """A particle filter for one batch of B examples.

    Args:
        options: options of the algorithm.
        reader: language model and proposal.
        examples: number of each example, which is part of the keys of its random numbers.
        num_particles: N, per example.
        draw: the source of random numbers.
        watch: function that is called after each step with an `Observation`; None for none.
    """

    options: SMC
    reader: Reader[State]
    examples: Int64[Tensor, "B"]
    num_particles: int
    draw: Draw
    watch: Watch | None = None

    def start(self, prompts: Sequence[Sequence[int]]) -> tuple[Carry, StepRecord]:
        """Run the model on each prompt (token ids) once; all particles of an example are equal.

        Returns:
            The state before the first step, and the record of the tokens that are forced before it.
        """
        B, N, budgets = len(prompts), self.num_particles, self.reader.batch.budgets
        extension, prefixes = self.reader.start(prompts, N)
        particles = start_particles(B, N, int(budgets.max()), budgets.device)
        log_potential = self._log_potential(extension, torch.zeros_like(extension.forced_log_p))
        possible = extension.finished | extension.running
        increment = torch.where(possible, extension.forced_log_p + log_potential, -torch.inf)
        particles = particles.extend(
            extension,
            log_weight=increment,
            log_p=torch.zeros_like(increment),
            log_potential=log_potential,
        )
        frontier = Frontier.start(
            self.reader, prefixes, extension, N, has_twins=self.reader.is_static
        )
        step = torch.zeros_like(self.examples)
        removed = None
        if frontier is not None:
            removed = torch.full_like(budgets, -torch.inf, dtype=torch.float64)
            one = torch.full_like(increment, -math.log(N))
            removed = add_removed(removed, one, extension.log_removed)
        carry = Carry(particles, prefixes, step, extension.failed, frontier, removed)
        return carry, StepRecord.of_start(extension, N)

    def step(self, carry: Carry) -> tuple[Carry, StepRecord]:
        """Extend all running particles by one drawn token and the forced tokens after it."""
        before, prefixes = carry.particles, carry.prefixes
        factors = defend(self.reader.guide(prefixes), prefixes.log_p)
        draws = self.reader.vocabulary_pass.prepare_draws(factors, prefixes.log_p, None)
        wrong = (~(draws.log_z < torch.inf)[before.row] & before.running).any()
        failed = carry.failed | self.reader.note_nan(wrong)
        weighed = self._weigh(before, draws.log_z[before.row])
        chosen, ancestors, resampled = self._resample(weighed, prefixes, carry.step)
        token = self._draw(draws, factors, prefixes, chosen, carry.step)
        log_g = factors.at(chosen.row, token)
        extension, extended = self.reader.extend(prefixes, chosen.row, token, chosen.running)
        frontier = carry.frontier
        if frontier is not None:
            frontier = frontier.advance(
                prefixes, before, chosen.row, token, chosen.running, extension
            )
        removed = carry.log_removed
        if removed is not None:  # by weights without potentials, which estimate p_lm
            reached = before.log_weight - before.log_potential - math.log(self.num_particles)
            drawn = chosen.log_weight - log_g
            drawn = drawn - math.log(self.num_particles)
            if not self.reader.proposal.potential:
                drawn = drawn + draws.log_z[chosen.row]
            removed = add_removed_in_step(
                removed, prefixes.state.position, prefixes.log_p, self.reader.indices, before.row,
                torch.where(before.running, reached, -torch.inf),
                torch.where(chosen.running, drawn, -torch.inf), extension.log_removed,
            )  # fmt: skip
        after = self._advance(chosen, token, draws, log_g, prefixes, extension)
        if self.watch is not None:
            self.watch(
                self._observation(prefixes, factors, before, weighed, ancestors, after, extension)
            )
        N = self.num_particles
        record = StepRecord(
            ess=Weights.of(weighed.log_weight.view(-1, N)).ess,
            resampled=resampled,
            running=before.running.view(-1, N).sum(dim=1),
            alive=(~weighed.log_weight.isneginf()).view(-1, N).sum(dim=1),
            fallbacks=fallbacks_of(factors.fallback, prefixes, before, len(self.examples)),
            **extension.counts._asdict(),
        )
        failed = failed | extension.failed
        return Carry(after, extended, carry.step + 1, failed, frontier, removed), record

    def outcome(self, carry: Carry, history: StepRecord) -> Outcome:
        """Return the particles, ordered by example; their mean weight estimates the evidence."""
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
            log_upper=None if carry.frontier is None else carry.frontier.log_upper,
            founder=particles.founder,
            log_removed=carry.log_removed,
        )

    @property
    def _example(self) -> Int64[Tensor, "P"]:
        """The example of each particle."""
        N = self.num_particles
        return torch.arange(len(self.examples) * N, device=self.examples.device) // N

    def _weigh(self, particles: Particles, log_z: Float64[Tensor, "P"]) -> Particles:
        """Multiply weights by Z_t / psi_{t-1}.

        A particle without an allowed token gets weight zero. With `potential=False`, weights were
        updated after the previous draw, and only the weights of particles with Z = 0 change here.
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
        """Resample each stratum of competing particles whose weights are too unequal.

        Returns:
            The particles, the ancestor of each particle, and the examples in which a stratum
            was resampled.
        """
        states = prefixes.state.position.states[particles.row]
        N, indices = self.num_particles, self.reader.indices
        width = N if self.reader.is_static else None
        found = resample(
            Strata.of(particles.running, states, N, self.options.strata, indices, width),
            particles.log_weight,
            scheme=self.options.resampling,
            ess_threshold=float(self.options.ess_threshold),
            examples=self.examples,
            step=step,
            draw=self.draw,
            indices=indices,
        )
        chosen = particles.take(found.ancestors)._replace(log_weight=found.log_weight)
        return chosen, found.ancestors, found.examples

    def _draw(
        self,
        draws: Draws,
        factors: Factors,
        prefixes: Prefixes[State],
        particles: Particles,
        step: Int64[Tensor, "B"],
    ) -> Int64[Tensor, "P"]:
        """Draw a token from q for each particle."""
        rows, example = particles.row, self._example

        def breaks() -> Float64[Tensor, "P V"]:
            points = categorical(factors.apply(prefixes.log_p)).breaks(rows)
            return torch.where(particles.running.unsqueeze(1), points, 0.0)

        number = torch.arange(len(example), device=example.device) % self.num_particles
        keys = Keys(self.examples[example], number, step[example], Purpose.TOKEN)
        return draws.at(rows, self.draw(keys, breaks))

    def _advance(
        self,
        particles: Particles,
        token: Int64[Tensor, "P"],
        draws: Draws,
        log_g: Float64[Tensor, "P"],
        prefixes: Prefixes[State],
        extension: Extension,
    ) -> Particles:
        """Extend the particles, and set the potential of each new prefix.

        log W += log psi_new - log g(x_t) + sum of log p_lm(f) over the forced tokens f.
        """
        rows = particles.row
        log_potential = self._log_potential(extension, log_g)
        gained = log_potential if self.reader.proposal.potential else draws.log_z[rows]
        increment = torch.where(
            extension.finished | extension.running,
            gained - log_g + extension.forced_log_p,
            -torch.inf,
        )
        return particles.extend(
            extension,
            log_weight=particles.log_weight + increment,
            log_p=prefixes.log_p[rows, token].double(),
            log_potential=log_potential,
        )

    def _log_potential(
        self, extension: Extension, log_g: Float64[Tensor, "P"]
    ) -> Float64[Tensor, "P"]:
        """Return the log potentials (psi) of the new prefixes, given log g of their drawn token."""
        if not self.reader.proposal.potential:
            return torch.zeros_like(log_g)
        last = torch.where(extension.forced > 0, extension.forced_log_g, log_g)
        return torch.where(extension.running, last, 0.0)

    def _observation(
        self,
        prefixes: Prefixes[State],
        factors: Factors,
        before: Particles,
        weighed: Particles,
        ancestors: Int64[Tensor, "P"],
        after: Particles,
        extension: Extension,
    ) -> Observation:
        """Return the data of a step for an observer."""
        shown, rows = prefixes_in_use(prefixes, before, self.reader.proposal)
        return Observation(
            prefixes=shown,
            tilted=lambda: factors.apply(prefixes.log_p)[rows],
            example=self._example,
            row=torch.where(before.running, torch.searchsorted(rows, before.row), -1),
            tokens=before.tokens[:, :-1],
            length=before.length,
            log_weight=weighed.log_weight,
            after=Population(
                self._example, ancestors, after.tokens[:, :-1], after.length, after.log_weight,
                after.finished, after.running, extension.landed,
            ),
        )  # fmt: skip

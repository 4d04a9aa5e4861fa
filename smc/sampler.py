"""This module has the SMC sampler over token sequences: weigh, perhaps resample, draw, advance.

Target of step t, for a prefix x_<=t of an answer:   p_lm(x_<=t) psi_t(x_<=t) 1{alive},
with potentials psi_t that are one once the answer is complete; so the last target is
p_lm(x | x in C, |x| <= n), and the product of the mean weights estimates p_lm(C, |x| <= n) without
bias.  With q(x_t) = p_lm(x_t) g(x_t) / Z_t and psi_t = g(x_t), the value really used, the increment

    w_t = [ p_lm(x_t) psi_t ] / [ psi_{t-1} q(x_t) ] = Z_t / psi_{t-1}

does not depend on the token drawn.  Hence the order: weigh by Z_t / psi_{t-1}, resample where the
weights have grown too unequal, and only then draw (a fully adapted particle filter; Pitt &
Shephard, 1999).  A particle that completes its answer is divided by its last psi, as from then on
psi = 1.  A constant psi_0 in the initial weights would cancel in the first increment, so it is left
at one.  For a proposal that declines to use g as its potential, psi = 1 and the increment
Z_t / g(x_t) follows the draw.

Resampling replaces the N weights of an example by their mean, so the evidence is at any time the
mean of the weights.  Examples are independent: each is resampled by its own weights, and rests once
none of its particles runs.

One step costs one forward pass over the distinct prefixes, plus O(P·V) memory traffic for P
particles.  Per step the host waits for the device where sizes depend on data: which examples to
resample, which particles run, how many distinct prefixes they make and how many of these go on
(which also tells it whether everything is finished); once more to refuse NaN; and inside the
language model, should it want to know whether rows move.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from typing import Generic

import torch
from jaxtyping import Bool, Float64, Int64
from torch import Tensor

from smc.draw import Breaks, Draw, Keys, Purpose, categorical
from smc.guide import Guide
from smc.observation import Observation, Population, Watch
from smc.outcome import Outcome, Read, StepRecord, start_record
from smc.particles import Particles, start_particles
from smc.prefixes import Fate, Prefixes, Reader
from smc.proposals import State
from smc.reading import Steps
from smc.resampling import Scheme, Uniform
from smc.weights import Weights


class Sampler(Generic[State]):
    """A particle filter for one batch of examples.

    Args:
        reader: language model and proposal, for the B examples of the batch.
        examples: identity of each example, which names its random numbers.
        num_particles: N, per example.
        scheme: resampling scheme.
        ess_threshold: resample when the ESS falls under this fraction of N; 1 or more means every
            step, 0 never.
        strata: "none", or "state": particles compete with those in the same automaton state.
        draw: the seam of randomness.
        watch: is shown every step; nothing is made for it where there is none.
    """

    def __init__(
        self,
        reader: Reader[State],
        *,
        examples: Int64[Tensor, "B"],
        num_particles: int,
        scheme: Scheme,
        ess_threshold: float,
        strata: str,
        draw: Draw,
        watch: Watch | None = None,
    ) -> None:
        self.reader = reader
        self.proposal = reader.proposal
        self.batch = reader.batch
        self.examples = examples
        self.num_particles = num_particles
        self.scheme = scheme
        self.ess_threshold = ess_threshold
        self.strata = strata
        self.draw = draw
        self.watch = watch
        self.records: list[StepRecord] = []

    def steps(self, prompts: Sequence[Sequence[int]]) -> Steps[Outcome]:
        """Samples answers to the prompts (token ids); every particle ends finished or dead.

        Yields what the language model is to read (`smc.reading.alone` runs it).

        Returns:
            N particles of each example, whose evidence is the mean of their weights.

        Raises:
            FloatingPointError: the language model's log-probabilities are not numbers.
        """
        particles, prefixes = yield from self._start(prompts)
        step = 0
        while prefixes.num_rows:
            guide = self.reader.guide(prefixes)
            weighed = self._weigh(particles, guide)
            chosen, resampled, ancestors = self._resample(weighed, prefixes, step)
            tokens = self._draw(chosen, prefixes, guide, step)
            fallbacks = self._fallbacks(prefixes, guide)
            after, reached, read = yield from self._advance(chosen, prefixes, guide, tokens)
            self._note(particles, weighed, resampled, fallbacks, read)
            if self.watch is not None:
                seen = particles, weighed, ancestors, after
                self.watch(self._observation(prefixes, guide, *seen))
            particles, prefixes = after, reached
            step += 1
        return self._outcome(particles)

    def _start(self, prompts: Sequence[Sequence[int]]) -> Steps[tuple[Particles, Prefixes[State]]]:
        """Each prompt is read once; all particles of an example share it."""
        budgets = self.batch.budgets
        B, device = len(prompts), budgets.device
        particles = start_particles(B, self.num_particles, int(budgets.max()), device)
        fate, prefixes = yield from self.reader.start(prompts, most_rows=len(particles.row))
        every = torch.arange(len(particles.row), device=device)
        each = every // self.num_particles
        log_potential = self._log_potential(fate, torch.zeros_like(fate.log_p))
        after = particles.append(
            every,
            fate.tokens[each],
            increment=torch.where(
                fate.finished | fate.runs, fate.log_p + log_potential, -torch.inf
            )[each],
            log_potential=log_potential[each],
            finished=fate.finished[each],
            row=fate.row[each],
        )
        self.records += start_record(Read.of(fate, every[:B], B), self.num_particles)
        return after, prefixes

    def _weigh(self, particles: Particles, guide: Guide) -> Particles:
        """Running particles are weighed by Z_t / psi_{t-1}; with no token to draw, they die."""
        log_z = guide.log_z[particles.row.clamp(min=0)]
        if self.proposal.potential:
            increment = log_z - particles.log_potential
        else:
            increment = torch.where(log_z.isneginf(), log_z, 0.0)
        log_weight = particles.log_weight + torch.where(particles.running, increment, 0.0)
        row = torch.where(log_weight.isneginf(), -1, particles.row)
        return particles._replace(log_weight=log_weight, row=row)

    def _resample(
        self, particles: Particles, prefixes: Prefixes[State], step: int
    ) -> tuple[Particles, Bool[Tensor, "B"], Int64[Tensor, "P"]]:
        """Replaces the particles of each system of low ESS by equally weighted copies of them.

        Returns:
            The particles, the examples with such a system, and of which particle each is a copy.
        """
        ancestors = torch.arange(len(particles.row), device=particles.row.device)
        log_weight = particles.log_weight.clone()
        resampled = torch.zeros_like(self.examples, dtype=torch.bool)
        for members in self._systems(particles, prefixes):
            system = Weights.of(particles.log_weight[members])
            if self.ess_threshold < 1:
                due = system.ess < self.ess_threshold * members.shape[1]
                members, system = members[due], Weights(*(field[due] for field in system))
            if len(members):
                chosen = self.scheme(system.normalised, self._uniform(members, step))
                ancestors[members] = members.gather(1, chosen)
                log_weight[members] = system.log_mean.unsqueeze(1).expand_as(members)
                resampled[members[:, 0] // self.num_particles] = True
        return particles.take(ancestors)._replace(log_weight=log_weight), resampled, ancestors

    def _systems(
        self, particles: Particles, prefixes: Prefixes[State]
    ) -> Iterator[Int64[Tensor, "G m"]]:
        """Yields the particles that compete with each other, systems of one size together."""
        N, running = self.num_particles, particles.running
        if self.strata == "none":
            every = torch.arange(len(running), device=running.device).view(-1, N)
            yield every[running.view(-1, N).any(dim=1)]
            return
        which = running.nonzero().squeeze(1)
        states = prefixes.state.walk.states[particles.row[which]]
        names = (which // N) * (int(states.max()) + 1 if len(which) else 1) + states
        order = torch.argsort(names, stable=True)
        _, size = torch.unique_consecutive(names[order], return_counts=True)
        first = size.cumsum(dim=0) - size
        for m in torch.unique(size).tolist():
            if m > 1:
                starts = first[size == m].unsqueeze(1)
                yield which[order[starts + torch.arange(m, device=starts.device)]]

    def _uniform(self, members: Int64[Tensor, "G m"], step: int) -> Uniform:
        """Uniform numbers for systems of particles, named by their members."""

        def uniform(count: int, breaks: Breaks) -> Float64[Tensor, "G M"]:
            named = members[:, :count]
            examples = self.examples[named // self.num_particles]
            keys = Keys(examples, named % self.num_particles, step, Purpose.ANCESTOR)
            return self.draw(keys, breaks)

        return uniform

    def _draw(
        self, particles: Particles, prefixes: Prefixes[State], guide: Guide, step: int
    ) -> Int64[Tensor, "M"]:
        """Draws one token for each of the M running particles, from q proportional to p_lm · g."""
        running = particles.running.nonzero().squeeze(1)
        rows = particles.row[running]
        q = categorical(guide.tilted(prefixes.log_p))
        examples = self.examples[running // self.num_particles]
        keys = Keys(examples, running % self.num_particles, step, Purpose.TOKEN)
        return q.at(rows, self.draw(keys, lambda: q.breaks(rows)))

    def _advance(
        self,
        particles: Particles,
        prefixes: Prefixes[State],
        guide: Guide,
        tokens: Int64[Tensor, "M"],
    ) -> Steps[tuple[Particles, Prefixes[State], Read]]:
        """Appends the tokens, and those forced behind them.

        Each distinct new prefix goes through proposal and model once.
        """
        running = particles.running.nonzero().squeeze(1)
        rows = particles.row[running]
        V = prefixes.log_p.shape[1]
        child, child_of = torch.unique(rows * V + tokens, return_inverse=True)
        most = self._most_rows(running)
        fate, after = yield from self.reader.extend(prefixes, child // V, child % V, most)
        read = Read.of(fate, prefixes.example[child // V], len(self.examples))
        row = fate.row[child_of]
        fate = Fate(*(field[child_of] for field in fate))

        log_g = guide.at(rows, tokens)
        log_potential = self._log_potential(fate, log_g)
        gained = log_potential if self.proposal.potential else guide.log_z[rows]
        increment = gained - log_g + fate.log_p
        particles = particles.append(
            running,
            fate.tokens,
            increment=torch.where(fate.finished | fate.runs, increment, -torch.inf),
            log_potential=log_potential,
            finished=fate.finished,
            row=row,
        )
        return particles, after, read

    def _most_rows(self, running: Int64[Tensor, "M"]) -> int:
        """How many particles can be running from now on, where these do.

        Where all particles of an example compete, a finished one may become a copy of another.
        """
        if self.strata == "none":
            return self.num_particles * len(torch.unique(running // self.num_particles))
        return len(running)

    def _log_potential(self, fate: Fate, log_g: Float64[Tensor, "M"]) -> Float64[Tensor, "M"]:
        """log psi of prefixes whose last drawn token has this log g."""
        if not self.proposal.potential:
            return torch.zeros_like(log_g)
        return torch.where(fate.runs, torch.where(fate.forced > 0, fate.log_g, log_g), 0.0)

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
        example = torch.arange(len(after.row), device=after.row.device) // self.num_particles
        return Observation(
            prefixes=prefixes,
            tilted=partial(guide.tilted, prefixes.log_p),
            example=example,
            row=before.row,
            tokens=before.tokens,
            length=before.length,
            log_weight=weighed.log_weight,
            after=Population(
                example, ancestors, after.tokens, after.length, after.log_weight, after.finished,
                after.running,
            ),
        )  # fmt: skip

    def _outcome(self, particles: Particles) -> Outcome:
        """The particles, example by example."""
        final = self._weights(particles)
        B, device = len(final.ess), final.ess.device
        return Outcome(
            example=torch.arange(B, device=device).repeat_interleave(self.num_particles),
            tokens=particles.tokens,
            length=particles.length,
            log_weight=particles.log_weight,
            finished=particles.finished,
            log_evidence=final.log_mean,
            ess=final.ess,
            enumerated=torch.zeros(B, dtype=torch.bool, device=device),
            records=self.records,
        )

    def _weights(self, particles: Particles) -> Weights:
        """The particles' weights, one system per example."""
        return Weights.of(particles.log_weight.view(-1, self.num_particles))

    def _fallbacks(self, prefixes: Prefixes[State], guide: Guide) -> Int64[Tensor, "B"]:
        """Counts the prefixes of each example at which the proposal knew nothing."""
        none = torch.zeros_like(self.examples)
        if guide.fallback is None:
            return none
        return none.index_add(0, prefixes.example, guide.fallback.long())

    def _note(
        self,
        before: Particles,
        weighed: Particles,
        resampled: Bool[Tensor, "B"],
        fallbacks: Int64[Tensor, "B"],
        read: Read,
    ) -> None:
        """Keeps the step's record, which stays on the device until the end."""
        N = self.num_particles
        self.records.append(
            StepRecord(
                ess=self._weights(weighed).ess,
                resampled=resampled,
                running=before.running.view(-1, N).sum(dim=1),
                alive=(~weighed.log_weight.isneginf()).view(-1, N).sum(dim=1),
                fallbacks=fallbacks,
                read=read.tokens,
                forced=read.forced,
            )
        )

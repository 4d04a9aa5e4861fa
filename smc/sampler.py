"""Sequential Monte Carlo over token sequences: weigh, perhaps resample, draw, advance.

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
particles.  The host waits for the device where it must learn how many prefixes there are, which
also tells it whether everything is finished, and nowhere else.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from jaxtyping import Bool, Float, Float64, Int64
from torch import Tensor

from smc.draw import Draw, Keys, Purpose, categorical
from smc.language_model import LanguageModel, Rows
from smc.particles import Particles, Prefixes, start_particles
from smc.proposals import Batch, Guide, Proposal
from smc.resampling import Scheme
from smc.weights import Weights


class StepRecord(NamedTuple):
    """One step seen from outside, per example.

    Attributes:
        ess: effective sample size after weighing.
        resampled: whether the step resampled.
        running: particles due another token when the step began.
        alive: particles of positive weight, after weighing.
        rows: distinct prefixes that the language model read at the end of the step.
    """

    ess: Float64[Tensor, "B"]
    resampled: Bool[Tensor, "B"]
    running: Int64[Tensor, "B"]
    alive: Int64[Tensor, "B"]
    rows: Int64[Tensor, "B"]


class Sampler:
    """A particle filter for one batch of examples.

    Args:
        lm: the language model.
        proposal: where the tokens come from.
        batch: automata and budgets of the B examples.
        examples: identity of each example, which names its random numbers.
        num_particles: N, per example.
        scheme: resampling scheme.
        ess_threshold: resample when the ESS falls under this fraction of N; 1 or more means every
            step, 0 never.
        temperature: that of p_lm.
        top_p: each token is drawn from the smallest set of this probability under q; below one the
            target becomes p_lm restricted to such sequences.
        draw: the seam of randomness.
    """

    def __init__(
        self,
        lm: LanguageModel,
        proposal: Proposal,
        batch: Batch,
        *,
        examples: Int64[Tensor, "B"],
        num_particles: int,
        scheme: Scheme,
        ess_threshold: float,
        temperature: float,
        top_p: float,
        draw: Draw,
    ) -> None:
        self.lm = lm
        self.proposal = proposal
        self.batch = batch
        self.examples = examples
        self.num_particles = num_particles
        self.scheme = scheme
        self.ess_threshold = ess_threshold
        self.temperature = temperature
        self.top_p = top_p
        self.draw = draw
        self.records: list[StepRecord] = []

    @torch.inference_mode()
    def run(self, prompts: Sequence[Sequence[int]]) -> Particles:
        """Samples answers to the prompts (token ids); every particle ends finished or dead.

        Raises:
            FloatingPointError: the language model's log-probabilities are not numbers.
        """
        memory, particles, prefixes = self._start(prompts)
        step = 0
        while prefixes.count:
            guide = self._guide(prefixes)
            particles, record = self._weigh(particles, guide)
            particles = self._resample(particles, record, step)
            tokens = self._draw(particles, prefixes, guide, step)
            particles, prefixes = self._advance(particles, prefixes, guide, tokens, memory)
            self._note(record, prefixes)
            step += 1
        return particles

    def _start(self, prompts: Sequence[Sequence[int]]) -> tuple[Rows, Particles, Prefixes]:
        """Each prompt is read once; all particles of an example share it."""
        memory, log_p = self.lm.prefill(prompts)
        B = len(prompts)
        particles = start_particles(
            B, self.num_particles, int(self.batch.budgets.max()), self.examples.device
        )
        everyone = torch.arange(B, device=self.examples.device)
        state = self.proposal.start(self.batch)
        return memory, particles, Prefixes(everyone, self._tempered(log_p), state)

    def _guide(self, prefixes: Prefixes) -> Guide:
        """What the proposal thinks of every next token."""
        guide = self.proposal.guide(prefixes.state, prefixes.log_p)
        if self.top_p < 1:
            log_q = prefixes.log_p + guide.log_g
            log_g = torch.where(nucleus(log_q, self.top_p), guide.log_g, -torch.inf)
            guide = Guide(log_g, torch.logsumexp(prefixes.log_p + log_g, dim=1))
        return guide

    def _weigh(self, particles: Particles, guide: Guide) -> tuple[Particles, StepRecord]:
        """Running particles are weighed by Z_t / psi_{t-1}; with no token to draw, they die."""
        log_z = guide.log_z[particles.row.clamp(min=0)]
        if self.proposal.potential:
            increment = log_z - particles.log_potential
        else:
            increment = torch.where(log_z.isneginf(), log_z, 0.0)
        log_weight = particles.log_weight + torch.where(particles.running, increment, 0.0)
        shape = (-1, self.num_particles)
        record = StepRecord(
            ess=Weights.of(log_weight.view(shape)).ess,
            resampled=torch.zeros_like(self.examples, dtype=torch.bool),
            running=particles.running.view(shape).sum(dim=1),
            alive=(~log_weight.isneginf()).view(shape).sum(dim=1),
            rows=torch.zeros_like(self.examples),
        )
        row = torch.where(log_weight.isneginf(), -1, particles.row)
        return particles._replace(log_weight=log_weight, row=row), record

    def _resample(self, particles: Particles, record: StepRecord, step: int) -> Particles:
        """Examples of too low an ESS are resampled, as long as any of their particles runs."""
        B, N = len(self.examples), self.num_particles
        system = Weights.of(particles.log_weight.view(B, N))
        due = particles.running.view(B, N).any(dim=1)
        if self.ess_threshold < 1:
            due &= system.ess < self.ess_threshold * N
        record.resampled.copy_(due)
        which = due.nonzero().squeeze(1)
        if not len(which):
            return particles

        def uniform(count: int, breaks: object) -> Float64[Tensor, "b M"]:
            shape = (len(which), count)
            slots = torch.arange(count, device=which.device).expand(shape)
            examples = self.examples[which].unsqueeze(1).expand(shape)
            return self.draw(Keys(examples, slots, step, Purpose.ANCESTOR), breaks)  # type: ignore

        ancestors = torch.arange(B * N, device=which.device).view(B, N)
        ancestors[which] = self.scheme(system.normalised[which], uniform) + which.unsqueeze(1) * N
        mean = system.log_mean.unsqueeze(1).expand(B, N)
        log_weight = torch.where(due.unsqueeze(1), mean, system.log)
        return particles.take(ancestors.flatten())._replace(log_weight=log_weight.flatten())

    def _draw(
        self, particles: Particles, prefixes: Prefixes, guide: Guide, step: int
    ) -> Int64[Tensor, "M"]:
        """One token for each of the M running particles, from q proportional to p_lm · g."""
        running = particles.running.nonzero().squeeze(1)
        rows = particles.row[running]
        q = categorical(prefixes.log_p + guide.log_g)
        examples = self.examples[running // self.num_particles]
        keys = Keys(examples, running % self.num_particles, step, Purpose.TOKEN)
        return q.at(rows, self.draw(keys, lambda: q.breaks(rows)))

    def _advance(
        self,
        particles: Particles,
        prefixes: Prefixes,
        guide: Guide,
        tokens: Int64[Tensor, "M"],
        memory: Rows,
    ) -> tuple[Particles, Prefixes]:
        """Appends the tokens; each distinct new prefix goes through proposal and model once."""
        running = particles.running.nonzero().squeeze(1)
        rows = particles.row[running]
        V = guide.log_g.shape[1]
        child, child_of = torch.unique(rows * V + tokens, return_inverse=True)
        parent, token = child // V, child % V
        state = self.proposal.advance(
            self.proposal.take(prefixes.state, parent), token.unsqueeze(1)
        )
        walk = state.walk
        finished, runs = walk.finished[child_of], walk.running[child_of]

        log_g = guide.log_g[rows, tokens]
        if self.proposal.potential:
            late_increment = torch.where(finished, -log_g, 0.0)
        else:
            late_increment = guide.log_z[rows] - log_g
        late_increment = torch.where(finished | runs, late_increment, -torch.inf)
        new_row = torch.where(walk.running, walk.running.cumsum(dim=0) - 1, -1)
        log_potential = torch.where(runs, log_g, 0.0) if self.proposal.potential else 0 * log_g

        place = (running, particles.length[running])
        particles = Particles(
            tokens=particles.tokens.index_put(place, tokens),
            length=particles.length.index_add(0, running, torch.ones_like(running)),
            log_weight=particles.log_weight.index_add(0, running, late_increment),
            log_potential=particles.log_potential.index_copy(0, running, log_potential),
            finished=particles.finished.index_copy(0, running, finished),
            row=particles.row.index_copy(0, running, new_row[child_of]),
        )
        kept = walk.running.nonzero().squeeze(1)
        return particles, self._read(prefixes, state, parent[kept], token[kept], kept, memory)

    def _read(
        self,
        prefixes: Prefixes,
        state: object,
        parent: Int64[Tensor, "R"],
        token: Int64[Tensor, "R"],
        kept: Int64[Tensor, "R"],
        memory: Rows,
    ) -> Prefixes:
        """The language model reads one more token on each running prefix."""
        example = prefixes.example[parent]
        state = self.proposal.take(state, kept)
        if not len(parent):
            return Prefixes(example, prefixes.log_p[:0], state)
        memory.reorder(parent)
        log_p = memory.extend(token.unsqueeze(1), torch.ones_like(token))[:, 0]
        return Prefixes(example, self._tempered(log_p), state)

    def _tempered(self, log_p: Float[Tensor, "R V"]) -> Float64[Tensor, "R V"]:
        """p_lm at the sampling temperature, in float64."""
        log_p = log_p.double()
        if self.temperature != 1:
            log_p = (log_p / self.temperature).log_softmax(dim=1)
        if bool(log_p.isnan().any()):
            raise FloatingPointError(
                "the language model returned log-probabilities that are not numbers (NaN); "
                "its weights or its dtype are at fault: try float32 or bfloat16"
            )
        return log_p

    def _note(self, record: StepRecord, prefixes: Prefixes) -> None:
        """Keeps the step's record; it stays on the device until the end."""
        rows = record.rows.index_add(0, prefixes.example, torch.ones_like(prefixes.example))
        self.records.append(record._replace(rows=rows))


def nucleus(log_q: Float64[Tensor, "R V"], top_p: float) -> Bool[Tensor, "R V"]:
    """The likeliest tokens, as few as have together at least probability top_p, at least one."""
    ordered, order = log_q.log_softmax(dim=1).sort(dim=1, descending=True, stable=True)
    before = ordered.exp().cumsum(dim=1) - ordered.exp()
    return torch.zeros_like(log_q, dtype=torch.bool).scatter(1, order, before < top_p)

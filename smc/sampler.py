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

from collections.abc import Sequence
from typing import Generic, NamedTuple

import torch
from jaxtyping import Bool, Float, Float64, Int64
from torch import Tensor

from smc.draw import Breaks, Draw, Keys, Purpose, categorical
from smc.guide import DenseGuide, Guide
from smc.language_model import LanguageModel, Rows
from smc.particles import Particles, Prefixes, start_particles
from smc.proposals import Batch, Proposal, State
from smc.resampling import Scheme
from smc.weights import Weights


class StepRecord(NamedTuple):
    """What happened in one step, per example.

    Attributes:
        ess: effective sample size after weighing.
        resampled: whether the step resampled.
        running: particles due another token when the step began.
        alive: particles of positive weight, after weighing.
        rows: distinct prefixes that the language model read at the end of the step.
        fallbacks: distinct prefixes at which the proposal knew nothing (`Guide.fallback`).
    """

    ess: Float64[Tensor, "B"]
    resampled: Bool[Tensor, "B"]
    running: Int64[Tensor, "B"]
    alive: Int64[Tensor, "B"]
    rows: Int64[Tensor, "B"]
    fallbacks: Int64[Tensor, "B"]


class Sampler(Generic[State]):
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
        proposal: Proposal[State],
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
        while prefixes.num_rows:
            guide = self._guide(prefixes)
            weighed = self._weigh(particles, guide)
            due = self._due(weighed)
            chosen = self._resample(weighed, due, step)
            tokens = self._draw(chosen, prefixes, guide, step)
            fallbacks = self._fallbacks(prefixes, guide)
            after, prefixes = self._advance(chosen, prefixes, guide, tokens, memory)
            self._note(particles, weighed, due, fallbacks, prefixes)
            particles = after
            step += 1
        return particles

    def _start(self, prompts: Sequence[Sequence[int]]) -> tuple[Rows, Particles, Prefixes[State]]:
        """Each prompt is read once; all particles of an example share it."""
        budgets = self.batch.budgets
        B, device = len(prompts), budgets.device
        particles = start_particles(B, self.num_particles, int(budgets.max()), device)
        state = self.proposal.start(self.batch)  # it may refuse, so the model comes after it
        memory, log_p = self.lm.prefill(prompts)
        # An automaton that ends by itself may accept the empty answer: nothing is left to draw.
        finished, runs = state.walk.finished, state.walk.running
        each = torch.arange(B, device=device).repeat_interleave(self.num_particles)
        particles = particles._replace(
            finished=finished[each],
            row=torch.where(runs, runs.cumsum(dim=0) - 1, -1)[each],
        )
        kept = runs.nonzero().squeeze(1)
        memory.reorder(kept)
        prefixes = Prefixes(kept, self._tempered(log_p[kept]), self.proposal.take(state, kept))
        return memory, particles, prefixes

    def _guide(self, prefixes: Prefixes[State]) -> Guide:
        """Asks the proposal about every next token, and cuts its answer to the nucleus."""
        guide = self.proposal.guide(prefixes.state, prefixes.log_p)
        if self.top_p < 1:
            inside = nucleus(guide.tilted(prefixes.log_p), self.top_p)
            log_g = torch.where(inside, guide.log_g, -torch.inf)
            log_z = torch.logsumexp(prefixes.log_p + log_g, dim=1)
            guide = DenseGuide(log_g, log_z, guide.fallback)
        return guide

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

    def _due(self, particles: Particles) -> Bool[Tensor, "B"]:
        """Says which examples to resample: those of low ESS, as long as any particle runs."""
        N = self.num_particles
        due = particles.running.view(-1, N).any(dim=1)
        if self.ess_threshold < 1:
            due &= self._weights(particles).ess < self.ess_threshold * N
        return due

    def _resample(self, particles: Particles, due: Bool[Tensor, "B"], step: int) -> Particles:
        """Replaces particles of these examples by equally weighted copies of their ancestors."""
        which, N = due.nonzero().squeeze(1), self.num_particles
        if not len(which):
            return particles

        def uniform(count: int, breaks: Breaks) -> Float64[Tensor, "b M"]:
            examples = self.examples[which].unsqueeze(1).expand(-1, count)
            slots = torch.arange(count, device=which.device).expand_as(examples)
            return self.draw(Keys(examples, slots, step, Purpose.ANCESTOR), breaks)

        system = self._weights(particles)
        ancestors = torch.arange(len(due) * N, device=which.device).view(-1, N)
        ancestors[which] = self.scheme(system.normalised[which], uniform) + which.unsqueeze(1) * N
        log_weight = torch.where(due.unsqueeze(1), system.log_mean.unsqueeze(1), system.log)
        return particles.take(ancestors.flatten())._replace(log_weight=log_weight.flatten())

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
        memory: Rows,
    ) -> tuple[Particles, Prefixes[State]]:
        """Appends the tokens; each distinct new prefix goes through proposal and model once."""
        running = particles.running.nonzero().squeeze(1)
        rows = particles.row[running]
        V = prefixes.log_p.shape[1]
        child, child_of = torch.unique(rows * V + tokens, return_inverse=True)
        parent, token = child // V, child % V
        state = self.proposal.take(prefixes.state, parent)
        state = self.proposal.advance(state, token.unsqueeze(1))
        finished, runs = state.walk.finished, state.walk.running

        log_g = guide.at(rows, tokens)
        if self.proposal.potential:
            log_potential = torch.where(runs[child_of], log_g, 0.0)
            increment = log_potential - log_g
        else:
            log_potential = torch.zeros_like(log_g)
            increment = guide.log_z[rows] - log_g
        particles = particles.append(
            running,
            tokens,
            increment=torch.where((finished | runs)[child_of], increment, -torch.inf),
            log_potential=log_potential,
            finished=finished[child_of],
            row=torch.where(runs, runs.cumsum(dim=0) - 1, -1)[child_of],
        )
        kept = runs.nonzero().squeeze(1)
        parent, token = parent[kept], token[kept]
        return particles, Prefixes(
            prefixes.example[parent],
            self._read(memory, parent, token) if len(kept) else prefixes.log_p[:0],
            self.proposal.take(state, kept),
        )

    def _read(
        self, memory: Rows, parent: Int64[Tensor, "R"], token: Int64[Tensor, "R"]
    ) -> Float[Tensor, "R V"]:
        """The language model reads one more token on each prefix that goes on."""
        memory.reorder(parent)
        return self._tempered(memory.extend(token.unsqueeze(1), torch.ones_like(token))[:, 0])

    def _tempered(self, log_p: Float[Tensor, "R V"]) -> Float[Tensor, "R V"]:
        """p_lm at the sampling temperature, in the model's precision, float32 at least."""
        log_p = log_p.to(torch.promote_types(log_p.dtype, torch.float32))
        if self.temperature != 1:
            log_p = (log_p / self.temperature).log_softmax(dim=1)
        if bool(log_p.isnan().any()):
            raise FloatingPointError(
                "the language model returned log-probabilities that are not numbers (NaN); "
                "its weights or its dtype are at fault: try float32 or bfloat16"
            )
        return log_p

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
        due: Bool[Tensor, "B"],
        fallbacks: Int64[Tensor, "B"],
        after: Prefixes[State],
    ) -> None:
        """Keeps the step's record, which stays on the device until the end."""
        N = self.num_particles
        read = torch.zeros_like(self.examples).index_add(
            0, after.example, torch.ones_like(after.example)
        )
        self.records.append(
            StepRecord(
                ess=self._weights(weighed).ess,
                resampled=due,
                running=before.running.view(-1, N).sum(dim=1),
                alive=(~weighed.log_weight.isneginf()).view(-1, N).sum(dim=1),
                rows=read,
                fallbacks=fallbacks,
            )
        )


def nucleus(log_q: Float64[Tensor, "R V"], top_p: float) -> Bool[Tensor, "R V"]:
    """Finds the most probable tokens that together have at least probability top_p."""
    ordered, order = log_q.log_softmax(dim=1).sort(dim=1, descending=True, stable=True)
    before = ordered.exp().cumsum(dim=1) - ordered.exp()
    return torch.zeros_like(log_q, dtype=torch.bool).scatter(1, order, before < top_p)

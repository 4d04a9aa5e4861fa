"""Weighted particles, the record of each step, the result, and what observers see of a step.

Particles are tensors with leading axis P = B·N, ordered by example. Shapes are the same in every
step: a finished or dead particle keeps its slot and is masked. Data that depends only on tokens is
stored per prefix (`smc._forward.reader`). A particle has the row number of its prefix, `row`. The N
prefixes that the discrete filter keeps are stored as particles, too.

**Observers.** `smc.Hooks.observe` is called once for each batch of examples. The function that it
returns is called after every step. An observer can't change answers or weights, because random
numbers are functions of their keys. The observer's time is not included in `Diagnostics.seconds`.
With an observer, no graph is captured.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, TypeAlias

import torch
from jaxtyping import Bool, Float64, Int64
from torch import Tensor

from smc._forward.reader import Extension, Prefixes, count_of
from smc._proposals import Proposal, State

NOT_CHOSEN = 1.0
"""Value in `Particles.log_pi` for tokens that were not selected."""


class Particles(NamedTuple):
    """The P particles of a batch.

    Attributes:
        tokens: chosen and forced tokens, including EOS; -1 beyond the length. The last column is
            always -1: missing tokens are written to it.
        length: number of tokens.
        log_weight: log of the importance weight; -inf for a dead particle.
        log_p: log p_lm of the tokens, at the sampling temperature.
        log_potential: log psi of the prefix, by which the next weight update divides; 0 for psi =
            1.
        finished: True once the answer is complete.
        running: True for particles that take another token.
        row: row of the particle's prefix while the particle is running; arbitrary otherwise.
        founder: the particle's ancestor in the first step (`smc._results.reliability`).
        log_pi: log of the probability with which the discrete filter kept the prefix that ends in
            each token; `NOT_CHOSEN` for all other tokens. For SMC there are no columns.
    """

    tokens: Int64[Tensor, "P T"]
    length: Int64[Tensor, "P"]
    log_weight: Float64[Tensor, "P"]
    log_p: Float64[Tensor, "P"]
    log_potential: Float64[Tensor, "P"]
    finished: Bool[Tensor, "P"]
    running: Bool[Tensor, "P"]
    row: Int64[Tensor, "P"]
    founder: Int64[Tensor, "P"]
    log_pi: Float64[Tensor, "P S"]

    def take(self, ancestors: Int64[Tensor, "P"]) -> Particles:
        """Return copies of the particles with these indices, including their weights."""
        return Particles(*(field[ancestors] for field in self))

    def extend(
        self,
        by: Extension,
        *,
        log_weight: Float64[Tensor, "P"],
        log_p: Float64[Tensor, "P"],
        log_potential: Float64[Tensor, "P"] | None = None,
        log_pi: Float64[Tensor, "P"] | None = None,
    ) -> Particles:
        """Return the particles, with the running ones extended.

        Args:
            log_potential: new potentials; None keeps the old ones (the discrete filter has none).
            log_pi: log pi of the chosen tokens; None for SMC.
        """
        ran, many = self.running, (by.tokens >= 0).sum(dim=1)
        log_potential = self.log_potential if log_potential is None else log_potential
        # The column of each token is its position in the text, or the last column for no token.
        spare = self.tokens.shape[1] - 1
        column = self.length.unsqueeze(1) + torch.arange(by.tokens.shape[1], device=many.device)
        column = torch.where(by.tokens >= 0, column, spare)
        if log_pi is None:
            kept = self.log_pi
        else:
            first = torch.where(ran & (many > 0), self.length, spare).unsqueeze(1)
            kept = self.log_pi.scatter(1, first, log_pi.unsqueeze(1))
        return Particles(
            tokens=self.tokens.scatter(1, column, by.tokens),
            length=self.length + many,
            log_weight=torch.where(ran, log_weight, self.log_weight),
            log_p=self.log_p + torch.where(ran, log_p + by.forced_log_p, 0.0),
            log_potential=torch.where(ran, log_potential, self.log_potential),
            finished=self.finished | by.finished,
            running=by.running,
            row=by.row,
            founder=self.founder,
            log_pi=kept,
        )


def start_particles(
    num_examples: int,
    num_particles: int,
    budget: int,
    device: torch.device,
    *,
    selects: bool = False,
) -> Particles:
    """Create N particles of weight one for each example, before the first forward pass."""
    P = num_examples * num_particles
    zero = torch.zeros(P, dtype=torch.float64, device=device)
    number = torch.zeros(P, dtype=torch.int64, device=device)
    return Particles(
        tokens=torch.full((P, budget + 1), -1, dtype=torch.int64, device=device),
        length=number,
        log_weight=zero,
        log_p=zero,
        log_potential=zero,
        finished=torch.zeros(P, dtype=torch.bool, device=device),
        running=torch.ones(P, dtype=torch.bool, device=device),
        row=number,
        founder=torch.arange(P, device=device) % num_particles,
        log_pi=zero.new_full((P, budget + 1 if selects else 0), NOT_CHOSEN),
    )


def fallbacks_of(
    fallback: Bool[Tensor, "R"] | None,
    prefixes: Prefixes[Any],
    particles: Particles,
    num_examples: int,
) -> Int64[Tensor, "B"]:
    """Count the prefixes of running particles where GCD's mask replaced g."""
    if fallback is None:
        return torch.zeros(num_examples, dtype=torch.int64, device=particles.row.device)
    fell_back = fallback & _in_use(prefixes, particles)
    return count_of(prefixes.example, num_examples, fell_back.long())


def prefixes_in_use(
    prefixes: Prefixes[State], particles: Particles, proposal: Proposal[State]
) -> tuple[Prefixes[State], Int64[Tensor, "R"]]:
    """Return the prefixes of running particles for observers, and their row numbers."""
    rows = _in_use(prefixes, particles).nonzero().squeeze(1)
    if len(rows) == prefixes.num_rows:
        return prefixes, rows
    state = proposal.take(prefixes.state, rows)
    return Prefixes(prefixes.example[rows], prefixes.log_p[rows], state), rows


def _in_use(prefixes: Prefixes[Any], particles: Particles) -> Bool[Tensor, "R"]:
    """Return True for prefixes that have a running particle."""
    count = torch.zeros_like(prefixes.example)
    return count.index_add(0, particles.row, particles.running.long()) > 0


class StepRecord(NamedTuple):
    """Statistics of one step for each of B examples, or of several steps along a leading axis.

    Attributes:
        ess: effective sample size. For SMC, of the particles after the weight update; for the
            discrete filter, of the running prefixes.
        resampled: whether the step resampled, or kept some prefixes with a probability below one.
        running: number of particles (or distinct prefixes) that take another token in the step.
        alive: number of particles with positive weight after the weight update, or of running
            prefixes.
        fallbacks: number of distinct prefixes where GCD's mask replaced g (`Factors.fallback`).
        read: number of tokens that the language model computed at the end of the step, including
            forced tokens and draft tokens. Equal prefixes count once, except in static shapes.
        forced: number of forced tokens; equal prefixes count once.
        drafted: number of draft tokens in `read` (`smc._forward.read_ahead`).
        used: number of draft tokens that became part of a prefix.
        landed: number of tokens in `used` that the sampler chose; the others were forced.
    """

    ess: Float64[Tensor, "*steps B"]
    resampled: Bool[Tensor, "*steps B"]
    running: Int64[Tensor, "*steps B"]
    alive: Int64[Tensor, "*steps B"]
    fallbacks: Int64[Tensor, "*steps B"]
    read: Int64[Tensor, "*steps B"]
    forced: Int64[Tensor, "*steps B"]
    drafted: Int64[Tensor, "*steps B"]
    used: Int64[Tensor, "*steps B"]
    landed: Int64[Tensor, "*steps B"]

    @classmethod
    def of_start(cls, extension: Extension, particles: int) -> StepRecord:
        """Return the record for the tokens that are forced before the first step.

        `running` is 0 for an example without such tokens, so that reports skip the record.
        """
        started = (extension.counts.forced > 0).long() * particles
        none = torch.zeros_like(started)
        return cls(started.double(), none.bool(), started, started, none, *extension.counts)


class Selections(NamedTuple):
    """Counts of the prefixes that the discrete filter kept with a probability pi below one.

    Attributes:
        uncertain: number of prefixes with pi < 1, per example and step.
        slack: sum of 1 - pi over these prefixes.
    """

    uncertain: Int64[Tensor, "B T"]
    slack: Float64[Tensor, "B T"]

    @classmethod
    def start(cls, num_examples: int, most: int, device: torch.device) -> Selections:
        """Create counts of zero for at most `most` steps."""
        count = torch.zeros(num_examples, most, dtype=torch.int64, device=device)
        return cls(count, count.double())

    def add(self, log_pi: Float64[Tensor, "P"], step: Int64[Tensor, "B"]) -> Selections:
        """Count the prefixes that a step kept with a probability below one.

        Args:
            log_pi: log pi of each example's N slots; zero for an empty slot, or if pi is one.
        """
        B = len(step)
        slack = -torch.expm1(log_pi.view(B, -1))
        count, slack = (slack > 0).sum(dim=1), slack.sum(dim=1)
        column = step.unsqueeze(1).clamp(max=self.slack.shape[1] - 1)
        return Selections(
            self.uncertain.scatter_add(1, column, count.unsqueeze(1)),
            self.slack.scatter_add(1, column, slack.unsqueeze(1)),
        )


class Outcome(NamedTuple):
    """The result of one batch of examples: M weighted token sequences.

    Attributes:
        example: index in the batch of each sequence's example, in ascending order.
        tokens: the tokens of each sequence, including EOS; -1 beyond its length.
        length: number of tokens of each sequence.
        log_weight: log of the importance weight; -inf for weight zero.
        log_p: log p_lm of each sequence, at the sampling temperature.
        finished: whether each sequence is a complete answer.
        log_evidence: log of the estimate of P(C within n), for each example.
        ess: effective sample size of the final weights of each example.
        enumerated: whether the sequences of each example are the whole target, with exact
            probabilities.
        history: the records of all steps on the host, as [steps, B] arrays.
        start_seconds: time until the first step, for prompts, tables and graph capture.
        log_upper: log of the probability of found answers and open branches, for each example
            (`smc._inference.bounds.Frontier`); None if unknown.
        founder: each sequence's ancestor in the first step; None for the discrete filter.
        log_pi: log-probability with which each token was selected (`Particles.log_pi`); None for
            SMC.
        selections: how many prefixes each step kept by chance; None for SMC.
        log_removed: log-probability of the tokens that only the budget forbids
            (`smc._proposals.masks`); None if unknown.
        closed: examples whose running answers were closed early (`smc._inference.closing`); None if
            none were.
        closed_because: the reason for closing them.
    """

    example: Int64[Tensor, "M"]
    tokens: Int64[Tensor, "M T"]
    length: Int64[Tensor, "M"]
    log_weight: Float64[Tensor, "M"]
    log_p: Float64[Tensor, "M"]
    finished: Bool[Tensor, "M"]
    log_evidence: Float64[Tensor, "B"]
    ess: Float64[Tensor, "B"]
    enumerated: Bool[Tensor, "B"]
    history: StepRecord
    start_seconds: float = 0.0
    log_upper: Float64[Tensor, "B"] | None = None
    founder: Int64[Tensor, "M"] | None = None
    log_pi: Float64[Tensor, "M S"] | None = None
    selections: Selections | None = None
    log_removed: Float64[Tensor, "B"] | None = None
    closed: Bool[Tensor, "B"] | None = None
    closed_because: str | None = None


class Population(NamedTuple):
    """Sequences after a step, and their ancestors before the step.

    Attributes:
        example: index of each sequence's example in the batch, in ascending order.
        ancestor: index of each sequence's ancestor among the sequences before the step.
        tokens: all tokens of each sequence; -1 beyond its length.
        length: number of tokens.
        log_weight: log of the importance weight; -inf for weight zero.
        finished: whether the answer is complete.
        running: whether the sequence takes another token.
        landed: whether the step's tokens matched a draft, so that they didn't need a forward pass
            (`smc._forward.read_ahead`).
    """

    example: Int64[Tensor, "Q"]
    ancestor: Int64[Tensor, "Q"]
    tokens: Int64[Tensor, "Q T"]
    length: Int64[Tensor, "Q"]
    log_weight: Float64[Tensor, "Q"]
    finished: Bool[Tensor, "Q"]
    running: Bool[Tensor, "Q"]
    landed: Bool[Tensor, "Q"]


class Observation(NamedTuple):
    """Data of one step of an algorithm, for all examples of a batch; passed to observers.

    Attributes:
        prefixes: R prefixes with the model's log-probabilities (`smc._forward.reader.Prefixes`).
        tilted: function that returns log p(v) + log g(v) of every next token v, as R x V numbers;
            -inf for a token that the proposal doesn't allow.
        example: index of the example in the batch of each of P sequences, in ascending order.
        row: the prefix of each sequence; -1 for an ended sequence.
        tokens: all tokens of each sequence; -1 beyond its length. If the beginning of an answer is
            forced, there are tokens before the first step.
        length: number of tokens of each sequence.
        log_weight: log weight of each sequence after the step's weight update.
        after: the sequences after the step.
        ended: complete answers that the discrete filter stored in this step. None for SMC, where
            complete answers stay among the sequences.
    """

    prefixes: Prefixes[Any]
    tilted: Callable[[], Float64[Tensor, "R V"]]
    example: Int64[Tensor, "P"]
    row: Int64[Tensor, "P"]
    tokens: Int64[Tensor, "P T"]
    length: Int64[Tensor, "P"]
    log_weight: Float64[Tensor, "P"]
    after: Population
    ended: Population | None = None


Watch: TypeAlias = Callable[[Observation], None]
"""Function that is called with the `Observation` of each step of a batch."""

Observe: TypeAlias = Callable[[Sequence[int]], Watch | None]
"""Function that returns the `Watch` of a batch, given its `example_ids`; None for no watch."""


class Timed:
    """Wrapper of an observer that measures the time that the observer takes.

    Attributes:
        seconds: total time so far.
    """

    def __init__(self, watch: Watch) -> None:
        self._watch = watch
        self.seconds = 0.0

    def __call__(self, observation: Observation) -> None:
        """Pass the step to the observer."""
        if observation.row.is_cuda:  # wait for pending work, which is the algorithm's time
            torch.cuda.synchronize(observation.row.device)
        started = time.perf_counter()
        self._watch(observation)
        self.seconds += time.perf_counter() - started

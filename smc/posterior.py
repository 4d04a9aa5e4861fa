"""Sampling returns a `Posterior`: a distribution over answers, and how far to trust it.

Weighted token sequences make a discrete distribution over the distinct answers among them,

    P(y) = sum over n with answer(x_n) = y of W_n,

where the answer of a token sequence is the concatenation of its tokens' bytes, EOS excluded; two
tokenisations of the same text are one answer.  Besides it come the evidence estimate, unbiased in
probability space (E[exp(log_evidence)] = P_lm(C within n)), plus flags: dead, complete, valid,
exact, enumerated.

The sequences are N particles, or the pool of the discrete particle filter: distinct complete ones,
perhaps more than N. The evidence is the mean of the particles' weights, or the sum of the pool's.

When every particle is dead there is no answer.  That is an outcome, not an error: `dead` is True,
there are no texts, the evidence is zero, and `complete` and `valid` are False.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np
import torch

from gcd.tokens.token_automaton import TokenAutomaton
from smc.bounds import Bounds, bounds_of
from smc.budgeting import BudgetEffect
from smc.draw import Keys, Purpose, categorical, uniform
from smc.fields import Field, fields_of
from smc.reliability import Ancestry, Reliability, Stratum, reliability_of

SHOWN = 60
"""Characters of a text in `repr`."""


@dataclass(frozen=True)
class Sample:
    """One weighted token sequence at the end of sampling: a particle, or an answer of the pool.

    Attributes:
        ids: the tokens drawn, EOS included.
        answer: their bytes, EOS excluded.
        log_weight: log importance weight; -inf if dead.
        finished: whether it completed its answer; a dead particle may be a fragment.
        log_p: log p_lm of the tokens at the sampling temperature.
    """

    ids: tuple[int, ...]
    answer: bytes
    log_weight: float
    finished: bool
    log_p: float


@dataclass(frozen=True)
class Diagnostics:
    """A record of how one example's sampling went.

    Attributes:
        ess: effective sample size at each step: of the particles, after weighing; or of the weights
            of the prefixes that the discrete filter keeps.
        resampled: whether each step resampled; or might have left candidates out.
        running: particles, or distinct prefixes, due another token at the start of each step.
        alive: particles of positive weight at each step, after weighing; or those prefixes.
        lm_calls: forward passes of the language model in which something was read for this example,
            and one for its prompt.
        tokens: tokens that the language model read for it: its prompt once, then one per distinct
            prefix, or one per particle that runs where steps are executed in static shapes.
        generated: tokens of all particles, or of all answers of the pool.
        share_finished: share of the particles that completed their answer; of a pool 1, as it holds
            nothing else, and 0 of an empty one.
        seconds: its share, by tokens read, of the wall time of the batch that it was part of.
        start_seconds: of these, what passed until the first step: prompts were read, tables made.
        fallbacks: prefixes, each counted once a step, at which the proposal's lookahead knew
            nothing: with particles it did what GCD does; see `smc.proposals.twisted`.
        forced: tokens that distinct prefixes took without a choice (`smc.proposals.forced`).
        drafted: of `tokens`, those that the model read in advance (`smc.read_ahead`).
        used: tokens that had been read in advance, and became part of a prefix.
        landed: of `used`, those that were chosen and not forced. Divided by `lm_calls`, that is
            what engines call accepted tokens a pass.
        read_on: of `tokens`, those that were read after sampling, for `certify`.
        rounds: with `target_error`, the particles of each round. The last round is what is
            returned; `lm_calls`, `tokens` and seconds are those of all.
        overrun: seconds from the deadline to the end of its batch; 0 before it, and without one.
    """

    ess: tuple[float, ...]
    resampled: tuple[bool, ...]
    running: tuple[int, ...]
    alive: tuple[int, ...]
    lm_calls: int
    tokens: int
    generated: int
    share_finished: float
    seconds: float
    fallbacks: int = 0
    forced: int = 0
    drafted: int = 0
    used: int = 0
    landed: int = 0
    start_seconds: float = 0.0
    read_on: int = 0
    rounds: tuple[int, ...] = ()
    overrun: float = 0.0


@dataclass(frozen=True, repr=False)
class Posterior:
    """The answers to one prompt, and their probabilities under p_lm(· | in C, within the budget).

    Attributes:
        answers: distinct answers as bytes, the most probable first.
        probabilities: of the answers; they sum to one (to zero when dead). Where reading went on
            for `certify`, they are the model's own, divided by their sum.
        log_evidence: log of the estimate of P_lm(C within n). The estimate is unbiased, so its log
            is too low in the mean. -inf when dead; None where top_p < 1 leaves nothing that it
            would estimate.
        ess: effective sample size of the final weights, which does not see that resampled particles
            share their beginnings: it may be high where the estimate is poor. Of a pool it is low
            when the model is confident, even if the result is exact.
        complete: whether there are answers and all of them were finished within the budget.
        valid: whether there are answers and the constraint accepts all of them; checked anew, by
            running the automaton over the tokens.  With the proposals of this package `complete`
            and `valid` both equal `not dead`: a self-check, and a test of other proposals.
        exact: False only where top_p < 1 or a deadline has changed the target. It says nothing of
            how near the estimate is: a poor or a dead one is exact, too; see `enumerated`.
        enumerated: whether this is the target itself, and no estimate: the discrete filter had room
            for every prefix, and left none out.
        particles: all N particles, dead ones included; or the whole pool; or all token sequences
            found, where reading went on for `certify`, weighed by what the model gives them.
        diagnostics: how it went.
        reliability: standard errors of it all, and a label.
        bounds: of the evidence, which hold whatever was drawn (`smc.Bounds`); None with top_p < 1,
            or where the proposal doesn't say where its prefixes are in the automaton.
        ancestry: what the particles descend from (`smc.reliability`); None if they weren't drawn.
        stopped: "deadline" or "cancelled" where answers took the shortest way to their end before
            they would have by themselves (`smc.closing`); None otherwise. `log_evidence` is then
            that of the answers that were still possible, which is at most P_lm(C within n).
        budget: how much probability the budget removed, where first, and the budget from which
            nothing would have been (`smc.BudgetEffect`); None where there are no bounds.
        algorithm: "smc", "discrete", or "enumeration" where answers were read and not drawn
            (`smc.distribution`).
    """

    answers: tuple[bytes, ...]
    probabilities: tuple[float, ...]
    log_evidence: float | None
    ess: float
    complete: bool
    valid: bool
    exact: bool
    enumerated: bool
    particles: tuple[Sample, ...]
    diagnostics: Diagnostics
    reliability: Reliability
    bounds: Bounds | None = None
    ancestry: Ancestry | None = field(default=None, compare=False)
    stopped: str | None = None
    budget: BudgetEffect | None = None
    algorithm: str = "smc"

    @property
    def dead(self) -> bool:
        """True when no particle has positive weight."""
        return not self.answers

    @cached_property
    def texts(self) -> tuple[str, ...]:
        """The answers as text; bytes that are not UTF-8 show as U+FFFD."""
        return tuple(answer.decode("utf-8", errors="replace") for answer in self.answers)

    @property
    def majority(self) -> str | None:
        """The most probable text; None when dead."""
        return self.texts[0] if self.texts else None

    @cached_property
    def best(self) -> str | None:
        """The text that the model itself finds most probable, among those found; None when dead.

        A weight is an estimate, which may be the same for all answers or great by chance, so that
        `majority` is one draw of many; p_lm of an answer is known exactly. Of a text it is the sum
        over its tokenisations that were found.
        """
        found = _log_p_found(self.particles)
        if not found:  # texts that were completed outside of the weights
            return self.majority
        values = [found.get(answer, -math.inf) for answer in self.answers]
        return self.texts[values.index(max(values))]  # of equal ones that of more weight

    @property
    def certified(self) -> float | None:
        """The share of the posterior that was certainly found, from 0 to 1; None without bounds."""
        return None if self.bounds is None else self.bounds.certified

    @cached_property
    def intervals(self) -> tuple[tuple[float, float], ...] | None:
        """An interval for each text's posterior probability, which holds; None without bounds.

        It is the target's probability, of which `probabilities` has an estimate that may lie
        outside. A text that isn't among `texts` has at most the probability 1 - `certified`.
        """
        if self.bounds is None:
            return None
        found = _log_p_found(self.particles)
        return tuple(self.bounds.of_text(found.get(each, -math.inf)) for each in self.answers)

    @cached_property
    def confidence_intervals(self) -> tuple[tuple[float, float], ...]:
        """A 90 % interval for each text's posterior probability, inside its guaranteed interval.

        Its coverage is measured where `reliability.label` is "estimated" (docs/reliability.md).
        """
        q = self.reliability.quantile
        guaranteed = self.intervals or ((0.0, 1.0),) * len(self.texts)
        errors = self.reliability.probability_errors
        return tuple(
            (min(high, max(low, p - q * error)), max(low, min(high, p + q * error)))
            for p, error, (low, high) in zip(self.probabilities, errors, guaranteed, strict=True)
        )

    @property
    def log_evidence_interval(self) -> tuple[float, float] | None:
        """A 90 % interval for the log evidence, inside the bounds; None where `log_evidence` is.

        The bounds themselves where the posterior is certified: they are close, and hold.
        """
        if self.log_evidence is None:
            return None
        if self.bounds is not None and self.reliability.label == "certified":
            return self.bounds.log_lower, self.bounds.log_upper
        reach = self.reliability.quantile * self.reliability.log_evidence_error
        low, high = self.log_evidence - reach, self.log_evidence + reach
        if self.bounds is not None:
            least, most = self.bounds.log_lower, self.bounds.log_upper
            low, high = min(most, max(least, low)), max(least, min(most, high))
        return low, high

    def __repr__(self) -> str:
        """Return at most three lines: the label and its figures, and the most probable texts."""
        found = self.reliability
        lines = [f"Posterior ({found.label}): {self._evidence}, ESS {found.ess:.1f}"]
        if found.certified is not None:
            lines[0] += f", certified {found.certified:.2f}"
        for text, p, (low, high) in zip(
            self.texts[:2], self.probabilities, self.confidence_intervals, strict=False
        ):
            shown = repr(text if len(text) <= SHOWN else f"{text[: SHOWN - 3]}...")
            lines.append(f"  {p:.3f} [{low:.3f}, {high:.3f}] {shown}")
        if len(self.texts) > 2:
            lines[-1] += f" and {len(self.texts) - 2} more"
        return "\n".join(lines)

    def _errors(self, group: Sequence[int], count: int) -> list[float]:
        """Return the standard error of the probability of each group of texts."""
        if self.ancestry is None:  # enumerated, or not a random sample
            return [max(self.reliability.probability_errors, default=0.0)] * count
        return self.ancestry.errors(group, count)

    @property
    def _evidence(self) -> str:
        if self.log_evidence is None:
            return "no log evidence"
        return f"log evidence {self.log_evidence:.3f} +- {self.reliability.log_evidence_error:.2g}"

    def fields(self) -> dict[str, Field]:
        """Return the distribution of the value at every JSON pointer that some answer has.

        The keys are JSON pointers (RFC 6901) in document order, `""` for the whole answer; there
        are none when dead. See `smc.Field`.

        Raises:
            ValueError: an answer is not JSON.
        """
        found = _log_p_found(self.particles)
        log_found = [found.get(answer, -math.inf) for answer in self.answers]
        return fields_of(self.texts, self.probabilities, self._errors, log_found, self.bounds)

    def expectation(self, score: Callable[[str], float | int]) -> float:
        """Return the posterior-weighted score, the sum of probability · score; zero when dead."""
        pairs = zip(self.texts, self.probabilities, strict=True)
        return math.fsum(probability * score(text) for text, probability in pairs)

    def sample(self, k: int, seed: int = 0) -> list[str]:
        """Draw k independent texts from the posterior.

        Raises:
            ValueError: the posterior is dead.
        """
        if self.dead:
            raise ValueError("every particle is dead, so there is nothing to sample from")
        numbers = torch.arange(k, device="cpu")
        u = uniform(seed, Keys(torch.zeros_like(numbers), numbers, 0, Purpose.POSTERIOR))
        log_p = torch.tensor([self.probabilities], dtype=torch.float64, device="cpu").log()
        return [self.texts[i] for i in categorical(log_p).at(torch.zeros_like(numbers), u).tolist()]


def posterior(
    samples: Sequence[Sample],
    automaton: TokenAutomaton,
    *,
    log_evidence: float,
    ess: float,
    exact: bool,
    enumerated: bool,
    diagnostics: Diagnostics,
    log_mass: float | None = None,
    strata: Sequence[Stratum] | None = None,
    num_particles: int | None = None,
    stopped: str | None = None,
    budget: BudgetEffect | None = None,
    algorithm: str = "smc",
) -> Posterior:
    """Make the posterior of these sequences.

    Args:
        exact: whether p_lm was left as it is.
        stopped: why answers were closed early; None if they weren't.
        budget: what the budget removed; None if it is not known.
        algorithm: by which the sequences were found.
        log_mass: log of the probability of what was found or left open; None if it is not known.
        strata: the units that the sequences descend from; None if they are no random sample.
        num_particles: N; None if each sequence is one.
    """
    top = max((sample.log_weight for sample in samples), default=-math.inf)
    alive = [sample for sample in samples if sample.log_weight > -torch.inf]
    mass: dict[bytes, float] = defaultdict(float)
    for sample in alive:
        mass[sample.answer] += math.exp(sample.log_weight - top)
    total = sum(mass.values())
    # Equal probabilities are told apart by their bytes, so that the order repeats.
    ranked = sorted(mass.items(), key=lambda item: (-item[1], item[0]))
    eos = set(automaton.vocabulary.eos_ids)
    bounds = None
    if log_mass is not None:
        bounds = bounds_of(_log_sum(_log_p_found(samples).values()), log_mass)
    ancestry = None
    if strata is not None and alive:
        number = {answer: i for i, (answer, _) in enumerate(ranked)}
        log_weights = np.array([sample.log_weight for sample in samples], dtype=float)
        ancestry = Ancestry(
            np.exp(log_weights - top) / total,
            np.array([number.get(sample.answer, 0) for sample in samples], dtype=np.int64),
            tuple(strata),
        )
    reliability = reliability_of(
        ancestry,
        len(ranked),
        num_particles=num_particles or max(1, len(samples)),
        log_evidence=log_evidence,
        bounds=bounds,
        enumerated=enumerated,
        stopped=stopped is not None,
    )
    return Posterior(
        answers=tuple(answer for answer, _ in ranked),
        probabilities=tuple(share / total for _, share in ranked),
        log_evidence=log_evidence if exact else None,
        ess=ess,
        complete=bool(alive) and all(sample.finished for sample in alive),
        valid=bool(alive) and all(automaton.accepts(content(sample.ids, eos)) for sample in alive),
        exact=exact and stopped is None,
        enumerated=enumerated,
        particles=tuple(samples),
        diagnostics=diagnostics,
        reliability=reliability,
        bounds=bounds,
        ancestry=ancestry,
        stopped=stopped,
        budget=budget,
        algorithm=algorithm,
    )


def content(ids: Sequence[int], eos_ids: set[int]) -> list[int]:
    """Return the tokens without the EOS that may end them."""
    return list(ids[:-1] if ids and ids[-1] in eos_ids else ids)


def _log_p_found(samples: Sequence[Sample]) -> dict[bytes, float]:
    """Return log p_lm of each answer, summed over those of its tokenizations that were found.

    A token sequence counts once, however many particles have it.
    """
    found = {s.ids: s for s in samples if s.finished and s.log_weight > -math.inf}
    by_answer: dict[bytes, list[float]] = defaultdict(list)
    for sample in found.values():
        by_answer[sample.answer].append(sample.log_p)
    return {answer: _log_sum(log_p) for answer, log_p in by_answer.items()}


def _log_sum(values: Collection[float]) -> float:
    """Return the log of the sum of exponentials; -inf for none."""
    top = max(values, default=-math.inf)
    if top == -math.inf:
        return top
    return top + math.log(math.fsum(math.exp(value - top) for value in values))

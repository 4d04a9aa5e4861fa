"""Posterior over answers: the result of sampling, with its errors, bounds and diagnostics.

Weighted token sequences define a discrete distribution over the distinct answers among them,

    P(y) = sum over n with answer(x_n) = y of W_n,

where the answer of a token sequence is the concatenation of its tokens' bytes without EOS. Two
tokenizations of the same text are one answer.  The posterior also has the evidence estimate,
unbiased in probability space (E[exp(log_evidence)] = P_lm(C within n)), and the flags dead,
complete, valid, exact and enumerated.

The sequences are N particles, or the pool of the discrete particle filter: distinct complete
sequences, possibly more than N. The evidence is the mean of the particles' weights, or the sum of
the pool's.

If every particle is dead, there is no answer.  This is an outcome, not an error: `dead` is True,
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

from gcd import TokenAutomaton
from smc._inference.bounds import Bounds, bounds_of
from smc._proposals.budgeting import BudgetEffect
from smc._results.fields import Field, fields_of
from smc._results.reliability import Ancestry, Reliability, Stratum, reliability_of
from smc._vocabulary.draw import Keys, Purpose, categorical, uniform

SHOWN = 60
"""Maximum number of characters of a text in `repr`."""


@dataclass(frozen=True)
class Sample:
    """Weighted token sequence: a particle, or an answer of the discrete filter.

    Attributes:
        ids: the tokens, including EOS.
        answer: their bytes, without EOS.
        log_weight: log importance weight; -inf if dead.
        finished: whether the answer is complete; a dead particle may be incomplete.
        log_p: log p_lm of the tokens at the sampling temperature.
    """

    ids: tuple[int, ...]
    answer: bytes
    log_weight: float
    finished: bool
    log_p: float


@dataclass(frozen=True)
class Diagnostics:
    """Statistics of sampling one example.

    Attributes:
        ess: effective sample size at each step, of the particles after the weight update or of the
            prefixes that the discrete filter keeps.
        resampled: whether each step resampled; for the discrete filter, whether it could have
            dropped candidates.
        running: number of particles, or distinct prefixes, that take another token in each step.
        alive: number of particles, or prefixes, with positive weight after each step's weight
            update.
        lm_calls: number of forward passes that included tokens of this example, plus one for its
            prompt.
        tokens: number of tokens that the language model computed: the prompt once, then one per
            distinct prefix (one per running particle in static shapes).
        generated: number of tokens of all particles, or of all answers of the discrete filter (its
            *pool*).
        share_finished: share of the particles with a complete answer. A pool has only complete
            answers, so it is 1; 0 for an empty pool.
        seconds: wall time of the batch, divided among its examples in proportion to computed
            tokens.
        start_seconds: the part of `seconds` before the first step, for prompts and tables.
        fallbacks: number of prefixes where the proposal's lookahead was zero, counted once per
            step. Particles then use GCD's mask as g (`smc._proposals.twisted`).
        forced: number of forced tokens of distinct prefixes: those that were the only allowed token
            (`smc._proposals.forced`).
        drafted: the part of `tokens` that was computed in advance (`smc._forward.read_ahead`).
        used: number of drafted tokens that became part of a prefix.
        landed: the part of `used` that was chosen, not forced. Serving engines report this number
            divided by `lm_calls`, as accepted tokens per pass.
        read_on: the part of `tokens` that was computed after sampling, because of `certify`.
        rounds: with `target_error`, the number of particles of each round. The posterior is that of
            the last round; `lm_calls`, `tokens` and `seconds` are sums over all rounds.
        overrun: seconds by which the batch ended after the deadline; 0 if it ended in time.
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
    """The answers to one prompt, and their probabilities p_lm(answer | in C, within the budget).

    Attributes:
        answers: distinct answers as bytes, the most probable first.
        probabilities: probabilities of the answers, which sum to one (to zero when dead). If
            `certify` computed further answers, these are the model's probabilities divided by their
            sum.
        log_evidence: log of the estimated evidence, P_lm(C within n). The estimate is unbiased, so
            its log is too low on average. -inf when dead; None if top_p < 1, where the evidence is
            undefined.
        ess: effective sample size of the final weights. Resampled particles share their beginnings,
            so it may be high for a poor estimate. For a pool it is low if the model is confident,
            even if the result is exact.
        complete: whether there are answers and all of them were finished within the budget.
        valid: whether there are answers and the constraint accepts all of them, which is checked by
            running the automaton over the tokens. With this package's proposals, `complete` and
            `valid` both equal `not dead`; they check proposals that you write.
        exact: False only if top_p < 1 or a deadline changed the target. It doesn't describe the
            accuracy of the estimate; a dead posterior is exact, too. See `enumerated`.
        enumerated: whether this is the target itself and not an estimate, because the discrete
            filter kept every prefix.
        particles: all N particles, including dead ones, or the whole pool. If `certify` computed
            further answers, all found token sequences, weighted by their probabilities under the
            model.
        diagnostics: statistics of the sampling.
        reliability: standard errors of all estimates, and a label.
        bounds: bounds on the evidence, which hold in every run (`smc.Bounds`). None with top_p < 1,
            or if the proposal's state has no `AutomatonPosition`.
        ancestry: the ancestors of the particles (`smc._results.reliability`); None if they weren't
        drawn.
        stopped: "deadline" or "cancelled" if answers ended early with a shortest completion
            (`smc._inference.closing`); None otherwise. `log_evidence` then counts only the answers
            that were still possible, so it estimates at most P_lm(C within n).
        budget: the probability that the budget removed, and a budget that would not have removed
            any (`smc.BudgetEffect`); None without bounds.
        algorithm: "smc", "discrete", or "enumeration" for answers that were computed instead of
            drawn (`smc.distribution`).
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
        """True if no particle has positive weight."""
        return not self.answers

    @cached_property
    def texts(self) -> tuple[str, ...]:
        """The answers as text; invalid UTF-8 is replaced by U+FFFD."""
        return tuple(answer.decode("utf-8", errors="replace") for answer in self.answers)

    @property
    def majority(self) -> str | None:
        """The most probable text; None when dead."""
        return self.texts[0] if self.texts else None

    @cached_property
    def best(self) -> str | None:
        """The text with the highest probability under the model, among those found; None if dead.

        p_lm of a text is known exactly: it is the sum over the text's tokenizations that were
        found. In contrast, `majority` compares weights, which are estimates and may be large by
        chance.
        """
        found = _log_p_found(self.particles)
        if not found:  # texts were completed outside of the weights
            return self.majority
        values = [found.get(answer, -math.inf) for answer in self.answers]
        return self.texts[values.index(max(values))]  # the first one has the largest weight

    @property
    def certified(self) -> float | None:
        """The guaranteed share of the posterior that was found, in [0, 1]; None without bounds."""
        return None if self.bounds is None else self.bounds.certified

    @cached_property
    def intervals(self) -> tuple[tuple[float, float], ...] | None:
        """A guaranteed interval for each text's posterior probability; None without bounds.

        It contains the exact probability; the estimate in `probabilities` may lie outside. A text
        that is not in `texts` has a probability of at most 1 - `certified`.
        """
        if self.bounds is None:
            return None
        found = _log_p_found(self.particles)
        return tuple(self.bounds.of_text(found.get(each, -math.inf)) for each in self.answers)

    @cached_property
    def confidence_intervals(self) -> tuple[tuple[float, float], ...]:
        """A 90% interval for each text's posterior probability, inside the guaranteed interval.

        Its coverage has been measured for `reliability.label` "estimated" (docs/reliability.md).
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
        """A 90% interval for the log evidence, inside the bounds; None if `log_evidence` is None.

        If `reliability.label` is "certified", these are the bounds, which are then tight.
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
        if self.stopped is not None:
            lines[0] += f", answers closed early ({self.stopped})"
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
        """Return the distribution of the value at every JSON pointer of any answer.

        The keys are JSON pointers (RFC 6901) in document order, with `""` for the whole answer. The
        dictionary is empty when dead. See `smc.Field`.

        Raises:
            ValueError: an answer is not JSON.
        """
        found = _log_p_found(self.particles)
        log_found = [found.get(answer, -math.inf) for answer in self.answers]
        return fields_of(self.texts, self.probabilities, self._errors, log_found, self.bounds)

    def expectation(self, score: Callable[[str], float | int]) -> float:
        """Return the mean score of the answers under the posterior; zero when dead."""
        pairs = zip(self.texts, self.probabilities, strict=True)
        return math.fsum(probability * score(text) for text, probability in pairs)

    def sample(self, k: int, seed: int = 0) -> list[str]:
        """Draw k independent texts from the posterior.

        Raises:
            ValueError: the posterior is dead.
        """
        if self.dead:
            raise ValueError(
                "expected a posterior with answers, got a dead one (no particle has positive "
                "weight); check `dead` before sampling"
            )
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
    """Build the posterior of these sequences.

    Args:
        exact: whether p_lm is unmodified.
        stopped: the reason for closing answers early; None if they weren't closed.
        budget: the effect of the budget; None if unknown.
        algorithm: the algorithm that found the sequences.
        log_mass: log of the probability of found answers and open branches; None if unknown.
        strata: the units that the sequences descend from; None if they aren't a random sample.
        num_particles: N; None if each sequence is a particle.
    """
    top = max((sample.log_weight for sample in samples), default=-math.inf)
    alive = [sample for sample in samples if sample.log_weight > -torch.inf]
    mass: dict[bytes, float] = defaultdict(float)
    for sample in alive:
        mass[sample.answer] += math.exp(sample.log_weight - top)
    total = sum(mass.values())
    # Ties are broken by the bytes, so that the order is reproducible.
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
    # Particles are often equal.
    texts = dict.fromkeys(tuple(content(sample.ids, eos)) for sample in alive)
    return Posterior(
        answers=tuple(answer for answer, _ in ranked),
        probabilities=tuple(share / total for _, share in ranked),
        log_evidence=log_evidence if exact else None,
        ess=ess,
        complete=bool(alive) and all(sample.finished for sample in alive),
        valid=bool(alive) and all(automaton.accepts(text) for text in texts),
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
    """Return the tokens without a final EOS."""
    return list(ids[:-1] if ids and ids[-1] in eos_ids else ids)


def _log_p_found(samples: Sequence[Sample]) -> dict[bytes, float]:
    """Return log p_lm of each answer, summed over its tokenizations that were found.

    A token sequence counts once, regardless of the number of its particles.
    """
    found = {s.ids: s for s in samples if s.finished and s.log_weight > -math.inf}
    by_answer: dict[bytes, list[float]] = defaultdict(list)
    for sample in found.values():
        by_answer[sample.answer].append(sample.log_p)
    return {answer: _log_sum(log_p) for answer, log_p in by_answer.items()}


def _log_sum(values: Collection[float]) -> float:
    """Return the log of the sum of exponentials; -inf for no values."""
    top = max(values, default=-math.inf)
    if top == -math.inf:
        return top
    return top + math.log(math.fsum(math.exp(value - top) for value in values))

"""Posterior over answers: the result of sampling, with its errors, bounds and diagnostics.

Weighted token sequences x_n with normalized weights W_n define a distribution over their answers:

    P(y) = sum of W_n over all n with answer(x_n) = y

The answer of a token sequence is the bytes of its tokens without EOS. Two tokenizations of the same
text are therefore one answer. The posterior also has an estimate of the evidence, which is unbiased
as a probability (E[exp(log_evidence)] = P_lm(C within n)).

With SMC the sequences are N particles, and the evidence is the mean of their weights. With the
discrete particle filter the sequences are its *pool* of distinct complete answers, possibly more
than N, and the evidence is the sum of their weights.

If every particle has weight zero, there is no answer. This is an outcome, not an error: `dead` is
True, there are no texts, the evidence is zero, and `complete` and `valid` are False.
"""

from __future__ import annotations

import html
import math
from collections import defaultdict
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field, fields, replace
from functools import cached_property
from itertools import islice, zip_longest
from typing import Any

import numpy as np
import torch

from gcd import TokenAutomaton
from smc._inference.arguments import whole
from smc._inference.bounds import Bounds, bounds_of
from smc._proposals.masks import BudgetEffect
from smc._results.fields import Field, fields_of, leaves, shorten, show_probability
from smc._results.reliability import (
    LEAST_ERROR,
    NO_SPREAD,
    Ancestry,
    Cohort,
    Reliability,
    most_error,
    reliability_of,
)
from smc._vocabulary.draw import Keys, Purpose, categorical, uniform

COMPARED = 64
"""Number of values that are compared with each other to find the best one (`rank`)."""


@dataclass(frozen=True)
class Sample:
    """A weighted token sequence: a particle, or an answer of the discrete filter.

    Attributes:
        ids: the tokens, including EOS.
        answer: the bytes of the tokens, without EOS.
        log_weight: log of the importance weight; -inf if the weight is zero.
        finished: whether the answer is complete. A particle with weight zero may be incomplete.
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
        ess: effective sample size in each step. For SMC, of the particles after the weight update;
            for the discrete filter, of the prefixes that it keeps.
        resampled: for each step, whether SMC resampled its particles, or whether the discrete
            filter kept some prefixes with a probability below one.
        running: in each step, the number of particles (or prefixes of the discrete filter) that
            need another token.
        alive: in each step, the number of particles (or prefixes) with positive weight after the
            weight update.
        lm_calls: number of forward passes that included tokens of this example, plus one for its
            prompt.
        tokens: number of tokens that the language model computed: the prompt once, then one per
            step and distinct prefix (in static shapes, one per step and running particle).
        generated: number of tokens of all particles, or of all answers that the discrete filter
            found.
        share_finished: share of the particles whose answer is complete. For the discrete filter, 1
            if it found an answer, and 0 otherwise.
        seconds: wall time of the batch, divided among its examples in proportion to computed
            tokens.
        start_seconds: the part of `seconds` before the first step, for prompts and tables.
        fallbacks: number of prefixes where the proposal's lookahead was zero, summed over all
            steps. The proposal then uses GCD's mask as g (`smc._proposals.twisted`).
        forced: number of forced tokens, each of which was the only allowed token after its prefix
            (`smc._forward.reader`). Equal prefixes count once.
        drafted: number of draft tokens, the part of `tokens` that was guessed and computed in
            advance (`smc._forward.read_ahead`).
        used: number of draft tokens that became part of a prefix.
        landed: number of draft tokens that became part of a prefix and weren't forced. Serving
            engines report this number divided by `lm_calls` as accepted tokens per pass.
        read_on: the part of `tokens` that was computed after sampling, because of `certify`.
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
    overrun: float = 0.0


@dataclass(frozen=True, repr=False)
class Posterior:
    """The answers to one prompt, and their probabilities p_lm(answer | in C, within the budget).

    Attributes:
        answers: distinct answers as bytes, the most probable first.
        probabilities: probability of each answer. The probabilities sum to one. If `certify`
            computed further answers, they are the model's probabilities divided by their sum.
        log_evidence: log of the estimated evidence, P_lm(C within n). The estimate of the evidence
            is unbiased, so its log is too low on average. -inf if no answer was found; None
            with `top_p` of `generate`, where the evidence is undefined.
        ess: effective sample size of the final weights. With SMC it may be high for a poor
            estimate, because resampled particles share their beginnings. With the discrete filter
            it is low if the model is confident, even if the result is exact.
        complete: whether there are answers and all of them were finished within the budget.
        valid: whether there are answers and the constraint's automaton accepts all of them. With
            this package's proposals, `complete` and `valid` both equal `not dead`. Both attributes
            are for checking your own proposals.
        exact: False with `top_p` of `generate`, or if a deadline or cancellation changed the
            target. It doesn't describe the accuracy of the estimate, so a dead posterior is exact,
            too. See `enumerated`.
        enumerated: whether this is the target itself and not an estimate, because the discrete
            filter kept every prefix.
        particles: all N particles, including those with weight zero, or all answers that the
            discrete filter found as token sequences. If `certify` computed further answers, all
            found token sequences, weighted by their probabilities under the model.
        diagnostics: statistics of the sampling.
        reliability: standard errors of all estimates, and a label.
        bounds: bounds on the evidence, which hold in every run (`smc.Bounds`). None with
            `top_p` of `generate`, or if the proposal's state has no `AutomatonPosition`.
        ancestry: the ancestors of the particles (`smc._results.reliability`); None if the answers
            aren't a random sample.
        stopped: "deadline" or "cancelled" if answers were closed early with a shortest completion
            (`smc._inference.closing`); None otherwise. `log_evidence` then counts only the answers
            that were still possible, so it estimates at most P_lm(C within n).
        budget: the probability that the token budget removed (`smc.BudgetEffect`). None without
            `bounds`.
        constraint: the constraint, lifted to tokens.
        algorithm: "smc" or "discrete", or "enumeration" for answers that were computed instead of
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
    constraint: TokenAutomaton | None = field(default=None, compare=False)

    @property
    def dead(self) -> bool:
        """True if no answer was found, because no particle has positive weight."""
        return not self.answers

    @cached_property
    def texts(self) -> tuple[str, ...]:
        """The answers as text; bytes that aren't valid UTF-8 are replaced by U+FFFD."""
        return tuple(answer.decode("utf-8", errors="replace") for answer in self.answers)

    @property
    def majority(self) -> str | None:
        """The most probable text according to the weights; None when dead."""
        return self.texts[0] if self.texts else None

    @cached_property
    def best(self) -> str | None:
        """The text with the highest probability under the model, among those found; None when dead.

        This probability isn't an estimate: it is summed over the text's tokenizations that were
        found. In contrast, `majority` compares weights, which are estimates and may be large by
        chance.
        """
        found = _log_p_found(self.particles)
        if not found:  # answers were closed without the model, so their log p_lm is unknown
            return self.majority
        values = [found.get(answer, -math.inf) for answer in self.answers]
        return self.texts[values.index(max(values))]  # the first one has the largest weight

    @property
    def certified(self) -> float | None:
        """The share of the posterior that was certainly found, from 0 to 1; None without bounds."""
        return None if self.bounds is None else self.bounds.certified

    @cached_property
    def intervals(self) -> tuple[tuple[float, float], ...] | None:
        """A guaranteed interval for each text's posterior probability; None without bounds.

        The interval contains the exact probability, but the estimate in `probabilities` may lie
        outside. A text that is not in `texts` has a probability of at most 1 - `certified`.
        """
        if self.bounds is None:
            known = self.enumerated and self.exact
            return tuple((p, p) for p in self.probabilities) if known else None
        found = _log_p_found(self.particles)
        return tuple(self.bounds.of_text(found.get(each, -math.inf)) for each in self.answers)

    @cached_property
    def confidence_intervals(self) -> tuple[tuple[float, float], ...] | None:
        """A 90% confidence interval for each text's posterior probability; None if none is known.

        Only the label "estimated" has intervals from the spread of the weights, cut to the
        guaranteed intervals, because their coverage has been measured (docs/reliability.md). With
        any other label, or if all particles agree, these are the guaranteed intervals
        (`intervals`).
        """
        if self.intervals is None or self.reliability.label != "estimated":
            return self.intervals
        errors = self.reliability.probability_errors
        return tuple(
            self._confidence(p, max(error, LEAST_ERROR * p), limits)
            for p, error, limits in zip(self.probabilities, errors, self.intervals, strict=True)
        )

    @property
    def log_evidence_interval(self) -> tuple[float, float] | None:
        """A 90% confidence interval for the log evidence; None if none is known.

        With the label "estimated" it is cut to the bounds on the evidence. With any other label it
        is equal to the bounds.
        """
        if self.log_evidence is None:
            return None
        if self.bounds is None:
            return (self.log_evidence,) * 2 if self.enumerated else None
        limits = self.bounds.log_lower, self.bounds.log_upper
        error = self.reliability.log_evidence_error
        if self.reliability.label != "estimated" or error <= NO_SPREAD:
            return limits
        return self._confidence(self.log_evidence, max(error, LEAST_ERROR), limits)

    def interval_of(
        self, estimate: float, error: float, certain: tuple[float, float] | None
    ) -> tuple[float, float] | None:
        """Return the 90% interval of a probability, given its guaranteed interval.

        See `confidence_intervals`.
        """
        if certain is None or self.reliability.label != "estimated":
            return certain if not (self.enumerated and self.exact) else (estimate, estimate)
        return self._confidence(estimate, max(error, LEAST_ERROR * estimate), certain)

    def _confidence(
        self, estimate: float, error: float, limits: tuple[float, float]
    ) -> tuple[float, float]:
        """Return a 90% interval inside of limits; the limits if they exclude the estimate."""
        low, high = limits
        if not low <= estimate <= high:
            return limits
        reach = self.reliability.quantile * error
        return max(low, estimate - reach), min(high, estimate + reach)

    def __repr__(self) -> str:
        """Return at most three lines: the label and its numbers, and the most probable texts."""
        found = self.reliability
        lines = [f"Posterior ({found.label}): {self._evidence}, ESS {found.ess:.1f}"]
        if found.certified is not None:
            lines[0] += f", certified {found.certified:.2f}"
        lines[0] += f", {self.diagnostics.tokens} tokens computed"
        if self.stopped is not None:
            lines[0] += f", answers closed early ({self.stopped})"
        intervals = self.confidence_intervals or (None,) * len(self.texts)
        every = zip(
            self.texts, self.probabilities, intervals, found.probability_errors, strict=True
        )
        for text, p, interval, error in islice(every, 2):
            lines.append(f"  {show_probability(p, interval, error)} {shorten(text)!r}")
        if len(self.texts) > 2:
            lines[-1] += f" and {len(self.texts) - 2} more"
        return "\n".join(lines)

    def _repr_html_(self) -> str:
        """Return what `repr` shows as a table, for notebooks."""
        rows = "".join(f"<tr><td>{html.escape(line)}</td></tr>" for line in repr(self).split("\n"))
        return f"<table>{rows}</table>"

    def _errors(self, group: Sequence[int], count: int) -> list[float]:
        """Return the standard error of the probability of each group of texts."""
        most = most_error(self.bounds, enumerated=self.enumerated)
        if self.ancestry is None:  # the sequences aren't a random sample
            return [most] * count
        return list(self.ancestry.spread(np.array(group, dtype=np.int64), count).errors(most))

    @property
    def _evidence(self) -> str:
        if self.log_evidence is None:
            return "no log evidence"
        error = self.reliability.log_evidence_error
        known = self.enumerated or NO_SPREAD < error < math.inf
        return f"log evidence {self.log_evidence:.3f}{f' +- {error:.2g}' if known else ''}"

    def fields(self) -> dict[str, Field]:
        """Return the distribution of the value at every JSON pointer that occurs in an answer.

        The keys are JSON pointers (RFC 6901) in document order, with `""` for the whole answer. The
        dictionary is empty when dead. See `smc.Field`.

        Raises:
            ValueError: an answer is not JSON.
        """
        found = _log_p_found(self.particles)
        log_found = [found.get(answer, -math.inf) for answer in self.answers]
        return fields_of(self.texts, self.probabilities, self._errors, log_found, self.bounds)

    def expectation(self, score: Callable[[str], float | int]) -> float:
        """Return the mean of `score` over the answers, weighted by probability; zero when dead."""
        pairs = zip(self.texts, self.probabilities, strict=True)
        return math.fsum(probability * score(text) for text, probability in pairs)

    def sample(self, k: int, seed: int = 0) -> list[str]:
        """Draw k independent texts from the posterior.

        Raises:
            ValueError: the posterior is dead, or k isn't a number of texts.
        """
        if whole("k", k) < 0:
            raise ValueError(f"expected k to be at least 0, got {k}")
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
    enumerated: bool,
    diagnostics: Diagnostics,
    log_upper: float | None = None,
    cohorts: Sequence[Cohort] | None = None,
    num_particles: int | None = None,
    stopped: str | None = None,
    budget: BudgetEffect | None = None,
    algorithm: str = "smc",
) -> Posterior:
    """Build a posterior from weighted token sequences.

    Args:
        stopped: the reason for closing answers early; None if they weren't closed.
        budget: the effect of the budget; None if unknown.
        log_upper: log of the probability of all found answers and all branches that weren't
            computed (`smc._inference.bounds`); None if unknown.
        cohorts: ancestors of the sequences, from which errors are estimated
            (`smc._results.reliability`); None if the sequences aren't a random sample.
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
    log_found = _log_sum(_log_p_found(samples).values())
    bounds = None if log_upper is None else bounds_of(log_found, log_upper)
    ancestry = None
    if cohorts is not None and alive:
        number = {answer: i for i, (answer, _) in enumerate(ranked)}
        weights = np.exp(np.array([each.log_weight for each in samples]) - top) / total
        answers = np.array([number.get(each.answer, 0) for each in samples])
        ancestry = Ancestry(weights, answers, tuple(cohorts))
    reliability = reliability_of(
        ancestry, len(ranked), num_particles=num_particles or max(1, len(samples)), bounds=bounds,
        log_evidence=log_evidence, enumerated=enumerated, stopped=stopped is not None,
    )  # fmt: skip
    eos = set(automaton.vocabulary.eos_ids)  # particles are often equal
    texts = dict.fromkeys(tuple(content(sample.ids, eos)) for sample in alive)
    return Posterior(
        answers=tuple(answer for answer, _ in ranked),
        probabilities=tuple(share / total for _, share in ranked),
        log_evidence=log_evidence,
        ess=ess,
        complete=bool(alive) and all(sample.finished for sample in alive),
        valid=bool(alive) and all(automaton.accepts(text) for text in texts),
        exact=stopped is None,
        enumerated=enumerated,
        particles=tuple(samples),
        diagnostics=diagnostics,
        reliability=reliability,
        bounds=bounds,
        ancestry=ancestry,
        stopped=stopped,
        budget=budget,
        algorithm=algorithm,
        constraint=automaton,
    )


def regroup(found: Posterior, answer: Callable[[Sample], bytes]) -> Posterior:
    """Return the posterior over a function of the token sequences with positive weight."""
    assert found.constraint is not None
    assert found.log_evidence is not None
    samples = [
        each if each.log_weight == -math.inf else replace(each, answer=answer(each))
        for each in found.particles
    ]
    new = posterior(
        samples, found.constraint, log_evidence=found.log_evidence, ess=found.ess,
        enumerated=found.enumerated, diagnostics=found.diagnostics,
        log_upper=None if found.bounds is None else found.bounds.log_upper,
        cohorts=None if found.ancestry is None else found.ancestry.cohorts,
    )  # fmt: skip
    errors = new.reliability.probability_errors
    return replace(
        found, answers=new.answers, probabilities=new.probabilities, particles=new.particles,
        ancestry=new.ancestry, reliability=replace(found.reliability, probability_errors=errors),
    )  # fmt: skip


def merge(parts: Sequence[Posterior], constraint: TokenAutomaton, prompt: int) -> Posterior:
    """Return the posterior over disjoint constraints, given one over each, after a common prompt.

    Every part has its own estimate of the evidence, so a part is as probable as the model says,
    however few of all prefixes would have been its. `prompt` is the number of tokens of the prompt.
    """
    if len(parts) == 1:
        return replace(parts[0], constraint=constraint)
    samples: list[Sample] = []
    cohorts: list[Cohort] = []
    size = sum(len(part.particles) for part in parts)
    for part in parts:
        some = slice(len(samples), len(samples) + len(part.particles))
        assert part.log_evidence is not None
        shift = 0.0 if part.dead else part.log_evidence - _log_sum(_log_weights(part.particles))
        samples += [replace(s, log_weight=s.log_weight + shift) for s in part.particles]
        for cohort in () if part.ancestry is None else part.ancestry.cohorts:
            unit = np.full(size, -1)
            unit[some] = cohort.unit
            cohorts.append(cohort._replace(unit=unit))
    log_evidence = _log_sum([part.log_evidence for part in parts if part.log_evidence is not None])
    ess = 0.0
    if log_evidence > -math.inf:
        shares = np.exp(np.array(_log_weights(samples)) - log_evidence)
        ess = 1 / max(1e-9, float((shares**2).sum()))
    bounds = [part.bounds for part in parts if part.bounds is not None]
    effects = [part.budget.log_removed for part in parts if part.budget is not None]
    diagnostics = [part.diagnostics for part in parts]
    is_known = len(bounds) == len(parts)
    found = posterior(
        samples, constraint, log_evidence=log_evidence, ess=ess,
        enumerated=all(part.enumerated for part in parts), diagnostics=_add(diagnostics, prompt),
        log_upper=_log_sum([each.log_upper for each in bounds]) if is_known else None,
        cohorts=cohorts if any(part.ancestry is not None for part in parts) else None,
        stopped=next((part.stopped for part in parts if part.stopped is not None), None),
        budget=BudgetEffect.of(_log_sum(effects), log_evidence) if effects else None,
        algorithm=parts[0].algorithm,
    )  # fmt: skip
    return replace(found, exact=all(part.exact for part in parts))


def _add(parts: Sequence[Diagnostics], prompt: int) -> Diagnostics:
    """Return the statistics of parts that were sampled in the same forward passes."""
    values: dict[str, Any] = {}
    for name in (each.name for each in fields(Diagnostics)):
        own = [getattr(part, name) for part in parts]
        is_steps = isinstance(own[0], tuple)
        values[name] = tuple(map(sum, zip_longest(*own, fillvalue=0))) if is_steps else sum(own)
    values |= {
        "lm_calls": max(part.lm_calls for part in parts),
        "overrun": max(part.overrun for part in parts),
        "share_finished": sum(part.share_finished for part in parts) / len(parts),
        "resampled": tuple(map(bool, values["resampled"])),
        "tokens": values["tokens"] - (len(parts) - 1) * prompt,
    }
    return Diagnostics(**values)


def _log_weights(samples: Sequence[Sample]) -> list[float]:
    return [sample.log_weight for sample in samples]


def rank(found: Posterior, *, is_json: bool) -> list[str]:
    """Return one text of each value that was found, the best value first.

    The score of a value is its expected agreement with an answer of the model (minimum Bayes risk;
    Kumar and Byrne 2004). Two values agree by twice the number of equal fields, divided by the
    number of fields of both. The probabilities are those of the model, which are exact, not the
    weights. A text that isn't JSON is a single field. Only the `COMPARED` most probable values are
    compared.
    """
    log_p = _log_p_found(found.particles)
    shares = dict(zip(found.answers, found.probabilities, strict=True))
    if log_p:  # unknown for answers that were closed without the model
        top = max(log_p.values())
        shares = {answer: math.exp(log_p.get(answer, -math.inf) - top) for answer in found.answers}
    texts: dict[str, list[tuple[float, str]]] = defaultdict(list)
    fields: dict[str, frozenset[tuple[str, str]]] = {}
    for answer, text in zip(found.answers, found.texts, strict=True):
        value, own = leaves(text) if is_json else (text, {"": text})
        texts[value].append((-shares[answer], text))
        fields[value] = frozenset(own.items())
    mass = {value: -math.fsum(share for share, _ in some) for value, some in texts.items()}
    order = sorted(texts, key=lambda value: (-mass[value], min(texts[value])))

    def score(value: str) -> float:
        own, others = fields[value], ((mass[each], fields[each]) for each in order[:COMPARED])
        return math.fsum(m * 2 * len(own & f) / (len(own) + len(f)) for m, f in others)

    compared = sorted(order[:COMPARED], key=score, reverse=True)
    return [min(texts[value])[1] for value in (*compared, *order[COMPARED:])]


def sufficient_budget(found: Posterior) -> int:
    """Return the smallest budget that doesn't forbid a token along any answer that was found.

    With this budget, sampling may find other answers, which need more. The result is 0 if there are
    no answers.
    """
    automaton, most = found.constraint, 0
    assert automaton is not None
    for ids in {each.ids for each in found.particles if each.log_weight > -math.inf}:
        state = automaton.initial
        for used, token in enumerate(ids):
            most = max(most, used + 1 + int(automaton.reach[state]))
            state = automaton.step(state, token)
    return most


def content(ids: Sequence[int], eos_ids: set[int]) -> list[int]:
    """Return the token ids without a final EOS."""
    return list(ids[:-1] if ids and ids[-1] in eos_ids else ids)


def _log_p_found(samples: Sequence[Sample]) -> dict[bytes, float]:
    """Return log p_lm of each answer, summed over its tokenizations that were found.

    A token sequence counts once, even if several particles have it.
    """
    found = {s.ids: s for s in samples if s.finished and s.log_weight > -math.inf}
    by_answer: dict[bytes, list[float]] = defaultdict(list)
    for sample in found.values():
        by_answer[sample.answer].append(sample.log_p)
    return {answer: _log_sum(log_p) for answer, log_p in by_answer.items()}


def _log_sum(values: Collection[float]) -> float:
    """Return the log of the sum of the exponentials of `values`; -inf if there are no values."""
    top = max(values, default=-math.inf)
    if top == -math.inf:
        return top
    return top + math.log(math.fsum(math.exp(value - top) for value in values))

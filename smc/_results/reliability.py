"""Statistical errors of a posterior, estimated from a single run, and a label for its reliability.

Variances are estimated from ancestry. A *unit* is a particle or prefix in an earlier step, and a
*cohort* is a set of units of one step, which are compared with each other. Let S be the sum of the
final weights, and S_i the part of S that descends from unit i. Descendants of different units are
nearly independent. Therefore the spread of the S_i estimates the variance of S. Let a_i be 1 minus
the probability of keeping unit i, and x_i = S_i / S. Then

    relative variance of S = sum over cohorts of  m / (m - 1) * sum_i a_i (x_i - x)^2,
    x = sum_i a_i x_i / sum_i a_i,    m = number of the cohort's units.

    SMC                one cohort: the N particles of the first step, a_i = 1 (Chan and Lai 2013;
                       Lee and Whiteley 2018, "Variance estimation in the particle filter")
    discrete filter    one cohort per step: the prefixes kept with probability pi_i < 1,
                       a_i = 1 - pi_i (Hajek 1964, for unequal probabilities without replacement).
                       The spread of the S_i includes the variance of all later steps, which is
                       therefore counted several times: the estimate is conservative

A cohort with a single unit has no spread, so its mean x is set to zero. The variance of a
probability P(y) = S(y) / S follows from the same formula with x_i = (S_i(y) - P(y) S_i) / S
(linearization).

If few of the terms v_i = m / (m - 1) a_i (x_i - x)^2 are large, the variance itself is uncertain.
Intervals therefore use Student's t distribution with (sum v_i)^2 / sum v_i^2 degrees of freedom,
the effective number of terms (after Satterthwaite 1946, "An approximate distribution of estimates
of variance components").

These variances can't detect branches that all units missed. `smc.Bounds` can, so the label depends
on the variances and the bounds.

Cost: O(M T) on the host for M sequences of T tokens.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from jaxtyping import Float64, Int64

from smc._inference.bounds import Bounds

LABELS = ("certified", "estimated", "collapsed", "unknown")
CONFIDENCE = 0.9
"""Target coverage of confidence intervals."""
NORMAL = 1.6448536269514722
"""Half-width of this interval in standard errors, if the errors are known exactly."""
CERTIFIED = 0.9
"""Minimum share of the posterior for the label "certified"."""
FEWEST_INDEPENDENT = 5.0
"""Minimum effective sample size; with less, the label is "collapsed" ("unknown" if N is less)."""
NO_SPREAD = 1e-6
"""Relative standard error up to which particles agree, so that their spread says nothing."""
LEAST_ERROR = 1e-3
"""Least relative standard error of an interval; the spread of few units can be smaller by chance.

See docs/reliability.md.
"""
LOOKED_AT = 0.01
"""Minimum of the estimated evidence divided by its upper bound, for the label "estimated".

See docs/reliability.md.
"""


class Cohort(NamedTuple):
    """Units of one step, whose descendants are compared with each other to estimate a variance.

    A unit is an ancestor of the final sequences: a particle or prefix in an earlier step.

    Attributes:
        unit: index of the unit that each sequence descends from; -1 if it descends from no unit.
        factor: a_i, which is 1 minus the probability of keeping the unit (1 for SMC), for each unit
            that has descendants.
        units: number of units, including those without descendants.
        total: the sum of a_i over all units.
        is_of_founders: whether the units are the particles of the first step (SMC).
    """

    unit: Int64[np.ndarray, "M"]
    factor: Float64[np.ndarray, "U"]
    units: int
    total: float
    is_of_founders: bool = False


def cohorts_of_founders(founder: Int64[np.ndarray, "M"], num_particles: int) -> list[Cohort]:
    """Return the cohort of an SMC run; its units are the N particles of the first step.

    `Cohort` explains both terms.
    """
    every = np.ones(num_particles)
    return [Cohort(founder, every, num_particles, float(num_particles), is_of_founders=True)]


def cohorts_of_selections(
    tokens: Int64[np.ndarray, "M T"],
    log_pi: Float64[np.ndarray, "M T"],
    uncertain: Int64[np.ndarray, "S"],
    slack: Float64[np.ndarray, "S"],
) -> list[Cohort]:
    """Return the cohorts of a discrete filter: one per step that kept prefixes by chance.

    `log_pi` is the log of the probability pi of keeping the prefix that ends in each token, and a
    positive number for tokens that weren't selected, such as forced ones. `uncertain` is the number
    of prefixes in each step whose pi is less than 1, and `slack` the sum of their 1 - pi.
    """
    chosen = log_pi <= 0
    step = chosen.cumsum(axis=1) - 1
    last = chosen.sum(axis=1).max(initial=0)
    cohorts = []
    for s in np.flatnonzero(uncertain[:last]).tolist():
        at = chosen & (step == s)
        column = at.argmax(axis=1)
        here = np.where(at.any(axis=1), log_pi[np.arange(len(at)), column], 0.0)
        some = np.flatnonzero(here < 0)
        unit = np.full(len(tokens), -1)
        factor = np.zeros(0)
        if len(some):
            # A prefix is identified by its tokens up to the selected token.
            upto = np.arange(tokens.shape[1]) <= column[some, None]
            _, first, number = np.unique(
                np.where(upto, tokens[some], -1), axis=0, return_index=True, return_inverse=True
            )
            unit[some] = number.reshape(-1)  # numpy 2.0 returns an additional axis
            factor = -np.expm1(here[some][first])
        cohorts.append(Cohort(unit, factor, int(uncertain[s]), float(slack[s])))
    return cohorts


class Spread(NamedTuple):
    """Variances estimated from ancestry.

    Attributes:
        evidence: relative variance of the evidence.
        means: probability of each group of texts.
        probabilities: variance of these probabilities.
        degrees: effective degrees of freedom of the evidence's variance, at least 1 (see above).
    """

    evidence: float
    means: Float64[np.ndarray, "K"]
    probabilities: Float64[np.ndarray, "K"]
    degrees: float = 1.0

    def errors(self, most: float) -> tuple[float, ...]:
        """Return standard errors; `most`, the largest possible error, where all units agree."""
        found = np.sqrt(self.probabilities)
        return tuple(np.where(found > NO_SPREAD * self.means, found, most).tolist())


class Ancestry(NamedTuple):
    """The weights of the sequences, and their ancestors in earlier steps (units).

    Attributes:
        share: weight of each sequence, divided by the sum of all weights.
        text: index of each sequence's text.
        cohorts: the cohorts of the units.
    """

    share: Float64[np.ndarray, "M"]
    text: Int64[np.ndarray, "M"]
    cohorts: tuple[Cohort, ...]

    def spread(self, group: Int64[np.ndarray, "L"], count: int) -> Spread:
        """Estimate the variances of the evidence, and of the probabilities of groups of texts."""
        share, cohorts, K = self.share, self.cohorts, count
        of_sequence = group[self.text]
        P = np.bincount(of_sequence, share, minlength=K)
        evidence, variance, fourth = 0.0, np.zeros(K), 0.0
        for unit, a, units, total, _ in cohorts:
            some = unit >= 0
            x = np.bincount(unit[some], share[some], minlength=len(a))
            scale = 1.0 if units < 2 else units / (units - 1)
            center = 0.0 if units < 2 else 1 / total
            squares = float(a @ x**2)
            evidence += scale * max(0.0, squares - center * float(a @ x) ** 2)
            # Units without descendants have x_i = 0, and on average the rest of the a_i.
            mean, childless = center * float(a @ x), units - len(a)
            rest = max(0.0, total - float(a.sum())) * mean**2
            fourth += scale**2 * float(((a * (x - mean) ** 2) ** 2).sum())
            fourth += scale**2 * rest**2 / max(1, childless)
            # The square of x_i(y) = (S_i(y) - P(y) S_i) / S is expanded, so that only pairs of a
            # unit i and a group y with S_i(y) > 0 are computed. Most pairs are zero.
            pair, where = np.unique(unit[some] * K + of_sequence[some], return_inverse=True)
            part = np.bincount(where, share[some], minlength=len(pair))
            i, y = pair // K, pair % K
            product = np.bincount(y, a[i] * part * x[i], minlength=K)
            first = np.bincount(y, a[i] * part, minlength=K) - P * float(a @ x)
            own = np.bincount(y, a[i] * part**2, minlength=K)
            square = own - 2 * P * product + P**2 * squares
            variance += scale * np.maximum(0.0, square - center * first**2)
        degrees = max(1.0, evidence**2 / fourth) if fourth else 1.0
        return Spread(evidence, P, variance, degrees)


@dataclass(frozen=True)
class Reliability:
    """The statistical reliability of a posterior.

    Attributes:
        label: "certified", "estimated", "collapsed" or "unknown".
        advice: sentence that explains the label, and recommends a remedy if the estimate is
            unreliable.
        certified: share of the posterior that was certainly found; None without bounds.
        log_evidence_error: standard error of the log evidence, in nats; inf if unknown. It is 0 if
            all particles agree, which doesn't prove the evidence.
        probability_errors: standard error of each text's probability. If the particles agree, or
            the answers were computed instead of drawn, the largest possible error (`most_error`).
        ess: effective sample size: the number of independent particles that would estimate the
            evidence with the same relative variance, at most N. Unlike `Posterior.ess`, it accounts
            for the shared beginnings of resampled particles.
        degrees: effective degrees of freedom of the evidence's variance, from 1 to `ess` - 1.
    """

    label: str
    advice: str
    certified: float | None
    log_evidence_error: float
    probability_errors: tuple[float, ...]
    ess: float
    degrees: float = 1.0

    @property
    def quantile(self) -> float:
        """Half-width of a 90% interval in standard errors, from Student's t distribution."""
        from scipy.special import stdtrit  # imported here, because it takes a fifth of a second

        return float(stdtrit(self.degrees, (1 + CONFIDENCE) / 2))


def label_of(
    ess: float, certified: float | None, looked_at: float | None, num_particles: int, *, drawn: bool
) -> str:
    """Return the label of an estimate from its effective sample size and its bounds.

    Args:
        looked_at: estimated evidence divided by its upper bound; None without bounds. If it is
            small, the branches that weren't computed could have far more probability than was
            found.
    """
    if certified is not None and certified >= CERTIFIED:
        return "certified"
    if ess < FEWEST_INDEPENDENT <= num_particles:
        return "collapsed"
    # With SMC, no threshold achieved the coverage that "estimated" promises on new problems
    # (docs/reliability.md).
    few = num_particles < FEWEST_INDEPENDENT
    if few or drawn or looked_at is None or looked_at < LOOKED_AT:
        return "unknown"
    return "estimated"


def _advise(
    label: str, num_particles: int, *, drawn: bool, bounded: bool, stopped: bool, computed: bool
) -> str:
    """Explain a label in a sentence, with a remedy that the run hasn't used yet."""
    # Without bounds, SMC may be the only algorithm, as in vLLM.
    other = ", or algorithm='discrete'" if drawn and bounded else ""
    if label == "certified":
        return f"At least {CERTIFIED:.0%} of the posterior probability was certainly found."
    if label == "estimated":
        return (
            "On the problems of docs/reliability.md, the reported 90% intervals covered the true "
            "posterior at least 85% of the time."
        )
    if stopped:
        return "Answers were closed early, so longer answers were missed; allow more time."
    if computed:
        return (
            "Branches that weren't computed could have more probability than was found; allow "
            "more prefixes or tokens."
        )
    if num_particles < FEWEST_INDEPENDENT:
        return (
            f"Fewer than {FEWEST_INDEPENDENT:.0f} particles can't show their own error; use more, "
            "such as 16."
        )
    if label == "collapsed":
        return f"The estimate depends on a few particles; use more particles{other}."
    if drawn:
        return f"The reported errors of SMC aren't calibrated; use more particles{other}."
    return (
        "Unexplored branches could have far more probability than was found; use more particles, "
        "or a prompt that makes valid answers more probable."
    )


def most_error(bounds: Bounds | None, *, enumerated: bool) -> float:
    """Return the largest possible error of a probability: the share that may not be found."""
    return 0.0 if enumerated else 1.0 - (0.0 if bounds is None else bounds.certified)


def reliability_of(
    ancestry: Ancestry | None,
    num_texts: int,
    *,
    num_particles: int,
    log_evidence: float,
    bounds: Bounds | None,
    enumerated: bool,
    stopped: bool = False,
) -> Reliability:
    """Compute the standard errors of a posterior, and its label.

    Args:
        ancestry: ancestry of the posterior's sequences; None if they aren't a random sample.
    """
    if ancestry is None:
        exact, none = enumerated and num_texts > 0, np.zeros(num_texts)
        found = Spread(0.0 if exact else math.inf, none, none)
    else:
        found = ancestry.spread(np.arange(num_texts), num_texts)
    ess = max(1.0, 1 / (found.evidence + 1 / num_particles)) if num_texts else 0.0
    drawn = ancestry is not None and any(each.is_of_founders for each in ancestry.cohorts)
    looked_at = None
    if bounds is not None and bounds.log_upper > -math.inf:
        looked_at = math.exp(min(0.0, log_evidence - bounds.log_upper))
    certified = None if bounds is None else bounds.certified
    label = label_of(ess, certified, looked_at, num_particles, drawn=drawn)
    was_read = ancestry is None and num_texts > 0  # computed without particles
    if enumerated:
        label = "certified"
    elif label != "certified" and (was_read or (label == "estimated" and stopped)):
        label = "unknown"
    advice = _advise(
        label, num_particles, drawn=drawn, bounded=bounds is not None, stopped=stopped,
        computed=was_read,
    )  # fmt: skip
    return Reliability(
        label=label,
        advice=advice,
        certified=certified,
        log_evidence_error=math.sqrt(found.evidence),
        probability_errors=found.errors(most_error(bounds, enumerated=enumerated)),
        ess=ess,
        degrees=max(1.0, min(found.degrees, ess - 1)),
    )

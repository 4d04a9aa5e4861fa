"""Summary figures of a convergence study, for each arm (method with algorithm).

    particles     fewest tried particles from which on the law of one drawn answer is within a total
                  variation of `GOAL` of the exact posterior. If it isn't reached, twice the most
                  tried particles
    worst         largest total variation over the problems, with `AT` particles
    growth        largest ratio of the total variation at 4 N particles to that at N, over all
                  problems and N for which the former exceeds the noise of the runs (`measures`) by
                  more than `SMALL`. Above one, more particles did harm
    equal reads   total variation of the arm divided by that of the *reference*, GCD without
                  resampling, if both read as many prefixes. This number is what the reference reads
                  with a given number of particles. If the arm never reads as many, its largest
                  number of particles is used, which favors the reference. If it reads more even
                  with one particle, there is no figure. (The number can't be that of the arm: if a
                  model is certain, a thousand particles draw the same few prefixes, so the
                  reference hardly reads more with more particles.)

Between numbers of particles, the logarithm of the total variation is interpolated over that of the
prefixes read. Medians are over problems.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from typing import Any

import numpy as np

from experiments.arms import Arm, arms_in

GOAL = 0.1
AT = 16
"""Particles at which arms are compared."""
SMALL = 1e-3
LEAST = 1e-6
"""Lower bound of distances in ratios."""
REFERENCE = Arm("gcd", "smc_none")
REFERENCES = (16, 64, 256)
"""Particles of the reference whose reads are compared."""

_ALIKE = 0.02
"""Relative difference below which reads are equal, as they are means over runs."""

Report = dict[str, Any]
Estimate = dict[str, Any]


def tv_of(estimate: Estimate) -> float:
    """Return the total variation of the law of one answer: exact if known, else estimated."""
    exact = estimate["tv_exact"]
    return float(estimate["tv"] if exact is None else exact)


def arms_of(reports: Sequence[Report]) -> list[Arm]:
    """Return the arms of all problems."""
    return arms_in(e for report in reports for e in report["estimates"])


def estimates_of(report: Report, arm: Arm) -> list[Estimate]:
    """Return the estimates of an arm on a problem, by particles."""
    mine = [e for e in report["estimates"] if Arm.of(e) == arm]
    return sorted(mine, key=lambda e: e["particles"])


def most_particles(reports: Sequence[Report]) -> int:
    """Return the largest number of particles."""
    return max(e["particles"] for r in reports for e in r["estimates"])


def choose_particles(reports: Sequence[Report]) -> int:
    """Return the particles at which arms are compared: `AT`, or the most without `AT`."""
    counts = {e["particles"] for r in reports for e in r["estimates"]}
    return AT if AT in counts else max(counts)


def find_reaching(report: Report, arm: Arm) -> int | None:
    """Return the fewest particles from which on an arm is within `GOAL`, or None."""
    found = None
    for e in reversed(estimates_of(report, arm)):
        if tv_of(e) > GOAL:
            break
        found = int(e["particles"])
    return found


def headline(reports: Sequence[Report]) -> dict[str, Any]:
    """Summarize all problems by arm, as plain values; see the module docstring.

    Particles are summarized over all problems, and over the *hard* ones, on which one sample of GCD
    isn't already within `GOAL`.
    """
    hard = [r for r in reports if r["gcd"]["total_variation"] > GOAL]
    return {
        "goal": GOAL,
        "most_particles": most_particles(reports),
        "compared_at": choose_particles(reports),
        "reference": REFERENCE.label,
        "problems": [r["name"] for r in reports],
        "hard": [r["name"] for r in hard],
        "arms": {arm.label: _summary(reports, hard, arm) for arm in arms_of(reports)},
    }


def _summary(reports: Sequence[Report], hard: Sequence[Report], arm: Arm) -> dict[str, Any]:
    """Summarize one method with one algorithm over all problems."""
    return {
        **arm._asdict(),
        "needed": {r["name"]: find_reaching(r, arm) for r in reports},
        "median_needed": _median(_count_needed(reports, arm)),
        "median_needed_hard": _median(_count_needed(hard, arm)),
        "worst": _worst(reports, arm),
        "growth": _growth(reports, arm),
        "equal_reads": equal_reads(reports, arm),
    }


def _count_needed(reports: Sequence[Report], arm: Arm) -> list[float]:
    """Return the particles needed on each problem; twice the most if `GOAL` isn't reached."""
    return [find_reaching(r, arm) or 2 * most_particles(reports) for r in reports]


def _worst(reports: Sequence[Report], arm: Arm) -> dict[str, Any] | None:
    """Return the problem with an arm's largest distance."""
    at = choose_particles(reports)
    found = [
        {"tv": tv_of(e), "problem": r["name"]}
        for r in reports
        for e in estimates_of(r, arm)
        if e["particles"] == at
    ]
    return _greatest(found, "tv")


def _growth(reports: Sequence[Report], arm: Arm) -> dict[str, Any] | None:
    """Return the problem and number of particles N at which 4 N particles are worst against N.

    The result is None if all distances are small.
    """
    found = []
    for report in reports:
        by = {e["particles"]: e for e in estimates_of(report, arm)}
        for n, e in by.items():
            more = by.get(4 * n)
            if more is None or tv_of(more) - _noise(more) <= SMALL:
                continue
            ratio = tv_of(more) / max(LEAST, tv_of(e))
            found.append({"ratio": ratio, "problem": report["name"], "particles": n})
    return _greatest(found, "ratio")


def _noise(estimate: Estimate) -> float:
    """Return the total variation that would be estimated for a law without bias."""
    return 0.0 if estimate["tv_exact"] is not None else float(estimate["tv_floor"])


def equal_reads(reports: Sequence[Report], arm: Arm) -> dict[int, dict[str, Any]]:
    """Compare an arm with the reference at equal reads; see the module docstring.

    Returns:
        For each number of particles of the reference, the ratio on each problem (None if the arm
        always reads more), their median, and the number of problems with a ratio. Empty for the
        reference itself, and without the reference.
    """
    if arm == REFERENCE or REFERENCE not in arms_of(reports):
        return {}
    counts = {e["particles"] for r in reports for e in r["estimates"]}

    def compare(n: int) -> dict[str, Any]:
        ratios = {}
        for report in reports:
            here = next(e for e in estimates_of(report, REFERENCE) if e["particles"] == n)
            found = at_reads(report, arm, here["read"])
            ratios[report["name"]] = None if found is None else found / max(LEAST, tv_of(here))
        known = [ratio for ratio in ratios.values() if ratio is not None]
        return {"ratios": ratios, "median": _median(known), "problems": len(known)}

    return {n: compare(n) for n in sorted(counts & {*REFERENCES}) or [choose_particles(reports)]}


def at_reads(report: Report, arm: Arm, read: float) -> float | None:
    """Return the total variation of an arm at a number of prefixes read, on one problem.

    It is interpolated; above the largest number of reads it is that of the most particles, and
    below the smallest it is None.
    """
    rows = sorted(estimates_of(report, arm), key=lambda e: (e["read"], e["particles"]))
    x = [_log_read(e["read"]) for e in rows]
    y = [math.log(max(LEAST, tv_of(e))) for e in rows]
    at = _log_read(read)
    return None if at < x[0] - _ALIKE else math.exp(float(np.interp(at, x, y)))


def _log_read(read: float) -> float:
    """Return the log of a number of prefixes read; zero (answers of one token) counts as 1/2."""
    return math.log(max(0.5, read))


def _median(values: Sequence[float]) -> float | None:
    return statistics.median(values) if values else None


def _greatest(found: Sequence[dict[str, Any]], key: str) -> dict[str, Any] | None:
    return max(found, key=lambda each: each[key], default=None)

"""These figures sum up a convergence run, for each method with each algorithm (an *arm*).

    particles     the fewest that were tried from which on the law of one drawn answer is within a
                  total variation of `GOAL` of the exact posterior. What was not reached counts as
                  twice the most that were tried
    worst         the largest total variation over the problems, with `AT` particles
    growth        the largest ratio of the total variation at 4 N particles to that at N, of all
                  problems and N where the former is more than `SMALL` beyond what noise over the
                  runs would show by itself (`measures`): above one, more particles did harm
    equal reads   the total variation over that of the *reference*, GCD that is never resampled,
                  where both read as many prefixes: as many as the reference with some number of
                  particles. Where the arm never reads as much, its figure is that of its most
                  particles (which favours the reference), and where it reads more with one, it says
                  nothing. (Reads of the arm's own particles are not asked: where a model is sure of
                  itself a thousand particles draw the same few prefixes, so the reference hardly
                  reads more with more of them)

Between numbers of particles the logarithm of the total variation is interpolated over that of the
prefixes read. Medians are over problems.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from typing import Any

import numpy as np

from experiments.harness.algorithms import Arm, arms_in

GOAL = 0.1
AT = 16
"""Particles at which arms are compared."""
SMALL = 1e-3
LEAST = 1e-6
"""What is closer to the truth than that counts as that close in ratios."""
REFERENCE = Arm("gcd", "smc_none")
REFERENCES = (16, 64, 256)
"""Particles of the reference whose reads an arm is asked at."""

_ALIKE = 0.02
"""Reads that differ by less, as a share, are equal: they are means over runs."""

Report = dict[str, Any]
Estimate = dict[str, Any]


def tv_of(estimate: Estimate) -> float:
    """Give the total variation of the law of one answer: exact if known, else estimated."""
    exact = estimate["tv_exact"]
    return float(estimate["tv"] if exact is None else exact)


def arms_of(reports: Sequence[Report]) -> list[Arm]:
    """Give the arms of all problems."""
    return arms_in(e for report in reports for e in report["estimates"])


def estimates_of(report: Report, arm: Arm) -> list[Estimate]:
    """Give the estimates of an arm on a problem, by particles."""
    mine = [e for e in report["estimates"] if Arm.of(e) == arm]
    return sorted(mine, key=lambda e: e["particles"])


def most_particles(reports: Sequence[Report]) -> int:
    """Give the largest number of particles that was tried."""
    return max(e["particles"] for r in reports for e in r["estimates"])


def compared_at(reports: Sequence[Report]) -> int:
    """Give the particles at which arms are compared: `AT`, or if none were tried, the most."""
    counts = {e["particles"] for r in reports for e in r["estimates"]}
    return AT if AT in counts else max(counts)


def reached(report: Report, arm: Arm) -> int | None:
    """Find the fewest particles tried from which on an arm is within `GOAL`; None for none."""
    found = None
    for e in reversed(estimates_of(report, arm)):
        if tv_of(e) > GOAL:
            break
        found = int(e["particles"])
    return found


def headline(reports: Sequence[Report]) -> dict[str, Any]:
    """Sum up all problems by arm, as plain values; see the head of this module.

    Particles are summed up over all problems, and over the *hard* ones, where one sample of GCD is
    not within `GOAL` already, so that there is something to converge to.
    """
    hard = [r for r in reports if r["gcd"]["total_variation"] > GOAL]
    return {
        "goal": GOAL,
        "most_particles": most_particles(reports),
        "compared_at": compared_at(reports),
        "reference": REFERENCE.label,
        "problems": [r["name"] for r in reports],
        "hard": [r["name"] for r in hard],
        "arms": {arm.label: _summary(reports, hard, arm) for arm in arms_of(reports)},
    }


def _summary(reports: Sequence[Report], hard: Sequence[Report], arm: Arm) -> dict[str, Any]:
    """What is said of one arm."""
    return {
        **arm._asdict(),
        "needed": {r["name"]: reached(r, arm) for r in reports},
        "median_needed": _median(_needed(reports, arm)),
        "median_needed_hard": _median(_needed(hard, arm)),
        "worst": _worst(reports, arm),
        "growth": _growth(reports, arm),
        "equal_reads": equal_reads(reports, arm),
    }


def _needed(reports: Sequence[Report], arm: Arm) -> list[float]:
    """Particles needed on each problem; twice the most that were tried where these did not do."""
    return [reached(r, arm) or 2 * most_particles(reports) for r in reports]


def _worst(reports: Sequence[Report], arm: Arm) -> dict[str, Any] | None:
    """The problem on which an arm is farthest from the truth."""
    at = compared_at(reports)
    found = [
        {"tv": tv_of(e), "problem": r["name"]}
        for r in reports
        for e in estimates_of(r, arm)
        if e["particles"] == at
    ]
    return _greatest(found, "tv")


def _growth(reports: Sequence[Report], arm: Arm) -> dict[str, Any] | None:
    """Where four times the particles do most harm, or least good; None where all is small."""
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
    """What a law without bias would show."""
    return 0.0 if estimate["tv_exact"] is not None else float(estimate["tv_floor"])


def equal_reads(reports: Sequence[Report], arm: Arm) -> dict[int, dict[str, Any]]:
    """Compare an arm with the reference at equal reads; see the head of this module.

    Returns:
        For each number of particles of the reference the ratio on each problem (None where the arm
        always reads more), their median, and on how many problems there is one. Nothing for the
        reference itself, nor where it was not run.
    """
    if arm == REFERENCE or REFERENCE not in arms_of(reports):
        return {}
    counts = {e["particles"] for r in reports for e in r["estimates"]}

    def compared(n: int) -> dict[str, Any]:
        ratios = {}
        for report in reports:
            here = next(e for e in estimates_of(report, REFERENCE) if e["particles"] == n)
            found = at_reads(report, arm, here["read"])
            ratios[report["name"]] = None if found is None else found / max(LEAST, tv_of(here))
        known = [ratio for ratio in ratios.values() if ratio is not None]
        return {"ratios": ratios, "median": _median(known), "problems": len(known)}

    return {n: compared(n) for n in sorted(counts & {*REFERENCES}) or [compared_at(reports)]}


def at_reads(report: Report, arm: Arm, read: float) -> float | None:
    """Find the total variation of an arm that reads so many prefixes on one problem.

    It is interpolated, that of the most particles for more reads, and None for fewer than any.
    """
    rows = sorted(estimates_of(report, arm), key=lambda e: (e["read"], e["particles"]))
    x = [_log_read(e["read"]) for e in rows]
    y = [math.log(max(LEAST, tv_of(e))) for e in rows]
    at = _log_read(read)
    return None if at < x[0] - _ALIKE else math.exp(float(np.interp(at, x, y)))


def _log_read(read: float) -> float:
    """Answers of one token need no prefix but the prompt."""
    return math.log(max(0.5, read))


def _median(values: Sequence[float]) -> float | None:
    return statistics.median(values) if values else None


def _greatest(found: Sequence[dict[str, Any]], key: str) -> dict[str, Any] | None:
    return max(found, key=lambda each: each[key], default=None)

"""Algorithms that turn a proposal into weighted answers.

    smc         N particles draw tokens from the proposal, and are weighted and resampled
                (`smc._inference.particle_filter`)
    discrete    N distinct prefixes are selected from all their continuations by one token; no token
                is drawn (`smc._inference.discrete_filter`)
    auto        the discrete filter. It is more accurate than SMC with the same number of particles,
                and under GCD also at an equal cost (docs/reliability.md). SMC is used with a single
                particle, which is one answer drawn from the proposal

Each algorithm is a dataclass of its options.
"""

from __future__ import annotations

from dataclasses import dataclass
from numbers import Real

from smc._inference.arguments import whole
from smc._inference.resampling import scheme

STRATA = ("none", "state")


@dataclass(frozen=True)
class SMC:
    """Sequential Monte Carlo with N particles, for `smc.sample`.

    Args:
        resampling: "systematic" or "multinomial" (`smc._inference.resampling`).
        ess_threshold: particles are resampled if their effective sample size is below this fraction
            of their number. With 1 or more, they are resampled in every step; with 0, never.
        strata: which particles of an example are resampled together. With "state", only running
            particles in the same automaton state; complete answers aren't resampled. With "none",
            all particles.

    Raises:
        ValueError: a value is invalid.
    """

    resampling: str = "systematic"
    ess_threshold: float | int = 0.5
    strata: str = "state"

    def __post_init__(self) -> None:
        scheme(self.resampling)
        _number("ess_threshold", self.ess_threshold)
        if not self.ess_threshold >= 0:
            raise ValueError(f"expected ess_threshold to be at least 0, got {self.ess_threshold}")
        if self.strata not in STRATA:
            raise ValueError(
                f"expected strata to be one of {', '.join(STRATA)}, got {self.strata!r}"
            )


@dataclass(frozen=True)
class Discrete:
    """The discrete particle filter, which keeps N distinct prefixes, for `smc.sample`.

    Args:
        count_finished: whether finished answers count toward N, so that improbable prefixes are
            dropped earlier.
        floor: share of the sum of all scores, in [0, 1). A prefix with a smaller score may be
            dropped even if fewer than N prefixes are kept. With `floor=0` and
            `count_finished=False`, the filter finds all answers of languages with at most N running
            prefixes.
        kept: how many of the N prefixes are those with the highest probability under the model,
            at most 3 nats below the best one, which are kept with certainty
            (`smc._inference.selection.Kept`). The others are selected
            from the remaining prefixes, so weights stay unbiased. With `kept` equal to N, nothing
            is random: the filter is a beam search, and its evidence is a lower bound.

    Raises:
        ValueError: a value is invalid.
    """

    count_finished: bool = True
    floor: float | int = 1e-6
    kept: int = 0

    def __post_init__(self) -> None:
        if not isinstance(self.count_finished, bool):
            raise ValueError(
                f"expected count_finished to be True or False, got {self.count_finished!r}"
            )
        _number("floor", self.floor)
        if not 0 <= self.floor < 1:
            raise ValueError(f"expected floor to be in [0, 1), got {self.floor}")
        if whole("kept", self.kept) < 0:
            raise ValueError(f"expected kept to be at least 0, got {self.kept}")


def _number(name: str, value: object) -> None:
    """Raise an error unless a value is a number."""
    if not isinstance(value, Real) or isinstance(value, bool):
        raise ValueError(f"expected {name} to be a number, got {value!r}")


ALGORITHMS: dict[str, type[SMC | Discrete]] = {"smc": SMC, "discrete": Discrete}
AUTO = "auto"


def algorithm_of(given: object, particles: int) -> SMC | Discrete:
    """Return an algorithm, given itself or its name."""
    if isinstance(given, SMC | Discrete):
        return given
    if given == AUTO:
        return SMC() if particles == 1 else Discrete()
    if not isinstance(given, str) or given not in ALGORITHMS:
        names = ", ".join((AUTO, *ALGORITHMS))
        raise ValueError(
            f"expected algorithm to be one of {names}, or smc.SMC(...) or smc.Discrete(...) with "
            f"options, got {given!r}"
        )
    return ALGORITHMS[given]()

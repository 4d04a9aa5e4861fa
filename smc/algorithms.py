"""Algorithms go from a proposal to weighted answers. There are two, by name:

    smc         N particles draw tokens from the proposal, are weighed, and may be resampled
                (`smc.step`)
    discrete    N distinct prefixes are kept out of all their continuations, and no token is drawn
                (`smc.filter`)
    auto        the discrete filter, which is nearer to the truth at an equal cost
                (docs/reliability.md), but SMC in three cases: where an option that only SMC reads
                is given; with one particle, which is one answer drawn from the proposal; and in
                `smc.stream`, as prefixes that are all different agree on little before the end

Each is a dataclass of its options, so that an option which an algorithm does not read is refused.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from numbers import Real
from typing import Any, TypedDict

from smc.resampling import Scheme, scheme

STRATA = ("none", "state")


class Options(TypedDict, total=False):
    """The options of all algorithms; `SMC` and `Discrete` say what they mean."""

    resampling: str | Scheme
    ess_threshold: float | int
    strata: str
    count_finished: bool
    floor: float | int


@dataclass(frozen=True)
class SMC:
    """Sequential Monte Carlo with N particles.

    Args:
        resampling: "systematic", "stratified", "multinomial", "residual", or a function like them.
        ess_threshold: particles that compete are resampled when their effective sample size is
            under this fraction of their number; 1 or more means every step, 0 never.
        strata: "state": particles compete with those in the same automaton state alone, and
            complete answers with none; "none": all particles of an example compete.

    Raises:
        ValueError: a value makes no sense.
    """

    resampling: str | Scheme = "systematic"
    ess_threshold: float | int = 0.5
    strata: str = "state"

    def __post_init__(self) -> None:
        scheme(self.resampling)
        _number("ess_threshold", self.ess_threshold)
        if not self.ess_threshold >= 0:
            raise ValueError(f"ess_threshold is {self.ess_threshold}; it must be 0 or more")
        if self.strata not in STRATA:
            raise ValueError(f"strata is {self.strata!r}; use one of {', '.join(STRATA)}")


@dataclass(frozen=True)
class Discrete:
    """The discrete particle filter, which keeps N distinct prefixes.

    Args:
        count_finished: True: finished answers count against N, so improbable prefixes are dropped
            sooner.
        floor: prefixes whose score is under this part of the sum of all are kept with less than
            certainty, even where there is room, in [0, 1). With zero, and `count_finished=False`,
            the filter enumerates what it has room for.

    Raises:
        ValueError: a value makes no sense.
    """

    count_finished: bool = True
    floor: float | int = 1e-6

    def __post_init__(self) -> None:
        if not isinstance(self.count_finished, bool):
            raise ValueError(f"count_finished is True or False, not {self.count_finished!r}")
        _number("floor", self.floor)
        if not 0 <= self.floor < 1:
            raise ValueError(f"floor is {self.floor}; it must lie in [0, 1)")


def _number(name: str, value: object) -> None:
    """Refuse what is no number, before it is compared with one."""
    if not isinstance(value, Real) or isinstance(value, bool):
        raise ValueError(f"{name} is {value!r}; give a number")


ALGORITHMS: dict[str, type[SMC | Discrete]] = {"smc": SMC, "discrete": Discrete}
AUTO = "auto"


def chosen(name: str, options: Options, particles: int) -> str:
    """Return the name of the algorithm that "auto" stands for; other names as they are."""
    if name != AUTO:
        return name
    asks_for_smc = any(field.name in options for field in fields(SMC))
    return "smc" if asks_for_smc or particles == 1 else "discrete"


def algorithm(name: str, options: Options) -> SMC | Discrete:
    """Return the algorithm of this name, "auto" aside, with these options.

    Raises:
        ValueError: there is none of this name, or it does not read one of the options.
    """
    if not isinstance(name, str) or name not in ALGORITHMS:
        names = ", ".join((AUTO, *ALGORITHMS))
        raise ValueError(f"unknown algorithm {name!r}; choose one of {names}")
    kind = ALGORITHMS[name]
    known = [field.name for field in fields(kind)]
    for option, value in options.items():
        if option not in known:
            raise ValueError(
                f"algorithm {name!r} does not read {option}={value!r}; its options are "
                f"{', '.join(known)}. Or is the name of another argument misspelt?"
            )
    given: dict[str, Any] = dict(options)
    return kind(**given)

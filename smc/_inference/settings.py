"""Settings of a `smc.sample` call that apply to all examples."""

from __future__ import annotations

import inspect
import math
import reprlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from numbers import Integral
from typing import Any

from smc._inference import algorithms
from smc._inference.algorithms import SMC, Discrete, Options
from smc._proposals import Proposal
from smc._removed import REMOVED

COLDEST = 1e-6
"""Minimum temperature, by which the logits of any model can be divided without overflow."""
MAX_TOKENS_READ = 1000
"""Default limit on the tokens computed after sampling, for `certify`."""
EXECUTIONS = ("auto", "eager", "static")
"""Execution modes; see `smc._inference.execution`."""


@dataclass(frozen=True)
class Settings:
    """The settings of a `smc.sample` call for all examples; see `smc.sample`.

    Raises:
        ValueError: a value is invalid.
    """

    proposal: Proposal[Any]
    particles: int
    algorithm: SMC | Discrete
    temperature: float
    max_rows: int
    forced_runs: bool
    execution: str
    read_ahead: int | str
    certify: float | None
    max_tokens_read: int

    def __post_init__(self) -> None:
        if self.particles < 1:
            raise ValueError(f"expected particles to be at least 1, got {self.particles}")
        if self.max_rows < 1:
            raise ValueError(f"expected max_rows to be at least 1, got {self.max_rows}")
        if isinstance(self.algorithm, Discrete) and self.algorithm.kept > self.particles:
            raise ValueError(
                f"expected kept to be at most the number of particles, {self.particles}, got "
                f"{self.algorithm.kept}"
            )
        check_temperature(self.temperature)
        if self.execution not in EXECUTIONS:
            raise ValueError(
                f"expected execution to be one of {', '.join(EXECUTIONS)}, got {self.execution!r}"
            )
        if self.read_ahead != "auto" and (isinstance(self.read_ahead, str) or self.read_ahead < 0):
            raise ValueError(
                "expected read_ahead to be a number of tokens (at least 0) or 'auto', got "
                f"{self.read_ahead!r}"
            )
        if self.max_tokens_read < 1:
            raise ValueError(
                f"expected max_tokens_read to be at least 1, got {self.max_tokens_read}; to "
                "compute no tokens after sampling, omit certify"
            )
        if self.certify is None:
            return
        if not 0 < self.certify <= 1:
            raise ValueError(
                f"expected certify to be in (0, 1], got {self.certify}; use 1 for the whole "
                "posterior"
            )


def settings_of(
    proposal: object,
    particles: object,
    algorithm: str,
    options: Options,
    max_rows: object,
    forced_runs: object,
    temperature: object = 1.0,
    execution: str = "auto",
    read_ahead: object = "auto",
    certify: object = None,
    max_tokens_read: object = MAX_TOKENS_READ,
) -> Settings:
    """Validate the arguments of `smc.sample`, and return them as settings."""
    if isinstance(proposal, type) or not isinstance(proposal, Proposal):
        raise ValueError(f"expected proposal to be an instance such as smc.GCD(), got {proposal!r}")
    if not isinstance(forced_runs, bool):
        raise ValueError(f"expected forced_runs to be True or False, got {forced_runs!r}")
    count = whole("particles", particles)
    return Settings(
        proposal=proposal,
        particles=count,
        algorithm=algorithms.algorithm(algorithms.chosen(algorithm, options, count), options),
        temperature=real("temperature", temperature),
        max_rows=whole("max_rows", max_rows),
        forced_runs=forced_runs,
        execution=execution,
        read_ahead=read_ahead if isinstance(read_ahead, str) else whole("read_ahead", read_ahead),
        certify=None if certify is None else real("certify", certify),
        max_tokens_read=whole("max_tokens_read", max_tokens_read),
    )


def check_options(name: str, options: Mapping[str, Any], *calls: Callable[..., Any]) -> None:
    """Raise ValueError for an option that none of some functions and no algorithm has."""
    known = {*Options.__annotations__}
    for call in calls:
        parameters = inspect.signature(call).parameters.values()
        known |= {each.name for each in parameters if each.kind is each.KEYWORD_ONLY}
    for option, value in options.items():
        if option not in known and f"{option}=" not in REMOVED:  # the algorithm refuses those
            near = get_close_matches(option, known, n=1)
            remedy = f"did you mean {near[0]}?" if near else f"help({name}) lists the options"
            raise ValueError(
                f"expected an option of {name}, got {option}={reprlib.repr(value)}; {remedy}"
            )


def whole(what: str, value: object) -> int:
    """Return a whole number as an int; raise an error for other values."""
    if not isinstance(value, Integral) or isinstance(value, bool):
        raise ValueError(f"expected {what} to be a whole number, got {value!r}")
    return int(value)


def check_temperature(temperature: float) -> float:
    """Return the temperature if it is valid; raise an error otherwise."""
    if not (math.isfinite(temperature) and temperature > 0):
        raise ValueError(
            f"expected temperature to be positive and finite, got {temperature}; for answers close "
            "to the most probable one, use a small temperature, such as 0.1"
        )
    if temperature < COLDEST:
        raise ValueError(
            f"expected temperature to be at least {COLDEST}, below which logits overflow, got "
            f"{temperature}; use a larger temperature, such as 0.1"
        )
    return temperature


def real(what: str, value: Any) -> float:
    """Return a number as a float; raise an error for other values."""
    try:
        if not isinstance(value, bool):
            return float(value)
    except (TypeError, ValueError, OverflowError):
        pass
    raise ValueError(f"expected {what} to be a number, got {value!r}")

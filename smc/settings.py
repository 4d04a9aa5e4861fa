"""The settings of a call of `smc.sample` that are the same for all examples."""

from __future__ import annotations

import math
from dataclasses import dataclass
from numbers import Integral
from typing import Any

from smc import algorithms
from smc.algorithms import SMC, Discrete, Options
from smc.drafters import Drafter, PromptLookup
from smc.proposals import Proposal

COLDEST = 1e-6
"""The lowest temperature; logits of any model can be divided by it."""
MAX_TOKENS_READ = 1000
"""Tokens that are read after sampling, for `certify`, unless another number is given."""
MAX_PARTICLES = 1024
"""Most particles that `target_error` may take unless another number is given."""
EXECUTIONS = ("auto", "eager", "static")
"""See `smc.execution`."""


@dataclass(frozen=True)
class Settings:
    """What is the same for all examples; see `sample`.

    Raises:
        ValueError: a value that makes no sense.
    """

    proposal: Proposal[Any]
    particles: int
    algorithm: SMC | Discrete
    temperature: float
    top_p: float
    max_rows: int
    forced_runs: bool
    execution: str
    read_ahead: int | str
    drafter: Drafter
    certify: float | None
    max_tokens_read: int
    target_error: float | None
    max_particles: int

    def __post_init__(self) -> None:
        if self.particles < 1:
            raise ValueError(f"particles is {self.particles}; at least 1 is needed")
        if self.max_rows < 1:
            raise ValueError(f"max_rows is {self.max_rows}; at least 1 is needed")
        check_temperature(self.temperature)
        check_top_p(self.top_p)
        if self.execution not in EXECUTIONS:
            raise ValueError(
                f"execution is {self.execution!r}; give one of {', '.join(EXECUTIONS)}"
            )
        if self.read_ahead != "auto" and (isinstance(self.read_ahead, str) or self.read_ahead < 0):
            raise ValueError(
                f"read_ahead is {self.read_ahead!r}; give a number of tokens, 0 for none, or 'auto'"
            )
        if isinstance(self.drafter, type) or not isinstance(self.drafter, Drafter):
            raise ValueError(
                f"drafter is {self.drafter!r}; give one that is made, such as smc.PromptLookup()"
            )
        if self.target_error is not None:
            if not self.target_error > 0:
                raise ValueError(
                    f"expected target_error above 0 (nats), got {self.target_error}; give 0.1 for "
                    "about 10 %"
                )
            if self.max_particles < self.particles:
                raise ValueError(
                    f"expected max_particles of at least particles={self.particles}, got "
                    f"{self.max_particles}; raise it, or begin with fewer particles"
                )
        if self.max_tokens_read < 1:
            raise ValueError(
                f"expected max_tokens_read of at least 1, got {self.max_tokens_read}; leave "
                "certify out to read nothing after sampling"
            )
        if self.certify is None:
            return
        if not 0 < self.certify <= 1:
            raise ValueError(f"expected certify in (0, 1], got {self.certify}; 1 reads everything")
        if self.top_p < 1:
            raise ValueError(
                f"expected top_p=1 with certify, got {self.top_p}; a nucleus leaves no bounds that "
                "a share could be certified by, so leave one of both out"
            )


def settings_of(
    proposal: object,
    particles: object,
    algorithm: str,
    options: Options,
    max_rows: object,
    forced_runs: object,
    temperature: object = 1.0,
    top_p: object = 1.0,
    execution: str = "auto",
    read_ahead: object = "auto",
    drafter: object = None,
    certify: object = None,
    max_tokens_read: object = MAX_TOKENS_READ,
    target_error: object = None,
    max_particles: object = MAX_PARTICLES,
) -> Settings:
    """Make settings of what a caller of `smc.sample` gives by these names, whatever it is.

    Raises:
        ValueError: one of them makes no sense.
    """
    if isinstance(proposal, type) or not isinstance(proposal, Proposal):
        raise ValueError(f"proposal is {proposal!r}; give one that is made, such as smc.GCD()")
    if not isinstance(forced_runs, bool):
        raise ValueError(f"forced_runs is {forced_runs!r}; give True or False")
    count = whole("particles", particles)
    return Settings(
        proposal=proposal,
        particles=count,
        algorithm=algorithms.algorithm(algorithms.chosen(algorithm, options, count), options),
        temperature=real("temperature", temperature),
        top_p=real("top_p", top_p),
        max_rows=whole("max_rows", max_rows),
        forced_runs=forced_runs,
        execution=execution,
        read_ahead=read_ahead if isinstance(read_ahead, str) else whole("read_ahead", read_ahead),
        drafter=PromptLookup() if drafter is None else drafter,  # type: ignore[arg-type]
        certify=None if certify is None else real("certify", certify),
        max_tokens_read=whole("max_tokens_read", max_tokens_read),
        target_error=None if target_error is None else real("target_error", target_error),
        max_particles=whole("max_particles", max_particles),
    )


def whole(what: str, value: object) -> int:
    """Return a whole number as an integer; nothing is rounded."""
    if not isinstance(value, Integral) or isinstance(value, bool):
        raise ValueError(f"{what} is {value!r}; it must be a whole number")
    return int(value)


def check_temperature(temperature: float) -> float:
    """Return a temperature by which logits can be divided; refuse others."""
    if not (math.isfinite(temperature) and temperature > 0):
        raise ValueError(
            f"temperature is {temperature}; it must be positive and finite. "
            "At 0 there is no distribution to sample from: use a small one, such as 0.1"
        )
    if temperature < COLDEST:
        raise ValueError(
            f"temperature is {temperature}; under {COLDEST} logits overflow. "
            "Use a small one, such as 0.1"
        )
    return temperature


def check_top_p(top_p: float) -> float:
    """Return the probability of a nucleus; refuse what is none."""
    if not 0 < top_p <= 1:
        raise ValueError(f"top_p is {top_p}; it must lie in (0, 1]")
    return top_p


def real(what: str, value: Any) -> float:
    """Return a number as a float."""
    try:
        if not isinstance(value, bool):
            return float(value)
    except (TypeError, ValueError, OverflowError):
        pass
    raise ValueError(f"{what} is {value!r}; it must be a number")

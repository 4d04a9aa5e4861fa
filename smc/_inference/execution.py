"""Settings of a `smc.sample` call, and the run of one of its batches.

Rows of the language model are distinct prefixes, and ended rows are removed. Consecutive forced
tokens take one forward pass. `smc.captured` runs the same steps in constant shapes, which a CUDA
graph can capture.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol, runtime_checkable

import torch
from jaxtyping import Int64
from torch import Tensor

from smc._forward.read_ahead import AUTO
from smc._forward.reader import EagerReader, Reader
from smc._inference.algorithms import SMC, Discrete, algorithm_of
from smc._inference.answers import Pool
from smc._inference.arguments import check_temperature, real, whole
from smc._inference.closing import Closing
from smc._inference.deadlines import CancelToken, TimeLimit, check_event
from smc._inference.discrete_filter import DiscreteFilter
from smc._inference.particle_filter import ParticleFilter
from smc._inference.particles import Observe, Outcome, StepRecord, Watch
from smc._models.protocol import LanguageModel
from smc._proposals import Batch, Proposal
from smc._vocabulary.draw import CounterDraw, Draw
from smc._vocabulary.passes import pass_of

MAX_TOKENS_READ = 1000
"""Default limit on the tokens computed after sampling, for `certify`."""


class Job(NamedTuple):
    """A batch of B examples to sample.

    Attributes:
        lm: the language model.
        settings: the settings of the call.
        prompts: token ids of each prompt.
        batch: constraints and budgets.
        examples: number of each example, which is part of the keys of its random numbers.
        watch: function that is called after each step; None for none.
        limit: the time limit; None for none.
    """

    lm: LanguageModel
    settings: Settings
    prompts: Sequence[Sequence[int]]
    batch: Batch
    examples: Int64[Tensor, "B"]
    watch: Watch | None
    limit: TimeLimit | None


@dataclass(frozen=True)
class Hooks:
    """Parts of `smc.sample` that tests, experiments and servers replace or observe.

    Args:
        draw: generator of random numbers that replaces the default one and `seed`.
        forced_runs: whether the model computes consecutive forced tokens in a single forward pass
            (`smc._forward.reader`). This doesn't change the target or the weight of any text.
        read_ahead: number of draft tokens, copied from the prompt, that the model computes in
            passes over a single row (`smc._forward.read_ahead`). This reduces the number of passes.
            Answers and weights stay the same up to rounding. With "auto", there are up to four if
            the model benefits (`TransformersLM.reads_ahead`: on a CPU, except for small models).
        max_tokens_read: maximum number of tokens computed for `certify`, per prompt.
        finished: function that is called after each batch with the batch's posteriors, as a mapping
            from the index in `prompts`. `smc.sample` then returns an empty list.
        observe: function that is called for each batch, and returns a function to call after each
            step (`smc._inference.particles`).
        abandon: a `threading.Event`. Once another thread sets it, the next step raises
            `smc.AbandonedError`.
        run: function that samples a batch in place of `smc._inference.execution.run_eagerly`.

    Raises:
        ValueError: a value is invalid.
    """

    draw: Draw | None = None
    forced_runs: bool = True
    read_ahead: int | str = "auto"
    max_tokens_read: int = MAX_TOKENS_READ
    finished: Callable[[Mapping[int, Any]], object] | None = None
    observe: Observe | None = None
    abandon: CancelToken | None = None
    run: Callable[[Job], Outcome] | None = None

    def __post_init__(self) -> None:
        for name in ("draw", "finished", "observe", "run"):
            value = getattr(self, name)
            if not (value is None or callable(value)):
                raise ValueError(f"expected {name} to be a function, got {value!r}")
        check_event("abandon", self.abandon)
        if not isinstance(self.forced_runs, bool):
            raise ValueError(f"expected forced_runs to be True or False, got {self.forced_runs!r}")
        if self.read_ahead != "auto" and (
            isinstance(self.read_ahead, str) or whole("read_ahead", self.read_ahead) < 0
        ):
            raise ValueError(
                "expected read_ahead to be a number of tokens (at least 0) or 'auto', got "
                f"{self.read_ahead!r}"
            )
        if whole("max_tokens_read", self.max_tokens_read) < 1:
            raise ValueError(
                f"expected max_tokens_read to be at least 1, got {self.max_tokens_read}; to "
                "compute no tokens after sampling, omit certify"
            )


def hooks_of(given: object, *without: str) -> Hooks:
    """Return the argument `hooks` of a call that can't use the attributes `without`."""
    if given is None:
        return Hooks()
    if not isinstance(given, Hooks):
        raise ValueError(f"expected hooks to be a smc.Hooks(...), got {given!r}")
    for name in without:
        if getattr(given, name) is not None:
            raise ValueError(
                f"expected smc.Hooks without `{name}`, which this call can't use; omit it, or call "
                "smc.sample"
            )
    return given


@dataclass(frozen=True)
class Settings:
    """The arguments of a `smc.sample` call that apply to all examples; see `smc.sample`.

    Raises:
        ValueError: a value is invalid.
    """

    proposal: Proposal[Any]
    particles: int
    algorithm: SMC | Discrete
    temperature: float
    max_rows: int
    certify: float | None
    draw: Draw
    hooks: Hooks

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
        if self.certify is not None and not 0 < self.certify <= 1:
            raise ValueError(
                f"expected certify to be in (0, 1], got {self.certify}; use 1 for the whole "
                "posterior"
            )

    @classmethod
    def of(
        cls,
        proposal: object,
        particles: object,
        algorithm: object,
        max_rows: object,
        temperature: object = 1.0,
        certify: object = None,
        seed: object = 0,
        hooks: object = None,
    ) -> Settings:
        """Validate the arguments of `smc.sample`, and return them as settings."""
        if isinstance(proposal, type) or not isinstance(proposal, Proposal):
            raise ValueError(
                f"expected proposal to be an instance such as smc.GCD(), got {proposal!r}"
            )
        hooks = hooks_of(hooks)
        count = whole("particles", particles)
        return cls(
            proposal=proposal,
            particles=count,
            algorithm=algorithm_of(algorithm, count),
            temperature=real("temperature", temperature),
            max_rows=whole("max_rows", max_rows),
            certify=None if certify is None else real("certify", certify),
            draw=CounterDraw(whole("seed", seed)) if hooks.draw is None else hooks.draw,
            hooks=hooks,
        )


@runtime_checkable
class Stepper(Protocol):
    """The steps of an algorithm for one batch: a `ParticleFilter` or a `DiscreteFilter`."""

    @property
    def reader(self) -> Reader[Any]:
        """The reader, which runs the language model and updates the proposal's state."""
        ...

    def start(self, prompts: Sequence[Sequence[int]]) -> tuple[Any, StepRecord]:
        """Run the model on the prompts; return the first state, and the record of forced tokens."""
        ...

    def step(self, carry: Any) -> tuple[Any, StepRecord]:
        """Take a step; return the next state, and the record of this step.

        Parts of the state that no step changes must be the same tensors afterward, because a graph
        copies all other tensors.
        """
        ...

    def outcome(self, carry: Any, history: StepRecord) -> Outcome:
        """Return the answers of all examples, ordered by example.

        Args:
            carry: the state after the last step.
            history: the records of all steps.
        """
        ...


def steps_of(job: Job, reader: Reader[Any], store: Any = Pool) -> Stepper:
    """Return the steps of an algorithm; `store` is the discrete filter's store of answers."""
    settings = job.settings
    given = (reader, job.examples, settings.particles, settings.draw, job.watch)
    if isinstance(settings.algorithm, Discrete):
        return DiscreteFilter(settings.algorithm, *given, store)
    return ParticleFilter(settings.algorithm, *given)


@torch.inference_mode()
def run_eagerly(job: Job) -> Outcome:
    """Sample a batch with one row for each prefix, and host synchronizations in each step."""
    settings, hooks = job.settings, job.settings.hooks
    ahead = hooks.read_ahead
    if isinstance(ahead, str):
        ahead = AUTO if getattr(job.lm, "reads_ahead", False) else 0
    reader = EagerReader(
        job.lm,
        settings.proposal,
        job.batch,
        pass_of("auto", job.lm.device),
        temperature=settings.temperature,
        forced_runs=hooks.forced_runs,
        ahead=ahead,
    )
    stepper = steps_of(job, reader)
    started = time.perf_counter()
    carry, record = stepper.start(job.prompts)
    records, seconds = [record], time.perf_counter() - started
    closing = None if job.limit is None else Closing(reader, job.limit)
    while carry.prefixes.num_rows:
        if closing is not None:
            carry = closing.check_eagerly(carry, record)
        carry, record = stepper.step(carry)
        records.append(record)
    history = StepRecord(*(torch.stack(field).cpu() for field in zip(*records, strict=True)))
    outcome = stepper.outcome(carry, history)._replace(start_seconds=seconds)
    return outcome if closing is None else closing.mark(outcome)

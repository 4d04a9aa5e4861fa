"""Sequential Monte Carlo with an engine that draws several tokens (a *part*) at a time.

    draw a part of each running particle, update weights, resample if needed, repeat

Let Z_t be the model's probability of all tokens that the mask allows in step t. A part multiplies
its particle's weight by the product of its Z_t. Particles are resampled between parts as in
`smc.sample` (`smc._inference.algorithms.SMC`), with the number of the part instead of the step. The
estimate of the evidence is the mean of the final weights. It is unbiased for any length of parts:
E[estimate] = P_lm(C within n).

With P-GCD, each token multiplies the weight by p / q. Particles are then resampled by weight times
potential. The potential is the HMM's probability that the answer is completed within its budget.
"""

from __future__ import annotations

import math
import time
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from jaxtyping import Float64
from torch import Tensor

from gcd_vllm._particle_request import ParticleRequest
from gcd_vllm._parts import (
    DrawnPart,
    Engine,
    ParticleTask,
    PartRecord,
    PartRequest,
    Plan,
    part_end,
    request_seed,
)
from smc import Diagnostics, Draw, Posterior, Sample, Weights
from smc._inference.resampling import Strata, resample
from smc._results.posterior import content, posterior
from smc._results.reliability import cohorts_of_founders


@dataclass(frozen=True)
class Rollout(Sample):
    """Particle with the log-probabilities of each of its tokens.

    Attributes:
        token_log_p: log-probability of each token under the model, at the sampling temperature.
        token_log_z: log p - log q of each token. Under a mask, this is the log of the probability
            of all tokens that the mask allowed. Without resampling, these sum to the log weight.
    """

    token_log_p: tuple[float, ...] = ()
    token_log_z: tuple[float, ...] = ()

    @property
    def token_log_q(self) -> tuple[float, ...]:
        """Log q: log-probability of each token under the distribution that it was drawn from."""
        pairs = zip(self.token_log_p, self.token_log_z, strict=True)
        return tuple(log_p - log_z for log_p, log_z in pairs)


@dataclass(frozen=True)
class EngineDiagnostics(Diagnostics):
    """Statistics of sampling answers to one prompt in an engine.

    `ess`, `resampled`, `running` and `alive` have one entry for each round of parts, whereas in
    `smc.Diagnostics` they have one for each token.

    Attributes:
        parts: cost of each round of parts.
    """

    parts: tuple[PartRecord, ...] = ()


class _Particle(NamedTuple):
    """Particle during sampling; `Rollout` is the finished form.

    `state` is the automaton's state, or -1 if the weight is zero. `founder` is the number that the
    particle's ancestor had in the first part, before any resampling. `log_potential` is the log of
    the potential after the last token; it is 0 for a finished answer.
    """

    ids: tuple[int, ...]
    log_p: tuple[float, ...]
    log_z: tuple[float, ...]
    log_weight: float
    state: int
    founder: int
    finished: bool = False
    log_potential: float = 0.0

    @property
    def log_competing(self) -> float:
        """Log of weight times potential, by which particles are resampled."""
        return self.log_weight + self.log_potential

    def runs(self, budget: int) -> bool:
        return not self.finished and len(self.ids) < budget

    def rollout(self, answer: bytes) -> Rollout:
        """Return the particle in its public form; `answer` is its text."""
        return Rollout(
            ids=self.ids,
            answer=answer,
            log_weight=self.log_weight,
            finished=self.finished,
            log_p=math.fsum(self.log_p),
            token_log_p=self.log_p,
            token_log_z=self.log_z,
        )

    def extend(self, drawn: DrawnPart, task: ParticleTask) -> _Particle:
        """Return the particle with the tokens of a part appended."""
        automaton = task.automaton
        state = automaton.run(drawn.ids, self.state)
        if state < 0:
            raise RuntimeError(
                f"expected tokens that the constraint allows, got {drawn.ids} after {self.ids}; "
                "another logits processor of the engine may change the mask"
            )
        ids = self.ids + drawn.ids
        finished = bool(ids) and ids[-1] in automaton.vocabulary.eos_ids
        log_weight = self.log_weight + math.fsum(drawn.log_z)
        if not finished and len(ids) >= task.budget:
            log_weight = -math.inf  # under "lcd", the budget can cut an answer off
        return _Particle(
            ids,
            self.log_p + drawn.log_p,
            self.log_z + drawn.log_z,
            log_weight,
            state,
            self.founder,
            finished,
            0.0 if finished else drawn.log_potential,
        )


def run(engine: Engine, tasks: Sequence[ParticleTask], plan: Plan, draw: Draw) -> list[Posterior]:
    """Sample the posteriors of all prompts."""
    started = time.perf_counter()
    systems = [_System(example, task, plan) for example, task in enumerate(tasks)]
    number = 0
    while parts := [p for each in systems for p in each.parts(number, engine.block_size)]:
        found: dict[int, list[tuple[PartRequest, DrawnPart]]] = defaultdict(list)
        for part, drawn in zip(parts, engine.draw(parts), strict=True):
            found[part.example].append((part, drawn))
        for example, pairs in found.items():
            systems[example].extend(pairs, number, draw)
        number += 1
    seconds = (time.perf_counter() - started) / max(1, sum(each.tokens for each in systems))
    return [each.posterior(seconds * each.tokens) for each in systems]


class _System:
    """The particles of one prompt, and the costs of its rounds."""

    def __init__(self, example: int, task: ParticleTask, plan: Plan) -> None:
        self._example, self._task, self._plan = example, task, plan
        initial = task.automaton.initial
        self._particles = [_Particle((), (), (), 0.0, initial, n) for n in range(plan.particles)]
        self._records: list[PartRecord] = []
        self._alive: list[int] = []

    def parts(self, number: int, block: int | None) -> Iterator[PartRequest]:
        """Yield the requests for the next tokens of every running particle."""
        task, plan = self._task, self._plan
        for n, particle in enumerate(self._particles):
            if not particle.runs(task.budget) or particle.log_weight == -math.inf:
                continue
            taken, end = len(particle.ids), task.budget
            if plan.chunk is not None:
                end = part_end(len(task.prompt), taken, task.budget, plan.chunk, block)
            is_partial = end < task.budget
            yield PartRequest(
                example=self._example,
                particle=n,
                constraint=task.constraint,
                prompt=task.prompt,
                prefix=particle.ids,
                max_tokens=end - taken,
                seed=request_seed(plan.seed, task.name, n, number),
                temperature=plan.temperature,
                weighted=ParticleRequest("", taken, is_partial, plan.proposal, plan.pgcd),
            )

    def extend(
        self, pairs: Sequence[tuple[PartRequest, DrawnPart]], number: int, draw: Draw
    ) -> None:
        """Append the tokens of a round to the particles, and resample them if needed."""
        for part, drawn in pairs:
            self._particles[part.particle] = self._particles[part.particle].extend(
                drawn, self._task
            )
        self._alive.append(sum(each.log_weight > -math.inf for each in self._particles))
        ess = float(Weights.of(_logs(each.log_competing for each in self._particles)).ess)
        self._records.append(
            PartRecord(
                admissions=len(pairs),
                prompt_tokens=sum(len(part.prompt) + len(part.prefix) for part, _ in pairs),
                cached_tokens=sum(drawn.cached for _, drawn in pairs),
                drawn_tokens=sum(len(drawn.ids) for _, drawn in pairs),
                ess=ess,
                resampled=self._resample(number, draw),
                scored_tokens=sum(drawn.scored for _, drawn in pairs),
            )
        )

    def _resample(self, number: int, draw: Draw) -> bool:
        """Resample each stratum with a low effective sample size; return whether there was one."""
        system, how = self._particles, self._plan.resampling
        running = torch.tensor([each.runs(self._task.budget) for each in system], device="cpu")
        states = torch.tensor([each.state for each in system], device="cpu")
        found = resample(
            Strata.of(running, states, len(system), how.strata, _indices),
            _logs(each.log_competing for each in system),
            scheme=how.resampling,
            ess_threshold=float(how.ess_threshold),
            examples=torch.tensor([self._task.name], device="cpu"),
            step=torch.tensor([number], device="cpu"),
            draw=draw,
            indices=_indices,
        )
        copied = [system[n] for n in found.ancestors.tolist()]
        for n, (each, log_weight) in enumerate(zip(copied, found.log_weight.tolist(), strict=True)):
            if each is not system[n] or log_weight != each.log_competing:
                copied[n] = each._replace(log_weight=log_weight - each.log_potential)
        self._particles = copied
        return bool(found.examples.any())

    @property
    def tokens(self) -> int:
        """Number of tokens that the model computed."""
        return sum(
            record.recomputed_tokens + record.drawn_tokens + record.scored_tokens
            for record in self._records
        )

    def posterior(self, seconds: float) -> Posterior:
        """Make the posterior from the final particles."""
        automaton, system = self._task.automaton, self._particles
        vocabulary, eos = automaton.vocabulary, set(automaton.vocabulary.eos_ids)
        distinct = {each.ids for each in system}
        answers = {ids: vocabulary.decode(content(ids, eos)) for ids in distinct}
        samples = [each.rollout(answers[each.ids]) for each in system]
        weights = Weights.of(_logs(each.log_weight for each in system))
        diagnostics = EngineDiagnostics(
            ess=tuple(record.ess for record in self._records),
            resampled=tuple(record.resampled for record in self._records),
            running=tuple(record.admissions for record in self._records),
            alive=tuple(self._alive),
            lm_calls=max(len(sample.ids) for sample in samples),
            tokens=self.tokens,
            generated=sum(len(sample.ids) for sample in samples),
            share_finished=sum(sample.finished for sample in samples) / len(samples),
            seconds=seconds,
            parts=tuple(self._records),
        )
        founders = np.array([each.founder for each in system], dtype=np.int64)
        return posterior(
            samples,
            automaton,
            log_evidence=float(weights.log_mean),
            ess=float(weights.ess),
            enumerated=False,
            diagnostics=diagnostics,
            cohorts=cohorts_of_founders(founders, len(system)),
            num_particles=len(system),
        )


def _logs(values: Iterable[float]) -> Float64[Tensor, "N"]:
    return torch.tensor([*values], dtype=torch.float64, device="cpu")


def _indices(mask: Tensor) -> Tensor:
    return mask.nonzero().squeeze(1)

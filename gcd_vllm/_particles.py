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
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
import torch
from jaxtyping import Float64
from torch import Tensor

from gcd import TokenAutomaton
from gcd_vllm._parts import DrawnPart, Engine, PartRecord, PartRequest, Plan, part_end, request_seed
from smc import SMC, Diagnostics, Draw, Posterior, Sample, Weights
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


class ParticleTask(NamedTuple):
    """One prompt with its constraint and budget.

    Attributes:
        name: the prompt's identity, from which its random numbers are derived.
        prompt: its tokens.
        constraint: JSON text of the constraint, with the budget.
        automaton: the constraint, lifted.
        budget: maximum number of tokens of an answer, EOS included.
    """

    name: int
    prompt: tuple[int, ...]
    constraint: str
    automaton: TokenAutomaton
    budget: int


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
    systems = [
        [_Particle((), (), (), 0.0, task.automaton.initial, n) for n in range(plan.particles)]
        for task in tasks
    ]
    records: list[list[PartRecord]] = [[] for _ in tasks]
    running: list[list[int]] = [[] for _ in tasks]
    alive: list[list[int]] = [[] for _ in tasks]
    number = 0
    while True:
        parts = [
            part
            for b, task in enumerate(tasks)
            for part in _parts(b, task, systems[b], plan, number, engine.block_size)
        ]
        if not parts:
            break
        found: dict[int, list[tuple[PartRequest, DrawnPart]]] = defaultdict(list)
        for part, drawn in zip(parts, engine.draw(parts), strict=True):
            found[part.example].append((part, drawn))
        for b, pairs in found.items():
            task, system = tasks[b], systems[b]
            for part, drawn in pairs:
                system[part.particle] = system[part.particle].extend(drawn, task)
            running[b].append(len(pairs))
            alive[b].append(sum(each.log_weight > -math.inf for each in system))
            ess = float(Weights.of(_log_competing(system)).ess)
            resampled = _resample(system, task, plan.resampling, number, draw)
            records[b].append(_record(pairs, ess, resampled))
        number += 1
    results = [
        _posterior(task, systems[b], records[b], running[b], alive[b])
        for b, task in enumerate(tasks)
    ]
    return _with_seconds(results, time.perf_counter() - started)


def _parts(
    example: int,
    task: ParticleTask,
    system: Sequence[_Particle],
    plan: Plan,
    number: int,
    block: int | None,
) -> list[PartRequest]:
    """Return the requests for the next tokens of every running particle of a prompt."""
    parts = []
    for n, particle in enumerate(system):
        if not particle.runs(task.budget) or particle.log_weight == -math.inf:
            continue
        taken, end = len(particle.ids), task.budget
        if plan.chunk is not None:
            end = part_end(len(task.prompt), taken, task.budget, plan.chunk, block)
        parts.append(
            PartRequest(
                example=example,
                particle=n,
                constraint=task.constraint,
                prompt=task.prompt,
                prefix=particle.ids,
                max_tokens=end - taken,
                partial=end < task.budget,
                seed=request_seed(plan.seed, task.name, n, number),
                temperature=plan.temperature,
                proposal=plan.proposal,
                pgcd=plan.pgcd,
            )
        )
    return parts


def _log_weights(system: Sequence[_Particle]) -> Float64[Tensor, "N"]:
    values = [particle.log_weight for particle in system]
    return torch.tensor(values, dtype=torch.float64, device="cpu")


def _log_competing(system: Sequence[_Particle]) -> Float64[Tensor, "N"]:
    values = [particle.log_competing for particle in system]
    return torch.tensor(values, dtype=torch.float64, device="cpu")


def _resample(
    system: list[_Particle], task: ParticleTask, how: SMC, number: int, draw: Draw
) -> bool:
    """Resample each stratum with a low effective sample size; return whether there was one."""
    running = torch.tensor([each.runs(task.budget) for each in system], device="cpu")
    states = torch.tensor([each.state for each in system], device="cpu")
    found = resample(
        Strata.of(running, states, len(system), how.strata, _indices),
        _log_competing(system),
        scheme=how.resampling,
        ess_threshold=float(how.ess_threshold),
        examples=torch.tensor([task.name], device="cpu"),
        step=torch.tensor([number], device="cpu"),
        draw=draw,
        indices=_indices,
    )
    copied = [system[n] for n in found.ancestors.tolist()]
    for n, (each, log_competing) in enumerate(zip(copied, found.log_weight.tolist(), strict=True)):
        if each is not system[n] or log_competing != each.log_competing:
            log_weight = log_competing - each.log_potential
            copied[n] = each._replace(log_weight=log_weight)
    system[:] = copied
    return bool(found.examples.any())


def _indices(mask: Tensor) -> Tensor:
    return mask.nonzero().squeeze(1)


def _record(
    pairs: Sequence[tuple[PartRequest, DrawnPart]], ess: float, resampled: bool
) -> PartRecord:
    return PartRecord(
        admissions=len(pairs),
        prompt_tokens=sum(len(part.prompt) + len(part.prefix) for part, _ in pairs),
        cached_tokens=sum(drawn.cached for _, drawn in pairs),
        drawn_tokens=sum(len(drawn.ids) for _, drawn in pairs),
        ess=ess,
        resampled=resampled,
        scored_tokens=sum(drawn.scored for _, drawn in pairs),
    )


def _posterior(
    task: ParticleTask,
    system: Sequence[_Particle],
    records: Sequence[PartRecord],
    running: Sequence[int],
    alive: Sequence[int],
) -> Posterior:
    """Make the posterior of a prompt from its final particles."""
    vocabulary = task.automaton.vocabulary
    eos = set(vocabulary.eos_ids)
    answers = {ids: vocabulary.decode(content(ids, eos)) for ids in {each.ids for each in system}}
    samples = [each.rollout(answers[each.ids]) for each in system]
    weights = Weights.of(_log_weights(system))
    diagnostics = EngineDiagnostics(
        ess=tuple(record.ess for record in records),
        resampled=tuple(record.resampled for record in records),
        running=tuple(running),
        alive=tuple(alive),
        lm_calls=max(len(sample.ids) for sample in samples),
        tokens=sum(
            record.recomputed_tokens + record.drawn_tokens + record.scored_tokens
            for record in records
        ),
        generated=sum(len(sample.ids) for sample in samples),
        share_finished=sum(sample.finished for sample in samples) / len(samples),
        seconds=0.0,
        parts=tuple(records),
    )
    founders = np.array([each.founder for each in system], dtype=np.int64)
    return posterior(
        samples,
        task.automaton,
        log_evidence=float(weights.log_mean),
        ess=float(weights.ess),
        enumerated=False,
        diagnostics=diagnostics,
        cohorts=cohorts_of_founders(founders, len(system)),
        num_particles=len(system),
    )


def _with_seconds(found: Sequence[Posterior], seconds: float) -> list[Posterior]:
    """Add to each prompt's diagnostics its share of the seconds, in proportion to its tokens."""
    read = max(1, sum(each.diagnostics.tokens for each in found))
    return [
        replace(
            each,
            diagnostics=replace(each.diagnostics, seconds=seconds * each.diagnostics.tokens / read),
        )
        for each in found
    ]

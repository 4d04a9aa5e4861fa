"""Entry point of sampling: from prompts and constraints to posteriors.

All arguments are checked before any forward pass.

Examples are sampled in batches of prompts with similar lengths (`in_batches`). The
results are returned in the order of the prompts. The division into batches affects only the speed,
apart from the rounding of batched matrix products. Random numbers are functions of (seed, example,
particle, step, purpose), and each example has separate weights.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from functools import cache, partial
from itertools import compress
from threading import Event
from typing import Any, NamedTuple

import numpy as np
import torch
from jaxtyping import Int64

from gcd import AutomatonBatch, TokenAutomaton
from smc._inference.algorithms import SMC, Discrete
from smc._inference.arguments import per_prompt
from smc._inference.deadlines import CancelToken, TimeLimit, progress, time_limit
from smc._inference.execution import Hooks, Job, Settings, hooks_of, run_eagerly
from smc._inference.particles import Outcome, Timed
from smc._models.protocol import (
    LanguageModel,
    Messages,
    Prompt,
    check_example,
    check_lifted,
    check_list,
    check_model,
    encode_prompt,
)
from smc._proposals import Batch, Proposal
from smc._proposals.masks import BudgetEffect
from smc._removed import accept_budget
from smc._results.posterior import Diagnostics, Posterior, Sample, content, posterior
from smc._results.reliability import Cohort, cohorts_of_founders, cohorts_of_selections
from smc._search.certifying import Sampled, read_on

MOST_AUTOMATA = 2 << 30
"""Maximum size of the tables of all automata in a batch, in bytes."""


@accept_budget
def sample(
    lm: LanguageModel,
    prompts: Sequence[Prompt | Messages],
    constraint: TokenAutomaton | Sequence[TokenAutomaton],
    *,
    max_tokens: int | Sequence[int],
    particles: int,
    proposal: Proposal[Any],
    algorithm: str | SMC | Discrete = "auto",
    temperature: float | int = 1.0,
    seed: int = 0,
    example_ids: Sequence[int] | None = None,
    max_rows: int = 256,
    certify: float | int | None = None,
    deadline: float | int | None = None,
    cancel: CancelToken | None = None,
    hooks: Hooks | None = None,
) -> list[Posterior]:
    """Sample answers x to each prompt from p_lm(x | x in C, |x| <= max_tokens).

    Args:
        lm: the language model.
        prompts: for each prompt, text, token ids (used as given), messages for the chat template
            of the model's tokenizer, or a prompt that the model has opened (`TransformersLM.open`).
        constraint: the constraint C, lifted to the model's vocabulary; one for all prompts, or one
            per prompt.
        max_tokens: maximum number of tokens of an answer, including EOS (the budget); one for all
            prompts, or one per prompt.
        particles: N, the number of particles per prompt. For the discrete filter, the number of
            distinct prefixes that it keeps at a time.
        proposal: `LM()`, `LCD()`, `GCD()`, or another proposal.
        algorithm: "smc", "discrete" or "auto"; or, with options, `smc.SMC(...)` or
            `smc.Discrete(...)`. "auto" is the discrete filter, unless there is only one particle.
            `Posterior.algorithm` is the algorithm that was used.
        temperature: sampling temperature. It is part of p_lm, and therefore of the target.
        seed: seed of all random numbers.
        example_ids: an integer per prompt that determines its random numbers; 0, 1, 2, … by
            default. With the same integer, a prompt gives the same result alone and in a batch.
        max_rows: maximum number of particles in one batch. The remaining prompts are sampled in
            later batches. The particles of a prompt are never split.
        certify: minimum share of the posterior to find, such as 0.9. If sampling is certain to have
            found a smaller share (`Posterior.certified`), the model computes further prefixes, the
            most probable first. The computation stops at this share, at 1,000 tokens per prompt
            (`Hooks.max_tokens_read`), or at the deadline. The answers' probabilities are then their
            probabilities under the model, divided by the sum of these (`smc._search.certifying`).
        deadline: seconds from now until the answers should be complete. Unfinished answers switch
            to a shortest completion early enough to meet it, if the model is fast enough. Zero
            gives shortest answers. `Posterior.stopped` reports whether answers were shortened
            (`docs/serving.md`).
        cancel: a `threading.Event`. Once another thread sets it, unfinished answers switch to a
            shortest completion.
        hooks: parts that tests, experiments and servers replace or observe.

    Returns:
        One posterior per prompt, in the order of `prompts`; an empty list with `hooks.finished`.

    Raises:
        InfeasibleBudgetError: a budget is shorter than the shortest answer.
        OverlongBudgetError: a budget exceeds the lengths that its constraint covers.
        PromptTooLongError: a prompt and its budget together exceed the model's context.
        ConstraintError: a constraint was lifted to another vocabulary than the model's, or the
            proposal doesn't support it. For example, the tables of `PGCD` may exceed its memory
            limit.
        ValueError: another argument is invalid. The message names the argument.
        FloatingPointError: the model's log-probabilities are NaN or +inf.
        AbandonedError: `hooks.abandon` was set.
    """
    check_model(lm)
    settings = Settings.of(
        proposal, particles, algorithm, max_rows, temperature, certify, seed, hooks
    )
    hooks = settings.hooks
    limit = time_limit(deadline, cancel, hooks.abandon)
    tasks = _tasks_of(lm, prompts, constraint, max_tokens, example_ids)
    most_bytes = math.inf if proposal.max_bytes is None else proposal.max_bytes
    room = Room(settings.max_rows, MOST_AUTOMATA, most_bytes)
    order = sorted(range(len(tasks)), key=lambda i: (len(tasks[i].prompt), i))
    batches = in_batches(order, _needs_of(tasks, settings), room)
    for batch in batches:
        proposal.check([tasks[i].automaton for i in batch], [tasks[i].budget for i in batch])
    results: dict[int, Posterior] = {}
    left = len(tasks)
    steps = [max(tasks[i].budget for i in batch) for batch in batches]
    with progress(sum(steps), "token") as bar:
        if bar is not None:
            limit = TimeLimit() if limit is None else limit
            limit.tick = bar.update
        for number, batch in enumerate(batches):
            part = None if limit is None else limit.share(len(batch) / left)
            left -= len(batch)
            posteriors = _certify(lm, [tasks[i] for i in batch], settings, part)
            if limit is not None:
                posteriors = _with_overrun(posteriors, limit.overrun())
            if bar is not None:
                bar.update(sum(steps[: number + 1]) - bar.n)
            found = dict(zip(batch, posteriors, strict=True))
            (results.update if hooks.finished is None else hooks.finished)(found)
    return [results[i] for i in sorted(results)]


@dataclass(frozen=True)
class PromptTask:
    """One example of a call: its number from `example_ids`, prompt, constraint and budget."""

    name: int
    prompt: tuple[int, ...]
    automaton: TokenAutomaton
    budget: int


def _tasks_of(
    lm: LanguageModel, prompts: Any, constraint: Any, max_tokens: Any, example_ids: Any
) -> list[PromptTask]:
    """Return the checked arguments of each prompt."""
    check_list(prompts)
    names, automata, budgets = per_prompt(len(prompts), constraint, max_tokens, example_ids)
    # An error message names the example if there are several, or if the caller named the example.
    alone = example_ids is None and len(prompts) == 1
    called: list[int | None] = [None] if alone else [*names]
    for name, automaton in zip(called, automata, strict=True):
        check_lifted(automaton, name)
    tasks = [
        PromptTask(name, encode_prompt(lm, prompt), automaton, n)
        for name, prompt, automaton, n in zip(names, prompts, automata, budgets, strict=True)
    ]
    for name, task in zip(called, tasks, strict=True):
        check_example(lm, task.prompt, task.automaton, task.budget, name)
    return tasks


def _needs_of(tasks: Sequence[PromptTask], settings: Settings) -> Callable[[Sequence[int]], Room]:
    """Return a function that computes the resources that a list of examples requires.

    Examples with the same automaton share its tables, which are therefore counted once.
    """
    proposal = settings.proposal

    @cache
    def lookahead(automaton: TokenAutomaton, budget: int) -> int:
        return 0 if proposal.max_bytes is None else proposal.memory(automaton, budget)

    def needs(numbers: Sequence[int]) -> Room:
        some = [tasks[i] for i in numbers]
        automata = {task.automaton for task in some}
        return Room(
            rows=settings.particles * len(some),
            automata=sum(automaton.table_bytes for automaton in automata),
            lookahead=sum(lookahead(*key) for key in {(t.automaton, t.budget) for t in some}),
        )

    return needs


def _certify(
    lm: LanguageModel, tasks: Sequence[PromptTask], settings: Settings, limit: TimeLimit | None
) -> list[Posterior]:
    """Sample the examples of one batch, and find the requested share of each posterior."""
    posteriors = _sample(lm, tasks, settings, limit)
    if settings.certify is None:
        return posteriors
    return read_on(
        lm,
        [
            Sampled(task.prompt, task.automaton, task.budget, each)
            for task, each in zip(tasks, posteriors, strict=True)
        ],
        certify=settings.certify, max_tokens_read=settings.hooks.max_tokens_read,
        temperature=settings.temperature, max_rows=settings.max_rows, limit=limit,
    )  # fmt: skip


def _sample(
    lm: LanguageModel, tasks: Sequence[PromptTask], settings: Settings, limit: TimeLimit | None
) -> list[Posterior]:
    """Sample the examples of one batch, and record the seconds in the diagnostics."""
    started, device, hooks = time.perf_counter(), lm.device, settings.hooks
    watch = None if hooks.observe is None else hooks.observe([task.name for task in tasks])
    timed = None if watch is None else Timed(watch)
    batch = Batch(
        AutomatonBatch([task.automaton for task in tasks], device=device),
        torch.tensor([task.budget for task in tasks], device=device),
    )
    names = torch.tensor([task.name for task in tasks], device=device)
    job = Job(lm, settings, [task.prompt for task in tasks], batch, names, timed, limit)
    # Graphs, events and kernels are created on the current device.
    with torch.cuda.device(device) if device.type == "cuda" else nullcontext():
        outcome = (hooks.run or run_eagerly)(job)
    posteriors = _posteriors(tasks, settings, outcome)
    unseen = 0.0 if timed is None else timed.seconds
    return _with_seconds(posteriors, time.perf_counter() - started - unseen, outcome.start_seconds)


def _with_seconds(
    posteriors: Sequence[Posterior], seconds: float, start_seconds: float
) -> list[Posterior]:
    """Divide the time of a batch among its examples, in proportion to their computed tokens."""
    read = sum(posterior.diagnostics.tokens for posterior in posteriors)
    return [
        replace(
            posterior,
            diagnostics=replace(
                posterior.diagnostics,
                seconds=seconds * posterior.diagnostics.tokens / read,
                start_seconds=start_seconds * posterior.diagnostics.tokens / read,
            ),
        )
        for posterior in posteriors
    ]


def _with_overrun(posteriors: Sequence[Posterior], seconds: float) -> list[Posterior]:
    """Store the seconds by which the deadline was exceeded in the diagnostics of all posteriors."""
    return [
        replace(posterior, diagnostics=replace(posterior.diagnostics, overrun=seconds))
        for posterior in posteriors
    ]


def _posteriors(
    tasks: Sequence[PromptTask], settings: Settings, outcome: Outcome
) -> list[Posterior]:
    """Copy the answers to the host, and build a posterior for each example."""
    evidence, ess = outcome.log_evidence.tolist(), outcome.ess.tolist()
    tokens, lengths = outcome.tokens.tolist(), outcome.length.tolist()
    log_weights, finished = outcome.log_weight.tolist(), outcome.finished.tolist()
    log_p = outcome.log_p.tolist()
    ends = torch.searchsorted(
        outcome.example, torch.arange(len(tasks) + 1, device="cpu").to(outcome.example)
    )
    bounds = ends.tolist()
    founder = None if outcome.founder is None else outcome.founder.cpu().numpy()
    enumerated = outcome.enumerated.tolist()
    log_upper = [None] * len(tasks) if outcome.log_upper is None else outcome.log_upper.tolist()
    N, algorithm = settings.particles, settings.algorithm
    # If all prefixes are kept with certainty, the answers aren't a random sample.
    is_random = not (isinstance(algorithm, Discrete) and algorithm.kept == N)
    closed = [False] * len(tasks) if outcome.closed is None else outcome.closed.tolist()
    effects: list[BudgetEffect | None] = [None] * len(tasks)
    if outcome.log_removed is not None:
        effects = [*map(BudgetEffect.of, outcome.log_removed.tolist(), evidence)]

    results = []
    for b, (task, diagnostics) in enumerate(zip(tasks, _diagnostics(outcome), strict=True)):
        eos = set(task.automaton.vocabulary.eos_ids)
        samples = []
        for p in range(bounds[b], bounds[b + 1]):
            ids = tuple(tokens[p][: lengths[p]])
            answer = task.automaton.vocabulary.decode(content(ids, eos))
            samples.append(Sample(ids, answer, log_weights[p], finished[p], log_p[p]))
        results.append(
            posterior(
                samples,
                task.automaton,
                log_evidence=evidence[b],
                ess=ess[b],
                enumerated=enumerated[b],
                diagnostics=replace(
                    diagnostics,
                    tokens=len(task.prompt) + diagnostics.tokens,
                    generated=sum(len(sample.ids) for sample in samples),
                    share_finished=sum(each.finished for each in samples) / max(1, len(samples)),
                ),
                log_upper=log_upper[b],
                algorithm="discrete" if isinstance(algorithm, Discrete) else "smc",
                cohorts=_cohorts_of(outcome, founder, b, slice(bounds[b], bounds[b + 1]), N)
                if is_random
                else None,
                num_particles=N,
                stopped=outcome.closed_because if closed[b] else None,
                budget=effects[b],
            )
        )
    return results


def _diagnostics(outcome: Outcome) -> Iterator[Diagnostics]:
    """Yield the records of each example's steps, without its prompt and its answers."""
    # Over all examples at once, because an operation on a small tensor takes microseconds.
    record = outcome.history
    took = record.running > 0
    every = {
        name: getattr(record, name).T.tolist() for name in ("ess", "resampled", "running", "alive")
    }
    sums = {
        name: (getattr(record, name) * took).sum(dim=0).tolist()
        for name in ("fallbacks", "forced", "drafted", "used", "landed")
    }
    calls, read = ((field * took).sum(dim=0).tolist() for field in (record.read > 0, record.read))
    for b, steps in enumerate(took.T.tolist()):
        own: dict[str, Any] = {name: values[b] for name, values in sums.items()}
        own |= {name: tuple(compress(values[b], steps)) for name, values in every.items()}
        yield Diagnostics(
            **own,
            lm_calls=1 + calls[b],
            tokens=read[b],
            generated=0,
            share_finished=0.0,
            seconds=0.0,
        )


def _cohorts_of(
    outcome: Outcome,
    founder: Int64[np.ndarray, "M"] | None,
    b: int,
    rows: slice,
    num_particles: int,
) -> list[Cohort]:
    """Return the ancestry of an example's sequences, from which errors are estimated.

    `smc._results.reliability` explains these cohorts.
    """
    if founder is not None:
        return cohorts_of_founders(founder[rows], num_particles)
    assert outcome.log_pi is not None
    assert outcome.selections is not None
    tokens, log_pi = outcome.tokens[rows].cpu().numpy(), outcome.log_pi[rows].cpu().numpy()
    uncertain, slack = (field[b].cpu().numpy() for field in outcome.selections)
    return cohorts_of_selections(tokens, log_pi, uncertain, slack)


class Room(NamedTuple):
    """Amount of each resource that limits a batch: either the available or the required amount.

    Attributes:
        rows: number of rows of the language model.
        automata: bytes of the automata's tables.
        lookahead: bytes of the proposals' lookahead tables.
    """

    rows: float
    automata: float
    lookahead: float

    def holds(self, taken: Room) -> bool:
        """Return whether a batch that requires `taken` of each resource fits into this room."""
        return all(there >= wanted for there, wanted in zip(self, taken, strict=True))


def in_batches(
    examples: Sequence[int], needs: Callable[[Sequence[int]], Room], room: Room
) -> list[list[int]]:
    """Divide examples into batches that fit into memory, keeping their order.

    Batches are formed before any forward pass. Therefore the division doesn't depend on the
    sampling, and a proposal can check each batch beforehand. A batch runs until its last example
    has finished (`docs/design.md` explains why). A batch with a single example may exceed the
    limits.

    Args:
        needs: function that returns the resources that a list of examples requires together; more
            examples never require less.
    """
    batches: list[list[int]] = []
    start = 0
    while start < len(examples):
        # Double the batch while it fits, then bisect; one call per example would be quadratic.
        count, step, grows = 1, 1, True
        while step:
            end = start + count + step
            if end <= len(examples) and room.holds(needs(examples[start:end])):
                count += step
            else:
                grows = False
            step = 2 * step if grows else step // 2
        batches.append(list(examples[start : start + count]))
        start += count
    return batches


@accept_budget
async def sample_async(
    lm: LanguageModel,
    prompts: Sequence[Prompt | Messages],
    constraint: TokenAutomaton | Sequence[TokenAutomaton],
    *,
    hooks: Hooks | None = None,
    **options: Any,
) -> list[Posterior]:
    """Run `smc.sample` in a thread, and await its result.

    If the task is canceled, sampling stops at its next step without a result. The task waits for
    this step, and then ends with `asyncio.CancelledError`. To get answers by a certain time, pass
    `deadline` instead, or pass an event as `cancel` and set it.

    Args:
        lm, prompts, constraint, hooks, options: as for `smc.sample`.

    Raises:
        ValueError: an argument is invalid. Other errors of `smc.sample` are raised, too.
    """
    abandon = Event()
    hooks = replace(hooks_of(hooks, "abandon"), abandon=abandon)
    call = partial(sample, lm, prompts, constraint, hooks=hooks, **options)
    thread = asyncio.get_running_loop().run_in_executor(None, call)
    thread.add_done_callback(_look_at)
    try:
        return await asyncio.shield(thread)
    except asyncio.CancelledError:
        abandon.set()
        await asyncio.wait([thread])
        raise


def _look_at(thread: asyncio.Future[Any]) -> None:
    """Retrieve the thread's error, so that asyncio doesn't report the error as unhandled."""
    if not thread.cancelled():
        thread.exception()

"""Posteriors from an engine: the call of `smc.sample`, where a model is served."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any, Unpack

from gcd import ConstraintError, TokenAutomaton, Vocabulary, check_budget
from gcd._requests import ConstraintRequest
from gcd._serving.constraint_cache import ConstraintCache
from gcd_vllm._in_process import InProcessEngine
from gcd_vllm._particles import Task, run
from gcd_vllm._parts import Engine, Plan
from gcd_vllm._registered import PGCD
from gcd_vllm._server_engine import ServerEngine
from smc import GCD, LCD, CounterDraw, Draw, Posterior
from smc._inference.algorithms import SMC, Options, algorithm
from smc._inference.settings import check_temperature, real, whole
from smc._models.checks import check_list
from smc._models.protocol import check_ids, check_length

Constraint = Mapping[str, Any] | str
"""A constraint as requests state it, `{"json_schema": {...}}`, or the JSON text of one."""


def sample(
    llm: Any,
    prompts: Sequence[str | Sequence[int]],
    constraint: Constraint | Sequence[Constraint],
    *,
    budget: int | Sequence[int],
    particles: int,
    proposal: str | GCD | LCD | PGCD = "gcd",
    temperature: float | int = 1.0,
    seed: int = 0,
    example_ids: Sequence[int] | None = None,
    chunk: int | None = None,
    draw: Draw | None = None,
    **options: Unpack[Options],
) -> list[Posterior]:
    """Sample answers x to each prompt from p_lm(x | x in C, |x| <= budget), inside of vLLM.

    Args:
        llm: a `vllm.LLM`, started with `worker_extension_cls="gcd_vllm.WorkerExtension"`.
        prompts: text, or token ids taken as they are.
        constraint: C, as requests state it; one for all prompts, or one for each.
        budget: most tokens of an answer, EOS included; for all prompts, or one for each.
        particles: N, per prompt.
        proposal: "gcd" or "lcd", or `smc.GCD()` or `smc.LCD()`; or `gcd_vllm.PGCD(...)`, for an
            engine that was started with a directory of HMMs.
        temperature: part of p_lm, hence of the target.
        seed: of all random numbers (`gcd_vllm._seeds`).
        example_ids: identities that name each prompt's random numbers; 0, 1, 2, … if not given.
        chunk: tokens after which particles may be resampled, at least; they are then resubmitted
            with their tokens so far (`gcd_vllm._parts`). None resamples nothing.
        draw: replaces the random numbers of resampling.
        options: `resampling`, `ess_threshold`, `strata`, as of `smc.sample`.

    Returns:
        One posterior per prompt, in order. Its particles are `gcd_vllm.Rollout`s, its diagnostics
        `gcd_vllm.EngineDiagnostics`. An engine reports no probabilities of tokens that weren't
        drawn, so there are no bounds: `certified` is None, and the label never "certified".

    Raises:
        InfeasibleBudgetError: a budget is shorter than the shortest answer.
        PromptTooLongError: a prompt leaves too little of `max_model_len`.
        ConstraintError: a constraint doesn't compile, or the engine has no room for it.
        ValueError: the engine lacks the plugin or its extension, or an argument makes no sense.
            All of these are raised before anything is generated.
        EngineStoppedError: the engine stopped in the middle; with what had finished.
    """
    engine = InProcessEngine(llm)
    return sample_with(
        engine, engine.cache, prompts, constraint, budget=budget, particles=particles,
        proposal=proposal, temperature=temperature, seed=seed, example_ids=example_ids,
        chunk=chunk, draw=draw, options=options,
    )  # fmt: skip


def sample_from_server(
    url: str,
    prompts: Sequence[str | Sequence[int]],
    constraint: Constraint | Sequence[Constraint],
    *,
    vocabulary: Vocabulary,
    budget: int | Sequence[int],
    particles: int,
    proposal: str | GCD | LCD | PGCD = "gcd",
    seed: int = 0,
    example_ids: Sequence[int] | None = None,
    chunk: int | None = None,
    model: str | None = None,
    api_key: str | None = None,
    connections: int = 64,
    draw: Draw | None = None,
    **options: Unpack[Options],
) -> list[Posterior]:
    """Do as `sample` over HTTP, with a server of vLLM that speaks OpenAI's API.

    The server needs nothing but this project's logits processor, and log-probabilities after masks:
    `vllm serve MODEL --logits-processors gcd_vllm:Processor --logprobs-mode processed_logprobs`.
    The temperature is 1. Every part is read once more by the model for its weights
    (`gcd_vllm._server_engine`; `EngineDiagnostics.parts` counts the tokens).

    Args:
        url: address of the server.
        prompts, constraint, budget, particles, proposal, seed, example_ids, chunk, draw: as of
            `sample`.
        vocabulary: of the server's model, such as
            `gcd.Vocabulary.from_tokenizer(tokenizer, size=number_of_logits)`.
        model: name of the model; the first one that the server lists if not given.
        api_key: sent as a bearer token.
        connections: most requests at a time.
        options: as of `sample`.

    Raises:
        InfeasibleBudgetError, PromptTooLongError, ConstraintError, EngineStoppedError: as `sample`.
        ValueError: an argument makes no sense, or one generated token shows that the server lacks
            what is needed; the message says how to start one.
    """
    engine = ServerEngine(
        url,
        vocabulary,
        model=model,
        api_key=api_key,
        connections=_positive("connections", connections),
    )
    return sample_with(
        engine, ConstraintCache(vocabulary), prompts, constraint, budget=budget,
        particles=particles, proposal=proposal, temperature=1.0, seed=seed,
        example_ids=example_ids, chunk=chunk, draw=draw, options=options,
    )  # fmt: skip


def sample_with(
    engine: Engine,
    cache: ConstraintCache,
    prompts: Sequence[str | Sequence[int]],
    constraint: Constraint | Sequence[Constraint],
    *,
    budget: int | Sequence[int],
    particles: int,
    proposal: str | GCD | LCD | PGCD,
    temperature: float | int,
    seed: int,
    example_ids: Sequence[int] | None,
    chunk: int | None,
    draw: Draw | None,
    options: Options,
) -> list[Posterior]:
    """Do as `sample` with any engine, whose constraints are compiled by this cache."""
    check_list(prompts)
    names = (
        list(range(len(prompts)))
        if example_ids is None
        else [whole("example_ids", each) for each in example_ids]
    )
    constraints = [constraint] * len(prompts) if _is_one(constraint) else list(constraint)
    if isinstance(budget, Sequence) and not isinstance(budget, str):
        budgets = [whole("budget", each) for each in budget]
    else:
        budgets = [whole("budget", budget)] * len(prompts)
    for what, given in (("constraints", constraints), ("budgets", budgets), ("example_ids", names)):
        if len(given) != len(prompts):
            raise ValueError(
                f"expected {len(prompts)} {what}, one for each prompt; got {len(given)}"
            )
    plan = Plan(
        particles=_positive("particles", particles),
        proposal=_proposal(proposal),
        pgcd=proposal if isinstance(proposal, PGCD) else None,
        temperature=check_temperature(real("temperature", temperature)),
        seed=whole("seed", seed),
        chunk=None if chunk is None else _positive("chunk", chunk),
        resampling=_resampling(options, chunk),
    )
    engine.check_plan(plan)
    tasks = []
    alone = example_ids is None and len(prompts) == 1
    for name, prompt, each, n in zip(names, prompts, constraints, budgets, strict=True):
        text, automaton = _compiled(each, n, cache)
        ids = engine.encode(prompt)
        example = None if alone else name
        check_ids(ids, engine.vocabulary.size, example)
        check_budget(automaton, n, "" if alone else f"example {name}")
        check_length(ids, n, engine.context, example)
        tasks.append(Task(name, tuple(ids), text, automaton, n))
    return run(engine, tasks, plan, CounterDraw(plan.seed) if draw is None else draw)


def _is_one(constraint: object) -> bool:
    return isinstance(constraint, str | Mapping) or not isinstance(constraint, Sequence)


def _compiled(constraint: Any, budget: int, cache: ConstraintCache) -> tuple[str, TokenAutomaton]:
    """Return the JSON text of a constraint with this budget, and the constraint, lifted."""
    if isinstance(constraint, str):
        try:
            constraint = json.loads(constraint)
        except ValueError as error:
            raise ConstraintError(
                "expected a constraint such as {'json_schema': {...}}, got "
                f"{constraint[:60]!r} ({error})"
            ) from None
    if not isinstance(constraint, Mapping):
        raise ConstraintError(
            "expected a constraint as requests state it, such as {'json_schema': {...}}, because "
            f"the engine compiles it; got {type(constraint).__name__}"
        )
    for member in ("budget", "deadline_ms"):
        if member in constraint:
            raise ConstraintError(
                f"expected a constraint without {member!r}, got {constraint[member]!r}; give "
                "budget= instead, weights of answers under a deadline aren't known"
            )
    text = json.dumps({**constraint, "budget": budget})
    return text, cache.get(ConstraintRequest.parse(text))


def _proposal(given: object) -> str:
    if isinstance(given, PGCD):
        return "pgcd"
    if isinstance(given, GCD | LCD):
        return "gcd" if isinstance(given, GCD) else "lcd"
    if given not in ("gcd", "lcd"):
        raise ValueError(
            f"expected proposal 'gcd', 'lcd' or gcd_vllm.PGCD(name of an HMM), got {given!r}; for "
            "others use smc.sample"
        )
    return str(given)


def _positive(what: str, value: object) -> int:
    number = whole(what, value)
    if number < 1:
        raise ValueError(f"expected {what} of at least 1, got {number}")
    return number


def _resampling(options: Options, chunk: int | None) -> SMC:
    if options and chunk is None:
        raise ValueError(
            f"expected chunk= beside {', '.join(options)}, got none; without it nothing is "
            "resampled"
        )
    found = algorithm("smc", options)
    assert isinstance(found, SMC), "it is the class of that name"
    return found

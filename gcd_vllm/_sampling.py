"""Posteriors from vLLM, with the arguments of `smc.sample`."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from gcd import ConstraintError, TokenAutomaton, Vocabulary, check_budget
from gcd_vllm._constraint_cache import ConstraintCache
from gcd_vllm._hmm_registry import PGCD
from gcd_vllm._in_process import InProcessEngine
from gcd_vllm._particles import run
from gcd_vllm._parts import Engine, ParticleTask, Plan
from gcd_vllm._requests import ConstraintRequest
from gcd_vllm._server_engine import ServerEngine
from smc import GCD, LCD, SMC, CounterDraw, Draw, Posterior
from smc._inference.arguments import check_temperature, per_prompt, real, whole
from smc._models.protocol import check_ids, check_length, check_list
from smc._removed import accept_budget

Constraint = Mapping[str, Any] | str | TokenAutomaton
"""A constraint in the form of a request, such as `{"json_schema": {...}}`, or its JSON text. In the
engine's own process, it can also be an automaton over the engine's vocabulary."""


@accept_budget
def sample(
    llm: Any,
    prompts: Sequence[str | Sequence[int]],
    constraint: Constraint | Sequence[Constraint],
    *,
    max_tokens: int | Sequence[int],
    particles: int,
    proposal: str | GCD | LCD | PGCD = "gcd",
    temperature: float | int = 1.0,
    seed: int = 0,
    example_ids: Sequence[int] | None = None,
    chunk: int | None = None,
    algorithm: SMC | None = None,
    draw: Draw | None = None,
) -> list[Posterior]:
    """Sample answers x to each prompt from p_lm(x | x in C, |x| <= max_tokens), in vLLM.

    Args:
        llm: a `vllm.LLM`, started with `worker_extension_cls="gcd_vllm.WorkerExtension"`.
        prompts: text, or token ids, used as given.
        constraint: C, in the form of a request's constraint (`docs/vllm.md`), or as the automaton
            of `gcd.lift` with `vocabulary_of(llm)`; one for all prompts, or one per prompt.
        max_tokens: maximum number of tokens of an answer, including EOS (the budget); one for all
            prompts, or one per prompt.
        particles: N, the number of particles per prompt.
        proposal: "gcd" or `smc.GCD()`; "lcd" or `smc.LCD()`; or, if the engine was started with a
            directory of HMMs, `gcd_vllm.PGCD(...)`.
        temperature: part of p_lm, and therefore of the target.
        seed: seed of all random numbers (`gcd_vllm._parts`).
        example_ids: identities of the prompts, from which their random numbers are derived; by
            default 0, 1, 2, …
        chunk: minimum number of tokens of a part of an answer. After each part, particles may be
            resampled and are resubmitted with their tokens so far (`gcd_vllm._parts`). None:
            particles are never resampled.
        algorithm: how particles are resampled; `smc.SMC()` by default.
        draw: random number generator for resampling; None for the default.

    Returns:
        One posterior per prompt, in order. Its particles are `gcd_vllm.Rollout` objects, and its
        diagnostics are a `gcd_vllm.EngineDiagnostics`. There are no bounds, because an engine
        doesn't report probabilities of tokens that weren't drawn. So `certified` is None, and the
        label is never "certified".

    Raises:
        InfeasibleBudgetError: a budget is smaller than the shortest answer.
        PromptTooLongError: prompt and budget together exceed `max_model_len`.
        ConstraintError: a constraint doesn't compile, or doesn't fit into the engine's memory for
            constraints.
        ValueError: the engine lacks the plugin or the worker extension, an argument is invalid, or
            an engine on a CPU would read a prompt in several steps (`gcd_vllm._prefill`). This
            error and the errors above are raised before any token is generated.
        EngineStoppedError: the engine stopped during sampling.
    """
    engine = InProcessEngine(llm)
    plan = _plan(particles, proposal, temperature, seed, chunk, algorithm)
    return _sample(engine, engine.cache, prompts, constraint, max_tokens, example_ids, plan, draw)


def vocabulary_of(llm: Any) -> Vocabulary:
    """Return the vocabulary of an engine's model, with which `gcd.lift` makes constraints for it.

    Args:
        llm: a `vllm.LLM`, started with `worker_extension_cls="gcd_vllm.WorkerExtension"`.

    Raises:
        ValueError: the engine lacks the plugin or the worker extension.
    """
    return InProcessEngine(llm).vocabulary


@accept_budget
def sample_from_server(
    url: str,
    prompts: Sequence[str | Sequence[int]],
    constraint: Constraint | Sequence[Constraint],
    *,
    vocabulary: Vocabulary,
    max_tokens: int | Sequence[int],
    particles: int,
    proposal: str | GCD | LCD | PGCD = "gcd",
    seed: int = 0,
    example_ids: Sequence[int] | None = None,
    chunk: int | None = None,
    model: str | None = None,
    api_key: str | None = None,
    connections: int = 64,
    algorithm: SMC | None = None,
    draw: Draw | None = None,
) -> list[Posterior]:
    """Sample as `sample` does, over HTTP, from a vLLM server with OpenAI's API.

    Start the server with `vllm serve MODEL --logits-processors gcd_vllm:Processor --logprobs-mode
    processed_logprobs`, so that it has this project's logits processor and returns
    log-probabilities after masking. The temperature is 1. The model computes every part a second
    time, for the weights (`gcd_vllm._server_engine`; `EngineDiagnostics.parts` counts the tokens).

    Args:
        url: address of the server.
        prompts, constraint, max_tokens, particles, proposal, seed: as in `sample`.
        example_ids, chunk, algorithm, draw: as in `sample`.
        vocabulary: vocabulary of the server's model, such as
            `gcd.Vocabulary.from_tokenizer(tokenizer, size=number_of_logits)`.
        model: name of the model; by default the first model that the server lists.
        api_key: the server's API key, sent as a bearer token.
        connections: maximum number of simultaneous requests.

    Raises:
        InfeasibleBudgetError, PromptTooLongError, ConstraintError, EngineStoppedError: as in
            `sample`.
        ValueError: an argument is invalid, or the first generated token shows that the server
            wasn't started with the options above. The message gives the command to start it.
    """
    connections = _positive("connections", connections)
    engine = ServerEngine(url, vocabulary, model=model, api_key=api_key, connections=connections)
    plan = _plan(particles, proposal, 1.0, seed, chunk, algorithm)
    cache = ConstraintCache(vocabulary)
    return _sample(engine, cache, prompts, constraint, max_tokens, example_ids, plan, draw)


def _sample(
    engine: Engine,
    cache: ConstraintCache,
    prompts: Sequence[str | Sequence[int]],
    constraint: Constraint | Sequence[Constraint],
    max_tokens: int | Sequence[int],
    example_ids: Sequence[int] | None,
    plan: Plan,
    draw: Draw | None,
) -> list[Posterior]:
    """Sample with an engine in this process or on a server; `cache` compiles the constraints."""
    check_list(prompts)
    names, constraints, budgets = per_prompt(len(prompts), constraint, max_tokens, example_ids)
    tasks = []
    alone = example_ids is None and len(prompts) == 1
    for name, prompt, each, n in zip(names, prompts, constraints, budgets, strict=True):
        if isinstance(each, TokenAutomaton):
            text, automaton = json.dumps({**engine.keep(each), "budget": n}), each
        else:
            text, automaton = _compile(each, n, cache)
        ids = engine.encode(prompt)
        example = None if alone else name
        check_ids(ids, engine.vocabulary.size, example)
        check_budget(automaton, n, "" if alone else f"example {name}")
        check_length(ids, n, engine.context, example)
        tasks.append(ParticleTask(name, tuple(ids), text, automaton, n))
    engine.check(tasks, plan)
    return run(engine, tasks, plan, CounterDraw(plan.seed) if draw is None else draw)


def _compile(constraint: Any, budget: int, cache: ConstraintCache) -> tuple[str, TokenAutomaton]:
    """Return the JSON text of a constraint with this budget, and the lifted constraint."""
    if not isinstance(constraint, Mapping | str):
        raise ConstraintError(
            "expected a constraint in the form of a request, such as {'json_schema': {...}}, got "
            f"{type(constraint).__name__}; the engine compiles the constraint itself"
        )
    text = constraint if isinstance(constraint, str) else json.dumps({**constraint})
    request = ConstraintRequest.parse(text)
    for member in ("budget", "deadline_ms"):
        value = getattr(request, member)
        if value is not None:
            raise ConstraintError(
                f"expected a constraint without {member!r}, got {value!r}; pass max_tokens= "
                "instead, because weights of answers under a deadline aren't known"
            )
    given = {request.kind: request.value, "options": request.options, "budget": budget}
    return json.dumps(given), cache.get(request)


def _plan(
    particles: int,
    proposal: str | GCD | LCD | PGCD,
    temperature: float | int,
    seed: int,
    chunk: int | None,
    algorithm: SMC | None,
) -> Plan:
    return Plan(
        particles=_positive("particles", particles),
        proposal=_proposal(proposal),
        pgcd=proposal if isinstance(proposal, PGCD) else None,
        temperature=check_temperature(real("temperature", temperature)),
        seed=whole("seed", seed),
        chunk=None if chunk is None else _positive("chunk", chunk),
        resampling=_resampling(algorithm, chunk),
    )


def _proposal(given: object) -> str:
    if isinstance(given, PGCD):
        return "pgcd"
    if type(given) in (GCD, LCD):  # a subclass may have another `guide`
        return "gcd" if type(given) is GCD else "lcd"
    if given not in ("gcd", "lcd"):
        raise ValueError(
            f"expected proposal 'gcd', 'lcd' or gcd_vllm.PGCD(name of an HMM), got {given!r}; for "
            "other proposals use smc.sample"
        )
    return str(given)


def _positive(what: str, value: object) -> int:
    number = whole(what, value)
    if number < 1:
        raise ValueError(f"expected {what} of at least 1, got {number}")
    return number


def _resampling(algorithm: SMC | None, chunk: int | None) -> SMC:
    if algorithm is None:
        return SMC()
    if not isinstance(algorithm, SMC):
        raise ValueError(f"expected algorithm to be a smc.SMC(...) or None, got {algorithm!r}")
    if chunk is None:
        raise ValueError(
            f"expected chunk= together with algorithm={algorithm!r}, got none; add it, because "
            "without it particles aren't resampled"
        )
    return algorithm

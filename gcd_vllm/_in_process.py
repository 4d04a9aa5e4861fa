"""Sampling engine on top of a `vllm.LLM`: it draws tokens of particles, with their weights."""

from __future__ import annotations

import math
import secrets
from collections.abc import Iterator, Sequence
from concurrent.futures import InvalidStateError
from contextlib import contextmanager, suppress
from dataclasses import replace
from threading import Event, Thread
from typing import Any

from gcd import ConstraintError, TokenAutomaton, Vocabulary
from gcd_vllm._admission import NAME, admission_of, check_twist
from gcd_vllm._particle_request import NO_WEIGHTS, PARTICLE, VERSION
from gcd_vllm._parts import DrawnPart, EngineStoppedError, ParticleTask, PartRequest, Plan
from gcd_vllm._prefill import check_prefill
from gcd_vllm._weight_table import LOG_P, LOG_P_EOS, LOG_Q, LOG_Z
from smc._models.protocol import token_ids

EXTENSION = "gcd_vllm.WorkerExtension"
"""Value of the engine's `worker_extension_cls`."""
_PROCESSOR = "gcd_vllm:Processor"
_AT_ONCE = 1 << 13  # particles in a batch, which bounds the memory for weights on the device
_INTERVAL = 0.25  # seconds between two checks whether the engine's process has ended
_START = f'LLM(model, worker_extension_cls="{EXTENSION}", logits_processors=["{_PROCESSOR}"])'


class InProcessEngine:
    """A vLLM engine in this process, whose workers store the weights.

    A `vllm.LLM` without this project's logits processor and worker extension is refused, and one
    whose workers have another version of the plugin.
    """

    def __init__(self, llm: Any) -> None:
        self._llm = llm
        config = getattr(getattr(llm, "llm_engine", None), "vllm_config", None)
        if config is None:
            raise ValueError(
                f"expected a vllm.LLM, got {type(llm).__name__}; for a server call "
                "gcd_vllm.sample_from_server(url, ...)"
            )
        self._config = config
        _check_config(config)
        _check_status(llm, config)

    @property
    def vocabulary(self) -> Vocabulary:
        return self.cache.vocabulary

    @property
    def cache(self) -> Any:
        """The cache of compiled constraints that the engine's frontend uses, too."""
        return admission_of(self._config).cache

    def keep(self, automaton: TokenAutomaton) -> dict[str, str]:
        """Store an automaton in the engine's cache; return a constraint that refers to it."""
        request = self.cache.keep(automaton)
        return {request.kind: request.value}

    @property
    def context(self) -> int:
        return int(self._config.model_config.max_model_len)

    @property
    def block_size(self) -> int | None:
        cache = self._config.cache_config
        return int(cache.block_size) if cache.enable_prefix_caching else None

    def encode(self, prompt: str | Sequence[int]) -> list[int]:
        if isinstance(prompt, str):
            return list(self._llm.get_tokenizer().encode(prompt))
        return token_ids(prompt)

    def draw(self, parts: Sequence[PartRequest]) -> list[DrawnPart]:
        """Draw all parts, in batches whose weights fit into the workers' tables."""
        batches = range(0, len(parts), _AT_ONCE)
        with _watch(self._llm):
            return [drawn for n in batches for drawn in self._draw(parts[n : n + _AT_ONCE])]

    def _draw(self, parts: Sequence[PartRequest]) -> list[DrawnPart]:
        """Draw parts in one batch of requests, and fetch their weights from the workers."""
        run = secrets.token_hex(8)
        outputs: dict[str, Any] = {}
        keys = [f"{run}/{part.example}/{part.particle}" for part in parts]
        engine = self._llm.llm_engine
        asked: list[str] = []
        try:
            for key, part, prompt in zip(keys, parts, self._render(parts), strict=True):
                try:
                    given = parameters(part, key, self._hides_last(part))
                    engine.add_request(key, prompt, given)
                except Exception as error:  # vLLM's own kind, which isn't a ValueError
                    if _is_dead(self._llm):
                        raise
                    raise ConstraintError(
                        f"the engine refused example {part.example}: {error}"
                    ) from error
                asked.append(key)
            while engine.has_unfinished_requests():
                outputs |= {each.request_id: each for each in engine.step() if each.finished}
            weights = self._fetch(run)
        except BaseException as error:
            with suppress(Exception):  # an engine that has died can't do this
                engine.abort_request([key for key in asked if key not in outputs])
                self._llm.collective_rpc("gcd_forget_weights", args=(run,))
            if isinstance(error, ValueError) or not isinstance(error, Exception):
                raise
            raise EngineStoppedError(error) from error
        return [
            self._read_drawn(outputs[key], weights.get(key), part)
            for key, part in zip(keys, parts, strict=True)
        ]

    def _render(self, parts: Sequence[PartRequest]) -> Sequence[Any]:
        """Return the prompts of these parts in the form that vLLM expects."""
        prompts = [{"prompt_token_ids": [*part.prompt, *part.prefix]} for part in parts]
        renderer = getattr(self._llm, "renderer", None)
        return prompts if renderer is None else list(renderer.render_cmpl(prompts))

    def _hides_last(self, part: PartRequest) -> bool:
        """Return whether the workers may miss the last token of a part, if it isn't an EOS.

        With asynchronous scheduling, V1 doesn't pass the last token of a part to them.
        """
        return self._is_ahead and (part.weighted.partial or part.weighted.proposal == "lcd")

    @property
    def _is_ahead(self) -> bool:
        """Return whether this is V1 with asynchronous scheduling."""
        config = self._config
        return bool(config.scheduler_config.async_scheduling and not config.use_v2_model_runner)

    def _find_log_p(self, answer: Any, position: int, values: Sequence[float]) -> float:
        """Return log p of a token that V1 didn't pass to the workers.

        For an EOS token the workers have stored it; for others vLLM reports it.
        """
        token, eos = answer.token_ids[position], self.vocabulary.eos_ids
        if token in eos:
            return values[LOG_P_EOS + eos.index(token)]
        reported = float(answer.logprobs[position][token].logprob)
        if self._config.model_config.logprobs_mode == "processed_logprobs":
            reported += values[LOG_Z]
        return reported

    def check(self, tasks: Sequence[ParticleTask], plan: Plan) -> None:
        """Raise an error if this engine can't compute weights, or would stop, with these tasks."""
        if plan.pgcd is not None:
            check_twist(plan.pgcd, self._config)
        mode = self._config.model_config.logprobs_mode
        known = mode == "processed_logprobs" or (mode == "raw_logprobs" and plan.temperature == 1)
        is_partial = plan.chunk is not None or plan.proposal == "lcd"
        if not known and self._is_ahead and is_partial:
            raise ValueError(
                "expected logprobs_mode='processed_logprobs', or 'raw_logprobs' at temperature 1, "
                f"got {mode!r} at temperature {plan.temperature}; start the engine with "
                "logprobs_mode='processed_logprobs', or omit chunk= and proposal='lcd'"
            )
        prompts, budgets = [each.prompt for each in tasks], [each.budget for each in tasks]
        check_prefill(self._config, prompts, budgets, plan)

    def _fetch(self, run: str) -> dict[str, Any]:
        """Fetch a run's weights; return, for each particle, the longest of the workers' results."""
        found: dict[str, Any] = {}
        for each in self._llm.collective_rpc("gcd_take_weights", args=(run,)):
            for key, values in each.items():
                found[key] = max(found.get(key, values), values, key=len)
        return found

    def _read_drawn(self, output: Any, values: Any, part: PartRequest) -> DrawnPart:
        ids = tuple(output.outputs[0].token_ids)
        if isinstance(values, str):
            raise ConstraintError(values)
        if values is None or len(values) < len(ids):
            have = 0 if values is None else len(values)
            raise RuntimeError(
                f"expected weights of {len(ids)} tokens from the engine, got {have}; start it with "
                f"{_START}"
            )
        log_z = tuple(step[LOG_Z] for step in values[: len(ids)])
        log_p = [step[LOG_P] for step in values[: len(ids)]]
        for position, value in enumerate(log_p):
            if math.isnan(value):
                log_p[position] = self._find_log_p(output.outputs[0], position, values[position])
        cached = int(output.num_cached_tokens or 0)
        if part.weighted.pgcd is None:
            return DrawnPart(ids, log_z, tuple(log_p), cached)
        ratios = tuple(p - step[LOG_Q] for p, step in zip(log_p, values, strict=False))
        # p / q = Z / g, and g of the last token is the potential.
        return DrawnPart(ids, ratios, tuple(log_p), cached, log_potential=log_z[-1] - ratios[-1])


def parameters(part: PartRequest, key: str, with_log_p: bool = False) -> Any:
    """Return vLLM's `SamplingParams` for a part; options that change the distribution are off."""
    from vllm import SamplingParams
    from vllm.sampling_params import RequestOutputKind

    return SamplingParams(
        max_tokens=part.max_tokens,
        temperature=part.temperature,
        top_p=1.0,
        top_k=0,
        min_p=0.0,
        presence_penalty=0.0,
        frequency_penalty=0.0,
        repetition_penalty=1.0,
        seed=part.seed,
        detokenize=False,
        output_kind=RequestOutputKind.FINAL_ONLY,
        logprobs=0 if with_log_p else None,
        extra_args={NAME: part.constraint, PARTICLE: replace(part.weighted, key=key).text()},
    )


def _check_config(config: Any) -> None:
    """Raise an error if the engine's configuration doesn't support weights."""
    if config.speculative_config is not None:
        raise ValueError(NO_WEIGHTS)
    found = getattr(config.parallel_config, "worker_extension_cls", "")
    if not found:
        raise ValueError(
            f"expected an engine with worker_extension_cls={EXTENSION!r}, got none; start it with "
            f"{_START}"
        )
    others = [each for each in config.model_config.logits_processors or () if not _is_ours(each)]
    if others:
        raise ValueError(
            f"expected {_PROCESSOR} to be the only logits processor, got also {others}; start an "
            "engine without other processors, because they change the sampled distribution"
        )


def _is_ours(processor: Any) -> bool:
    if isinstance(processor, str):
        return processor == _PROCESSOR
    return getattr(processor, "__module__", "").partition(".")[0] == "gcd_vllm"


def _check_status(llm: Any, config: Any) -> None:
    """Raise an error if the engine's workers lack the extension or the processor."""
    try:
        with _watch(llm):
            found = llm.collective_rpc("gcd_status")[0]
    except Exception as error:
        if _is_dead(llm):
            raise ValueError(
                "expected a running engine, got one whose process has ended; start the engine again"
            ) from error
        raise ValueError(
            f"expected worker_extension_cls={EXTENSION!r} or a subclass, got "
            f"{config.parallel_config.worker_extension_cls!r} ({error}); start the engine with "
            f"{_START}"
        ) from error
    if found["version"] != VERSION:
        raise ValueError(
            f"expected version {VERSION} of the plugin in the workers, got {found['version']}; "
            "install the same version everywhere"
        )
    if not found["processors"]:
        raise ValueError(
            f"expected the logits processor {_PROCESSOR} in the engine, got none; start it with "
            f"{_START}, and look in its log for lines that begin with `gcd is disabled`"
        )


def _is_dead(llm: Any) -> bool:
    """Return whether the process of this engine has ended."""
    client = getattr(getattr(llm, "llm_engine", None), "engine_core", None)
    return bool(getattr(getattr(client, "resources", None), "engine_dead", False))


@contextmanager
def _watch(llm: Any) -> Iterator[None]:
    """Raise an error in calls of the engine within this context if its process ends.

    The client of vLLM 0.32 then marks itself as dead, but doesn't wake a thread that waits for the
    engine's outputs or for the result of `collective_rpc`, which would wait forever.
    """
    over = Event()

    def wake() -> None:
        error = RuntimeError("the engine's process has ended; its log may say why")
        while not over.wait(_INTERVAL):
            if _is_dead(llm):
                client = llm.llm_engine.engine_core
                client.outputs_queue.put_nowait(error)
                for future in list(client.utility_results.values()):
                    with suppress(InvalidStateError):  # its result has arrived
                        future.set_exception(error)

    Thread(target=wake, name="gcd_vllm.watched", daemon=True).start()
    try:
        yield
    finally:
        over.set()

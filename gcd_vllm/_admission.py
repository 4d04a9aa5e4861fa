"""Admission control: compile and validate the constraint of a vLLM request.

The frontend and the engine make the same checks. The frontend makes them first, because it can
return an error to the client, whereas the engine can only end the request. Some errors are only
found by the engine, for example if the frontend doesn't have the vocabulary. The engine then forces
the answer to be the text of the error (`Admission.refuse`).
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import cached_property
from threading import Lock, Thread
from time import monotonic
from typing import Any, NamedTuple
from weakref import ref

from gcd import ConstraintError, TokenAutomaton, Vocabulary
from gcd_vllm._constraint_cache import (
    MAX_SECONDS,
    MAX_STATES,
    MAX_WORK,
    ConstraintCache,
    usable_budget,
)
from gcd_vllm._hmm_registry import PGCD
from gcd_vllm._particle_request import NO_WEIGHTS, ParticleRequest
from gcd_vllm._pool import END, MAX_BYTES, AutomatonPool, Location
from gcd_vllm._requests import ConstraintRequest

_LOG = logging.getLogger("vllm.gcd")
NAME = "gcd"
"""Name of the member of `extra_args` and of `vllm_xargs` that has the constraint."""
COMPILED = "gcd_compiled"
"""Name of the member of `extra_args` with the compiled constraint, which the frontend adds."""
NO_TOKENS = (
    "expected a prompt of tokens or text, got prompt_embeds, whose length vLLM's V1 model runner "
    "doesn't report to processors; pass tokens or text, or serve with VLLM_USE_V2_MODEL_RUNNER=1"
)
TWIST = (
    "expected an engine without asynchronous scheduling for P-GCD in vLLM's V1 model runner, which "
    "hides the last token from processors; start it with async_scheduling=False, serve with "
    "VLLM_USE_V2_MODEL_RUNNER=1, or use proposal 'gcd'"
)
REFUSED = "[gcd] refused: "
"""Beginning of the answer to a request that the frontend accepted and the engine can't serve."""
_LONGEST = 500  # bytes of a reason
_LONG_WAIT = 1.0  # seconds of compiling, during which a process doesn't serve requests
_WARM_UP = {  # a schema with values of all types
    "type": "object",
    "properties": {
        "a": {"type": "string", "maxLength": 9},
        "b": {"type": "array", "items": {"type": ["number", "boolean", "null"]}},
        "c": {"type": "integer", "minimum": 0},
    },
}
_LARGEST_BIAS = 1e4  # a larger bias could overflow float32 when divided by the temperature

# Fields of a request that contradict the mask or the end of an answer, and the reasons.
_CONFLICTS = {
    "min_tokens": "may forbid the end of an answer that the budget requires",
    "ignore_eos": "continues after the end of the answer",
    "stop": "may end the answer before it is complete",
    "bad_words": "may forbid all tokens that the constraint allows",
    "allowed_token_ids": "may forbid all tokens that the constraint allows",
    "structured_outputs": "is a second constraint, and the two may have no token in common",
    "thinking_token_budget": "forces tokens after the mask",
    "trace_decode_token_ids": "forces tokens after the mask",
    "repetition_detection": "may end the answer before it is complete",
}


class Admitted(NamedTuple):
    """A request in the engine, served or refused."""

    automaton: TokenAutomaton | None  # its constraint; None if the answer must be empty
    budget: int  # maximum number of tokens of its answer, EOS included
    room: int = 1  # maximum number of tokens of the error text that replaces a refused answer
    particle: ParticleRequest | None = None  # its particle request; None if it is not a particle
    reason: str | None = None  # the reason why it is refused; None if it is served
    # Milliseconds in which its answer should be complete; None for no deadline
    deadline_ms: int | None = None


class Admission:
    """State shared by the requests of one model: its vocabulary and the compiled constraints."""

    def __init__(self, vllm_config: Any) -> None:
        self.model, self._config = vllm_config.model_config, ref(vllm_config)
        self._limits: dict[str, Any] = {
            "max_work": int(os.environ.get("GCD_VLLM_WORK", MAX_WORK)),
            "max_states": int(os.environ.get("GCD_VLLM_STATES", MAX_STATES)),
            "max_seconds": float(os.environ.get("GCD_VLLM_SECONDS", MAX_SECONDS)),
        }
        self._max_bytes = int(os.environ.get("GCD_VLLM_POOL_MIB", MAX_BYTES >> 20)) << 20
        self._lock = Lock()
        self._processor: Callable[[], Any] = lambda: None

    @cached_property
    def _cache(self) -> ConstraintCache:
        return ConstraintCache(self._vocabulary(), **self._limits)

    @property
    def cache(self) -> ConstraintCache:
        """The compiled constraints; the first access reads the vocabulary."""
        with self._lock:
            return self._cache

    def warm_up(self) -> None:
        """Read the vocabulary now, in a thread, so that the first request is faster."""

        def work() -> None:
            try:
                self.cache.get(ConstraintRequest("json_schema", _WARM_UP))
            except Exception as error:  # the requests that need it are refused with the reason
                _LOG.warning("gcd cannot constrain answers of this model: %s", error)

        Thread(target=work, name="gcd-warm-up", daemon=True).start()

    def _vocabulary(self) -> Vocabulary:
        from vllm.tokenizers.registry import cached_tokenizer_from_config

        tokenizer = cached_tokenizer_from_config(self.model)
        if tokenizer is None:
            raise ConstraintError(
                "expected vLLM with a tokenizer, because constraints need the bytes of its tokens, "
                "got none; start vLLM without skip_tokenizer_init"
            )
        size = self.model.get_vocab_size()
        return Vocabulary.from_tokenizer(tokenizer, size=size, eos_ids=self._ends(tokenizer))

    def _ends(self, tokenizer: Any) -> list[int]:
        """Return the ids at which vLLM ends a request."""
        return sorted({tokenizer.eos_token_id, *self._further_ends()} - {None})

    def _further_ends(self) -> list[int | None]:
        more = (self.model.try_get_generation_config() or {}).get("eos_token_id")
        return more if isinstance(more, list) else [more]

    def admit(
        self,
        params: Any,
        text: str,
        prompt_length: int | None,
        prompt: Sequence[int] | None = None,
    ) -> Admitted:
        """Compile a request's constraint, and check that it can be enforced.

        `prompt_length` is None if it isn't known yet. The prefix of a particle is only checked if
        `prompt` is given.
        """
        config, particle = self._config(), ParticleRequest.of(params)
        request = ConstraintRequest.parse(text)
        check_conflicts(params)
        workers = getattr(getattr(config, "parallel_config", None), "world_size", 1)
        if request.deadline_ms is not None and workers > 1:
            raise ConstraintError(
                f"expected a single worker for deadline_ms={request.deadline_ms}, got {workers} "
                "workers with different clocks; omit deadline_ms, or serve with one worker"
            )
        begin = monotonic()
        automaton = self.cache.get(request)
        if monotonic() - begin > _LONG_WAIT:
            _LOG.warning(
                "gcd compiled a constraint for %.1f s, and all requests of this process waited; a "
                "server with --middleware gcd_vllm.CompilingMiddleware compiles without blocking "
                "them",
                monotonic() - begin,
            )
        check_stops(params, automaton)
        size = automaton.table_bytes
        if size > self._max_bytes and config is not None and config.use_v2_model_runner:
            raise ConstraintError(
                f"expected a constraint of at most {self._max_bytes >> 20} MiB on the device, got "
                f"{size >> 20} MiB; simplify it, or raise GCD_VLLM_POOL_MIB"
            )
        most, left, prefix = params.max_tokens, self._left(prompt_length), 0
        if particle is not None:
            check_particle(particle, request, config)
            prefix = particle.prefix_tokens
            most = None if particle.partial else most
        limits = {
            "the request's budget": request.budget,
            "max_tokens": None if most is None else most + prefix,
            "max_model_len less the prompt": left + prefix,
        }
        known = {name: limit for name, limit in limits.items() if limit is not None}
        budget = usable_budget(automaton, known)
        if particle is not None and prompt is not None:
            check_prefix(automaton, budget, particle, prompt)
        room = min(params.max_tokens or left, left)
        return Admitted(automaton, budget, room, particle, deadline_ms=request.deadline_ms)

    def _left(self, prompt_length: int | None) -> int:
        """Return the greatest number of tokens after a prompt."""
        return int(self.model.max_model_len) - (prompt_length or 0)

    def hand_over(self, params: Any, text: str) -> None:
        """Add the compiled constraint to an admitted request, for the engine."""
        given = {name: value for name, value in params.extra_args.items() if name != COMPILED}
        packed = self.cache.export(ConstraintRequest.parse(text))
        params.extra_args = given | ({} if packed is None else {COMPILED: packed})

    def register(self, processor: Any) -> bool:
        """Return whether the processor is the first one of this engine, which masks requests."""
        with self._lock:
            if self._processor() is None:
                self._processor = ref(processor)
            return self._processor() is processor

    @property
    def has_processor(self) -> bool:
        """Return whether this engine has a processor that masks requests."""
        return self._processor() is not None

    @cached_property
    def eos_ids(self) -> list[int]:
        """Ids that end an answer; there is always one, so that some token has a finite logit."""
        ends: Sequence[int | None] = ()
        with suppress(Exception):  # without a vocabulary every request is refused
            ends = self.cache.vocabulary.eos_ids
        if not ends:
            with suppress(Exception):
                ends = self._further_ends()
        size = self.model.get_vocab_size()
        return [token for token in ends if token is not None and 0 <= token < size] or [0]

    def pool(self, device: Any) -> AutomatonPool:
        """Create an `AutomatonPool`, which stores the automata of requests on a device."""
        size = self.model.get_vocab_size()
        return AutomatonPool(size, self.eos_ids, device, self._max_bytes)

    def admit_or_refuse(
        self,
        params: Any,
        text: str,
        prompt_length: int | None,
        prompt: Sequence[int] | None = None,
    ) -> Admitted:
        """Admit a request as `admit` does, but return a refusal instead of raising an error.

        The answer to a refused request is the reason, cut to the answer's maximum number of tokens,
        or an empty text. A request without `prompt_length` is refused. The prefix of a particle is
        only checked if `prompt` is given; otherwise the frontend has already checked it.
        """
        try:
            if prompt_length is None:
                raise ConstraintError(NO_TOKENS)
            packed = params.extra_args.get(COMPILED)
            if isinstance(packed, bytes):
                self.cache.put(ConstraintRequest.parse(text), packed)
            return self.admit(params, text, prompt_length, prompt)
        except Exception as error:
            left = self._left(prompt_length)
            return self.refuse(error, min(params.max_tokens or left, left))

    def enter_pool(self, pool: AutomatonPool, admitted: Admitted) -> tuple[Admitted, Location]:
        """Copy a request's automaton to the device; if it doesn't fit, refuse the request."""
        if admitted.automaton is None:
            return admitted, END
        try:
            return admitted, pool.enter(admitted.automaton)
        except Exception as error:
            refusal = self.refuse(error, admitted.room)
        with suppress(Exception):  # no room for that either
            automaton = refusal.automaton
            return refusal, END if automaton is None else pool.enter(automaton)
        return Admitted(None, 1, reason=refusal.reason), END

    def refuse(self, error: Exception, room: int) -> Admitted:
        """Replace a request by one whose only answer states the error, in at most `room` tokens."""
        reason = f"{REFUSED}{error}"
        _LOG.warning("%s", reason[:_LONGEST])
        with suppress(Exception):  # no vocabulary
            vocabulary = self.cache.vocabulary
            tokens = spell(vocabulary, reason.encode()[:_LONGEST])[: max(0, room - 1)]
            text = TokenAutomaton.from_position_sets(vocabulary, tokens)
            return Admitted(text, len(tokens) + 1, reason=reason)
        return Admitted(None, 1, reason=reason)


def check_particle(particle: ParticleRequest, request: ConstraintRequest, config: Any) -> None:
    """Refuse a particle whose weight can't be computed; `config` is None after an engine's end."""
    if config is not None and config.speculative_config is not None:
        raise ConstraintError(NO_WEIGHTS)
    if particle.pgcd is not None:
        check_twist(particle.pgcd, config)
    if request.deadline_ms is not None:
        raise ConstraintError(
            f"expected a particle without deadline_ms, got {request.deadline_ms}; masks that "
            "depend on time would exclude answers from the posterior"
        )
    if particle.partial and request.budget is None:
        raise ConstraintError(
            "expected a budget for the whole answer with partial=true, got none; add "
            '"budget": N to the constraint'
        )


def check_twist(pgcd: PGCD, config: Any) -> None:
    """Refuse P-GCD in an engine that can't sample from its distribution."""
    pgcd.directory()
    if config is None:
        return
    if config.num_speculative_tokens:
        raise ConstraintError(NO_WEIGHTS)
    if config.scheduler_config.async_scheduling and not config.use_v2_model_runner:
        raise ConstraintError(TWIST)


def check_prefix(
    automaton: TokenAutomaton,
    budget: int,
    particle: ParticleRequest,
    prompt: Sequence[int],
) -> None:
    """Raise an error if a particle's prefix isn't the beginning of an answer within the budget."""
    prefix = prefix_of(particle, prompt)
    if len(prefix) < particle.prefix_tokens:
        raise ConstraintError(
            f"expected prefix_tokens of at most {len(prompt)}, the length of the prompt; got "
            f"{particle.prefix_tokens}"
        )
    state = automaton.initial
    for number, token in enumerate(prefix):
        state = automaton.step(state, token) if 0 <= token < automaton.vocabulary.size else -1
        if state < 0:
            raise ConstraintError(
                f"expected the last {len(prefix)} tokens of the prompt to begin an answer, but "
                f"token {token} isn't allowed after {number} of them; resubmit the tokens as they "
                "were drawn"
            )
    needed = int(automaton.steps_to_accept[state])
    if particle.proposal != "lcd" and needed > budget - len(prefix):
        raise ConstraintError(
            f"expected a budget of at least {len(prefix) + needed} tokens, the fewest for an "
            f"answer with this prefix; got {budget}"
        )


def prefix_of(particle: ParticleRequest, prompt: Sequence[int]) -> list[int]:
    """Return the last tokens of a particle's prompt, which are the beginning of its answer."""
    return list(prompt[max(0, len(prompt) - particle.prefix_tokens) :])


_admissions: dict[int, tuple[ref[Any], Admission]] = {}
_admissions_lock = Lock()


def admission_of(vllm_config: Any) -> Admission:
    """Return the `Admission` object for a configuration; it is created once in each process."""
    key = id(vllm_config)
    with _admissions_lock:
        if key not in _admissions:
            gone = ref(vllm_config, lambda _: _admissions.pop(key, None))
            _admissions[key] = gone, Admission(vllm_config)
        return _admissions[key][1]


def count_processors() -> int:
    """Return the number of engines in this process that have a processor."""
    with _admissions_lock:
        return sum(each.has_processor for _, each in _admissions.values())


def spell(vocabulary: Vocabulary, text: bytes) -> list[int]:
    """Spell a text, with the longest token at each position; bytes without a token are omitted."""
    known = {token: index for index, token in enumerate(vocabulary.token_bytes) if token}
    longest = max(map(len, known), default=1)
    tokens, begin = [], 0
    while begin < len(text):
        sizes = range(min(longest, len(text) - begin), 0, -1)
        size = next((n for n in sizes if text[begin : begin + n] in known), 0)
        if size:
            tokens.append(known[text[begin : begin + size]])
        begin += max(1, size)
    return tokens


def check_conflicts(params: Any) -> None:
    """Raise `ConstraintError` for options of a request that contradict its constraint."""
    for name, why in _CONFLICTS.items():
        value = getattr(params, name, None)
        if value is None or value is False or value == [] or (name, value) == ("min_tokens", 0):
            continue
        raise ConstraintError(
            f"expected a constrained request without {name}, got {name}={value!r}, which {why}; "
            "omit it"
        )
    biases = (params.logit_bias or {}).items()
    wrong = {i: bias for i, bias in biases if not abs(bias) <= _LARGEST_BIAS}
    if wrong:
        raise ConstraintError(
            f"expected logit_bias from -{_LARGEST_BIAS:g} to {_LARGEST_BIAS:g}, got {wrong!r}; "
            "larger numbers may forbid all tokens that the constraint allows, and -100 already "
            "prevents a token"
        )


def check_stops(params: Any, automaton: TokenAutomaton) -> None:
    """Raise `ConstraintError` for stop token ids that may occur inside an answer."""
    vocabulary = automaton.vocabulary
    ids = set(params.stop_token_ids or ()) - set(vocabulary.eos_ids)
    for token in sorted(token for token in ids if 0 <= token < vocabulary.size):
        if automaton.rows.is_allowed(int(automaton.class_of[token])).any():
            raise ConstraintError(
                "expected stop_token_ids that can't occur inside an answer, got "
                f"{params.stop_token_ids!r}, where {token} may end an answer early; omit {token}"
            )

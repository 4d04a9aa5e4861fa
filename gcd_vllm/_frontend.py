"""Checks in vLLM's frontend, which can still return an error to the client.

`validate_params` only receives a request's parameters, without tokenizer or configuration. But its
caller on the stack, the frontend's input processor, has the engine's configuration as
`vllm_config`, and one of the outer frames has the request's prompt. Only these variables are read.
If another version of vLLM names them differently, the engine makes the checks that need the
vocabulary (`gcd_vllm._admission`).

vLLM's server makes these checks on its event loop, which waits while a new constraint is compiled,
unless `gcd_vllm._middleware` has compiled it before. Constraints are compiled once: the result is
added to the request for the engine.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from types import FrameType
from typing import Any

from gcd import ConstraintError
from gcd_vllm._admission import NAME, NO_TOKENS, admission_of, check_conflicts
from gcd_vllm._particle_request import ParticleRequest
from gcd_vllm._requests import ConstraintRequest

_DEPTH = 12  # number of stack frames in which the input processor is searched


def adopt_structured_outputs(params: Any) -> bool:
    """Convert vLLM's structured outputs to a constraint of this project.

    So an unchanged client, with `response_format` or `structured_outputs`, gets finished answers.
    Constraints that this project doesn't have (a grammar, any JSON object, structural tags) are
    left unchanged, and vLLM's backend enforces them.
    """
    extra, wanted = params.extra_args or {}, params.structured_outputs
    if extra.get(NAME) is not None or wanted is None:
        return extra.get(NAME) is not None
    text = adopt({name: getattr(wanted, name, None) for name in ("json", "regex", "choice")})
    if text is None:
        return False
    params.extra_args = extra | {NAME: text}
    params.structured_outputs = None
    return True


def adopt(wanted: Mapping[str, Any]) -> str | None:
    """Convert structured outputs to the JSON text of a constraint; None if that isn't possible."""
    schema = wanted.get("json")
    if isinstance(schema, str):
        try:
            schema = json.loads(schema)
        except ValueError:
            return None  # vLLM says what is wrong
    members = [("json_schema", schema), *((name, wanted.get(name)) for name in ("regex", "choice"))]
    given = {name: value for name, value in members if value is not None}
    return json.dumps(given) if len(given) == 1 else None


def validate(params: Any) -> None:
    """Raise an error for a request whose constraint cannot be enforced."""
    text = params.extra_args[NAME]
    config, prompt = _caller()
    if config is None:
        ConstraintRequest.parse(text)
        check_conflicts(params)
        ParticleRequest.of(params)
        return
    _check_engine(config, prompt)
    tokens = prompt.get("prompt_token_ids") or ()
    known, admission = tokens or prompt.get("prompt_embeds"), admission_of(config)
    admission.admit(params, text, None if known is None else len(known), tokens)
    admission.hand_over(params, text)


def _check_engine(config: Any, prompt: dict[str, Any]) -> None:
    """Raise an error for settings with which V1 doesn't call processors or hides tokens."""
    if config.use_v2_model_runner:
        return
    if prompt and not prompt.get("prompt_token_ids"):
        raise ConstraintError(NO_TOKENS)
    if config.speculative_config is not None:
        raise ConstraintError(
            "expected no speculative decoding with vLLM's V1 model runner, which then skips "
            "logits processors; serve with VLLM_USE_V2_MODEL_RUNNER=1, or without "
            "speculative_config"
        )
    if config.scheduler_config.async_scheduling and not config.model_config.logits_processors:
        raise ConstraintError(
            "expected a named logits processor, because vLLM's V1 model runner with "
            "asynchronous scheduling otherwise doesn't pass tokens to processors; serve with "
            "--logits-processors gcd_vllm:Processor, or VLLM_USE_V2_MODEL_RUNNER=1"
        )


def _caller() -> tuple[Any, dict[str, Any]]:
    """Find the engine's configuration and the request's prompt in the callers' stack frames.

    Each of the two results is None if it isn't found.
    """
    frame: FrameType | None = sys._getframe(1)
    config = None
    for _ in range(_DEPTH):
        if frame is None:
            break
        names = frame.f_locals
        if config is None:
            config = getattr(names.get("self"), "vllm_config", None)
        prompt = names.get("prompt")
        prompt = prompt if isinstance(prompt, dict) else {}
        has_length = prompt.get("prompt_token_ids") or prompt.get("prompt_embeds") is not None
        if config is not None and has_length:
            return config, prompt
        frame = frame.f_back
    return config, {}

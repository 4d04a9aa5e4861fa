"""Fields of a vLLM request whose answer is a particle of a posterior.

A particle (a weighted answer) is drawn by a normal request with a constraint in
`extra_args["gcd"]`. A second JSON text, `extra_args["gcd_particle"]`, requests its weight:

    {"key": "6f1c/0/12", "prefix_tokens": 32, "partial": true, "proposal": "gcd"}

With "proposal": "pgcd", a member "pgcd" names the HMM and has its options
(`gcd_vllm._hmm_registry`).

Weights must refer to the distribution that the engine samples from. So a particle request waits
until its constraint is lifted, and fields that change the distribution are refused.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from functools import lru_cache
from typing import Any

from gcd import ConstraintError
from gcd._errors import show
from gcd_vllm._hmm_registry import PGCD

PARTICLE = "gcd_particle"
"""Name of the member of `extra_args` and of `vllm_xargs`."""
PROPOSALS = ("gcd", "lcd", "pgcd")
VERSION = 3
"""Version of this protocol; client and engine must have the same."""
NO_WEIGHTS = (
    "expected an engine without speculative decoding, because weights of drafts aren't stored; "
    "serve without speculative_config, or omit gcd_particle"
)

_NEUTRAL: dict[str, tuple[Any, ...]] = {
    "top_k": (0, -1),
    "top_p": (1.0,),
    "min_p": (0.0,),
    "presence_penalty": (0.0,),
    "frequency_penalty": (0.0,),
    "repetition_penalty": (1.0,),
    "logit_bias": (None, {}),
    "watermarking": (None, False),
}


@dataclass(frozen=True)
class ParticleRequest:
    """Request for the next part of a particle, or for the whole particle.

    Attributes:
        key: name under which the engine stores the weights of the particle's tokens; empty if the
            caller computes them from log-probabilities instead.
        prefix_tokens: number of tokens at the end of the prompt that belong to the answer. The
            constraint and the budget count them.
        partial: whether `max_tokens` ends only this part of the answer. The constraint's `budget`
            is then the only limit on the whole answer.
        proposal: "gcd" masks tokens after which the answer can't be finished within the budget;
            "lcd" masks tokens after which it can't be finished at all; "pgcd" draws from a
            distribution with the support of "gcd".
        pgcd: the HMM and options of "pgcd"; None for the other proposals.
    """

    key: str = ""
    prefix_tokens: int = 0
    partial: bool = False
    proposal: str = "gcd"
    pgcd: PGCD | None = None

    def text(self) -> str:
        """Return the value of `extra_args["gcd_particle"]`."""
        return json.dumps(asdict(self))

    @classmethod
    def of(cls, params: Any) -> ParticleRequest | None:
        """Read the particle request in a request's parameters; None if there is none."""
        text = (getattr(params, "extra_args", None) or {}).get(PARTICLE)
        if text is None:
            return None
        if not isinstance(text, str):
            raise ConstraintError(
                f"{PARTICLE}: expected the text of a JSON object, got {show(text)}"
            )
        found = cls._parse(text)
        for name, neutral in _NEUTRAL.items():
            value = getattr(params, name, neutral[0])
            if value not in neutral:
                raise ConstraintError(
                    f"{PARTICLE}: expected {name}={neutral[0]!r}, because a weight refers to the "
                    f"model's own distribution, got {name}={value!r}; set {name} in the request, "
                    "because the model's generation_config may have another default"
                )
        temperature = getattr(params, "temperature", 1.0)
        if not temperature > 0:
            raise ConstraintError(
                f"{PARTICLE}: expected a temperature above 0, got {temperature}; at 0 there is no "
                "distribution to sample from"
            )
        return found

    @classmethod
    def key_of(cls, params: Any) -> str:
        """Return the key of a request's particle; empty if its weights aren't requested.

        The result is also empty for an invalid particle request. The reason why the engine refuses
        it is then only in its answer.
        """
        try:
            found = cls.of(params)
        except ConstraintError:
            return ""
        return "" if found is None else found.key

    @classmethod
    @lru_cache(maxsize=1024)  # the frontend and the engine parse each
    def _parse(cls, text: str) -> ParticleRequest:
        try:
            given = json.loads(text)
            if given.get("pgcd") is not None:
                given["pgcd"] = PGCD.of(given["pgcd"])
            found = cls(**given)
        except ConstraintError:
            raise
        except (TypeError, ValueError, AttributeError, RecursionError) as error:
            raise ConstraintError(
                f"{PARTICLE}: expected a JSON object with {', '.join(asdict(cls()))}, got "
                f"{show(text)} ({error})"
            ) from None
        kinds = (("key", str), ("prefix_tokens", int), ("partial", bool), ("proposal", str))
        for name, kind in kinds:
            value = getattr(found, name)
            if type(value) is not kind:
                raise ConstraintError(
                    f"{PARTICLE}: expected {name} of type {kind.__name__}, got {show(value)}"
                )
        if found.prefix_tokens < 0:
            raise ConstraintError(
                f"{PARTICLE}: expected prefix_tokens of at least 0, got {found.prefix_tokens}"
            )
        if found.proposal not in PROPOSALS:
            raise ConstraintError(
                f"{PARTICLE}: expected proposal {' or '.join(PROPOSALS)}, got "
                f"{show(found.proposal)}"
            )
        if (found.proposal == "pgcd") != (found.pgcd is not None):
            raise ConstraintError(
                f"{PARTICLE}: expected the member pgcd if and only if proposal is 'pgcd', got "
                f"proposal {found.proposal!r} and pgcd {found.pgcd!r}"
            )
        return found

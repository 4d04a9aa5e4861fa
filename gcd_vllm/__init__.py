"""Logits processor for vLLM that finishes structured answers within their token budget.

If this package and vLLM are installed, vLLM finds `Processor` by the entry point
`vllm.logits_processors` and loads it; `--logits-processors gcd_vllm:Processor` names it explicitly.
A request states its constraint and, optionally, a budget (`gcd._requests`):

    extra_args={"gcd": '{"json_schema": {...}}'}            # vllm.SamplingParams
    extra_body={"vllm_xargs": {"gcd": '{"json_schema": {...}}'}}    # over HTTP

vLLM loads this module in each of its processes, even if no request has a constraint. So the module
only imports vLLM's interfaces. The rest is imported when a request or an engine needs it. If that
import fails, constrained requests are refused with the reason, and all other requests are served.

A server with `--middleware gcd_vllm.CompilingMiddleware` compiles new constraints without blocking
other requests.

`sample` draws posteriors from a `vllm.LLM`, which are weighted answers with their log evidence.

vLLM has one entry point for the interfaces of its two model runners, V1 and V2. `Processor` is a
subclass of both interfaces. Its constructor returns an object for the model runner that calls it:
V1 passes three arguments, and V2 passes two.
"""

from __future__ import annotations

import logging
import os
from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from gcd_vllm._hmm_registry import PGCD
    from gcd_vllm._middleware import CompilingMiddleware
    from gcd_vllm._particles import EngineDiagnostics, Rollout
    from gcd_vllm._parts import EngineStoppedError, PartRecord
    from gcd_vllm._sampling import sample, sample_from_server, vocabulary_of
    from gcd_vllm._worker import WorkerExtension

__all__ = [
    "PGCD",
    "CompilingMiddleware",
    "Disabled",
    "EngineDiagnostics",
    "EngineStoppedError",
    "PartRecord",
    "Processor",
    "Rollout",
    "WorkerExtension",
    "sample",
    "sample_from_server",
    "vocabulary_of",
]
_PUBLIC = {
    "PGCD": "gcd_vllm._hmm_registry",
    "CompilingMiddleware": "gcd_vllm._middleware",
    "EngineDiagnostics": "gcd_vllm._particles",
    "EngineStoppedError": "gcd_vllm._parts",
    "PartRecord": "gcd_vllm._parts",
    "Rollout": "gcd_vllm._particles",
    "WorkerExtension": "gcd_vllm._worker",
    "sample": "gcd_vllm._sampling",
    "sample_from_server": "gcd_vllm._sampling",
    "vocabulary_of": "gcd_vllm._sampling",
}
_LOG = logging.getLogger("vllm.gcd")
_INTERFACES = (
    "vllm.v1.sample.logits_processor.interface",
    "vllm.v1.worker.gpu.sample.logits_processor.interface",
)


def _bases() -> tuple[type, ...]:
    """Return the interfaces of logits processors in the installed vLLM, for V1 and V2."""
    found: tuple[type, ...] = ()
    for name in _INTERFACES:
        try:
            more = (*found, import_module(name).LogitsProcessor)
            type("Both", more, {})
            found = more
        except ImportError:  # vLLM lacks this model runner, or isn't installed
            continue
        except Exception as error:  # vLLM would not start if this module could not be imported
            _LOG.warning("gcd is disabled for %s: %s: %s", name, type(error).__name__, error)
    return found


class Processor(*_bases()):  # type: ignore[misc]
    """Logits processor that masks tokens after which an answer can't be finished in its budget."""

    def __new__(cls, vllm_config: Any, *arguments: Any) -> Any:
        """Return the processor for the model runner that calls this constructor."""
        engine = "v1" if len(arguments) > 1 else "v2"
        try:
            chosen = import_module(f"gcd_vllm._{engine}").EngineProcessor
            made = object.__new__(chosen)
            # An entry point and an option may both name the processor, but it must be applied once.
            if not import_module("gcd_vllm._admission").admission_of(vllm_config).register(made):
                made = object.__new__(Disabled)
        except Exception as error:  # whatever an incomplete installation raises
            _LOG.warning("gcd is disabled: %s: %s", type(error).__name__, error)
            made = object.__new__(Disabled)
        return made

    @classmethod
    def validate_params(cls, sampling_params: Any) -> None:
        """Refuse a request whose constraint cannot be enforced; vLLM's frontend calls this method.

        Raises:
            ValueError: the constraint can't be enforced; the message has the problem, the value
                received, and the remedy.
        """
        adopts = os.environ.get("GCD_VLLM_RESPONSE_FORMAT") == "1"
        if (sampling_params.extra_args or {}).get("gcd") is None and not (
            adopts and getattr(sampling_params, "structured_outputs", None) is not None
        ):
            return
        try:
            frontend = import_module("gcd_vllm._frontend")
        except Exception as error:
            raise ValueError(
                "expected a working plugin to enforce extra_args['gcd'], but gcd is disabled here "
                f"({type(error).__name__}: {error}); repair the installation, or omit the "
                "constraint"
            ) from error
        try:
            if adopts and not frontend.adopt_structured_outputs(sampling_params):
                return
            frontend.validate(sampling_params)
        except ValueError:
            raise
        except Exception as error:  # vLLM answers a ValueError with status 400, others with 500
            raise ValueError(
                f"gcd cannot check whether the constraint can be enforced: {type(error).__name__}: "
                f"{error}; omit extra_args['gcd']"
            ) from error

    # The following methods belong to only one of the two interfaces.
    def is_argmax_invariant(self) -> bool:
        return False

    def update_state(self, batch_update: Any) -> None:
        """Do nothing; V1 has this method in its interface, and V1's processor overrides it."""


class Disabled(Processor):
    """Replacement for a processor that could not be imported; it doesn't change any logits."""

    def __init__(self, *arguments: Any) -> None:
        pass

    def is_argmax_invariant(self) -> bool:
        return True

    def add_request(self, req_idx: int, sampling_params: Any) -> bool:
        return False

    def apply_staged_writes(self) -> None:
        pass

    def apply(self, logits: Any, ctx: Any = None) -> Any:
        return logits


def __dir__() -> list[str]:
    return __all__


def __getattr__(name: str) -> Any:
    """Import the sampling functions on first access; vLLM loads this module in all processes."""
    if name not in _PUBLIC:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = globals()[name] = getattr(import_module(_PUBLIC[name]), name)
    return value

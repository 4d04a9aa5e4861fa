"""Logits processor for vLLM that finishes structured answers within their token budget.

If this package and vLLM are installed, vLLM finds `Processor` by the entry point
`vllm.logits_processors` and loads it; `--logits-processors gcd_vllm:Processor` names it explicitly.
A request states its constraint and, optionally, a budget (`gcd_vllm._requests`):

    extra_args={"gcd": '{"json_schema": {...}}'}            # vllm.SamplingParams
    extra_body={"vllm_xargs": {"gcd": '{"json_schema": {...}}'}}    # over HTTP

Names are imported when they are first used. So vLLM's processes, which load this package even if no
request has a constraint, only import its processor (`gcd_vllm._processor`), and the processes that
compile constraints (`gcd_vllm._compiler`) don't import vLLM.

A server with `--middleware gcd_vllm.CompilingMiddleware` compiles new constraints without blocking
other requests.

`sample` draws posteriors from a `vllm.LLM`, which are weighted answers with their log evidence.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from gcd_vllm._hmm_registry import PGCD
    from gcd_vllm._middleware import CompilingMiddleware
    from gcd_vllm._particles import EngineDiagnostics, Rollout
    from gcd_vllm._parts import EngineStoppedError, PartRecord
    from gcd_vllm._processor import Disabled, Processor
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
    "Disabled": "gcd_vllm._processor",
    "EngineDiagnostics": "gcd_vllm._particles",
    "EngineStoppedError": "gcd_vllm._parts",
    "PartRecord": "gcd_vllm._parts",
    "Processor": "gcd_vllm._processor",
    "Rollout": "gcd_vllm._particles",
    "WorkerExtension": "gcd_vllm._worker",
    "sample": "gcd_vllm._sampling",
    "sample_from_server": "gcd_vllm._sampling",
    "vocabulary_of": "gcd_vllm._sampling",
}


def __dir__() -> list[str]:
    return __all__


def __getattr__(name: str) -> Any:
    """Import a name on first access, because the package is loaded in many processes."""
    if name not in _PUBLIC:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = globals()[name] = getattr(import_module(_PUBLIC[name]), name)
    return value

"""Logits processor of vLLM's two model runners, which only imports vLLM's interfaces.

The rest is imported when a request or an engine needs it. If that import fails, constrained
requests are refused with the reason, and all other requests are served.

vLLM has one entry point for the interfaces of its two model runners, V1 and V2. `Processor` is a
subclass of both interfaces. Its constructor returns an object for the model runner that calls it:
V1 passes three arguments, and V2 passes two.
"""

from __future__ import annotations

import logging
import os
from importlib import import_module
from typing import Any

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

"""Methods that `gcd_vllm.sample` calls in vLLM's workers, by `collective_rpc`."""

from __future__ import annotations

from typing import Any


class WorkerExtension:
    """Hands over the weights of particles.

    Start the engine with `LLM(..., worker_extension_cls="gcd_vllm.WorkerExtension")`; vLLM
    then makes this class a base of its workers.
    """

    def gcd_status(self) -> dict[str, Any]:
        """Return the version of the protocol, and the engines whose processor is loaded here."""
        from gcd_vllm._admission import loaded_processors
        from gcd_vllm._particle_request import VERSION

        return {"version": VERSION, "processors": loaded_processors()}

    def gcd_take_weights(self, run: str) -> dict[str, Any]:
        """Return the weights of a run's particles, and forget them; see `StepWeights.take`."""
        from gcd_vllm._step_weights import take

        return take(run)

    def gcd_forget_weights(self, run: str) -> int:
        """Forget the weights of a run's particles; return how many there were."""
        from gcd_vllm._step_weights import forget

        return forget(run)

"""Methods that `gcd_vllm.sample` calls in vLLM's workers, by `collective_rpc`."""

from __future__ import annotations

from typing import Any


class WorkerExtension:
    """Extension of vLLM's workers that returns the weights of particles.

    Start the engine with `LLM(..., worker_extension_cls="gcd_vllm.WorkerExtension")`; vLLM
    then makes this class a base of its workers.
    """

    def gcd_status(self) -> dict[str, Any]:
        """Return the plugin's protocol version, and the number of loaded processors."""
        from gcd_vllm._admission import count_processors
        from gcd_vllm._particle_request import VERSION

        return {"version": VERSION, "processors": count_processors()}

    def gcd_take_weights(self, run: str) -> dict[str, Any]:
        """Return and delete the weights of a run's particles; see `WeightTable.take`."""
        from gcd_vllm._weight_table import take

        return take(run)

    def gcd_forget_weights(self, run: str) -> int:
        """Delete the weights of a run's particles; return how many there were."""
        from gcd_vllm._weight_table import forget

        return forget(run)

"""Errors of sampling in an engine."""

from __future__ import annotations

from gcd_vllm._parts import Drawn


class EngineStoppedError(RuntimeError):
    """The engine stopped while particles were drawn.

    Attributes:
        drawn: what was drawn of the parts that had finished, by (example, particle). Their weights
            are those that were read. Finished answers alone aren't a sample of the posterior,
            because short ones finish first.
        total: number of parts that were asked for.
    """

    def __init__(self, drawn: dict[tuple[int, int], Drawn], total: int, cause: BaseException):
        self.drawn, self.total = drawn, total
        super().__init__(
            f"expected {total} parts of answers, but the engine stopped after {len(drawn)} of them "
            f"({type(cause).__name__}: {cause}); the finished ones are in `drawn`. Start the "
            "engine again, and call with the same seed"
        )

"""Errors of sampling in an engine."""

from __future__ import annotations

from gcd_vllm._parts import Drawn


class EngineStoppedError(RuntimeError):
    """Raised if an engine stops while it draws particles.

    Attributes:
        drawn: the finished parts, by (example, particle), with the weights known so far. They
            aren't a sample from the posterior, because short answers finish first.
        total: number of parts that were requested.
    """

    def __init__(self, drawn: dict[tuple[int, int], Drawn], total: int, cause: BaseException):
        self.drawn, self.total = drawn, total
        super().__init__(
            f"expected {total} parts of answers, but the engine stopped after {len(drawn)} of them "
            f"({type(cause).__name__}: {cause}); start the engine again, and call with the same "
            "seed. The finished parts are in the attribute `drawn` of this error"
        )

"""Errors of sampling in an engine."""

from __future__ import annotations

from collections.abc import Mapping

from gcd_vllm._parts import DrawnPart
from smc import Sample


class EngineStoppedError(RuntimeError):
    """Raised if an engine stops while it draws particles.

    Attributes:
        drawn: the finished parts of the current round, by (index of the prompt, particle). It only
            has parts whose weights are known.
        total: number of parts that were requested in the current round.
        answers: the finished answers of all rounds, by (index of the prompt, particle), as
            `gcd_vllm.Rollout` objects with their weights so far. They aren't a sample from the
            posterior, because short answers finish first.
        particles: number of particles of the call, of all prompts together.
        cause: the engine's error.
    """

    def __init__(
        self,
        drawn: Mapping[tuple[int, int], DrawnPart],
        total: int,
        cause: BaseException,
        answers: Mapping[tuple[int, int], Sample] | None = None,
        particles: int = 0,
    ) -> None:
        self.drawn, self.total = dict(drawn), total
        self.answers, self.particles = dict(answers or {}), particles
        self.cause = cause
        finished = ""
        if particles:
            finished = f", and {len(self.answers)} of {particles} finished answers in `answers`"
        super().__init__(
            f"expected {total} parts of answers, but the engine stopped after {len(drawn)} of them "
            f"({type(cause).__name__}: {cause}); start the engine again, and call with the same "
            f"seed. The finished parts are in this error's attribute `drawn`{finished}"
        )

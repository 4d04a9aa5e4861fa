"""Asynchronous sampling: same answers and cancellation at a step."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import pytest
import torch

import gcd
import smc
from gcd import Vocabulary
from smc.testing import ToyLM, ToyRows
from tests.smc.calls import sample_with
from tests.smc.toys import CONSTRAINTS
from tests.smc.walks import PROMPT, TOY

BYTES = Vocabulary.from_bytes([*(bytes([i]) for i in range(256)), b""], [256])


def test_the_answers_are_those_of_the_plain_call() -> None:
    every: dict[str, Any] = {"max_tokens": 5, "particles": 8, "proposal": smc.GCD(), "seed": 2}
    automaton = CONSTRAINTS["few_words"]()
    expected = sample_with(TOY, [PROMPT] * 2, automaton, **{"algorithm": "smc", **every})
    found = asyncio.run(
        smc.sample_async(TOY, [PROMPT] * 2, automaton, **{"algorithm": "smc", **every})
    )
    for one, other in zip(found, expected, strict=True):
        assert (one.answers, one.probabilities) == (other.answers, other.probabilities)
    with pytest.raises(ValueError, match="deadline"):
        asyncio.run(
            smc.sample_async(TOY, [PROMPT], automaton, **{"algorithm": "smc", **every}, deadline=-1)
        )


class Gated(ToyLM):
    """A model whose forward passes wait for permission."""

    def __init__(self) -> None:
        super().__init__(BYTES, seed=4)
        self.gate, self.entered, self.passes = threading.Event(), threading.Event(), 0

    def prefill(self, prompts: Any) -> Any:
        return GatedRows(self, prompts), super().prefill(prompts)[1]


class GatedRows(ToyRows):
    def extend(self, runs: torch.Tensor, lengths: torch.Tensor) -> torch.Tensor:
        lm: Any = self._lm
        lm.passes += 1
        lm.entered.set()
        assert lm.gate.wait(600)
        return super().extend(runs, lengths)


def test_the_loop_goes_on_and_a_cancelled_task_ends_at_the_next_step() -> None:
    lm = Gated()
    automaton = gcd.lift(gcd.regex("[a-z]{5,30}"), BYTES)

    async def main() -> None:
        call = smc.sample_async(
            lm, [[1]], automaton, max_tokens=31, particles=2, proposal=smc.GCD(), algorithm="smc"
        )
        task = asyncio.create_task(call)
        while not lm.entered.is_set():  # the loop is free during a forward pass
            await asyncio.sleep(0.001)
        task.cancel()
        await asyncio.sleep(0)
        assert not task.done()
        lm.gate.set()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(main())
    assert lm.passes == 1

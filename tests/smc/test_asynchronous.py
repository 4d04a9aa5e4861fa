"""Asynchronous sampling: same answers, cancellation at a step, and streaming of certain text."""

from __future__ import annotations

import asyncio
import json
import threading
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import gcd
import smc
from gcd._tokens.vocabulary import Vocabulary
from smc._interface.json_pieces import JSONReader, Value
from smc.testing import ToyLM, ToyRows
from tests.gcd.oracles import checked_inside_strategies
from tests.smc.test_walk import PROMPT, TOY
from tests.smc.toys import CONSTRAINTS

pytestmark = checked_inside_strategies

BYTES = Vocabulary.from_bytes(
    [*(bytes([i]) for i in range(256)), b'":"', b'","', b"aa", b""], [259]
)
SCHEMA = {
    "type": "object",
    "properties": {
        "name": {"enum": ["Ada", "Adam", "Eve"]},
        "born": {"type": "integer", "minimum": 1, "maximum": 40},
        "tags": {"type": "array", "items": {"type": "boolean"}, "maxItems": 3},
        "at": {"type": "object", "properties": {"x/y": {"type": "null"}}, "required": ["x/y"]},
    },
    "required": ["name", "born", "tags", "at"],
}
LM = ToyLM(BYTES, seed=4)


def test_the_answers_are_those_of_the_plain_call() -> None:
    every: dict[str, Any] = {"budget": 5, "particles": 8, "proposal": smc.GCD(), "seed": 2}
    automaton = CONSTRAINTS["few_words"]()
    expected = smc.sample(TOY, [PROMPT] * 2, automaton, **{"algorithm": "smc", **every})
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
            lm, [[1]], automaton, budget=31, particles=2, proposal=smc.GCD(), algorithm="smc"
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


async def parts_of(lm: ToyLM, automaton: gcd.TokenAutomaton, **options: Any) -> list[smc.Part]:
    return [part async for part in smc.stream(lm, [1], automaton, **options)]


def test_a_stream_takes_particles_that_can_agree() -> None:
    automaton = gcd.lift(gcd.json_schema(SCHEMA), BYTES)
    options: dict[str, Any] = {"budget": 80, "particles": 3, "proposal": smc.GCD()}
    found = asyncio.run(parts_of(LM, automaton, **options))[-1].posterior
    assert found is not None
    assert found.algorithm == "smc"
    with pytest.raises(ValueError, match="without certify"):
        asyncio.run(parts_of(LM, automaton, **options, certify=0.9))


@pytest.mark.parametrize("algorithm", ["smc", "discrete"])
@pytest.mark.parametrize("particles", [1, 3, 20])
def test_parts_are_the_common_beginning_and_its_values(algorithm: str, particles: int) -> None:
    automaton = gcd.lift(gcd.json_schema(SCHEMA), BYTES)
    for seed in range(2):
        options: dict[str, Any] = {
            "budget": 80, "particles": particles, "proposal": smc.GCD(), "seed": seed,
            "algorithm": algorithm,
        }  # fmt: skip
        parts = asyncio.run(parts_of(LM, automaton, **options))
        (expected,) = smc.sample(LM, [[1]], automaton, **{"algorithm": "smc", **options})
        assert [part.posterior is not None for part in parts[:-1]] == [False] * (len(parts) - 1)
        found = parts[-1].posterior
        assert found is not None
        assert (found.answers, found.probabilities) == (expected.answers, expected.probabilities)
        text = "".join(part.text for part in parts)
        values = [value for part in parts for value in part.values]
        assert all(answer.startswith(text) for answer in found.texts)
        if len(found.texts) > 1:  # there is no longer common beginning
            assert len({answer[: len(text) + 1] for answer in found.texts}) > 1
        for answer in found.texts:
            assert set(map(str, values)) <= set(map(str, values_of(json.loads(answer))))
        if len(found.texts) == 1:
            assert sorted(map(str, values)) == sorted(map(str, values_of(json.loads(text))))
            assert len(parts) > 3


def test_leaving_a_stream_abandons_it() -> None:
    automaton = gcd.lift(gcd.json_schema(SCHEMA), BYTES)

    async def main() -> int:
        parts = smc.stream(
            LM, [1], automaton, budget=80, particles=1, proposal=smc.GCD(), algorithm="smc"
        )
        async for part in parts:
            assert part.posterior is None
            await parts.aclose()  # type: ignore[attr-defined]
            break
        return len(asyncio.all_tasks())

    assert asyncio.run(main()) == 1


def values_of(value: Any, pointer: str = "") -> list[Value]:
    """Every nested value with its pointer."""
    found: list[Value] = []
    items = enumerate(value) if isinstance(value, list) else ()
    for name, inner in value.items() if isinstance(value, dict) else items:
        part = str(name).replace("~", "~0").replace("/", "~1")
        found += values_of(inner, f"{pointer}/{part}")
    return [*found, (pointer, value)]


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)  # fmt: skip


@given(JSON, st.sampled_from([None, 1]), st.lists(st.integers(1, 7), min_size=1, max_size=5))
def test_values_are_read_in_any_pieces(value: Any, indent: int | None, sizes: list[int]) -> None:
    text, reader, found, at = json.dumps(value, indent=indent), JSONReader(), [], 0
    while at < len(text):
        size = sizes[at % len(sizes)]
        found += reader.feed(text[at : at + size])
        at += size
    found += reader.feed("", is_end=True)
    assert list(map(repr, found)) == list(map(repr, values_of(value)))


@pytest.mark.parametrize("text", ["SELECT 1", "[1}", "]", "{1:2}", "01", "tru,"])
def test_what_is_no_json_is_read_in_silence(text: str) -> None:
    reader = JSONReader()
    found = reader.feed(text) + reader.feed("", is_end=True)
    assert reader.feed("[1,2]") == []
    assert all(pointer.startswith("/") for pointer, _ in found)

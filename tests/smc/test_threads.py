"""Threads that share a model, and settings of the caller's process, change no answer.

A thread halts in the middle of a forward pass, between the layers of the model, until it is
released. So passes overlap with certainty, and end in a given order.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from typing import Any

import pytest
import torch

import smc
from hmm import HMM
from smc._models.rows import TransformersRows
from smc._models.self_check import Truth, shares_prompts
from smc._models.sharing_rows import SharingRows
from smc._models.static_cache import NotStaticError
from tests.smc.calls import sample_with
from tests.smc.toys import CONSTRAINTS, VOCABULARY, tiny_model

pytest.importorskip("transformers")

SECONDS = 600  # timeout for a thread
PROMPTS = [[1], [0, 1, 2, 2], [2, 1]]
INPUTS = {
    "input_ids": torch.tensor([[4, 4, 4, 1], [0, 1, 2, 2], [4, 4, 2, 1]]),
    "attention_mask": torch.tensor([[0, 0, 0, 1], [1, 1, 1, 1], [0, 0, 1, 1]]),
}


class Halt:
    """A halting point of a thread, which raises the error, if any, when it continues."""

    def __init__(self, error: Exception | None = None) -> None:
        self.error = error
        self._is_here, self._may_go = threading.Event(), threading.Event()

    def stand(self) -> None:
        """Halt; called by the thread."""
        self._is_here.set()
        assert self._may_go.wait(SECONDS)
        if self.error is not None:
            raise self.error

    def wait(self, thread: Future[Any]) -> None:
        """Wait until the thread halts; it must not end before."""
        thread.add_done_callback(lambda _: self._is_here.set())
        assert self._is_here.wait(SECONDS)
        if thread.done():
            thread.result()
            raise AssertionError("the thread did not halt")

    def release(self) -> None:
        self._may_go.set()


@contextmanager
def halting(model: Any, at_pass: int) -> Iterator[Callable[..., Future[Any]]]:
    """Yield a function that starts a thread, which halts once in its `at_pass`-th pass."""
    here = threading.local()

    def between_layers(*_: Any) -> None:
        halt = getattr(here, "halt", None)
        if halt is not None:
            here.passes += 1
            if here.passes == at_pass:
                halt.stand()

    def run(halt: Halt, work: Callable[[], Any]) -> Any:
        here.halt, here.passes = halt, 0
        return work()

    handle = model.model.layers[0].mlp.register_forward_pre_hook(between_layers)
    started: list[Halt] = []

    def start(halt: Halt, work: Callable[[], Any]) -> Future[Any]:
        started.append(halt)
        return threads.submit(run, halt, work)

    with ThreadPoolExecutor(8) as threads:
        try:
            yield start
        finally:
            handle.remove()
            for halt in started:
                halt.release()


@pytest.fixture
def model() -> Any:
    return tiny_model(layers=2)


Call = Callable[[int], list[smc.Posterior]]
"""A function that samples with this seed."""


def several_lms(model: Any) -> Call:
    """Create a new language model in each call."""

    def call(seed: int) -> list[smc.Posterior]:
        return sample(smc.TransformersLM(model, None, VOCABULARY), seed)

    return call


def one_lm(model: Any) -> Call:
    return partial(sample, smc.TransformersLM(model, None, VOCABULARY))


def within_generate(model: Any) -> Call:
    """Call `generate` with one decoder, which has the seed."""
    decode = smc.generate(CONSTRAINTS["a_star_b"](), particles=6, seed=0)
    options = {"max_new_tokens": 9, "return_dict_in_generate": True, "custom_generate": decode}

    def call(_: int) -> list[smc.Posterior]:
        return list(model.generate(**INPUTS, **options).posteriors)

    return call


def sample(lm: smc.TransformersLM, seed: int) -> list[smc.Posterior]:
    options = {"max_tokens": 9, "particles": 6, "proposal": smc.GCD(), "seed": seed}
    return smc.sample(lm, PROMPTS, CONSTRAINTS["a_star_b"](), **options)


# The first pass in which rows use shared prompts, in a call that is not the first one. Prompts are
# computed in an earlier pass or cached; a new language model takes 15 passes for its self-check.
WAYS = {several_lms: 17, one_lm: 2, within_generate: 2}


@pytest.fixture(params=WAYS, ids=lambda way: way.__name__)
def way(request: pytest.FixtureRequest) -> Any:
    return request.param


@pytest.fixture
def call(way: Any, model: Any) -> Call:
    made = way(model)
    made(99)
    return made


@pytest.fixture
def alone(way: Any) -> Call:
    """Run the same with a separate model."""
    return way(tiny_model(layers=2))


def plain(model: Any) -> torch.Tensor:
    found = model.generate(
        **INPUTS, max_new_tokens=9, return_dict_in_generate=True, output_logits=True
    )
    return torch.stack(found.logits)


def same(found: list[smc.Posterior], alone: list[smc.Posterior]) -> bool:
    return [each.particles for each in found] == [each.particles for each in alone]


def test_threads_halt_where_prompts_are_shared(
    way: Any, call: Call, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise the tests below would test less than they claim."""
    kinds: list[type] = []

    def noting(kind: type, name: str) -> None:
        read = getattr(kind, name)

        def noted(self: Any, *args: Any, **options: Any) -> torch.Tensor:
            kinds.append(kind)
            return read(self, *args, **options)

        monkeypatch.setattr(kind, name, noted)

    noting(Truth, "after")
    noting(TransformersRows, "read")
    noting(SharingRows, "_forward")
    call(0)
    assert set(kinds[WAYS[way] - 1 :]) == {SharingRows}


def test_passes_overlap_and_one_of_them_fails(
    way: Any, call: Call, alone: Call, model: Any
) -> None:
    """Three passes overlap with plain generation, and end in the order in which they began."""
    logits = plain(model)
    halts = [Halt(), Halt(OSError("in the middle")), Halt()]
    with halting(model, WAYS[way]) as start:
        threads = []
        for seed, halt in enumerate(halts):
            threads.append(start(halt, partial(call, seed)))
            halt.wait(threads[-1])
        for seed, (halt, thread) in enumerate(zip(halts, threads, strict=True)):
            assert model.config._attn_implementation == "sdpa"
            assert torch.equal(plain(model), logits)
            halt.release()
            if halt.error is None:
                assert same(thread.result(SECONDS), alone(seed))
            else:
                with pytest.raises(OSError, match="in the middle"):
                    thread.result(SECONDS)
    assert model.config._attn_implementation == "sdpa"
    assert torch.equal(plain(model), logits)
    assert same(call(0), alone(0))


def test_modules_with_bound_functions_copy_their_prompts(model: Any) -> None:
    """Bound as by compilers and `accelerate`; the layer would ignore shared prompts."""
    before = smc.TransformersLM(model, None, VOCABULARY)
    sample(before, 0)
    assert shares_prompts(model)
    layer = model.model.layers[1]
    layer.forward = layer.forward
    assert not shares_prompts(model)
    found = sample(smc.TransformersLM(model, None, VOCABULARY), 0)
    for one, other in zip(found, several_lms(tiny_model(layers=2))(0), strict=True):
        assert [each.ids for each in one.particles] == [each.ids for each in other.particles]
        assert one.log_evidence == pytest.approx(other.log_evidence, abs=1e-4)
    with pytest.raises(ValueError, match=r"all 2 layers .* only 1 do.*create a new smc.Tr"):
        sample(before, 0)


# -- default device and dtype, and autocast --------------------------------------------------------


transformers = pytest.importorskip("transformers")

AUTOMATON = CONSTRAINTS["few_words"]()
AHEAD = HMM.random(2, VOCABULARY.size, generator=torch.Generator().manual_seed(0))
PAIR = [(0, 1), (2,)]


def sampled(**options: Any) -> Callable[[], Any]:
    lm = smc.TransformersLM(tiny_model(), None, VOCABULARY)
    chosen = {"max_tokens": 5, "particles": 4, "proposal": smc.GCD(), **options}

    def call() -> Any:
        found = sample_with(lm, PAIR, AUTOMATON, **chosen)
        return [(each.texts, each.log_evidence) for each in found]

    return call


def searched() -> Callable[[], Any]:
    lm = smc.TransformersLM(tiny_model(), None, VOCABULARY)
    return lambda: smc.search(lm, PAIR[0], AUTOMATON, max_tokens=5).best.text


def generated_by(**options: Any) -> Callable[[], Any]:
    model = tiny_model()
    ids = torch.tensor([PAIR[0]], device="cpu")
    options |= {"attention_mask": torch.ones_like(ids), "max_new_tokens": 5}
    return lambda: model.generate(ids, **options).tolist()


CALLS: dict[str, Callable[[], Callable[[], Any]]] = {
    "gcd": sampled,
    "discrete": lambda: sampled(algorithm="discrete", proposal=smc.PGCD(AHEAD)),
    "static": lambda: sampled(execution="static"),
    "ahead": lambda: sampled(read_ahead=2),
    "search": searched,
    "generate": lambda: generated_by(custom_generate=smc.generate(AUTOMATON, particles=4, seed=0)),
    "processor": lambda: generated_by(logits_processor=[smc.BudgetLogitsProcessor(AUTOMATON, 5)]),
    "processor, ahead": lambda: generated_by(
        logits_processor=[smc.BudgetLogitsProcessor(AUTOMATON, 5, smc.PGCD(AHEAD))]
    ),
}


@pytest.mark.parametrize("name", CALLS)
def test_settings_of_the_process_change_nothing(name: str) -> None:
    call = CALLS[name]()
    expected = call()
    with torch.device("meta"):
        assert call() == expected
    torch.set_default_dtype(torch.float64)
    try:
        found = call()
    finally:
        torch.set_default_dtype(torch.float32)
    assert found == expected
    for dtype in (torch.bfloat16, torch.float16):
        with torch.autocast("cpu", dtype=dtype):
            if name == "static":
                with pytest.raises(NotStaticError, match="autocast"):
                    call()
            else:
                call()

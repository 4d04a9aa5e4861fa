"""No operation of a static step has a result that the host must see, or a shape that hangs on it.

On a CUDA device such an operation waits, and cannot be captured (`tests.smc.test_static_gpu`); here
the step is taken on the CPU as it is there, without compiled loops, and its operations are listed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes

import hmm.lookahead
import smc
import smc.vocabulary.factors
from gcd.automata.automaton import Automaton
from gcd.tokens.batch import AutomatonBatch
from gcd.tokens.lifting import lift
from gcd.tokens.vocabulary import Vocabulary
from hmm.model import HMM
from smc.draw import CounterDraw
from smc.proposals import Batch
from smc.static import StaticFilter, StaticSampler
from smc.testing import ToyLM
from tests.smc.test_static import ToyForward

WAITING = {
    "_local_scalar_dense",
    "bincount",
    "equal",
    "is_nonzero",
    "item",
    "lift_fresh",  # numbers of the host become a tensor
    "masked_select",
    "nonzero",
    "repeat_interleave",
    "unique_consecutive",
    "unique_dim",
    "_unique",
    "_unique2",
}
# Every token is a class of its own: what asks whether that is so must not ask the device.
VOCABULARY = Vocabulary.from_bytes([b"a", b"b", b""], [2])
AUTOMATON = lift(Automaton.literal("a").star() + Automaton.literal("b"), VOCABULARY)


def pgcd(**options: Any) -> smc.PGCD:
    generator = torch.Generator().manual_seed(5)
    model = HMM.random(3, VOCABULARY.size, generator=generator, dtype=torch.float64)
    return smc.PGCD(model, **options)


PROPOSALS: dict[str, Callable[[], smc.Proposal]] = {
    "lm": smc.LM,
    "lcd": smc.LCD,
    "gcd": smc.GCD,
    "pgcd": lambda: pgcd(exact_top_k=2),
    "in_time": lambda: pgcd(lookahead="in_time", exact_top_k=0, defence=0.1),
}


class Waits(TorchDispatchMode):
    """A mode that lists the operations which would wait."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[str] = []
        self.count = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        name = func._schema.name.removeprefix("aten::")
        self.count += 1
        by_mask = name.startswith(("index", "_index_put")) and any(
            isinstance(index, torch.Tensor) and index.dtype == torch.bool
            for part in args
            if isinstance(part, (list, tuple))
            for index in part
        )
        if name in WAITING or by_mask:
            self.found.append(str(func))
        return func(*args, **(kwargs or {}))


@contextmanager
def as_on_a_device(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    with monkeypatch.context() as elsewhere:
        elsewhere.setattr(smc.vocabulary.factors, "COMPILED", ())
        elsewhere.setattr(hmm.lookahead, "_COMPILED", ())
        yield


class Outside(ToyForward):
    """A toy language model, whose own work on lists is not looked at."""

    def step(self, tokens, source, step):
        with _disable_current_modes():
            return super().step(tokens, source, step)


def sampler(proposal: smc.Proposal, B: int) -> StaticSampler:
    return StaticSampler(Outside(ToyLM(VOCABULARY)), proposal, batch_of(B), num_particles=3,
                         examples=torch.arange(B), draw=CounterDraw(1))  # fmt: skip


def filtered(proposal: smc.Proposal, B: int, **options: Any) -> StaticFilter:
    return StaticFilter(Outside(ToyLM(VOCABULARY)), proposal, batch_of(B), num_particles=3,
                        examples=torch.arange(B), draw=CounterDraw(1), **options)  # fmt: skip


def batch_of(B: int) -> Batch:
    return Batch(AutomatonBatch([AUTOMATON] * B), torch.full((B,), 5))


ALGORITHMS: dict[str, Callable[..., Any]] = {
    "sampler": sampler,
    "filter": filtered,
    "share": lambda *given: filtered(*given, share=0.5, floor=0.0, count_finished=False),
}


@pytest.mark.usefixtures("unchecked_annotations")
@pytest.mark.parametrize("algorithm", ALGORITHMS)
@pytest.mark.parametrize("name", PROPOSALS)
def test_no_operation_waits(name: str, algorithm: str, monkeypatch: pytest.MonkeyPatch) -> None:
    B = 2 if name == "pgcd" else 1
    assert AUTOMATON.num_classes == VOCABULARY.size
    run = ALGORITHMS[algorithm](PROPOSALS[name](), B)
    run.prepare([[0]] * B)
    with as_on_a_device(monkeypatch):
        run.advance()  # tables that are made once, at first use
        with Waits() as waits:
            run.advance()
    assert waits.count > 100
    assert waits.found == []


def test_what_waits_is_found() -> None:
    x = torch.arange(3)
    for wait in (
        lambda: bool(x.sum()),
        lambda: x[x > 1],
        lambda: x.nonzero(),
        lambda: torch.unique(x),
        lambda: torch.equal(x, x + 1),
        lambda: torch.tensor([1, 2]),
        lambda: x.index_put((x > 1,), x.sum()),
        lambda: x.repeat_interleave(x),
    ):
        with Waits() as waits:
            wait()
        assert waits.found

"""No operation of a static step synchronizes with the host.

On a CUDA device such an operation waits, and can't be captured (`tests.smc.test_gpu`). Here the
step runs on the CPU without compiled loops, and its operations are recorded.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import _disable_current_modes

import hmm._lookahead
import smc
import smc._vocabulary.factors
from gcd import Automaton, AutomatonBatch, Vocabulary, lift
from hmm import HMM
from smc import Batch
from smc._inference.algorithms import SMC, Discrete
from smc._inference.captured import AnswerTables, StaticReader, StaticRun, Waits
from smc._inference.execution import Job, Settings, steps_of
from smc._vocabulary.passes import TENSORS
from smc.testing import ToyForward, ToyLM

# Every token is its own class; checking for this must not synchronize.
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
    "in_time": lambda: pgcd(lookahead="in_time", exact_top_k=0, defense=0.1),
}


@contextmanager
def as_on_a_device(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    with monkeypatch.context() as elsewhere:
        elsewhere.setattr(smc._vocabulary.factors, "COMPILED_DEVICES", ())
        elsewhere.setattr(hmm._lookahead, "_COMPILED", ())
        yield


class Outside(ToyForward):
    """A toy language model whose own list operations are ignored."""

    def step(self, tokens, source, step):
        with _disable_current_modes():
            return super().step(tokens, source, step)


ALGORITHMS: dict[str, SMC | Discrete] = {
    "smc": SMC(),
    "all": SMC(strata="none", ess_threshold=1.0),
    "discrete": Discrete(),
    "plain": Discrete(floor=0.0, count_finished=False),
}


def run_of(proposal: smc.Proposal, algorithm: str, B: int) -> StaticRun:
    batch = Batch(AutomatonBatch([AUTOMATON] * B), torch.full((B,), 5))
    reader = StaticReader(
        Outside(ToyLM(VOCABULARY)), proposal, batch, TENSORS, num_particles=3, temperature=1.0
    )
    settings = Settings.of(proposal, 3, ALGORITHMS[algorithm], 8, seed=1)
    job = Job(reader.forward, settings, [[0]] * B, batch, torch.arange(B), None, None)
    steps = steps_of(job, reader, AnswerTables)
    return StaticRun(steps, [[0]] * B, 5, graph=False)


@pytest.mark.usefixtures("unchecked_annotations")
@pytest.mark.parametrize("algorithm", ALGORITHMS)
@pytest.mark.parametrize("name", PROPOSALS)
def test_no_operation_waits(name: str, algorithm: str, monkeypatch: pytest.MonkeyPatch) -> None:
    B = 2 if name == "pgcd" else 1
    assert AUTOMATON.num_classes == VOCABULARY.size
    run = run_of(PROPOSALS[name](), algorithm, B)
    with as_on_a_device(monkeypatch):
        run.advance()  # creates the tables that are made at first use
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

"""The static step on a CUDA device: capture changes no result, and nothing synchronizes."""

from __future__ import annotations

from copy import deepcopy
from typing import Any

import pytest
import torch

import smc
from gcd import AutomatonBatch, lift, regex
from hmm import HMM
from smc import Batch
from smc._inference.algorithms import SMC, Discrete
from smc._inference.captured import WARM_UP, AnswerTables, StaticReader, StaticRun
from smc._inference.execution import Job, Settings, steps_of
from smc._models.static_cache import move_rows
from smc._vocabulary.passes import pass_of
from tests.smc import passes, toys
from tests.smc.calls import assert_same, sample_with

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]


@pytest.fixture(scope="module")
def stories() -> smc.TransformersLM:
    return toys.stories("cuda")


def proposal_of(name: str, lm: smc.TransformersLM) -> smc.Proposal:
    if name != "pgcd":
        return {"lm": smc.LM, "lcd": smc.LCD, "gcd": smc.GCD}[name]()
    generator = torch.Generator().manual_seed(0)
    hmm = HMM.random(8, lm.vocabulary.size, generator=generator, dtype=torch.float64)
    return smc.PGCD(hmm.to("cuda"), exact_top_k=8)


CONSTRAINT = r"(Once|One day|Tom)[a-z ,]{0,40}\."
OPTIONS: dict[str, dict[str, Any]] = {
    "smc": {"ess_threshold": 0.9},
    "discrete": {"algorithm": "discrete"},
}


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("name", passes.PROPOSALS)
def test_triton_draws_the_same_as_tensor_operations(name: str, dtype: torch.dtype) -> None:
    passes.compare(pass_of("triton", torch.device("cuda")), name, dtype, device="cuda")


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("N", [1, 9])
def test_triton_finds_the_same_candidates(N: int, dtype: torch.dtype) -> None:
    passes.compare_selection(pass_of("triton", torch.device("cuda")), dtype, N, device="cuda")


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_rows_are_moved_in_place(dtype: torch.dtype) -> None:
    piece = torch.randn(3, 4, 2, 900, 48, device="cuda").to(dtype)
    source = torch.tensor([0, 0, 2, 2], device="cuda")
    expected = piece.clone()
    expected[:, :, :, 5:] = piece[:, source][:, :, :, 5:]
    move_rows(piece, source, 5)
    assert torch.equal(piece, expected)


@pytest.mark.parametrize("algorithm", OPTIONS)
@pytest.mark.parametrize("name", ["lm", "lcd", "gcd", "pgcd"])
def test_a_captured_step_is_the_eager_one(
    stories: smc.TransformersLM, name: str, algorithm: str
) -> None:
    automaton = lift(regex(CONSTRAINT), stories.vocabulary)
    found, expected = (
        sample_with(
            stories, ["A story. ", "The "], automaton, max_tokens=[12, 9], particles=6, seed=3,
            proposal=proposal_of(name, stories), execution=way, forced_runs=False,
            **{"algorithm": "smc", **OPTIONS[algorithm]},
        )
        for way in ("static", "eager")
    )  # fmt: skip
    assert_same(found, expected)


def test_a_compiled_step_is_the_plain_one(stories: smc.TransformersLM) -> None:
    single = deepcopy(stories.model).float()
    automaton = lift(regex(CONSTRAINT), stories.vocabulary)
    found, expected = (
        sample_with(
            smc.TransformersLM(single, stories.tokenizer, compile=compile), ["A story. ", "The "],
            automaton, max_tokens=[12, 9], particles=6, seed=3, proposal=smc.GCD(),
            execution="static", forced_runs=False, algorithm="smc", ess_threshold=0.9,
        )
        for compile in (True, False)
    )  # fmt: skip
    assert_same(found, expected, tolerance=1e-3)


@pytest.mark.parametrize("algorithm", OPTIONS)
@pytest.mark.parametrize("graph", [False, True])
@pytest.mark.parametrize("fused", ["tensors", "auto"])
@pytest.mark.parametrize("name", ["lm", "lcd", "gcd", "pgcd"])
def test_nothing_waits_for_the_device(
    stories: smc.TransformersLM, name: str, fused: str, graph: bool, algorithm: str
) -> None:
    automaton = lift(regex(CONSTRAINT), stories.vocabulary)
    batch = Batch(
        AutomatonBatch([automaton] * 2, device="cuda"), torch.tensor([12, 9], device="cuda")
    )
    reader = StaticReader(
        stories.static_forward(), proposal_of(name, stories), batch,
        pass_of(fused, stories.device), num_particles=6, temperature=1.0, spare=WARM_UP,
    )  # fmt: skip
    given = {} if algorithm == "discrete" else {"ess_threshold": 0.9}
    kind = {"smc": SMC, "discrete": Discrete}[algorithm](**given)
    settings = Settings.of(reader.proposal, 6, kind, 12, seed=3)
    prompts = [stories.encode("A story. "), stories.encode("The ")]
    examples = torch.arange(2, device="cuda")
    job = Job(stories, settings, prompts, batch, examples, None, None)
    steps = steps_of(job, reader, AnswerTables)
    run = StaticRun(steps, prompts, 12, graph=graph)
    run.advance()  # creates the tables that are made at first use
    torch.cuda.set_sync_debug_mode("error")
    try:
        for _ in range(5):
            run.advance()
    finally:
        torch.cuda.set_sync_debug_mode("default")
    run.outcome()

"""One model shared by two workers, on two CPUs: weights are those of brute force.

VLLM_CPU_OMP_THREADS_BIND="0|1" pytest ...
"""

from __future__ import annotations

import os

import pytest
import torch

import gcd
import gcd_vllm
import hmm
from gcd_vllm._requests import ConstraintRequest
from tests_vllm.oracle import Oracle, log_sum

if "|" not in os.environ.get("VLLM_CPU_OMP_THREADS_BIND", ""):
    pytest.skip("`make vllm` runs it separately", allow_module_level=True)

CHOICE = {"choice": ["yes", "no", "none", "yesterday"]}
BUDGET = 5
PROMPT = "Once upon a time"


@pytest.fixture(scope="module")
def engine(peaked_llama, tmp_path_factory):
    from vllm import LLM

    folder = tmp_path_factory.mktemp("hmms")
    seeded = torch.Generator().manual_seed(0)
    model = hmm.HMM.random(6, 512, generator=seeded, concentration=0.3)
    hmm.save(model, folder / "random")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("GCD_VLLM_HMMS", str(folder))
        yield LLM(
            peaked_llama, dtype="float32", max_model_len=64, max_num_seqs=16, enforce_eager=True,
            block_size=32, worker_extension_cls="gcd_vllm.WorkerExtension",
            tensor_parallel_size=2, distributed_executor_backend="mp",
        )  # fmt: skip


@pytest.fixture(scope="module")
def oracle(engine, peaked_llama):
    from gcd_vllm._in_process import InProcessEngine

    language = ConstraintRequest("choice", CHOICE["choice"]).language()
    automaton = gcd.lift(language, InProcessEngine(engine).vocabulary)
    return Oracle(peaked_llama, automaton, tuple(engine.get_tokenizer().encode(PROMPT)))


@pytest.mark.parametrize("chunk", [None, 2])
def test_masks_and_weights_are_those_of_one_worker(engine, oracle, chunk):
    (found,) = gcd_vllm.sample(
        engine, [PROMPT], CHOICE, max_tokens=BUDGET, particles=40, chunk=chunk
    )
    for particle in found.particles:
        assert particle.finished
        assert particle.token_log_p == pytest.approx(oracle.log_p(particle.ids), abs=1e-4)
        log_z = oracle.log_z(particle.ids, BUDGET)
        assert particle.token_log_z == pytest.approx(log_z, abs=1e-4)


def test_pgcd_finds_the_evidence(engine, oracle):
    (found,) = gcd_vllm.sample(
        engine, [PROMPT], CHOICE, max_tokens=BUDGET, particles=200,
        proposal=gcd_vllm.PGCD("random", exact_top_k=8, defense=0.05),
    )  # fmt: skip
    exact = log_sum(oracle.answers(BUDGET).values())
    assert abs(found.log_evidence - exact) < 4 * found.reliability.log_evidence_error
    for particle in found.particles:
        assert particle.token_log_p == pytest.approx(oracle.log_p(particle.ids), abs=1e-4)

"""Weights of particles in the V2 model runner on a CPU, against brute force.

TRITON_INTERPRET=1 VLLM_USE_V2_MODEL_RUNNER=1 VLLM_ENABLE_V1_MULTIPROCESSING=0 \
    PYTHONPATH=tests_vllm/interpreter:. pytest ...
"""

from __future__ import annotations

import math
import os

import pytest

import gcd
import gcd_vllm
from gcd._requests import ConstraintRequest
from gcd_vllm._in_process import InProcessEngine
from tests_vllm.oracle import Oracle, log_sum

if os.environ.get("VLLM_USE_V2_MODEL_RUNNER") != "1":
    pytest.skip("run by `make vllm` with the interpreter", allow_module_level=True)

REGEX = {"regex": "[ab]+c?"}
BUDGET = 4
PROMPT = "Once upon a time"


@pytest.fixture(scope="module")
def engine(peaked_llama):
    from vllm import LLM

    return LLM(
        peaked_llama, dtype="float32", max_model_len=128, max_num_seqs=8, enforce_eager=True,
        num_gpu_blocks_override=5, block_size=32,
        worker_extension_cls="gcd_vllm.WorkerExtension",
    )  # fmt: skip


@pytest.mark.parametrize(
    ("chunk", "proposal", "temperature"),
    [(None, "gcd", 1.0), (None, "gcd", 0.7), (2, "gcd", 1.0), (None, "lcd", 1.0)],
    ids=str,
)
def test_weights_are_those_of_brute_force(engine, peaked_llama, chunk, proposal, temperature):
    assert engine.llm_engine.vllm_config.use_v2_model_runner
    (found,) = gcd_vllm.sample(
        engine, [PROMPT], REGEX, budget=BUDGET, particles=20, chunk=chunk, proposal=proposal,
        temperature=temperature,
    )  # fmt: skip
    language = ConstraintRequest("regex", REGEX["regex"]).language()
    automaton = gcd.lift(language, InProcessEngine(engine).vocabulary)
    prompt = tuple(engine.get_tokenizer().encode(PROMPT))
    oracle = Oracle(peaked_llama, automaton, prompt, temperature)
    for particle in found.particles:
        assert particle.token_log_p == pytest.approx(oracle.log_p(particle.ids), abs=1e-4)
        if proposal == "gcd":
            assert particle.finished
            log_z = oracle.log_z(particle.ids, BUDGET)
            assert particle.token_log_z == pytest.approx(log_z, abs=1e-4)
        else:
            assert particle.finished is (particle.log_weight > -math.inf)
    exact = log_sum(oracle.answers(BUDGET).values())
    assert abs(found.log_evidence - exact) < 4 * found.reliability.log_evidence_error

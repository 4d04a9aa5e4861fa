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
from gcd_vllm._in_process import InProcessEngine
from gcd_vllm._particle_request import ParticleRequest
from gcd_vllm._requests import ConstraintRequest
from gcd_vllm._weight_table import LOG_P, LOG_Q, LOG_Z, take
from tests_vllm.cases import asked
from tests_vllm.oracle import Oracle, log_sum
from tests_vllm.twisted import registered, values

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
        num_gpu_blocks_override=5, block_size=32, disable_log_stats=False,
        worker_extension_cls="gcd_vllm.WorkerExtension",
    )  # fmt: skip


@pytest.fixture(scope="module")
def pgcd(engine, tmp_path_factory):
    vocabulary = InProcessEngine(engine).vocabulary
    with registered(vocabulary, tmp_path_factory.mktemp("hmms")) as found:
        yield found


@pytest.fixture(scope="module")
def oracle_of(engine, peaked_llama):
    """An oracle of the engine's model, for a regular expression and a temperature."""

    def make(regex, temperature=1.0):
        language = ConstraintRequest("regex", regex["regex"]).language()
        automaton = gcd.lift(language, InProcessEngine(engine).vocabulary)
        prompt = tuple(engine.get_tokenizer().encode(PROMPT))
        return Oracle(peaked_llama, automaton, prompt, temperature)

    return make


@pytest.mark.parametrize(
    ("chunk", "proposal", "temperature"),
    [
        (None, "gcd", 1.0), (None, "gcd", 0.7), (2, "gcd", 1.0), (None, "lcd", 1.0),
        (None, "pgcd", 1.0), (None, "pgcd", 0.7), (2, "pgcd", 1.0),
    ],
    ids=str,
)  # fmt: skip
def test_weights_are_those_of_brute_force(engine, oracle_of, pgcd, chunk, proposal, temperature):
    assert engine.llm_engine.vllm_config.use_v2_model_runner
    (found,) = gcd_vllm.sample(
        engine, [PROMPT], REGEX, max_tokens=BUDGET, particles=20, chunk=chunk,
        proposal=pgcd if proposal == "pgcd" else proposal, temperature=temperature,
    )  # fmt: skip
    oracle = oracle_of(REGEX, temperature)
    for particle in found.particles:
        assert particle.token_log_p == pytest.approx(oracle.log_p(particle.ids), abs=1e-4)
        if proposal == "gcd":
            log_z = oracle.log_z(particle.ids, BUDGET)
            assert particle.token_log_z == pytest.approx(log_z, abs=1e-4)
        elif proposal == "pgcd":
            log_q = [log_q for _, log_q in values(pgcd, oracle, particle.ids, BUDGET)]
            assert particle.token_log_q == pytest.approx(log_q, abs=1e-3)
        assert particle.finished is (particle.log_weight > -math.inf)
        assert particle.finished or proposal == "lcd"
    exact = log_sum(oracle.answers(BUDGET).values())
    assert abs(found.log_evidence - exact) < 4 * found.reliability.log_evidence_error


def test_pgcd_beside_other_requests_with_preemption(engine, oracle_of, pgcd):
    """Answers need a second block of memory, and there isn't enough for all of them."""
    from vllm import SamplingParams

    def preemptions():
        metrics = engine.get_metrics()
        return sum(m.value for m in metrics if m.name == "vllm:num_preemptions")

    regex, budget, before = {"regex": "[ab]{28,38}"}, 34, preemptions()
    parameters, proposals = [], ["pgcd", "gcd", "free", "pgcd", "gcd", "pgcd", "free", "pgcd"]
    for n, proposal in enumerate(proposals):
        params = SamplingParams(temperature=1.0, seed=n, max_tokens=budget)
        if proposal != "free":
            options = {"pgcd": pgcd} if proposal == "pgcd" else {}
            particle = ParticleRequest(f"mixed/{n}", proposal=proposal, **options)
            params.extra_args = asked(regex) | {"gcd_particle": particle.text()}
        parameters.append(params)
    found = engine.generate([PROMPT] * len(parameters), parameters, use_tqdm=False)
    assert preemptions() > before
    oracle, weights = oracle_of(regex), take("mixed/")
    assert len(weights) == 6
    for n, output in enumerate(found):
        if proposals[n] == "free":
            continue
        ids = tuple(output.outputs[0].token_ids)
        assert output.outputs[0].finish_reason == "stop"
        steps = weights[f"mixed/{n}"][: len(ids)]
        log_p, log_q, log_z = ([step[i] for step in steps] for i in (LOG_P, LOG_Q, LOG_Z))
        assert log_p == pytest.approx(oracle.log_p(ids), abs=1e-4)
        if proposals[n] == "pgcd":
            expected = values(pgcd, oracle, ids, budget)
            assert log_z == pytest.approx([z for z, _ in expected], abs=1e-3)
            assert log_q == pytest.approx([q for _, q in expected], abs=1e-3)
        else:
            assert log_z == pytest.approx(oracle.log_z(ids, budget), abs=1e-4)

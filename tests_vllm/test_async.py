"""The V1 model runner with asynchronous scheduling, which vLLM's CPU platform switches off.

Here it is switched on again, in this process, and V1 then works as on a GPU. A step is scheduled
before the token of the last one is known, and the lists of tokens have placeholders at their ends.

VLLM_ENABLE_V1_MULTIPROCESSING=0 pytest ...
"""

from __future__ import annotations

import os

import pytest

from tests_vllm.cases import CONSTRAINTS, SMALL_BUDGETS, asked, is_valid
from tests_vllm.recording import recorded_v1

if os.environ.get("VLLM_ENABLE_V1_MULTIPROCESSING") != "0":
    pytest.skip("`make vllm` runs it separately", allow_module_level=True)


@pytest.fixture(scope="module")
def engine(random_llama):
    """One that schedules ahead, with too little memory, so that it preempts."""
    from vllm import LLM
    from vllm.platforms.cpu import CpuPlatform

    check = CpuPlatform.check_and_update_config

    def switched_on(config):
        check(config)
        config.scheduler_config.async_scheduling = True

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(CpuPlatform, "check_and_update_config", staticmethod(switched_on))
        return LLM(
            random_llama, dtype="float32", max_model_len=128, max_num_seqs=8, enforce_eager=True,
            num_gpu_blocks_override=5, block_size=32, disable_log_stats=False,
            logits_processors=["gcd_vllm:Processor"],
            worker_extension_cls="gcd_vllm.WorkerExtension",
        )  # fmt: skip


def generate(engine, constraints):
    from vllm import SamplingParams

    given = [
        SamplingParams(
            temperature=1.0,
            seed=seed,
            max_tokens=SMALL_BUDGETS[next(iter(constraint))],
            extra_args=asked(constraint),
        )
        for seed, constraint in enumerate(constraints)
    ]
    found = engine.generate(["Once upon a time"] * len(given), given, use_tqdm=False)
    return [each.outputs[0] for each in found]


def test_answers_are_valid_and_finished_where_the_last_token_comes_late(engine, monkeypatch):
    from gcd_vllm._v1 import EngineProcessor

    update, late = EngineProcessor.update_state, []

    def watched(self, batch_update):
        update(self, batch_update)
        late.extend(row.tokens[-1] == -1 for row in self._rows.values() if row.tokens)

    monkeypatch.setattr(EngineProcessor, "update_state", watched)
    recording = recorded_v1(monkeypatch)
    for constraint, output in zip(CONSTRAINTS, generate(engine, CONSTRAINTS), strict=True):
        assert output.finish_reason == "stop", (constraint, output)
        assert is_valid(constraint, output.text), (constraint, output.text)
    assert any(late)
    assert sum(m.value for m in engine.get_metrics() if m.name == "vllm:num_preemptions") > 0
    recording.write("v1")


@pytest.mark.parametrize(("chunk", "proposal"), [(None, "gcd"), (2, "gcd"), (None, "lcd")])
def test_weights_are_those_of_brute_force(engine, random_llama, chunk, proposal):
    """The last token of a part isn't told to processors."""
    import gcd
    import gcd_vllm
    from gcd_vllm._in_process import InProcessEngine
    from gcd_vllm._requests import ConstraintRequest
    from tests_vllm.oracle import Oracle

    prompt, budget = "Once upon a time", 4
    (found,) = gcd_vllm.sample(
        engine, [prompt], {"regex": "[ab]+c?"}, max_tokens=budget, particles=12, chunk=chunk,
        proposal=proposal,
    )  # fmt: skip
    language = ConstraintRequest("regex", "[ab]+c?").language()
    automaton = gcd.lift(language, InProcessEngine(engine).vocabulary)
    oracle = Oracle(random_llama, automaton, tuple(engine.get_tokenizer().encode(prompt)))
    for particle in found.particles:
        assert particle.token_log_p == pytest.approx(oracle.log_p(particle.ids), abs=1e-4)
        if proposal == "gcd":
            log_z = oracle.log_z(particle.ids, budget)
            assert particle.token_log_z == pytest.approx(log_z, abs=1e-4)
    if chunk is not None:
        with pytest.raises(ValueError, match="logprobs_mode='processed_logprobs'"):
            gcd_vllm.sample(
                engine,
                [prompt],
                {"regex": "a+"},
                max_tokens=4,
                particles=2,
                chunk=1,
                temperature=0.5,
            )


def test_it_is_refused_unless_the_processor_is_named(engine, monkeypatch):
    """As V1 would not fill in the placeholders otherwise."""
    from vllm.exceptions import VLLMValidationError

    config = engine.llm_engine.vllm_config.model_config
    monkeypatch.setattr(config, "logits_processors", None)
    with pytest.raises(VLLMValidationError, match="serve with --logits-processors gcd_vllm:Proc"):
        generate(engine, CONSTRAINTS[:1])

"""The V2 model runner on a CPU, with n-gram drafts and too little memory, so that it preempts.

TRITON_INTERPRET=1 VLLM_USE_V2_MODEL_RUNNER=1 PYTHONPATH=tests_vllm/interpreter:. pytest ...
"""

from __future__ import annotations

import os

import pytest

from tests_vllm.cases import CONSTRAINTS, SMALL_BUDGETS, asked, is_valid
from tests_vllm.recording import recorded_v2

if os.environ.get("VLLM_USE_V2_MODEL_RUNNER") != "1":
    pytest.skip("run by `make vllm` with the interpreter", allow_module_level=True)


@pytest.fixture(scope="module")
def engine(random_llama):
    from vllm import LLM

    return LLM(
        random_llama,
        dtype="float32",
        max_model_len=128,
        max_num_seqs=8,
        num_gpu_blocks_override=5,
        block_size=32,
        enforce_eager=True,
        enable_prefix_caching=True,
        disable_log_stats=False,
        speculative_config={
            "method": "ngram", "num_speculative_tokens": 2,
            "prompt_lookup_max": 3, "prompt_lookup_min": 1,
        },
    )  # fmt: skip


def generate(engine, constraints):
    from vllm import SamplingParams

    parameters = [
        SamplingParams(
            temperature=1.0,
            seed=seed,
            max_tokens=SMALL_BUDGETS[next(iter(constraint))],
            extra_args=asked(constraint),
        )
        for seed, constraint in enumerate(constraints)
    ]
    return engine.generate(["Once upon a time"] * len(constraints), parameters, use_tqdm=False)


def counted(engine, name):
    return sum(m.value for m in engine.get_metrics() if m.name == name)


def test_every_answer_is_valid_and_finished_with_drafts_and_preemption(engine):
    assert engine.llm_engine.vllm_config.use_v2_model_runner
    constraints = CONSTRAINTS * 2
    for constraint, found in zip(constraints, generate(engine, constraints), strict=True):
        output = found.outputs[0]
        assert output.finish_reason == "stop", (constraint, output)
        assert is_valid(constraint, output.text), (constraint, output.text)
        assert len(output.token_ids) <= SMALL_BUDGETS[next(iter(constraint))]
    assert counted(engine, "vllm:spec_decode_num_draft_tokens") > 0
    assert counted(engine, "vllm:num_preemptions") > 0


def test_its_calls_are_recorded(engine, monkeypatch):
    recording = recorded_v2(monkeypatch)
    before = counted(engine, "vllm:num_preemptions")
    generate(engine, CONSTRAINTS)
    assert counted(engine, "vllm:num_preemptions") > before
    recording.write("v2")


def test_one_that_only_the_engine_can_refuse_beside_good_ones(engine, monkeypatch):
    """As if the frontend had not known the vocabulary."""
    from vllm import SamplingParams

    import gcd_vllm._frontend
    from gcd_vllm._admission import REFUSED

    monkeypatch.setattr(gcd_vllm._frontend, "_caller", lambda: (None, {}))
    good = SamplingParams(max_tokens=8, extra_args=asked(CONSTRAINTS[2]))
    bad = SamplingParams(max_tokens=60, extra_args=asked({"json_schema": {"type": "nothing"}}))
    found = engine.generate(["Once upon"] * 4, [good, bad, good, good], use_tqdm=False)
    texts = [each.outputs[0].text for each in found]
    assert texts.pop(1).strip().startswith(REFUSED.strip())
    assert all(is_valid(CONSTRAINTS[2], text) for text in texts), texts
    assert all(each.outputs[0].finish_reason == "stop" for each in found)


def test_requests_without_a_constraint_are_left_alone(engine):
    from vllm import SamplingParams

    free = SamplingParams(temperature=0.0, max_tokens=6)
    (alone,) = engine.generate(["Once upon"], free, use_tqdm=False)
    bound = SamplingParams(max_tokens=8, extra_args=asked(CONSTRAINTS[2]))
    both = engine.generate(["Once upon"] * 2, [bound, free], use_tqdm=False)
    assert is_valid(CONSTRAINTS[2], both[0].outputs[0].text)
    assert both[1].outputs[0].token_ids == alone.outputs[0].token_ids

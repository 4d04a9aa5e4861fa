"""The V1 runner with SmolLM2: a few requests of every kind, and bad ones beside them."""

from __future__ import annotations

import os

import pytest

from tests_vllm.cases import CONSTRAINTS, PERSON, asked, is_valid

if os.environ.get("VLLM_USE_V2_MODEL_RUNNER") == "1":
    pytest.skip("a run of its own in `make vllm`", allow_module_level=True)

BUDGETS = {"json_schema": 24, "regex": 9, "choice": 4, "tools": 40, "segments": 24,
           "sql": 30, "grammar": 9}  # fmt: skip


@pytest.fixture(scope="module")
def engine(smollm2):
    from vllm import LLM

    return LLM(smollm2, dtype="float32", max_model_len=256, max_num_seqs=24, enforce_eager=True)


def parameters(constraint, **more):
    from vllm import SamplingParams

    limits = {"temperature": 0.8, "seed": 0, "max_tokens": BUDGETS[next(iter(constraint))]}
    return SamplingParams(**(limits | more), extra_args=asked(constraint))


def ask(engine, given):
    prompt = [{"role": "user", "content": "Describe Ada Lovelace."}]
    return [each.outputs[0] for each in engine.chat([prompt] * len(given), given, use_tqdm=False)]


def test_every_answer_is_valid_and_finished(engine):
    constraints = CONSTRAINTS * 3
    found = ask(engine, [parameters(each, seed=i) for i, each in enumerate(constraints)])
    for constraint, output in zip(constraints, found, strict=True):
        assert output.finish_reason == "stop"
        assert is_valid(constraint, output.text), (constraint, output.text)


def test_a_bad_request_is_refused_and_the_engine_goes_on(engine):
    from vllm.exceptions import VLLMValidationError

    with pytest.raises(VLLMValidationError, match=r"needs at least \d+ tokens .* budget is 5"):
        ask(engine, [parameters({"json_schema": PERSON}, max_tokens=5)])
    with pytest.raises(VLLMValidationError, match="min_tokens"):
        ask(engine, [parameters({"json_schema": PERSON}, min_tokens=2)])
    (output,) = ask(engine, [parameters(CONSTRAINTS[2])])
    assert output.text in CONSTRAINTS[2]["choice"]


def test_one_that_only_the_engine_can_refuse_beside_twenty_good_ones(engine, monkeypatch):
    """As if the frontend had not known the vocabulary."""
    import gcd_vllm.frontend
    from gcd_vllm.admission import REFUSED

    monkeypatch.setattr(gcd_vllm.frontend, "_caller", lambda: (None, {}))
    bad = parameters({"json_schema": {"type": "nothing"}}, max_tokens=30)
    found = ask(engine, [*[parameters(CONSTRAINTS[2], seed=i) for i in range(20)], bad])
    assert all(output.text in CONSTRAINTS[2]["choice"] for output in found[:20])
    assert found[20].text.startswith(REFUSED)
    assert found[20].finish_reason == "stop"

"""The V1 model runner with SmolLM2: a few requests of every kind, and bad ones beside them."""

from __future__ import annotations

import os
import re

import pytest

from tests_vllm.cases import CONSTRAINTS, PERSON, asked, is_valid

if os.environ.get("VLLM_USE_V2_MODEL_RUNNER") == "1":
    pytest.skip("`make vllm` runs it separately", allow_module_level=True)

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
    found = engine.chat([prompt] * len(given), given, use_tqdm=False)
    return [output for each in found for output in each.outputs]


def test_every_answer_is_valid_and_finished(engine):
    constraints = CONSTRAINTS * 3
    found = ask(engine, [parameters(each, seed=i) for i, each in enumerate(constraints)])
    for constraint, output in zip(constraints, found, strict=True):
        assert output.finish_reason == "stop"
        assert is_valid(constraint, output.text), (constraint, output.text)


GREEDY = {"temperature": 0.0}
THE_LIKELIEST = [GREEDY, {"top_k": 1}, {"top_p": 1e-6}, {"min_p": 1.0}]
SPREAD = [{"top_k": 5}, {"top_p": 0.5}, {"min_p": 0.3}, {"temperature": 2.0}]
PENALTIES = [
    {"presence_penalty": 2.0}, {"frequency_penalty": 2.0}, {"frequency_penalty": -2.0},
    {"repetition_penalty": 1.8}, {"repetition_penalty": 0.5},
]  # fmt: skip


@pytest.mark.parametrize("constraint", [CONSTRAINTS[0], CONSTRAINTS[3]], ids=["schema", "tools"])
def test_parameters_of_sampling_choose_among_finished_answers(engine, constraint):
    """The budget is few tokens more than the shortest answer takes."""
    limits = {"max_tokens": 20 if "json_schema" in constraint else 24}
    penalties = [GREEDY | each for each in PENALTIES]
    ways = [*THE_LIKELIEST, *SPREAD, *penalties, {"logit_bias": {28: 5.0}}]
    found = ask(engine, [parameters(constraint, **limits, **way) for way in ways])
    for way, output in zip(ways, found, strict=True):
        assert output.finish_reason == "stop", (way, output.text)
        assert is_valid(constraint, output.text), (way, output.text)
    texts = [output.text for output in found]
    assert len(set(texts[: len(THE_LIKELIEST)])) == 1
    if "json_schema" in constraint:  # the model's likeliest call is the shortest, whatever is added
        assert set(texts[-len(PENALTIES) - 1 :]) - {texts[0]}


def test_several_answers_of_one_request(engine):
    constraint = {"json_schema": PERSON}
    found = ask(engine, [parameters(constraint, n=4), parameters(constraint, n=2, seed=9)])
    assert len(found) == 6
    assert all(output.finish_reason == "stop" for output in found)
    assert all(is_valid(constraint, output.text) for output in found)
    assert len({output.text for output in found}) > 1


def test_log_probabilities_are_the_models_own(engine):
    """Before the mask: what it takes away is still counted, and may be likelier than the answer."""
    (output,) = ask(engine, [parameters(CONSTRAINTS[2], logprobs=3)])
    assert output.text in CONSTRAINTS[2]["choice"]
    assert len(output.logprobs) == len(output.token_ids)
    (first, token) = output.logprobs[0], output.token_ids[0]
    assert len(first) >= 3
    assert max(each.logprob for each in first.values()) > first[token].logprob


def test_an_answer_finishes_when_its_time_is_over(engine):
    constraint = {"regex": r"[a-z]{3,4}( [a-z]{3,4}){0,60}\."}
    words = [parameters(constraint, max_tokens=120, seed=seed) for seed in range(4)]
    hurried = [parameters(constraint | {"deadline_ms": 1}, max_tokens=120, seed=0)]
    *free, late = ask(engine, words + hurried)
    assert all(output.finish_reason == "stop" for output in (*free, late))
    assert all(re.fullmatch(constraint["regex"], output.text) for output in (*free, late))
    assert len(late.token_ids) < 10 < max(len(output.token_ids) for output in free)


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
    import gcd_vllm._frontend
    from gcd_vllm._admission import REFUSED

    monkeypatch.setattr(gcd_vllm._frontend, "_caller", lambda: (None, {}))
    bad = parameters({"json_schema": {"type": "nothing"}}, max_tokens=30)
    found = ask(engine, [*[parameters(CONSTRAINTS[2], seed=i) for i in range(20)], bad])
    assert all(output.text in CONSTRAINTS[2]["choice"] for output in found[:20])
    assert found[20].text.startswith(REFUSED)
    assert found[20].finish_reason == "stop"

"""Refusals by the frontend and by the engine, which continues after any request."""

from __future__ import annotations

import json
import subprocess
import sys
from types import SimpleNamespace

import pytest
import torch

import gcd
import gcd_vllm
from gcd_vllm import Processor
from gcd_vllm._admission import REFUSED, spell
from tests.gcd_vllm.fakes import SamplingParams, VllmConfig, v1_processor

WORDS = {"choice": ["one", "two"]}
LIMITED = {"json_schema": {"type": "string", "maxLength": 1 << 20}, "options": {"max_bytes": 20}}
CONTRADICTIONS = {
    "min_tokens": 2, "ignore_eos": True, "stop": ["."], "bad_words": ["one"],
    "allowed_token_ids": [1], "structured_outputs": object(), "thinking_token_budget": 0,
    "repetition_detection": object(), "trace_decode_token_ids": [1],
    "logit_bias": {7: float("-inf")}, "stop_token_ids": [ord("o")],
}  # fmt: skip


def params(constraint, **fields):
    return SamplingParams(extra_args={"gcd": json.dumps(constraint)}, **fields)


class InputProcessor:
    """Calls `validate_params` as vLLM's frontend does, with its names on the stack."""

    def __init__(self, config):
        self.vllm_config = config

    def process_inputs(self, prompt, given):
        Processor.validate_params(given)


def validate(tokens, given, prompt=1, **changes):
    config = VllmConfig(tokens)
    for name, value in changes.items():
        setattr(config, name, value)
    InputProcessor(config).process_inputs({"prompt_token_ids": [1] * prompt}, given)


def test_a_constraint_that_the_device_cannot_hold_is_refused_by_the_frontend(tokens, monkeypatch):
    monkeypatch.setenv("GCD_VLLM_POOL_MIB", "1")
    with pytest.raises(ValueError, match=r"at most 1 MiB on the device, got .*GCD_VLLM_POOL_MIB"):
        validate(tokens, params({"regex": "(ab|c){0,20000}"}))
    validate(tokens, params(WORDS))


def test_what_does_no_harm_is_let_in(tokens):
    harmless = {"stop_token_ids": [*tokens.eos_ids, ord("x")], "logit_bias": {7: -100.0}}
    validate(tokens, params(WORDS, **harmless))
    validate(tokens, params(LIMITED, max_tokens=4))
    validate(tokens, SamplingParams(min_tokens=4, stop=["."]))  # has no constraint


@pytest.mark.parametrize(
    ("constraint", "fields", "prompt", "why"),
    [
        *((WORDS, {name: value}, 1, name) for name, value in CONTRADICTIONS.items()),
        (WORDS, {"logit_bias": {1: float("nan")}}, 1, "logit_bias"),
        (WORDS, {"logit_bias": {1: -3e38}}, 1, "logit_bias"),
        (WORDS, {"max_tokens": 3}, 1, "within max_tokens: needs at least 4 .* budget is 3"),
        (WORDS | {"budget": 2}, {}, 1, "the request's budget: needs at least 4 .* budget is 2"),
        (WORDS, {}, 61, "max_model_len less the prompt: needs at least 4 .* budget is 3"),
        (LIMITED, {"max_tokens": 40}, 1, "raise max_bytes"),
        (LIMITED | {"options": {"longest": 20}}, {}, 1, "json_schema has no option 'longest'"),
        (WORDS | {"budget": 2.5}, {}, 1, "whole number"),
        ({"choice": "one"}, {}, 1, "list of strings"),
        ({"sql": "/etc/passwd"}, {}, 1, "an object that describes a database"),
        ({"json_schema": {"$ref": "http://example.org/x"}}, {}, 1, "ref"),
        ({"regex": "(a|b)*a(a|b){30}"}, {}, 1, "work|states"),
        ({"segments": [{"anything": True, "tokens": 0}]}, {}, 1, "at least one token"),
        ({"segments": [{"anything": False}]}, {}, 1, '"anything": true'),
        ([], {}, 1, "JSON object"),
    ],
)
def test_what_cannot_be_enforced_is_refused_with_the_reason(
    tokens, constraint, fields, prompt, why
):
    with pytest.raises(ValueError, match=f"(?i){why}"):
        validate(tokens, params(constraint, **fields), prompt)


def test_v1_where_it_would_not_call_processors(tokens):
    v1 = {"use_v2_model_runner": False}
    validate(tokens, params(WORDS), **v1)
    with pytest.raises(ValueError, match="speculative decoding"):
        validate(tokens, params(WORDS), **v1, speculative_config=object())
    late = SimpleNamespace(async_scheduling=True)
    with pytest.raises(ValueError, match="--logits-processors gcd_vllm:Processor"):
        validate(tokens, params(WORDS), **v1, scheduler_config=late)


def test_prompts_without_tokens(tokens):
    """V1 doesn't pass them to processors, but V2 does."""
    for v2, limits in ((False, "prompt_embeds"), (True, "max_model_len less the prompt")):
        config = VllmConfig(tokens)
        config.use_v2_model_runner = v2
        given = {"prompt_embeds": torch.zeros(61, 8)}
        with pytest.raises(ValueError, match=limits):
            InputProcessor(config).process_inputs(given, params(WORDS))
    config = VllmConfig(tokens, max_model_len=400)
    output = []
    processor = v1_processor(config, (params(WORDS, max_tokens=200), None, output))
    assert answer(processor, tokens, 0, output).startswith(f"{REFUSED}expected a prompt of tokens")


def test_every_problem_in_the_frontend_is_a_value_error(tokens, monkeypatch):
    """As vLLM answers nothing else with an error of the client."""
    config = VllmConfig(tokens)
    del config.model_config
    with pytest.raises(ValueError, match=r"AttributeError.*model_config"):
        InputProcessor(config).process_inputs({"prompt_token_ids": [1]}, params(WORDS))

    def unread(self):
        raise OSError("no such file")

    monkeypatch.setattr("gcd_vllm._admission.Admission._vocabulary", unread)
    with pytest.raises(ValueError, match="OSError: no such file"):
        validate(tokens, params(WORDS))


@pytest.mark.parametrize("seconds", [0.5, 2.5])
def test_a_compilation_that_others_wait_for_is_logged(tokens, monkeypatch, caplog, seconds):
    clock = iter(range(100))
    monkeypatch.setattr("gcd_vllm._admission.monotonic", lambda: next(clock) * seconds)
    validate(tokens, params(WORDS))
    assert [each.levelname for each in caplog.records] == ["WARNING"] * (seconds > 1)


def test_an_unknown_frontend_is_checked_as_far_as_possible(tokens):
    Processor.validate_params(params({"regex": "("}))  # the engine will say
    with pytest.raises(ValueError, match="min_tokens"):
        Processor.validate_params(params(WORDS, min_tokens=3))
    for other in ({"regex": "a"}, "", {}, [], 0):  # an empty constraint isn't left out
        with pytest.raises(ValueError, match="JSON text"):
            Processor.validate_params(SamplingParams(extra_args={"gcd": other}))


def answer(processor, tokens, index, output):
    """Let a row go on with its first token until its end."""
    while output[-1:] != list(tokens.eos_ids):
        logits = processor.apply(torch.zeros(4, tokens.size))
        output.append(int(torch.isfinite(logits[index]).nonzero()[0]))
    return tokens.decode(output).decode()


def test_an_engine_answers_a_bad_request_with_the_reason_and_the_others_as_always(tokens):
    bad = params({"json_schema": {"type": "nothing"}}, max_tokens=300)
    short = params({"json_schema": {"type": "nothing"}}, max_tokens=6)
    outputs = [[] for _ in range(4)]
    requests = [params(WORDS), bad, short, params(WORDS, max_tokens=2)]
    rows = [(each, [1], output) for each, output in zip(requests, outputs, strict=True)]
    processor = v1_processor(VllmConfig(tokens, max_model_len=400), *rows)
    assert answer(processor, tokens, 0, outputs[0]) in WORDS["choice"]
    told = answer(processor, tokens, 1, outputs[1])
    assert told.startswith(REFUSED)
    assert "nothing" in told
    assert len(told) > len(REFUSED) + 20
    assert answer(processor, tokens, 2, outputs[2]) == REFUSED[:5]
    assert answer(processor, tokens, 3, outputs[3]) == REFUSED[:1]


def test_an_engine_without_a_vocabulary_ends_constrained_requests(tokens, monkeypatch):
    def nothing(self):
        raise gcd.ConstraintError("no tokenizer")

    monkeypatch.setattr("gcd_vllm._admission.Admission._vocabulary", nothing)
    processor = v1_processor(VllmConfig(tokens), (params(WORDS), [1], []))
    assert torch.isfinite(processor.apply(torch.zeros(1, tokens.size))).sum() == 1


def test_an_installation_that_cannot_be_imported_is_disabled_with_one_warning(
    tokens, monkeypatch, caplog
):
    for engine in ("v1", "v2", "frontend"):
        monkeypatch.setitem(sys.modules, f"gcd_vllm._{engine}", None)
    processor = v1_processor(VllmConfig(tokens), (params(WORDS), [1], []))
    assert len(caplog.records) == 1
    assert torch.isfinite(processor.apply(torch.zeros(1, tokens.size))).all()
    assert not processor.add_request(0, params(WORDS))
    with pytest.raises(ValueError, match="disabled"):
        gcd_vllm.Processor.validate_params(params(WORDS))
    gcd_vllm.Processor.validate_params(SamplingParams())


def test_named_twice_it_masks_once(tokens):
    """An entry point and an option may both name it."""
    config = VllmConfig(tokens)
    first, second = (v1_processor(config, (params(WORDS), [1], [])) for _ in range(2))
    assert torch.isfinite(second.apply(torch.zeros(1, tokens.size))).all()
    assert not torch.isfinite(first.apply(torch.zeros(1, tokens.size))).all()


def test_importing_the_plugin_imports_nothing_heavy():
    code = "import sys, gcd_vllm; print([m for m in ('gcd', 'torch', 'numpy') if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_an_interface_that_cannot_be_imported_does_not_stop_the_start():
    code = """
import logging, sys
logging.basicConfig(stream=sys.stdout, format="%(message)s")
from types import ModuleType
class Base:
    pass
class Broken(ModuleType):
    def __getattr__(self, name):
        raise RuntimeError("no driver")
for name in ("vllm", "vllm.v1", "vllm.v1.sample", "vllm.v1.sample.logits_processor",
             "vllm.v1.worker", "vllm.v1.worker.gpu", "vllm.v1.worker.gpu.sample",
             "vllm.v1.worker.gpu.sample.logits_processor"):
    sys.modules[name] = ModuleType(name)
good = sys.modules["vllm.v1.sample.logits_processor.interface"] = ModuleType("good")
good.LogitsProcessor = Base
name = "vllm.v1.worker.gpu.sample.logits_processor.interface"
sys.modules[name] = Broken(name)
import gcd_vllm
print(issubclass(gcd_vllm.Processor, Base))
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    warning, made = done.stdout.splitlines()
    assert "no driver" in warning
    assert made == "True"


def test_a_text_is_spelled_with_the_available_tokens(tokens):
    assert tokens.decode(spell(tokens, b'{"name":"a"}')) == b'{"name":"a"}'
    few = gcd.Vocabulary.from_bytes([b"ab", b"a", b""], eos_ids=2)
    assert spell(few, b"xabax") == [0, 1]


@pytest.mark.parametrize(
    ("wanted", "constraint"),
    [
        ({"json": {"type": "integer"}}, {"json_schema": {"type": "integer"}}),
        ({"json": '{"type": "integer"}'}, {"json_schema": {"type": "integer"}}),
        ({"choice": ["a", "b"]}, {"choice": ["a", "b"]}),
        ({"json": "{"}, None),
        ({"grammar": "start: 1"}, None),
    ],
)
def test_structured_outputs_of_unchanged_clients(monkeypatch, wanted, constraint):
    """Taken over with one variable; otherwise left to vLLM."""
    params = SamplingParams(structured_outputs=SimpleNamespace(**wanted))
    Processor.validate_params(params)
    assert params.extra_args is None
    monkeypatch.setenv("GCD_VLLM_RESPONSE_FORMAT", "1")
    Processor.validate_params(params)
    if constraint is None:
        assert params.structured_outputs is not None
        assert params.extra_args is None
    else:
        assert params.structured_outputs is None
        assert json.loads(params.extra_args["gcd"]) == constraint
        Processor.validate_params(params)  # once more, as it is

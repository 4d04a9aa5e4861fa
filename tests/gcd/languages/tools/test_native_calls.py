"""Calls in models' own formats: special tokens, texts that imitate calls, choices, and formats."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from typing import Any

import pytest

import gcd
from gcd._languages.tools.call_formats import ALIASES, FORMATS
from gcd_vllm._serialization import pack, unpack
from tests.gcd.languages.tools.calls import TOOLS, tokenizer_for, write_calls
from tests.gcd.languages.tools.templates import template_for

NOTE = [("note", {"text": "a"})]
BOTH = [("get_weather", {"city": "Rome", "days": 3, "hot": True, "at": {"lat": 1.5}}), *NOTE]
SPECIAL = [name for name, form in FORMATS.items() if form.special]


@cache
def vocabulary_for(name: str, **options: Any) -> tuple[Any, gcd.Vocabulary]:
    tokenizer = tokenizer_for(FORMATS[name], **options)
    return tokenizer, gcd.Vocabulary.from_tokenizer(tokenizer)


def accepts(constraint: Any, vocabulary: gcd.Vocabulary, ids: list[int]) -> bool:
    is_lifted = isinstance(constraint, gcd.TokenAutomaton)
    matcher = gcd.Matcher(constraint if is_lifted else gcd.lift(constraint, vocabulary))
    return all(matcher.advance(token) for token in [*ids, vocabulary.eos_ids[0]])


KINDS = [(name, True) for name in FORMATS]
# Some tokenizers have the delimiters as added tokens that aren't special.
KINDS += [(name, False) for name in ("qwen3_coder", "deepseek_v31", "glm45")]


@pytest.mark.parametrize(("name", "is_special"), KINDS)
def test_calls_are_written_with_the_models_own_tokens(name, is_special):
    tokenizer, vocabulary = vocabulary_for(name, special=is_special)
    form = FORMATS[name]
    text = write_calls(form, NOTE if form.separator is None else BOTH)
    ids = tokenizer.encode(text, add_special_tokens=False)
    packed = unpack(pack(gcd.tool_calls(TOOLS, style=form)))
    automaton = gcd.lift(packed, vocabulary, literals="canonical")
    assert accepts(automaton, vocabulary, ids)
    assert tokenizer.decode(ids) == "" or not accepts(automaton, vocabulary, ids[:-1])
    until = gcd.Segment(gcd.anything(), until="</end>")
    thought = tokenizer.encode("hm</end>", add_special_tokens=False)
    parts = gcd.segments([until, gcd.Segment(gcd.tool_calls(TOOLS, style=name))])
    assert accepts(gcd.lift(parts, vocabulary), vocabulary, [*thought, *ids])


@pytest.mark.parametrize(("name", "is_special"), [kind for kind in KINDS if kind[0] in SPECIAL])
def test_plain_text_cannot_imitate_special_tokens(name, is_special):
    tokenizer, vocabulary = vocabulary_for(name, special=is_special)
    form = FORMATS[name]
    single = [bytes([byte]) for byte in range(256)]
    number = {text: vocabulary.token_bytes.index(text) for text in single}
    calls = [
        gcd.lift(gcd.tool_calls(TOOLS, style=name, choice=choice), vocabulary)
        for choice in ("required", "auto")
    ]
    for text in (write_calls(form, NOTE), f"x{form.special[0]}"):
        plain = [number[bytes([byte])] for byte in text.encode()]
        assert not any(accepts(each, vocabulary, plain) for each in calls)
    # The bytes that stand for special tokens inside of the automaton can't be written either.
    auto = calls[1]
    assert not (auto.delta[:, auto.class_of[number[b"\xff"]]] >= 0).any()
    # An argument can't contain a delimiter, neither as text nor as the token.
    text = write_calls(form, [("note", {"text": f"a{form.special[0]}b"})])
    assert not accepts(auto, vocabulary, tokenizer.encode(text, add_special_tokens=False))


@pytest.mark.parametrize("name", [*FORMATS, "json", "python"])
def test_choices(name):
    required = gcd.tool_calls(TOOLS, style=name, min_calls=1)
    note = gcd.tool_calls(TOOLS, style=name, choice="note", max_calls=1)
    auto = gcd.tool_calls(TOOLS, style=name, choice="auto")
    either = gcd.tool_calls(TOOLS, style=name, choice="auto", answer=gcd.choice(["yes", "no"]))
    for narrow, wide in ((required, auto), (note, required), (required, either)):
        assert (narrow - wide).is_empty
        assert not (wide - narrow).is_empty
    if name not in FORMATS or FORMATS[name].answer == ("", ""):
        assert auto.accepts("Hello {0}.")
        assert either.accepts("yes")
        assert not either.accepts("maybe")
        assert not required.accepts("")


def test_aliases_are_formats_by_another_name():
    for alias, name in ALIASES.items():
        assert gcd.tool_calls(TOOLS, style=alias) == gcd.tool_calls(TOOLS, style=name)


def test_a_format_of_ones_own():
    form = gcd.CallFormat("CALL ", " WITH ", ";", start=("CALL ",))
    calls = gcd.tool_calls(TOOLS, style=form, choice="auto", max_calls=1)
    assert calls.accepts('Well. CALL note WITH {"text": "a"};')
    assert not calls.accepts("Well. CALL me.")


def test_what_a_format_cannot_write():
    def tool(name: str, parameter: str = "x") -> list[dict[str, Any]]:
        schema = {"type": "object", "properties": {parameter: {"type": "string"}}}
        return [{"name": name, "parameters": schema}]

    for tools, style in [
        (tool("a.b"), "kimi_k2"),
        (tool("a b"), "hermes"),
        (tool("f", "a>b"), "qwen3_coder"),
        (tool("f", "a-b"), "pythonic"),
    ]:
        with pytest.raises(gcd.ConstraintError, match="that the format of calls can write"):
            gcd.tool_calls(tools, style=style)
    open_ended = {"type": "object", "additionalProperties": {"type": "string"}}
    with pytest.raises(gcd.UnsupportedSchemaError, match="must be declared"):
        gcd.tool_calls([{"name": "f", "parameters": open_ended}], style="glm45")
    _, other = vocabulary_for("hermes")
    with pytest.raises(gcd.ConstraintError, match="special token '<｜tool▁calls▁begin｜>'"):
        gcd.lift(gcd.tool_calls(TOOLS, style="deepseek_v31"), other)
    tokenizer, vocabulary = vocabulary_for("granite")
    ends = replace(vocabulary, eos_ids=(tokenizer.convert_tokens_to_ids("<|tool_call|>"),))
    with pytest.raises(gcd.ConstraintError, match="that ends with it"):
        gcd.lift(gcd.tool_calls(TOOLS, style="granite"), ends)


def test_no_arguments_and_null():
    x = {"type": "object", "properties": {"x": {"type": ["string", "null"]}}}
    calls = gcd.tool_calls([{"name": "now"}, {"name": "f", "parameters": x}], style="glm45")
    tokenizer, vocabulary = vocabulary_for("glm45")
    text = write_calls(FORMATS["glm45"], [("now", {}), ("f", {"x": None})])
    assert accepts(calls, vocabulary, tokenizer.encode(text, add_special_tokens=False))


@pytest.mark.parametrize("name", FORMATS)
def test_the_format_is_found_from_the_chat_template(name):
    tokenizer, _ = vocabulary_for(name, special=True)
    tokenizer.chat_template = template_for(name)
    assert gcd.call_format(tokenizer) == name


def test_the_format_is_found_from_the_name():
    for model, name in {
        "Qwen/Qwen2.5-7B-Instruct": "hermes",
        "Qwen/Qwen3-Coder-30B-A3B-Instruct": "qwen3_coder",
        "meta-llama/Llama-3.1-8B-Instruct": "llama3_json",
        "meta-llama/Llama-4-Scout-17B-16E": "pythonic",
        "mistralai/Mistral-7B-Instruct-v0.3": "mistral_json",
        "mistralai/Mistral-Small-3.2-24B-Instruct-2506": "mistral",
        "deepseek-ai/DeepSeek-V3.2-Exp": "deepseek_v32",
        "deepseek-ai/DeepSeek-V3.1": "deepseek_v31",
        "deepseek-ai/DeepSeek-V3-0324": "deepseek_v3",
        "zai-org/GLM-4.5-Air": "glm45",
        "openai/gpt-oss-20b": "openai",
        "google/functiongemma-270m-it": "functiongemma",
        "google/gemma-4-E4B-it": "gemma4",
        "ibm-granite/granite-4.0-micro": "hermes",
        "CohereLabs/command-a-03-2025": "cohere_command3",
        "MiniMaxAI/MiniMax-M2": "minimax_m2",
        "Salesforce/Llama-xLAM-2-8b-fc-r": "xlam",
    }.items():
        assert gcd.call_format(model) == name
    with pytest.raises(gcd.ConstraintError, match="got 'gpt2'"):
        gcd.call_format("gpt2")
    broken = tokenizer_for(FORMATS["hermes"])
    broken.chat_template = "{{ raise_exception('no tools') }}"
    with pytest.raises(gcd.ConstraintError, match="no tools"):
        gcd.call_format(broken)

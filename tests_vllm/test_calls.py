"""Texts of each format of tool calls, parsed by vLLM's own parser of that name.

The texts are drawn token by token under the mask, with a tokenizer that has the special tokens of
the format, and decoded as vLLM decodes them for its parsers.
"""

from __future__ import annotations

import json
import random
from typing import Any

import numpy as np
import pytest
from jsonschema import Draft202012Validator

import gcd
from gcd._languages.tools.call_formats import FORMATS
from tests.gcd.languages.tools.calls import TOOLS, tokenizer_for, write_calls
from tests.gcd.random_strings import random_strings

pytest.importorskip("vllm")

# vLLM parses gpt-oss and Cohere with other packages, which need the models' own tokenizers.
PARSERS = {name: name for name in FORMATS if name not in ("openai", "cohere_command3")}
PARSERS["mistral_json"] = "mistral"
SCHEMAS = {tool["function"]["name"]: tool["function"]["parameters"] for tool in TOOLS}


def parse(name: str, tokenizer: Any, ids: list[int]) -> tuple[list[tuple[str, Any]], str]:
    """Return the calls and the content that vLLM's parser reads in the tokens of an answer."""
    from vllm.entrypoints.openai.chat_completion.protocol import ChatCompletionRequest
    from vllm.tool_parsers import ToolParserManager

    request = ChatCompletionRequest(
        messages=[{"role": "user", "content": "?"}], model="m", tools=TOOLS, tool_choice="auto"
    )
    parser = ToolParserManager.get_tool_parser(PARSERS[name])(tokenizer, request.tools)
    text = tokenizer.decode(ids, skip_special_tokens=False)
    found = parser.extract_tool_calls(text, request=request)
    calls = [(c.function.name, json.loads(c.function.arguments)) for c in found.tool_calls]
    return calls, found.content or ""


@pytest.mark.parametrize("name", PARSERS)
def test_drawn_calls_are_parsed_back(name):
    tokenizer = tokenizer_for(FORMATS[name])
    vocabulary = gcd.Vocabulary.from_tokenizer(tokenizer)
    matcher = gcd.Matcher(gcd.tool_calls(TOOLS, style=name), vocabulary)
    rng = random.Random(name)
    drawn = {n: random_strings(gcd.json_schema(schema), 60) for n, schema in SCHEMAS.items()}
    checked = 0
    for _ in range(60):
        names = rng.choices(list(drawn), k=1 + (FORMATS[name].separator is not None))
        calls = [(n, json.loads(rng.choice(drawn[n]))) for n in names]
        ids = tokenizer.encode(write_calls(FORMATS[name], calls), add_special_tokens=False)
        matcher.reset()
        if not all(matcher.advance(token) for token in ids):
            continue  # an argument contains a text that this format reserves
        checked += 1
        assert parse(name, tokenizer, ids)[0] == calls
    assert checked > 20


@pytest.mark.parametrize("name", PARSERS)
def test_every_text_is_parsed(name):
    tokenizer = tokenizer_for(FORMATS[name])
    vocabulary = gcd.Vocabulary.from_tokenizer(tokenizer)
    count = 1 if FORMATS[name].separator is None else 2
    number = {"min_calls": count, "max_calls": count}
    calls = gcd.lift(gcd.tool_calls(TOOLS, style=name, **number), vocabulary)
    rng = random.Random(name)
    for _ in range(40):
        found, content = parse(name, tokenizer, draw(calls, rng))
        assert len(found) == count
        assert not content
        for tool, arguments in found:
            Draft202012Validator(SCHEMAS[tool]).validate(arguments)
    either = gcd.Matcher(gcd.tool_calls(TOOLS, style=name, choice="auto"), vocabulary)
    text = gcd.lift(gcd.anything(), vocabulary)
    for _ in range(40):
        either.reset()
        before = draw(text, rng)
        assert all(either.advance(token) for token in before) or FORMATS[name].lead is not None
        found, content = parse(name, tokenizer, before)
        assert not found
        assert content == tokenizer.decode(before)
        if FORMATS[name].lead is None:
            ids = draw(calls, rng)
            assert all(either.advance(token) for token in ids)
            found, content = parse(name, tokenizer, [*before, *ids])
            assert len(found) == count
            assert content.strip() == tokenizer.decode(before).strip()


def test_text_that_begins_like_calls_is_not_read_as_calls():
    """Text without special tokens is refused where vLLM's parser could read it as calls."""
    for name in PARSERS:
        form, tokenizer = FORMATS[name], tokenizer_for(FORMATS[name])
        vocabulary = gcd.Vocabulary.from_tokenizer(tokenizer)
        either = gcd.lift(gcd.tool_calls(TOOLS, style=name, choice="auto"), vocabulary)
        spelled = write_calls(form, [("note", {"text": "a"})]).encode()
        ids = [vocabulary.token_bytes.index(bytes([byte])) for byte in spelled]
        calls, _ = parse(name, tokenizer, ids)
        allowed = gcd.Matcher(either).validate(ids) == len(ids)
        assert allowed == (not form.special), name
        assert calls or form.special, name


ARGUMENTS = {
    "type": "object", "additionalProperties": False, "required": ["city", "days", "unit", "hot"],
    "properties": {
        "city": {"type": "string"}, "days": {"type": "integer"},
        "unit": {"enum": ["C", "F"]}, "hot": {"type": "boolean"},
    },
}  # fmt: skip
# XGrammar's names of formats, and whether its masks allow nothing else. It lacks the other formats,
# or begins their calls by another text.
XGRAMMAR = {
    "hermes": ("qwen_3", True), "llama3_json": ("llama", True), "kimi_k2": ("kimi", False),
    "deepseek_v3": ("deepseek_r1", True), "deepseek_v31": ("deepseek_v3_1", True),
    "qwen3_coder": ("qwen_3_coder", False), "glm45": ("glm_4_7", False),
}  # fmt: skip


@pytest.mark.parametrize("name", XGRAMMAR)
def test_masks_are_those_of_xgrammar(name):
    """Two differences are ignored: XGrammar has special tokens as text, and its texts aren't UTF-8.

    So it spells special tokens, and writes them in strings; and after the first byte of a
    character, it allows bytes that can't follow.
    """
    xgrammar = pytest.importorskip("xgrammar")
    tags = pytest.importorskip("xgrammar.builtin_structural_tag")
    if not hasattr(tags, "get_model_structural_tag"):
        pytest.skip("no built-in structural tags")
    form, (key, is_equal) = FORMATS[name], XGRAMMAR[name]
    tokenizer = tokenizer_for(form)
    vocabulary = gcd.Vocabulary.from_tokenizer(tokenizer)
    own = {vocabulary.special_ids[text]: text.encode() for text in form.special}
    texts = [own.get(i, each) for i, each in enumerate(vocabulary.token_bytes)]
    others = {i for text, i in vocabulary.special_ids.items() if text not in form.special}
    others -= set(vocabulary.eos_ids)
    tool = {"type": "function", "function": {"name": "get_weather", "parameters": ARGUMENTS}}
    choice = {"type": "function", "function": {"name": "get_weather"}}
    tag = tags.get_model_structural_tag(key, [tool], choice, reasoning=False)
    info = xgrammar.TokenizerInfo(
        texts, vocab_size=vocabulary.size, stop_token_ids=list(vocabulary.eos_ids)
    )
    theirs = xgrammar.GrammarMatcher(xgrammar.GrammarCompiler(info).compile_structural_tag(tag))
    language = gcd.tool_calls([tool], style=name, max_calls=1, whitespace="flexible")
    ours = gcd.Matcher(language, vocabulary)
    row, drawn = np.zeros((1, vocabulary.size // 32 + 1), np.int32), 0
    for text in random_strings(gcd.json_schema(ARGUMENTS), 100):
        arguments = json.loads(text)
        written = write_calls(form, [("get_weather", arguments)])
        ids = tokenizer.encode(written, add_special_tokens=False)
        ours.reset()
        theirs.reset()
        if not arguments["city"].isascii() or ours.validate(ids) < len(ids):
            continue  # an argument may contain a text that this format reserves
        for token in [*ids, vocabulary.eos_ids[0]]:
            ours.fill_mask(row[0])
            allowed = set(tokens_of(row, vocabulary.size))
            theirs.fill_next_token_bitmask(row)
            more = set(tokens_of(row, vocabulary.size)) - others
            assert allowed <= more
            spelled = {i for i in more if allowed <= own.keys() and own and texts[i] == b"<"}
            assert allowed == more - (own.keys() - allowed) - spelled or not is_equal
            assert ours.advance(token)
            assert theirs.accept_token(token)
        drawn += 1
    assert drawn > 10


def tokens_of(row: np.ndarray, size: int) -> list[int]:
    """Return the tokens of a packed mask."""
    bits = np.unpackbits(row[0].view(np.uint8), bitorder="little")[:size]
    return np.flatnonzero(bits).tolist()


def draw(automaton: gcd.TokenAutomaton, rng: random.Random, limit: int = 300) -> list[int]:
    """Return the tokens of a random answer, without the token that ends it."""
    matcher, ids = gcd.Matcher(automaton, budget=limit), []
    steps, end = automaton.steps_to_accept, automaton.eos_class
    while True:
        row, is_late = automaton.delta[matcher.state].tolist(), len(ids) > 60
        ways: dict[int, list[int]] = {}  # the next states come first, so that rare tokens are drawn
        for kind, after in enumerate(row):
            if after >= 0 and kind != end:
                ways.setdefault(after, []).append(kind)
        if not ways or (row[end] >= 0 and (is_late or rng.random() < 0.3)):
            return ids
        nearest = min(steps[after] for after in ways)
        after = rng.choice([each for each in ways if not is_late or steps[each] == nearest])
        kind = rng.choice(ways[after])
        ids.append(int(rng.choice(np.flatnonzero(automaton.class_of == kind))))
        assert matcher.advance(ids[-1])

"""Tools, a small tokenizer with a format's special tokens, and a writer of calls in a format."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from gcd import CallFormat

_WEATHER = {
    "type": "object",
    "properties": {
        "city": {"type": "string", "maxLength": 30},
        "days": {"type": "integer", "minimum": -1, "maximum": 14},
        "hot": {"type": "boolean"},
        "unit": {"enum": ["C", "F"], "type": "string"},
        "tags": {"type": "array", "items": {"type": "string"}},
        "at": {
            "type": "object",
            "properties": {"lat": {"type": "number", "minimum": 0, "maximum": 9}},
            "required": ["lat"],
        },
    },
    "required": ["city", "days"],
}
_NOTE = {"type": "object", "properties": {"text": {"type": "string"}}, "required": ["text"]}
TOOLS: list[dict[str, Any]] = [
    {"type": "function", "function": {"name": name, "description": "", "parameters": schema}}
    for name, schema in (("get_weather", _WEATHER), ("note", _NOTE))
]
_MARKS = ("<|python_tag|>", "<think>", "</think>", "<|call|>", "<|return|>")


def tokenizer_for(form: CallFormat, special: bool = True) -> Any:
    """Return a tokenizer of single bytes and the special tokens of a format."""
    import tokenizers
    from transformers import PreTrainedTokenizerFast

    alphabet = sorted(tokenizers.pre_tokenizers.ByteLevel.alphabet())
    vocabulary = {"</s>": 0, **{each: i + 1 for i, each in enumerate(alphabet)}}
    inner = tokenizers.Tokenizer(tokenizers.models.BPE(vocab=vocabulary, merges=[]))
    level = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    inner.pre_tokenizer, inner.decoder = level, tokenizers.decoders.ByteLevel()
    marks = [*form.special, *(each for each in _MARKS if each not in form.special)]
    added = [tokenizers.AddedToken(each, special=special, normalized=False) for each in marks]
    (inner.add_special_tokens if special else inner.add_tokens)(added)
    return PreTrainedTokenizerFast(tokenizer_object=inner, eos_token="</s>")


def write_calls(form: CallFormat, calls: Sequence[tuple[str, dict[str, Any]]]) -> str:
    """Return calls as a model writes them."""
    texts = []
    for number, (name, arguments) in enumerate(calls):
        begin, between = (each.replace("{}", str(number)) for each in (form.begin, form.between))
        texts.append(begin + name + between + _write_arguments(form, arguments) + form.end)
    return form.first + (form.separator or "").join(texts) + form.last


def _write_arguments(form: CallFormat, arguments: dict[str, Any]) -> str:
    if form.arguments == "json":
        return json.dumps(arguments, ensure_ascii=False)
    if form.arguments == "python":
        return f"({', '.join(f'{key}={value!r}' for key, value in arguments.items())})"
    if form.arguments == "bare":
        return _write_bare(form.quote, arguments)
    before, between, after = form.member
    members = []
    for key, value in arguments.items():
        is_text = isinstance(value, str)
        sign = between.replace("{}", "true" if is_text else "false")
        text = value if is_text else json.dumps(value, ensure_ascii=False)
        members.append(before + key + sign + text + after)
    return form.opened + form.comma.join(members) + form.closed


def _write_bare(quote: str, value: Any) -> str:
    if isinstance(value, dict):
        return f"{{{','.join(f'{k}:{_write_bare(quote, v)}' for k, v in value.items())}}}"
    if isinstance(value, list):
        return f"[{','.join(_write_bare(quote, each) for each in value)}]"
    return f"{quote}{value}{quote}" if isinstance(value, str) else json.dumps(value)

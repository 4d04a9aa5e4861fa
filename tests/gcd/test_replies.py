"""Replies in each format of calls are read back to what was written; thoughts come first."""

from __future__ import annotations

import json
import random

import pytest

import gcd
from gcd._languages.tools.call_formats import FORMATS, LISTS, CallFormat, format_of
from gcd._replies import read_reply, thinking_format, with_any_thought, with_thought
from tests.gcd.languages.tools.calls import TOOLS, tokenizer_for, write_calls
from tests.gcd.random_strings import random_strings

PARSED = gcd.parse_tools(TOOLS).tools
ARGUMENTS = {tool.name: random_strings(gcd.json_schema(tool.schema), 30) for tool in PARSED}


def write(form: CallFormat, calls: list[tuple[str, dict]]) -> str:
    if form == LISTS["json"]:
        return json.dumps([{"name": name, "arguments": each} for name, each in calls])
    return write_calls(form, calls)


@pytest.mark.parametrize("name", [*FORMATS, *LISTS])
def test_calls_are_read_back(name: str) -> None:
    form = format_of(name)
    vocabulary = gcd.Vocabulary.from_tokenizer(tokenizer := tokenizer_for(form))
    language = gcd.tool_calls(TOOLS, style=name, choice="auto")
    matcher, marked = gcd.Matcher(language, vocabulary), vocabulary.with_specials(language.specials)
    rng, checked = random.Random(name), 0
    for _ in range(30):
        names = rng.choices(list(ARGUMENTS), k=1 + (form.separator is not None))
        calls = [(each, json.loads(rng.choice(ARGUMENTS[each]))) for each in names]
        thought, before = rng.choice([None, "Hm. "]), rng.choice(["", 'So {"name": 1}:\n'])
        thought, before = form.thought and thought, before if form.lead is None else ""
        text = before + write(form, calls)
        if thought is not None:
            text = form.thought[0] + thought + form.thought[1] + text
        ids = tokenizer.encode(text, add_special_tokens=False)
        matcher.reset()
        if not all(matcher.advance(token) for token in ids):
            continue  # an argument contains a text that this format reserves
        checked += 1
        found = read_reply(marked.decode(ids), form, PARSED, None)
        read = [(each["name"], each["arguments"]) for each in json.loads(found.calls or "")]
        assert read == calls
        assert found._replace(calls=None) == (thought, before, None, "")
    assert checked > 10
    text = form.answer[0] + "Hello {}" + form.answer[1]
    ids = tokenizer.encode(text, add_special_tokens=False)
    assert read_reply(marked.decode(ids), form, PARSED, None) == (None, "", None, "Hello {}")


TEXT, INTEGER = {"type": "string"}, {"type": "integer"}
MEMBERS = {
    "types": {
        "properties": {
            "a": TEXT,
            "b": INTEGER,
            "c": {"$ref": "#/$defs/n"},
            "d": {},
            "e": {"$ref": "#/properties/b"},
        },
        "$defs": {"n": {"type": ["null"]}},
    },
    "all of": {"allOf": [{"properties": {"a": TEXT}, "required": ["a"]}]},
    "reference": {"$ref": "#/$defs/x", "$defs": {"x": {"properties": {"a": TEXT}}}},
    "any of": {"anyOf": [{"properties": {"a": TEXT}}], "type": "object"},
}


@pytest.mark.parametrize("name", MEMBERS)
@pytest.mark.parametrize("style", ["glm45", "qwen3_coder"])
def test_the_types_of_members_are_those_of_their_schemas(name: str, style: str) -> None:
    schema = {"type": "object", **MEMBERS[name]}
    tools = gcd.parse_tools([{"name": "f", "parameters": schema}]).tools
    values = {"a": "5", "b": 5, "c": None, "d": "x", "e": 7} if name == "types" else {"a": "3"}
    written = write_calls(FORMATS[style], [("f", values)])
    found = read_reply(written.encode(), FORMATS[style], tools, None)
    assert json.loads(found.calls or "") == [{"name": "f", "arguments": values}]


@pytest.mark.parametrize("special", [(), ("<think>", "</think>")])
def test_a_thought_is_limited_and_ends_at_its_tag(special):
    tokenizer = tokenizer_for(FORMATS["hermes"], special=bool(special))
    vocabulary = gcd.Vocabulary.from_tokenizer(tokenizer)
    answer = gcd.choice(["a", "</think>"])

    def accepts(constraint, text):
        ids = tokenizer.encode(text, add_special_tokens=False)
        matcher = gcd.Matcher(gcd.lift(constraint, vocabulary))
        return all(matcher.advance(token) for token in [*ids, *vocabulary.eos_ids])

    closed = with_thought(answer, thinking_format(None, special), 9)
    opened = with_thought(answer, thinking_format(None, special, "<think>"), 9)
    either = with_any_thought(answer, special)
    for text, expected in {
        "<think>hm</think>a": (True, False, True),
        "hm</think>a": (False, True, True),
        "hm</think>b": (False, False, False),
        "<think>0123456789</think>a": (False, False, True),
        "a": (False, False, False),
        "hm<think></think>a": (False, False, False),
    }.items():
        found = tuple(accepts(each, text) for each in (closed, opened, either))
        assert found == expected, text


def test_a_member_that_is_no_value_of_its_type_is_not_made_a_string() -> None:
    form = FORMATS["qwen3_coder"]
    integer = {"type": "object", "properties": {"a": {"type": "integer"}}}
    tools = gcd.parse_tools([{"name": "f", "parameters": integer}]).tools
    for value, calls in (("3", '{"a": 3}'), ("abc", '{"a": abc}')):
        member = f"{form.member[0]}a{form.member[1]}{value}{form.member[2]}"
        text = f"{form.first}{form.begin}f{form.between}{form.opened}{member}{form.end}"
        found = read_reply(text.encode(), form, tools, None)
        assert found.calls == f'[{{"name": "f", "arguments": {calls}}}]'


def test_limits_of_an_answer_stay() -> None:
    answer = gcd.json_schema({"type": "string", "maxLength": 100}, max_bytes=50)
    both = gcd.tool_calls(TOOLS, style="hermes", choice="auto", answer=answer)
    assert both.max_bytes == 50
    assert both.accepts(json.dumps("a"))
    assert not both.accepts(json.dumps("a" * 60))

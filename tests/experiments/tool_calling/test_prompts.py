"""Prompts: every kind of declaration, both kinds of prompt."""

from __future__ import annotations

from typing import Any

import pytest

from experiments.tool_calling.task import Call, ToolRecord, build_prompt, signature

_TOOL = {
    "name": "weather",
    "description": "Weather of a city",
    "parameters": {
        "city": {"type": "str", "description": "The city."},
        "days": {"type": "int", "description": "How many.", "default": 3},
        "unit": {"type": "str, optional", "enum": ["c", "f"]},
    },
}
_RECORD = ToolRecord("1", "Weather in Oslo?", (_TOOL,), (Call("weather", {"city": "Oslo"}),))


class _ChatTokenizer:
    chat_template = "a template"

    def apply_chat_template(self, messages: list[dict[str, str]], **options: Any) -> str:
        assert options == {"tokenize": False, "add_generation_prompt": True}
        return "".join(f"<{m['role']}>{m['content']}" for m in messages) + "<assistant>"


class _PlainTokenizer:
    chat_template = None


def test_the_compact_prompt_in_full() -> None:
    assert build_prompt(_RECORD, "json") == (
        'weather(city: str, days: int = 3, unit?: "c" | "f") - Weather of a city\n'
        "Request: Weather in Oslo?\n"
        "Calls in JSON:\n"
    )
    assert build_prompt(_RECORD, "python").endswith("\nCalls in Python:\n")


@pytest.mark.parametrize(
    ("tool", "expected"),
    [
        ({"name": "f", "parameters": {}}, "f()"),
        ({"name": "f"}, "f()"),
        ({"name": "f", "parameters": {"a": {"type": "str, optional"}}}, "f(a?: str)"),
        (
            {"name": "f", "parameters": {"a": {"type": "List[int]", "default": ""}}},
            'f(a: List[int] = "")',
        ),
        ({"name": "f", "parameters": {"a": {"type": "str", "default": "x" * 50}}}, "f(a?: str)"),
        ({"name": "f", "parameters": {"a": "str"}}, "f(a: str)"),
        ({"name": "f", "parameters": {"a": {}}}, "f(a: any)"),
        (
            {
                "name": "f",
                "parameters": {"a": {"type": "str"}, "b": {"type": "str"}},
                "required": ["a"],
            },
            "f(a: str, b?: str)",
        ),
        ({"name": "f", "description": " ".join("w" * 30)}, "f() - " + " ".join("w" * 12)),
        (
            {
                "type": "function",
                "function": {
                    "name": "f",
                    "description": "d",
                    "parameters": {
                        "type": "object",
                        "properties": {
                            "a": {"type": "array", "items": {"type": "integer"}},
                            "b": {"type": ["string", "null"]},
                            "c": {"enum": list(range(9))},
                        },
                        "required": ["a"],
                    },
                },
            },
            "f(a: array[integer], b?: string | null, c?: 0 | 1 | 2 | 3 | 4 | 5 | ...) - d",
        ),
        (
            {
                "name": "f",
                "parameters": {"type": "object", "properties": {"a": {"type": "string"}}},
            },
            "f(a?: string)",
        ),
    ],
)
def test_signatures(tool: dict[str, Any], expected: str) -> None:
    assert signature(tool) == expected


def test_chat_shows_the_tools_in_full_and_the_form_wanted() -> None:
    for style, form in (("json", '[{"name": '), ("python", "[tool_name(")):
        text = build_prompt(_RECORD, style, tokenizer=_ChatTokenizer())
        assert form in text
        assert '"description": "How many."' in text
        assert text.endswith("<user>Weather in Oslo?<assistant>")


def test_auto_follows_the_tokenizer() -> None:
    compact = build_prompt(_RECORD, "json", kind="compact", tokenizer=_ChatTokenizer())
    assert build_prompt(_RECORD, "json", tokenizer=_PlainTokenizer()) == compact
    assert build_prompt(_RECORD, "json") == compact


def test_what_cannot_be_built_is_refused() -> None:
    with pytest.raises(ValueError, match="with a chat template"):
        build_prompt(_RECORD, "json", kind="chat", tokenizer=_PlainTokenizer())
    with pytest.raises(ValueError, match="'haiku'"):
        build_prompt(_RECORD, "json", kind="haiku")
    with pytest.raises(ValueError, match="'xml'"):
        build_prompt(_RECORD, "xml")

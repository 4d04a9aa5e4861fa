"""Tool lists in all supported forms; test_refusals.py has those that are refused."""

from __future__ import annotations

import dataclasses
import json
from typing import Any, Literal

import pydantic
import pytest

import gcd
from gcd import ConstraintError, UnsupportedSchemaError, parse_tools, tool_calls

CITY = {"type": "object", "properties": {"city": {"type": "string"}}}
PLAIN = {"name": "f", "description": "Does f.", "parameters": CITY}
UPPER = {"type": "OBJECT", "properties": {"city": {"type": "STRING"}}}
BEDROCK = {"name": "f", "inputSchema": {"json": CITY}}
NAMED = {"name": "f", "inputSchema": CITY}
ANTHROPIC = {"type": "custom", "name": "f", "input_schema": CITY}
MORE = {"version": 3, "tags": ["a"], "unit": {"type": "ephemeral"}, "url": "x", "input": None}
OF_MCP = {"outputSchema": CITY, "annotations": {"readOnlyHint": True}, "_meta": {"type": "object"}}


@pytest.mark.parametrize(
    ("tools", "pointer"),
    [
        ([PLAIN], "/0/parameters"),
        ([{**PLAIN, "type": "function", "strict": True}], "/0/parameters"),
        ([{"type": "function", "function": PLAIN}], "/0/function/parameters"),
        ([{**PLAIN, **MORE}], "/0/parameters"),
        ([{**PLAIN, "parameters": None, "input_schema": CITY, "return": CITY}], "/0/input_schema"),
        ([{**ANTHROPIC, "input_examples": [{"city": {"type": "string"}}]}], "/0/input_schema"),
        ([{**ANTHROPIC, "cache_control": {"type": "ephemeral"}}], "/0/input_schema"),
        ([{**NAMED, "title": "The tool f", **OF_MCP}], "/0/inputSchema"),
        ({"tools": [PLAIN], "nextCursor": "x", "tool_choice": "auto"}, "/tools/0/parameters"),
        ({"functions": [PLAIN], "model": "m"}, "/functions/0/parameters"),
        (
            [{"function_declarations": [{"name": "f", "parameters": UPPER}]}],
            "/0/function_declarations/0/parameters",
        ),
        (
            {"tools": [{"functionDeclarations": [PLAIN]}], "toolConfig": {"mode": "ANY"}},
            "/tools/0/functionDeclarations/0/parameters",
        ),
        (
            {"function_declarations": [{"name": "f", "parameters_json_schema": CITY}]},
            "/function_declarations/0/parameters_json_schema",
        ),
        ([{"toolSpec": BEDROCK}], "/0/toolSpec/inputSchema/json"),
        (
            {"toolConfig": {"tools": [{"cachePoint": {"type": "default"}}, {"toolSpec": BEDROCK}]}},
            "/toolConfig/tools/1/toolSpec/inputSchema/json",
        ),
        ({"jsonrpc": "2.0", "id": 1, "result": {"tools": [NAMED]}}, "/result/tools/0/inputSchema"),
    ],
)
def test_all_forms_of_a_tool_mean_the_same(tools: Any, pointer: str) -> None:
    (tool,) = parse_tools(tools).tools
    assert (tool.name, tool.pointer) == ("f", pointer)
    assert tool.description == ("Does f." if "Does f." in json.dumps(tools) else "")
    assert [(p.name, p.required) for p in tool.parameters] == [("city", False)]
    assert tool_calls(tools) == tool_calls([PLAIN])
    found: Any = tools
    for step in pointer.split("/")[1:]:
        found = found[int(step) if isinstance(found, list) else step]
    assert found in (CITY, UPPER)


def test_properties_may_have_the_names_of_keywords() -> None:
    names = ("type", "properties", "items", "required", "definitions", "$defs", "anyOf", "json")
    schema = {"type": ["object"], "properties": {n: {"default": 1} for n in names}}
    (tool,) = parse_tools([{"name": "f", "parameters": schema | {"required": ["type"]}}]).tools
    assert [(p.name, p.required) for p in tool.parameters] == [(n, n == "type") for n in names]


@pytest.mark.parametrize(
    ("key", "value", "meant"),
    [
        ("paramters", CITY, "parameters"),
        ("Parameters", {}, "parameters"),
        ("params", {"city": {"type": "str, optional"}}, "parameters"),
        ("inputSchemas", CITY, "inputSchema"),
        ("input_schem", {"type": "object"}, "input_schema"),
        ("arguments", {"city": {"type": "str"}}, None),
        ("args", [{"name": "city", "type": "List[str]"}], None),
        ("function_schema", {"$ref": "#/$defs/a"}, None),
        ("schema", {"type": ["object", "null"]}, None),
    ],
)
def test_a_schema_that_would_be_lost_is_refused_by_name(key: str, value: Any, meant: Any) -> None:
    for tool, pointer in (
        ({"name": "weather", key: value}, "/1"),
        ({"type": "function", "function": {"name": "weather", key: value}}, "/1/function"),
        ({"type": "function", key: value, "function": {"name": "weather"}}, "/1"),
    ):
        with pytest.raises(UnsupportedSchemaError) as refused:
            parse_tools([{"name": "other"}, tool])
        assert (refused.value.keyword, refused.value.pointer) == (key, pointer)
        message = str(refused.value)
        assert "'weather'" in message
        assert "'parameters', 'input_schema' or 'inputSchema'" in message
        assert (f"did you mean {meant!r}?" in message) == (meant is not None)


def test_several_tools_of_several_wrappers_keep_their_order() -> None:
    names = [{"name": name} for name in "abcdef"]
    tools = [
        {"function_declarations": names[:2]},
        names[2],
        {"type": "function", "function": names[3]},
        {"toolSpec": names[4]},
        {"functionDeclarations": names[5:]},
    ]
    assert [tool.name for tool in parse_tools({"tools": tools}).tools] == list("abcdef")
    with pytest.raises(ConstraintError, match="got 'a' for both tool 0 and tool 6"):
        parse_tools([*tools, {"name": "a"}])


# -- functions and classes -----------------------------------------------------------------------


class Add(pydantic.BaseModel):
    """Add two numbers."""

    a: int
    b: list[int] = []

    @pydantic.field_validator("a")
    @classmethod
    def is_even(cls, value: int) -> int:
        return value


@dataclasses.dataclass
class Find:
    text: Literal["x", "y"]


def get_weather(
    city: str,
    days: int = 3,
    unit: str | None = None,
    nullable: bool = True,
    at: list[str | None] = (),
) -> None:
    """Get the weather.

    Args:
        city: the city
        days: how many days
        unit: the unit (choices: ["C", "F"])
        nullable: a parameter with the name of a keyword
        at: the times
    """


def test_functions_and_classes_are_tools() -> None:
    tools = [get_weather, Add, Find, {"name": "f", "parameters": {"properties": None}}]
    parsed = parse_tools(tools).tools
    assert [tool.name for tool in parsed] == ["get_weather", "Add", "Find", "f"]
    assert [tool.description for tool in parsed[:2]] == ["Get the weather.", "Add two numbers."]
    assert [(p.name, p.required) for p in parsed[1].parameters] == [("a", True), ("b", False)]
    with pytest.warns(gcd.CaveatWarning, match=r"Add\.is_even at '/1/parameters/properties/a'"):
        language = tool_calls(tools)
    for name, arguments, is_valid in (
        ("get_weather", {"city": "Rome"}, True),
        ("get_weather", {"city": "Rome", "days": 2, "unit": "C", "nullable": False}, True),
        ("get_weather", {"city": "Rome", "unit": None, "at": ["a", None]}, True),
        ("get_weather", {"city": "Rome", "unit": "K"}, False),
        ("get_weather", {"days": 2}, False),
        ("Add", {"a": 1, "b": [2]}, True),
        ("Add", {"a": "1"}, False),
        ("Find", {"text": "x"}, True),
        ("Find", {"text": "z"}, False),
        ("f", {}, True),
    ):
        call = json.dumps([{"name": name, "arguments": arguments}])
        assert language.accepts(call) == is_valid, call
    with pytest.raises(UnsupportedSchemaError, match=r"Add\.is_even is Python code"):
        tool_calls(tools, unsupported="refuse")

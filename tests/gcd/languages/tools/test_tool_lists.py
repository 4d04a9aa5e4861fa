"""Tool lists in all supported forms, and the refusal of everything else by name."""

from __future__ import annotations

import dataclasses
import json
from typing import Any, Literal

import pydantic
import pytest

import gcd
from gcd import ConstraintError, UnsupportedSchemaError, parse_tools, tool_calls

INT, STR = {"type": "integer"}, {"type": "string"}


def test_all_forms_of_a_tool_mean_the_same() -> None:
    schema = {
        "type": "object",
        "properties": {"city": {"type": "string"}, "days": {"type": "integer"}},
        "required": ["city"],
    }
    inner = {"name": "f", "description": "Does f.", "parameters": schema}
    forms = [
        {"type": "function", "function": inner},
        inner,
        {**inner, "type": "function", "strict": True},
        {
            "type": "custom",
            "name": "f",
            "description": "Does f.",
            "input_schema": schema,
            "input_examples": [{"city": {"type": "string"}}],
            "cache_control": {"type": "ephemeral"},
        },
        {
            "name": "f",
            "title": "The tool f",
            "description": "Does f.",
            "inputSchema": schema,
            "outputSchema": {"type": "object", "properties": {"t": {"type": "number"}}},
            "annotations": {"title": "f", "readOnlyHint": True},
            "_meta": {"type": "object"},
        },
        {**inner, "parameters": None, "input_schema": schema, "return": {"type": "string"}},
    ]
    for form in forms:
        (tool,) = parse_tools([form]).tools
        assert (tool.name, tool.description) == ("f", "Does f.")
        assert [(p.name, p.schema, p.required) for p in tool.parameters] == [
            ("city", STR, True),
            ("days", INT, False),
        ]


def test_properties_may_have_the_names_of_keywords() -> None:
    names = ("type", "properties", "items", "required", "definitions", "$defs", "anyOf", "json")
    schema = {"type": ["object"], "properties": dict.fromkeys(names, INT | {"default": 1})}
    (tool,) = parse_tools([{"name": "f", "parameters": schema | {"required": ["type"]}}]).tools
    assert [(p.name, p.required) for p in tool.parameters] == [(n, n == "type") for n in names]


@pytest.mark.parametrize(
    ("kind", "message"),
    [
        ("dict", "must be one of .* object.*, got 'dict'"),
        ("List[int]", r"must be one of .* array.*, got 'List\[int\]'"),
        ("str, optional", "must be one of .* string.*, got 'str, optional'"),
        (["float", "null"], r"must be one of .* number.*, got \['float', 'null'\]"),
    ],
)
def test_types_of_other_languages_are_refused_by_name(kind: Any, message: str) -> None:
    schema = {"type": "object", "properties": {"a/b": {"items": {"type": kind}}}}
    with pytest.raises(ConstraintError, match=f"'/0/parameters/properties/a~1b/items' .*{message}"):
        tool_calls([{"name": "f", "parameters": schema}])
    with pytest.raises(ConstraintError, match=r"to have type 'object', got .* write .*properties"):
        tool_calls([{"name": "f", "parameters": {"type": kind}}])


@pytest.mark.parametrize("name", ["city", "type", "properties", "items", "definitions", "$ref"])
def test_parameters_by_name_are_refused_with_the_remedy(name: str) -> None:
    tool = {"name": "f", "parameters": {name: {"type": "str, optional"}}}
    message = r"tool 0 \(f\): expected 'parameters' to be a JSON schema of type 'object', got .*"
    with pytest.raises(ConstraintError, match=message + r"tool_calling/conversion\.py"):
        parse_tools([tool])


@pytest.mark.parametrize(
    ("tools", "message"),
    [
        ("not a list", "to be a list.*json.loads"),
        ({"name": "f"}, "got .*; put the tool into a list"),
        ({"type": "function", "function": {"name": "f"}}, "; put the tool into a list"),
        ({"tools": 3}, "tools at '/tools' to be a list"),
        ({"tools": [], "functions": []}, "got 'tools' and 'functions'; keep one"),
        (
            {"tools": [{"description": "x"}]},
            r"tool 0 \(at '/tools/0'\): expected a tool with a name",
        ),
        (
            {"function_declarations": {"name": "f"}},
            "tool 0: expected 'function_declarations' to be a list",
        ),
        ([{"functionDeclarations": [3]}], "tool at '/0/functionDeclarations/0' to be an object"),
        (
            [{"google_search": {}}],
            "expected a tool with a name, .* got .* 'google_search'; remove it if the ",
        ),
        (
            [{"type": "web_search"}],
            "a name for tool 0 of type 'web_search', got none; remove it if the",
        ),
        ([{"type": "mcp", "server_label": "x"}], "a name for tool 0 of type 'mcp'"),
        ([{"type": "custom", "name": "x"}], "for the tool 'x' of type 'custom' at '/0'"),
        ([{"toolSpec": []}], r"tool 0: expected 'toolSpec' to be an object, got \[\]"),
        ([{"toolSpec": {}, "function": {}}], "both 'toolSpec' and 'function'|'function' and"),
        ({"name": "f"}, "to be a list"),
        (None, "to be a list"),
        (["f"], "expected tool 0 to be an object"),
        ([{"description": "nameless"}], "tool 0: expected a tool with a name"),
        ([{"name": "f"}, {"name": ""}], "tool 1: expected 'name'"),
        ([{"name": 3}], "tool 0: expected 'name' to be a non-empty string, got 3"),
        ([{"type": "function", "function": "f"}], "tool 0: expected 'function'"),
        ([{"name": "f"}, {"name": "f"}], "got 'f' for both tool 0 and tool 1"),
        ([{"name": "f", "parameters": ["a"]}], r"tool 0 \(f\): expected 'parameters'"),
        ([{"name": "f", "parameters": {"type": "array"}}], "to have type 'object'"),
        ([{"type": "function", "name": "x", "function": {"name": "y"}}], "both 'name' and"),
        ([{"name": "f", "parameters": {"type": ["object", "null"]}}], "to have type 'object'"),
        (
            [{"name": "f", "input_schema": [1]}],
            r"tool 0 \(f\): expected 'input_schema' to be a JSON schema",
        ),
        ([{"name": "f", "inputSchema": {"a": {"type": "str"}}}], "'inputSchema' to be a JSON"),
        ([{"name": "f", "inputSchema": {"type": "array"}}], "to have type 'object'"),
        (
            [{"name": "f", "parameters": {}, "input_schema": {}}],
            "the tool 'f', got both 'parameters' and",
        ),
        (
            [{"name": "sh", "type": "bash_20250124"}],
            "for the tool 'sh' of type 'bash_20250124' at '/0'",
        ),
    ],
)
def test_malformed_tool_lists_say_where_and_what(tools: Any, message: str) -> None:
    with pytest.raises(ConstraintError, match=message):
        parse_tools(tools)


_CITY = {"type": "object", "properties": {"city": {"type": "string"}}}


@pytest.mark.parametrize(
    ("key", "value", "meant"),
    [
        ("paramters", _CITY, "parameters"),
        ("Parameters", {}, "parameters"),
        ("params", {"city": {"type": "str, optional"}}, "parameters"),
        ("inputSchemas", _CITY, "inputSchema"),
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


def test_parameters_beside_the_tool_they_belong_to_are_refused() -> None:
    with pytest.raises(
        UnsupportedSchemaError, match="tool 'f' inside 'function', got them beside 'function'"
    ):
        parse_tools([{"type": "function", "parameters": _CITY, "function": {"name": "f"}}])


@pytest.mark.parametrize("key", ["function_declarations", "functionDeclarations"])
def test_what_stands_beside_several_tools_is_refused_by_name(key: str) -> None:
    with pytest.raises(UnsupportedSchemaError, match=f"beside '{key}'.* remove it") as refused:
        parse_tools([PLAIN, {key: [{"name": "g"}], "google_search": {}}])
    assert (refused.value.keyword, refused.value.pointer) == ("google_search", "/1")


PLAIN = {"name": "f", "parameters": _CITY}
UPPER = {"type": "OBJECT", "properties": {"city": {"type": "STRING"}}}
BEDROCK = {"name": "f", "inputSchema": {"json": _CITY}}


@pytest.mark.parametrize(
    ("tools", "pointer"),
    [
        ([PLAIN], "/0/parameters"),
        ({"tools": [PLAIN], "nextCursor": "x", "tool_choice": "auto"}, "/tools/0/parameters"),
        ({"functions": [PLAIN], "model": "m"}, "/functions/0/parameters"),
        ({"tools": [{"type": "function", "function": PLAIN}]}, "/tools/0/function/parameters"),
        (
            [{"function_declarations": [{"name": "f", "parameters": UPPER}]}],
            "/0/function_declarations/0/parameters",
        ),
        (
            {"tools": [{"functionDeclarations": [{"name": "f", "parameters": UPPER}]}],
             "toolConfig": {"functionCallingConfig": {"mode": "ANY"}}},
            "/tools/0/functionDeclarations/0/parameters",
        ),
        (
            {"function_declarations": [{"name": "f", "parameters_json_schema": _CITY}]},
            "/function_declarations/0/parameters_json_schema",
        ),
        ([{"toolSpec": BEDROCK}], "/0/toolSpec/inputSchema/json"),
        (
            {"toolConfig": {"tools": [{"cachePoint": {"type": "default"}}, {"toolSpec": BEDROCK}]}},
            "/toolConfig/tools/1/toolSpec/inputSchema/json",
        ),
        ([{"name": "f", "input_schema": _CITY}], "/0/input_schema"),
        ({"tools": [{"name": "f", "inputSchema": _CITY}]}, "/tools/0/inputSchema"),
        (
            {"jsonrpc": "2.0", "id": 1, "result": {"tools": [{"name": "f", "inputSchema": _CITY}]}},
            "/result/tools/0/inputSchema",
        ),
    ],
)  # fmt: skip
def test_wrappers_are_taken_off(tools: Any, pointer: str) -> None:
    (tool,) = parse_tools(tools).tools
    assert (tool.name, tool.pointer) == ("f", pointer)
    assert [(p.name, p.required) for p in tool.parameters] == [("city", False)]
    assert tool_calls(tools) == tool_calls([PLAIN])
    found: Any = tools
    for step in pointer.split("/")[1:]:
        found = found[int(step) if isinstance(found, list) else step]
    assert found in (_CITY, UPPER)


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


def test_counts_may_be_texts_of_digits() -> None:
    schema = {**UPPER, "properties": {"a": {"type": "ARRAY", "minItems": "1", "maxItems": "2"}}}
    tools = [{"function_declarations": [{"name": "f", "parameters": schema}]}]
    for count in range(4):
        call = {"name": "f", "arguments": {"a": ["x"] * count}}
        assert tool_calls(tools).accepts(json.dumps([call])) == (1 <= count <= 2)


def test_what_holds_no_schema_is_nobodys_business() -> None:
    more = {"version": 3, "tags": ["a"], "unit": {"type": "ephemeral"}, "url": "x", "input": None}
    (tool,) = parse_tools([{"name": "f", "parameters": _CITY, **more}]).tools
    assert [p.name for p in tool.parameters] == ["city"]


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


def get_weather(city: str, days: int = 3, unit: str | None = None, nullable: bool = True) -> None:
    """Get the weather.

    Args:
        city: the city
        days: how many days
        unit: the unit (choices: ["C", "F"])
        nullable: a parameter with the name of a keyword
    """


def undocumented(city: str) -> None: ...


def untyped(city) -> None:  # type: ignore[no-untyped-def]
    """Do it.

    Args:
        city: the city
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
        ("get_weather", {"city": "Rome", "unit": None}, True),
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


def test_an_optional_argument_of_a_function_may_be_null() -> None:
    def count(most: int | None, words: list[str | None]) -> None:
        """Count.

        Args:
            most: the limit
            words: the words
        """

    language = tool_calls([count])
    arguments = {"most": None, "words": ["a", None]}
    assert language.accepts(json.dumps([{"name": "count", "arguments": arguments}]))


@pytest.mark.parametrize(
    ("tool", "message"),
    [
        (undocumented, "get_json_schema cannot read the function 'undocumented': .* no docstring"),
        (untyped, "get_json_schema cannot read the function 'untyped': .* type hint"),
        (int, "expected the schema of the parameters to have type 'object', got 'integer'"),
        (Add(a=1), "pass a mapping, a function or a class"),
        (Add.model_json_schema(), 'write {"name": "Add", "parameters": schema}'),
        ({"$ref": "#/$defs/a", "$defs": {"a": {}}}, 'write {"name": "...", "parameters": schema}'),
    ],
)
def test_what_is_no_tool_is_reported_with_the_remedy(tool: Any, message: str) -> None:
    with pytest.raises(ConstraintError, match=f"tool 0.*{message}"):
        parse_tools([tool])


def test_the_order_of_arguments_may_be_given() -> None:
    schema = {**UPPER, "properties": {"a": {"type": "STRING"}, "b": {"type": "INTEGER"}}}
    schema |= {"required": ["a", "b"], "propertyOrdering": ["b", "a"]}
    language = tool_calls([{"name": "f", "parameters": schema}])
    assert language.accepts('[{"name": "f", "arguments": {"b": 1, "a": "x"}}]')
    assert not language.accepts('[{"name": "f", "arguments": {"a": "x", "b": 1}}]')

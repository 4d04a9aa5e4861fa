"""Schemas in the dialects of benchmarks: every type name, at every depth, in both notations."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gcd._errors import ConstraintError, UnsupportedSchemaError
from gcd._languages.json_schema.keywords import CONTAINER
from gcd._languages.tools.tool_calls import tool_calls
from gcd._languages.tools.tool_schemas import standard_schema
from gcd._languages.tools.tool_types import parse_tools
from gcd._languages.tools.type_names import TYPE_NAMES

ROOT = Path(__file__).resolve().parents[4]
BFCL = ROOT.parent / "shared" / "data" / "bfcl"
STYLES = ("json", "python")

STRING, INTEGER, NUMBER = {"type": "string"}, {"type": "integer"}, {"type": "number"}
BOOLEAN, NULL = {"type": "boolean"}, {"type": "null"}
ARRAY, OBJECT = {"type": "array"}, {"type": "object"}
TUPLE, SET = {"type": "array", CONTAINER: "tuple"}, {"type": "array", CONTAINER: "set"}
CHARACTER = {"type": "string", "minLength": 1, "maxLength": 1}

MEANING: dict[str, dict[str, Any]] = {
    **dict.fromkeys(["string", "String", "str", "STRING"], STRING),
    **dict.fromkeys(["char", "Character"], CHARACTER),
    **dict.fromkeys(["integer", "int", "Integer", "long", "Long", "short", "byte"], INTEGER),
    **dict.fromkeys(["Bigint", "BigInt", "BigInteger", "INTEGER"], INTEGER),
    **dict.fromkeys(["number", "float", "Float", "double", "Double", "BigDecimal"], NUMBER),
    **dict.fromkeys(["boolean", "Boolean", "bool"], BOOLEAN),
    **dict.fromkeys(["null", "None", "NoneType"], NULL),
    **dict.fromkeys(["array", "Array", "list", "List", "ArrayList", "LinkedList"], ARRAY),
    **dict.fromkeys(["Vector", "Collection", "Sequence", "Iterable"], ARRAY),
    **dict.fromkeys(["Queue", "Deque", "Stack"], ARRAY),
    **dict.fromkeys(["tuple", "Tuple"], TUPLE),
    **dict.fromkeys(["set", "Set", "frozenset", "HashSet", "LinkedHashSet", "TreeSet"], SET),
    **dict.fromkeys(["object", "Object", "dict", "Dict", "Mapping", "Map", "HashMap"], OBJECT),
    **dict.fromkeys(["LinkedHashMap", "TreeMap", "Hashtable"], OBJECT),
    "any": {},
    "Any": {},
}


def _tools(schema: Any, name: str = "f") -> list[dict[str, Any]]:
    parameters = {"type": "dict", "properties": {"x": schema}, "required": ["x"]}
    return [{"name": name, "description": "Does it.", "parameters": parameters}]


def _accepts(schema: Any, style: str, value: str) -> bool:
    language = tool_calls(_tools(schema), style=style)
    json_text = f'[{{"name": "f", "arguments": {{"x": {value}}}}}]'
    return language.accepts(json_text if style == "json" else f"[f(x={value})]")


def test_every_name_is_tried_here() -> None:
    assert {name.lower() for name in MEANING} == set(TYPE_NAMES)


@pytest.mark.parametrize("name", MEANING)
def test_a_name_stands_for_a_schema(name: str) -> None:
    expected = MEANING[name]
    assert standard_schema({"type": name}, "") == expected
    assert standard_schema({"type": "array", "items": {"type": name}}, "")["items"] == expected
    (nested,) = parse_tools(_tools(OBJECT | {"properties": {"y": {"type": name}}})).tools
    assert nested.schema["properties"]["x"]["properties"]["y"] == expected
    flat = {"name": "f", "parameters": {"x": {"type": name}}}
    assert parse_tools([flat]).tools[0].parameters[0].schema == expected


def test_the_table_in_the_documentation_has_every_name() -> None:
    page = (ROOT / "docs" / "tools.md").read_text().lower()
    table = page[page.index("| name") :].split("\n\n")[0]
    assert {name for name in TYPE_NAMES if f"`{name}`" not in table} == set()


@pytest.mark.parametrize(
    ("name", "values", "others"),
    [
        ("String", ['"ab"', '""'], ["1", "a"]),
        ("char", ['"a"', '"é"'], ['""', '"ab"', "1"]),
        ("long", ["12345678901234567890", "-1"], ["1.5", '"1"']),
        ("byte", ["1000"], ["1.5"]),  # the width of the type is not a constraint
        ("double", ["1.5", "1", "-2e-3"], ['"1.5"', "[1.5]"]),
        ("ArrayList", ['[1, "a"]', "[]"], ["1", '{"a": 1}']),
        ("HashMap", ['{"a": [1]}', "{}"], ["[]", "1"]),
        ("any", ["1", '"a"', '[[1], {"a": 2}]'], ["[[[1]]]", "a"]),
        ("tuple", ["[1, 2]"], ["1"]),
        ("Set", ["[1, 2]"], ["1"]),
    ],
)
def test_values_of_a_type_in_both_notations(
    name: str, values: list[str], others: list[str]
) -> None:
    for style in STYLES:
        assert all(_accepts({"type": name}, style, value) for value in values)
        assert not any(_accepts({"type": name}, style, value) for value in others)


def test_words_and_brackets_are_those_of_the_notation() -> None:
    for name, in_json, in_python in [
        ("Boolean", "true", "True"),
        ("null", "null", "None"),
        ("any", "false", "False"),
        ("String", r'"\u00e9"', "'é'"),
    ]:
        assert _accepts({"type": name}, "json", in_json)
        assert _accepts({"type": name}, "python", in_python)
        assert not _accepts({"type": name}, "json", in_python)
    pair = {"type": "tuple", "items": {"type": "float"}}
    assert _accepts(pair, "python", "(1.5, 2)")
    assert not _accepts(pair, "python", "('a', 2)")
    assert not _accepts(pair, "json", "(1.5, 2)")
    assert _accepts({"type": "HashSet", "items": {"type": "long"}}, "python", "{1, 2}")


# -- schemas in the dialect, and their meaning ---------------------------------------------------

LEAVES = st.sampled_from(sorted(MEANING)).map(lambda name: ({"type": name}, MEANING[name]))


def _array_of(inner: tuple[Any, Any], name: str) -> tuple[Any, Any]:
    return {"type": name, "items": inner[0]}, {**MEANING[name], "items": inner[1]}


def _object_of(inner: list[tuple[Any, Any]], name: str, optional: list[Any]) -> tuple[Any, Any]:
    """Return properties a, b, ...: some are marked optional, the others are required."""
    named = dict(zip("abc", inner, strict=False))
    says = dict(zip(named, optional, strict=False))
    required = [key for key in named if says[key] is None]
    marked = {
        k: d if says[k] is None else {**d, "optional": says[k]} for k, (d, _) in named.items()
    }
    return (
        {"type": name, "properties": marked, "required": required},
        {**OBJECT, "properties": {k: s for k, (_, s) in named.items()}, "required": required},
    )


def _map_of(inner: tuple[Any, Any]) -> tuple[Any, Any]:
    return (
        {"type": "Map", "additionalProperties": inner[0]},
        {**OBJECT, "additionalProperties": inner[1]},
    )


def _any_of(inner: list[tuple[Any, Any]]) -> tuple[Any, Any]:
    return {"anyOf": [d for d, _ in inner]}, {"anyOf": [s for _, s in inner]}


SCHEMAS = st.recursive(
    LEAVES,
    lambda inner: st.one_of(
        st.builds(_array_of, inner, st.sampled_from(["array", "ArrayList", "tuple", "Set"])),
        st.builds(
            _object_of,
            st.lists(inner, min_size=1, max_size=3),
            st.sampled_from(["dict", "object", "HashMap"]),
            st.lists(st.sampled_from([None, True, "True"]), min_size=3, max_size=3),
        ),
        st.builds(_any_of, st.lists(inner, min_size=1, max_size=2)),
        st.builds(_map_of, inner),
    ),
    max_leaves=5,
)


@settings(max_examples=30)
@given(st.lists(SCHEMAS, min_size=1, max_size=3))
def test_a_list_in_the_dialect_is_the_list_that_it_stands_for(schemas: list[Any]) -> None:
    dialect = [_tools(written, f"f{i}")[0] for i, (written, _) in enumerate(schemas)]
    standard = [_tools(meant, f"f{i}")[0] for i, (_, meant) in enumerate(schemas)]
    assert parse_tools(dialect) == parse_tools(standard)
    for style in STYLES:
        assert tool_calls(dialect, style=style, max_depth=1) == tool_calls(
            standard, style=style, max_depth=1
        )


def test_types_are_translated_wherever_a_schema_may_be() -> None:
    long, standard = {"type": "long"}, {"type": "integer"}
    for keyword in ("items", "contains", "additionalProperties", "additionalItems", "not", "if"):
        assert standard_schema({keyword: long}, "") == {keyword: standard}
    for keyword in ("anyOf", "allOf", "oneOf", "prefixItems", "items"):
        assert standard_schema({keyword: [long, True]}, "") == {keyword: [standard, True]}
    named = ("properties", "patternProperties", "dependentSchemas", "$defs", "definitions")
    for keyword in (*named, "dependencies"):
        assert standard_schema({keyword: {"type": long}}, "") == {keyword: {"type": standard}}
    for keyword in ("enum", "const", "default"):  # values, not schemas
        assert standard_schema({keyword: [long]}, "") == {keyword: [long]}


def test_several_types_are_alternatives() -> None:
    assert standard_schema({"type": ["string", "null"]}, "") == {"type": ["string", "null"]}
    assert standard_schema({"type": ["float", "null"]}, "") == {"anyOf": [NUMBER, NULL]}
    assert standard_schema({"type": ["String", "str"]}, "") == STRING
    assert standard_schema({"type": "Optional[List[str]]"}, "") == {
        "anyOf": [{"type": "array", "items": STRING}, NULL]
    }


@pytest.mark.parametrize("draft", ["draft-04", "draft-07", "draft/2019-09", "draft/2020-12"])
def test_names_of_types_in_every_draft(draft: str) -> None:
    tool = _tools({"type": "tuple", "items": {"type": "long"}})[0]
    tool["parameters"]["$schema"] = f"http://json-schema.org/{draft}/schema#"
    language = tool_calls([tool], style="python")
    assert language.accepts("[f(x=(1, 2))]")
    assert not language.accepts("[f(x=(1.5, 2))]")


# -- optional parameters -------------------------------------------------------------------------


def test_optional_decides_what_required_leaves_open() -> None:
    properties = {"a": {"type": "float"}, "b": {"type": "float", "optional": True}}
    parameters = {"type": "dict", "properties": properties, "required": ["a"]}
    for schema in (
        parameters,
        parameters | {"optional": ["b"]},
        parameters | {"properties": properties | {"b": {"type": "float", "optional": "True"}}},
        parameters | {"properties": {n: {"type": "float", "optional": False} for n in "ab"}},
    ):
        (tool,) = parse_tools([{"name": "f", "parameters": schema}]).tools
        assert [(p.name, p.schema, p.required) for p in tool.parameters] == [
            ("a", NUMBER, True),
            ("b", NUMBER, False),
        ]
    flat = {"name": "f", "parameters": properties}
    (tool,) = parse_tools([flat]).tools
    assert [p.required for p in tool.parameters] == [True, False]


def _object(**properties: Any) -> dict[str, Any]:
    return {"properties": properties, "required": ["a"]}


@pytest.mark.parametrize(
    ("parameters", "message"),
    [
        (
            _object(a={"type": "int", "optional": True}),
            "property 'a' at '/0/parameters' is marked optional",
        ),
        (
            {**_object(a={"type": "int"}), "optional": ["a"]},
            "property 'a' at '/0/parameters' is marked optional",
        ),
        (
            _object(b={"optional": "perhaps"}),
            "'optional' at '/0/parameters/properties/b' to be true or false, got 'perhaps'",
        ),
        ({"a": {"type": "int", "optional": 3}}, "'optional' at '/0/parameters/a'"),
        (
            _object(b={"type": "char", "maxLength": 5}),
            "'maxLength' at '/0/parameters/properties/b' is 5, but the type 'char' requires 1",
        ),
        (
            {"a": {"type": "char", "minLength": 2}},
            "'minLength' at '/0/parameters/a' is 2, but the type 'char' requires 1",
        ),
        ({"type": "ArrayList", "properties": {}}, "to have type 'object', got 'ArrayList'"),
    ],
)
def test_contradictions_are_refused(parameters: Any, message: str) -> None:
    with pytest.raises(ConstraintError, match=message):
        parse_tools([{"name": "f", "parameters": parameters}])


def test_members_that_a_flat_parameter_requires_of_an_object() -> None:
    point = {"type": "dict", "properties": {"x": {"type": "float"}}, "required": ["x"]}
    flat = {"name": "f", "parameters": {"at": point, "n": {"type": "int"}}}
    (tool,) = parse_tools([flat]).tools
    assert [p.required for p in tool.parameters] == [True, True]
    assert tool.parameters[0].schema == OBJECT | {"properties": {"x": NUMBER}, "required": ["x"]}
    language = tool_calls([flat], style="python")
    assert language.accepts("[f(at={'x': 1.5}, n=2)]")
    assert not language.accepts("[f(at={}, n=2)]")


# -- unknown types -------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["Widget", "", "List[Widget]", "two words", "std::vector"])
@pytest.mark.parametrize(
    ("parameters", "pointer"),
    [
        ({"properties": {"a/b": "?"}}, "/1/function/parameters/properties/a~1b"),
        ({"properties": {"a": {"items": "?"}}}, "/1/function/parameters/properties/a/items"),
        ({"a": {"type": "Map", "properties": {"b": "?"}}}, "/1/function/parameters/a/properties/b"),
        ({"$defs": {"a": {"anyOf": [True, "?"]}}}, "/1/function/parameters/$defs/a/anyOf/1"),
        ({"properties": {"a": {"type": ["null", "?"]}}}, "/1/function/parameters/properties/a"),
    ],
)
def test_an_unknown_type_is_refused_by_name_and_place(
    name: str, parameters: Any, pointer: str
) -> None:
    text = json.dumps(parameters)
    schema = {"type": name} if 'type": [' not in text else name
    filled = json.loads(text.replace('"?"', json.dumps(schema)))
    tool = {"type": "function", "function": {"name": "g", "parameters": filled}}
    with pytest.raises(UnsupportedSchemaError, match="is unknown") as caught:
        tool_calls([{"name": "f"}, tool])
    assert (caught.value.keyword, caught.value.pointer) == ("type", pointer)
    assert repr(name) in str(caught.value)
    assert all(known in str(caught.value) for known in TYPE_NAMES)


def test_too_deep_tools_and_names_that_are_no_strings_are_refused() -> None:
    deep: Any = {"type": "Widget"}
    for _ in range(2000):
        deep = {"type": "List", "items": deep}
    for parameters in ({"properties": {"a": deep}}, {"a": deep}):
        with pytest.raises(ConstraintError, match="at most 64 levels"):
            tool_calls([{"name": "f", "parameters": parameters}])
    with pytest.raises(UnsupportedSchemaError, match="'3'"):
        tool_calls(_tools({3: 1}))


# -- the leaderboard's own lists -----------------------------------------------------------------


@pytest.mark.skipif(not BFCL.is_dir(), reason="the shared BFCL questions are not there")
def test_the_leaderboards_tool_lists_compile() -> None:
    """Each list compiles in one style, alternating; `scripts.check_tools` checks both styles."""
    refused, total = [], 0
    for path in sorted(BFCL.glob("*.json")):
        for line in path.read_text().splitlines():
            record = json.loads(line)
            total += 1
            try:
                tool_calls(record["function"], style=STYLES[total % len(STYLES)])
            except ConstraintError as error:
                refused.append(f"{record['id']}: {error}")
    assert total >= 350
    assert len(refused) <= 0.01 * total, refused
